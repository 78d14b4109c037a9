"""Tuned gain on held-out traffic, on three traces, against what runs now and against every gateway's policy.

    python benchmarks/tune/run.py [--quick]

Needs $TFANALYZE_DATA/mooncake for the Mooncake rows; the llama.cpp sample and the synthetic trace are the project's own.  Prints two
tables (gain on holdout; samplers at the same budget) and rewrites RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = Path(os.environ.get("TFANALYZE_DATA", ROOT / ".." / "shared" / "data")).resolve()
GATEWAYS = ("llmd", "smg", "sglang", "dynamo", "vllm_router", "production_stack", "aibrix", "litellm", "envoy_lb", "ray_serve")
OURS = "tokenpilot+slomax"


def llamacpp() -> dict[str, Any]:
    """The measured two-engine sample, with the profile and the fleet fitted on two of its runs."""
    from dataclasses import replace

    import numpy as np

    from tfanalyze.config import load_config
    from tfanalyze.demo import PAUSE_S, SHARES
    from tfanalyze.ingest import ingest_logs, ingest_metrics
    from tfanalyze.models import fit
    from tfanalyze.trace import load_trace

    samples = ROOT / "sample_traces"
    classes = load_config(samples / "tfanalyze.toml").classes
    with tempfile.TemporaryDirectory() as folder:
        known, every = f"{folder}/known.duckdb", f"{folder}/all.duckdb"
        for run in ("rr-low", "rr-mid"):
            ingest_logs([samples / run / "requests.jsonl.zst"], db=known)
            ingest_metrics(sorted((samples / run).glob("metrics*.zst")), db=known)
        ingest_logs(sorted(samples.glob("*/requests.jsonl.zst")), db=every)
        fitted = fit(known)
        trace = load_trace(every, classes=classes)
    gaps = np.minimum(np.diff(trace.arrival_s, prepend=trace.arrival_s[0]), PAUSE_S)  # the runs were hours apart
    trace = replace(trace, arrival_s=np.cumsum(gaps))
    return {"shares": SHARES, "trace": trace, "fleet": fitted.fleet, "profiles": fitted.profiles, "classes": classes, "baseline": "recorded"}


def public(trace: Any, instances: int, load: float) -> dict[str, Any]:
    from tfanalyze.config import DEFAULT_CLASSES, EngineLimits, Fleet, Pool
    from tfanalyze.models import load_profile
    from tfanalyze.trace import scale_load

    limits = EngineLimits(kv_tokens=600_000, max_num_batched_tokens=8192)
    fleet = Fleet((Pool("pool", count=instances, engine=limits),))
    return {
        "trace": scale_load(trace, load, 1), "fleet": fleet, "profiles": load_profile("h100-llama3.1-70b-tp4"),
        "classes": DEFAULT_CLASSES, "baseline": "round_robin",
    }  # fmt: skip


def cases() -> dict[str, dict[str, Any]]:
    from tfanalyze.synth import synth
    from tfanalyze.trace import read_trace

    found = {"llama.cpp sample": llamacpp(), "synthetic mixed": public(synth(None, seconds=1800.0, rate=9.0, seed=5), 8, 1.0)}
    path = DATA / "mooncake" / "conversation_trace.jsonl"
    if path.is_file():
        found["Mooncake conversation x3"] = public(read_trace(path), 16, 3.0)
    return found


def tuned(case: dict[str, Any], policy: str, trials: int, baseline: str | None = None, **more: Any) -> dict[str, Any]:
    from tfanalyze.tune import tune

    with tempfile.TemporaryDirectory() as folder:
        return tune(
            case["trace"], case["fleet"], case["profiles"], case["classes"], policy=policy, baseline=baseline or case["baseline"],
            trials=trials, seed=1, storage=f"{folder}/study.log", accept_model_error=True,
            **({"shares": case["shares"]} if "shares" in case else {}), **more,
        )  # fmt: skip


def gain(found: dict[str, Any]) -> str:
    h = found["holdout"]
    return f"{h['gain_pct']:+.1f} % [{h['ci_low_pct']:+.1f}, {h['ci_high_pct']:+.1f}]"


def gain_table(trials: int, gateways: tuple[str, ...]) -> list[str]:
    """One row a trace and policy: tuned against the present policy, and ours against the policy at its defaults."""
    lines = ["| trace | policy tuned | present | gain on holdout [95 %] | goodput tok/s | shed | verdict | trials | s |", "|---|---|---|---|---|---|---|---|---|"]
    for name, case in cases().items():
        for policy in (OURS, *gateways):
            began = time.perf_counter()
            found = tuned(case, policy, trials)
            lines.append(
                f"| {name} | {policy} | {case['baseline']} | {gain(found)} | {found['holdout']['tuned']:,.1f} | {100 * found['shed_share']:.1f} % "
                f"| {found['verdict']} | {found['trials']} | {time.perf_counter() - began:.0f} |"
            )
            if policy == OURS:
                for rival, goodput in found["baselines"].items():
                    lines.append(f"| {name} | ({rival}, as it is) | | | {goodput:,.1f} | | | | |")
            print(lines[-1], flush=True)
    return lines


def sampler_table(trials: int) -> list[str]:
    """Best value on the train window, and Optuna's share of the time, by sampler at the same budget."""
    from tfanalyze.errors import TfanalyzeError

    lines = ["| trace | sampler | gain on holdout [95 %] | goodput tok/s | Optuna's share | wall s |", "|---|---|---|---|---|---|"]
    for name, case in cases().items():
        for sampler in ("tpe", "gp", "cmaes", "random"):
            try:
                found = tuned(case, OURS, trials, sampler=sampler)
            except TfanalyzeError as error:
                lines.append(f"| {name} | {sampler} | {error.what} | | | |")
                continue
            lines.append(
                f"| {name} | {sampler} | {gain(found)} | {found['holdout']['tuned']:,.1f} | {100 * found['optuna_share']:.0f} % | {found['wall_s']:.1f} |"
            )
            print(lines[-1], flush=True)
    return lines


def scale_table(trials: int) -> list[str]:
    """Seconds of one search by number of workers: threads of one process, and processes of a local Ray cluster."""
    from tfanalyze.errors import TfanalyzeError

    case = cases().get("Mooncake conversation x3") or cases()["synthetic mixed"]
    lines = ["| workers | cores | threads: search s, best | Ray: search s, best |", "|---|---|---|---|"]
    for workers in (1, 2, 4):
        cells = []
        for ray in (None, "local"):
            try:
                found = tuned(case, OURS, trials, workers=workers, ray=ray, control=False, rivals=())
            except TfanalyzeError as error:
                cells.append(error.what)
                continue
            best = max(row["value"] for row in found["history"])
            cells.append(f"{found['search_s']:.1f}, {best:,.3f}")
        lines.append(f"| {workers} | {len(os.sched_getaffinity(0))} | {cells[0]} | {cells[1]} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few trials, two gateways; RESULTS.md stays")
    args = parser.parse_args()
    gains = gain_table(12 if args.quick else 60, GATEWAYS[:2] if args.quick else GATEWAYS)
    samplers = sampler_table(12 if args.quick else 60)
    scale = scale_table(12 if args.quick else 60)
    if not args.quick:
        tables = ["", "## Workers (the best value must not depend on them)", "", *scale]
        text = "\n".join(["## Gain on traffic the search never saw", "", *gains, "", "## Samplers at the same budget", "", *samplers, *tables])
        (HERE / "RESULTS.md").write_text(f"# Tuning: results\n\nCommand: `python benchmarks/tune/run.py`.\n\n{text}\n")


if __name__ == "__main__":
    main()
