"""docs/policies.md: the example runs, the reference is what the declarations say."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import fields
from pathlib import Path

import numpy as np

from tfanalyze.config import DEFAULT_CLASSES, Fleet, Pool
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay import replay
from tfanalyze.replay.policies import POLICIES, load_policy
from tfanalyze.replay.policies.loading import policy_class
from tfanalyze.testing import check_policy
from tfanalyze.trace import from_columns

DOC = Path(__file__).resolve().parents[3] / "docs" / "policies.md"
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->"
HOOKS = {"instance": "Instance", "site": "Site", "admit": "Admission"}


def example() -> str:
    found = re.search(r"^```python\n(# my_policy.py\n.*?)^```", DOC.read_text(), re.M | re.S)
    assert found
    return found.group(1)


def test_the_example_is_short_and_runs_compiled(tmp_path: Path) -> None:
    text = example()
    assert len(text.splitlines()) < 40
    file = tmp_path / "my_policy.py"
    file.write_text(text)
    policy = load_policy(f"{file}:StayHome", {"stay_home.bonus_s": 0.5})
    check_policy(type(policy.instance))
    draw, n = np.random.default_rng(2), 300
    trace = from_columns(
        arrival_s=np.cumsum(draw.exponential(0.05, n)), input_tokens=draw.integers(100, 3000, n),
        output_tokens=draw.integers(10, 200, n), prev=np.arange(n) - 10 * (np.arange(n) >= 10) - (np.arange(n) < 10) * (np.arange(n) + 1),
    )  # fmt: skip
    profile = Profile("test", StepTime(c0_s=0.006, c_prefill_s=5e-5, c_seq_s=5e-5))
    outcome = replay(trace, Fleet((Pool("p", count=4),)), policy, profile, classes=DEFAULT_CLASSES)
    assert (outcome.status == 0).all()
    stayed = outcome.instance[10:] == outcome.instance[:-10]
    assert stayed.mean() > 0.5


def reference() -> str:
    lines: list[str] = []
    for kind, title in HOOKS.items():
        lines += [f"### {title}", ""]
        for name in POLICIES:
            cls = policy_class(name)
            if cls.kind != kind:  # type: ignore[attr-defined]
                continue
            summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
            lines += [f"**`{name}`** {summary}", ""]
            declared = fields(cls)
            if declared:
                lines += ["| parameter | default | range | unit | meaning |", "|---|---|---|---|---|"]
            for entry in declared:
                meta = entry.metadata
                choices = meta["choices"]
                default = f"`{choices[int(entry.default)]}`" if choices else f"{entry.default:g}"
                allowed = (
                    ", ".join(f"`{c}`" for c in choices)
                    if choices
                    else f"{meta['low']:g} to {meta['high']:g}"
                )
                fixed = "" if meta["tune"] else " (fixed)"
                lines.append(
                    f"| `{entry.name}` | {default} | {allowed} | {meta['unit']} | {meta['doc']}{fixed} |"
                )
            lines += [""] if declared else []
    return "\n".join(lines)


def test_the_reference_is_current() -> None:
    text = DOC.read_text()
    head, rest = text.split(BEGIN)
    wanted = f"{head}{BEGIN}\n{reference()}\n{END}{rest.split(END)[1]}"
    if os.environ.get("UPDATE_DOCS"):
        DOC.write_text(wanted)
        text = wanted
    assert text == wanted, "run: UPDATE_DOCS=1 pytest tests/replay/policies/test_policies_doc.py"
