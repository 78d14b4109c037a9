"""Our engine against another one: Dynamo 1.6.1's recorded per-request results, same step times, same traces.

    python benchmarks/replay/crosscheck.py

Needs $TFANALYZE_DATA/peers/golden and $TFANALYZE_DATA/mooncake.  Prints TTFT and E2E percentiles of both and the difference, and
rewrites CROSSCHECK.md.  Both are simulators: agreement checks the scheduling, not the truth.
"""

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("TFANALYZE_DATA", HERE.parents[1] / ".." / "shared" / "data")).resolve()
KV_TOKENS = 16_384 * 64  # Dynamo's default of 16,384 blocks of 64 tokens; the reuse figures agree with it
QUANTILES = (50, 90, 95, 99)


def profile_of(timing: str) -> Any:
    """The two timing models of the recorded runs, in our terms."""
    from tfanalyze.models.profile import Profile, StepTime

    if timing == "fixed100_10":  # 100 ms a pass with prefill, 10 ms with decode, added in a mixed pass
        return Profile(timing, StepTime(c0_s=0.0, c_prefill_step_s=0.1, c_decode_step_s=0.01))
    # 16.50142 + 0.01518344 n + 4.209989e-7 n^2 ms; 5.74 + 54.01 p - 25.74 p^2 ms with p = tokens read / capacity
    return Profile(
        timing,
        StepTime(
            c0_s=0.0, c_prefill_step_s=0.01650142, c_prefill_s=1.518344e-5, c_prefill2_s=4.209989e-10, c_decode_step_s=0.00574,
            c_kv_s=0.05401 / KV_TOKENS, c_kv2_s=-0.02574 / KV_TOKENS**2,
        ),
    )  # fmt: skip


def golden(name: str) -> dict[str, Any]:
    with gzip.open(DATA / "peers" / "golden" / name, "rt") as file:
        rows = list(csv.DictReader(file))
    return {key: np.array([float(row[key]) for row in rows]) for key in ("ttft_ms", "e2e_ms", "reused_input_tokens")}


def compare(trace: Any, label: str, timing: str, workers: int) -> list[str]:
    from tfanalyze.config import EngineLimits, Fleet, Pool, SloClass
    from tfanalyze.replay import replay

    peer = golden(f"dynamo161_mooncake_{label}_{timing}_rr{workers}.csv.gz")
    limits = EngineLimits(kv_tokens=KV_TOKENS, block_size=64, max_num_batched_tokens=8192, max_num_seqs=256)
    fleet = Fleet((Pool("p", count=workers, engine=limits),))
    outcome = replay(trace, fleet, "round_robin", profile_of(timing), classes=(SloClass(trace.classes[0]),))
    ours = {"ttft_ms": outcome.first_token_s - outcome.arrival_s, "e2e_ms": outcome.finish_s - outcome.arrival_s}
    cells = []
    for key in ("ttft_ms", "e2e_ms"):
        for q in QUANTILES:
            a, b = np.percentile(ours[key], q), np.percentile(peer[key], q) / 1000
            cells.append(f"{a:.3f} / {b:.3f} ({100 * (a / b - 1):+.1f} %)")
    tokens = float(trace.input_tokens.sum())
    reuse = f"{outcome.hit_tokens.sum() / tokens:.4f} / {peer['reused_input_tokens'].sum() / tokens:.4f}"
    return [label, timing, str(workers), reuse, *cells]


def main() -> None:
    from tfanalyze.trace import read_trace

    if not (DATA / "peers" / "golden").is_dir():
        print(f"no recorded results at {DATA / 'peers' / 'golden'}: set TFANALYZE_DATA")
        return
    head = ["trace", "timing", "workers", "reuse", *(f"TTFT P{q} s" for q in QUANTILES), *(f"E2E P{q} s" for q in QUANTILES)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for label in ("conversation", "synthetic"):
        trace = read_trace(DATA / "mooncake" / f"{label}_trace.jsonl")
        trace = replace(trace, classes=("all",), slo_class=np.zeros(len(trace), np.int8))
        for timing in ("fixed100_10", "poly"):
            for workers in (4, 16):
                lines.append("| " + " | ".join(compare(trace, label, timing, workers)) + " |")
    text = "\n".join(lines)
    print(text)
    (HERE / "CROSSCHECK.md").write_text(
        "# Cross-check with NVIDIA Dynamo 1.6.1's offline replay\n\nCommand: `python benchmarks/replay/crosscheck.py`. Each cell: ours / theirs "
        f"(difference), seconds.\nRound robin, {KV_TOKENS:,} tokens of KV a worker.\n\n{text}\n\nWhat differs, and why: `docs/engine.md`, section 10.\n"
    )


if __name__ == "__main__":
    main()
