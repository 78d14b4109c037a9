"""Real files are taken as docs/formats.md says, and the page's tables are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ingest import doc_tables
from tfanalyze.ingest import ingest_logs
from tfanalyze.workspace import Workspace


@pytest.mark.parametrize("pattern", [*doc_tables.REAL_LOGS, *doc_tables.REAL_METRICS])
def test_real_files(pattern: str, data_dir: Path) -> None:
    line = doc_tables.real(pattern, pattern in doc_tables.REAL_LOGS, data_dir)
    if line is None:
        pytest.skip(f"no {pattern} below {data_dir}")
    assert line in doc_tables.section(doc_tables.PAGE.read_text(), "real")


@pytest.mark.parametrize("name", ["formats", "shapes", "rules", "names"])
def test_the_page_is_up_to_date(name: str) -> None:
    """Run `python -m tests.ingest.doc_tables` when it is not."""
    assert doc_tables.section(doc_tables.PAGE.read_text(), name) == getattr(doc_tables, name)()


def test_known_facts_of_real_traces(data_dir: Path) -> None:
    """Published counts and lengths: Azure conv 2023, Mooncake conversation, our own two-instance run."""
    with Workspace.open(":memory:") as db:
        ingest_logs([data_dir / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv"], db=db)
        row = db.con.execute("SELECT count(*), median(input_tokens), median(output_tokens), (max(arrival_us) - min(arrival_us)) / 1e6 FROM requests").fetchone()
        assert row is not None and row[:3] == (19366, 1020, 129) and row[3] == pytest.approx(3501.7, abs=0.1)
    with Workspace.open(":memory:") as db:
        ingest_logs([data_dir / "mooncake" / "conversation_trace.jsonl"], db=db)
        row = db.con.execute("SELECT count(*), count(*) FILTER (len(blocks) = ceil(input_tokens / 512)), max(input_tokens) FROM requests").fetchone()
        assert row == (12031, 12031, 126195)
    with Workspace.open(":memory:") as db:
        ingest_logs([data_dir / "llamacpp_two_instances" / "rr-mid" / "requests.jsonl"], db=db)
        row = db.con.execute("SELECT count(DISTINCT instance), count(*) FILTER (ttft_us <= e2e_us AND cached_tokens <= input_tokens), any_value(block_size) FROM requests").fetchone()
        assert row == (2, 132, 25)
