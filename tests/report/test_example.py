"""The committed example report is a whole one, within its budget, and free of this or that machine's paths."""

from __future__ import annotations

import re
from pathlib import Path

REPORTS = Path(__file__).resolve().parents[2] / "reports"


def test_example_is_complete_and_small() -> None:
    text = (REPORTS / "example.html").read_text()
    assert len(text) < 6_000_000
    assert text.count("<figure") > 20
    assert 'class="note missing"' not in text, "every part of the example is filled"
    page = re.sub(r'<script type="text/plain" id="plotly">.*?</script>', "", text, flags=re.S)
    assert not re.search(r"/(home|root|tmp|work|Users)/", page)
    assert "tfanalyze demo" in (REPORTS / "README.md").read_text()
