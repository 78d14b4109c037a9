"""Tuned gain on held-out traffic, on four traces and fleets, against what runs now and for every gateway's policy.

    python benchmarks/tune/run.py [--quick] [--only PART]

Needs $TFANALYZE_DATA/mooncake for the Mooncake rows; the llama.cpp sample and the synthetic trace are the project's own.  Prints the
tables and rewrites RESULTS.md (with --only, that part of it alone).  Parts: gain, rivals, samplers, pruning, optuna, workers.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = Path(os.environ.get("TFANALYZE_DATA", ROOT / ".." / "shared" / "data")).resolve()
GATEWAYS = ("llmd", "smg", "sglang", "dynamo", "vllm_router", "production_stack", "aibrix", "litellm", "envoy_lb", "ray_serve")
OURS = "tokenpilot+slomax"
SAMPLERS = ("tpe", "gp", "cmaes", "random")
MOONCAKE, MIXED = "Mooncake conversation x3", "Mooncake x3.4, two GPU types, four gateways"


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


def public(trace: Any, instances: int, load: float, *, mixed: bool = False) -> dict[str, Any]:
    """A trace on so many instances.  ``mixed``: as many of half the speed beside them, four gateways, reports every second."""
    from dataclasses import replace

    from tfanalyze.config import DEFAULT_CLASSES, EngineLimits, Fleet, Gateway, Pool
    from tfanalyze.models import load_profile
    from tfanalyze.trace import scale_load

    limits = EngineLimits(kv_tokens=600_000, max_num_batched_tokens=8192)
    profile: Any = load_profile("h100-llama3.1-70b-tp4")
    fleet = Fleet((Pool("pool", count=instances, engine=limits),))
    if mixed:
        times = {name: 2.0 * value for name in profile.step.__slots__ if name.startswith("c") and isinstance(value := getattr(profile.step, name), float)}
        gateway = Gateway(replicas=4, report_interval_s=1.0, index="approx")
        pools = (Pool("fast", count=3 * instances // 4, gpu="fast", engine=limits), Pool("slow", count=instances // 2, gpu="slow", engine=limits))
        fleet, profile = Fleet(pools, gateway=gateway), {"fast": profile, "slow": replace(profile, step=replace(profile.step, **times))}
    return {"trace": scale_load(trace, load, 1), "fleet": fleet, "profiles": profile, "classes": DEFAULT_CLASSES, "baseline": "round_robin"}


@cache
def cases() -> dict[str, dict[str, Any]]:
    from tfanalyze.synth import synth
    from tfanalyze.trace import read_trace

    found = {"llama.cpp sample": llamacpp(), "synthetic mixed": public(synth(None, seconds=1800.0, rate=9.0, seed=5), 8, 1.0)}
    path = DATA / "mooncake" / "conversation_trace.jsonl"
    if path.is_file():
        trace = read_trace(path)
        found[MOONCAKE] = public(trace, 16, 3.0)
        found[MIXED] = public(trace, 16, 3.4, mixed=True)
    return found


def tuned(case: dict[str, Any], policy: str, trials: int, baseline: str | None = None, **more: Any) -> dict[str, Any]:
    from tfanalyze.tune import tune

    with tempfile.TemporaryDirectory() as folder:
        return tune(
            case["trace"], case["fleet"], case["profiles"], case["classes"], policy=policy, baseline=baseline or case["baseline"],
            trials=trials, seed=1, accept_model_error=True,
            **({"storage": f"{folder}/study.log"} | ({"shares": case["shares"]} if "shares" in case else {}) | more),
        )  # fmt: skip


def gain(row: dict[str, Any]) -> str:
    if abs(row["gain_pct"]) > 1e5:  # against a rival that delivers nothing
        return "from nothing"
    return f"{row['gain_pct']:+.1f} % [{row['ci_low_pct']:+.1f}, {row['ci_high_pct']:+.1f}]"


def table(head: str) -> list[str]:
    return [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]


def show(lines: list[str], *cells: Any) -> None:
    lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    print(lines[-1], flush=True)


@cache
def studies(name: str, trials: int) -> dict[str, Any]:
    return tuned(cases()[name], OURS, trials)


def gain_table(trials: int, gateways: tuple[str, ...]) -> list[str]:
    """One row a trace and policy, all on the holdout: at its own defaults, tuned, and what the difference is."""
    lines = table("trace | policy | own defaults tok/s | tuned tok/s | tuned over own defaults [95 %] | tuned over present [95 %] | shed | verdict | trials | s")
    for name, case in cases().items():
        for policy in (OURS, *gateways):
            began = time.perf_counter()
            found = studies(name, trials) if policy == OURS else tuned(case, policy, trials, control=False, rivals=())
            own = found["against"][f"{policy} defaults"]
            show(
                lines, name, policy, f"{own['baseline']:,.1f}", f"{found['holdout']['tuned']:,.1f}", gain(own), gain(found["holdout"]),
                f"{100 * found['shed_share']:.1f} %", found["verdict"], found["trials"], f"{time.perf_counter() - began:.0f}",
            )  # fmt: skip
    return lines


def rivals_table(trials: int) -> list[str]:
    """TokenPilot with SLOMax, tuned, against what needs no tuning, and against random search."""
    lines = table("trace | rival | rival tok/s | tuned tokenpilot+slomax over it [95 %] | its attainment | its shed")
    for name, case in cases().items():
        for rival, row in studies(name, trials)["against"].items():
            label = f"present: {case['baseline']}" if rival == "present" else rival
            show(lines, name, label, f"{row['baseline']:,.1f}", gain(row), f"{100 * row['attainment']:.1f} %", f"{100 * row['shed_share']:.1f} %")
    return lines


def sampler_table(trials: int, samplers: tuple[str, ...]) -> list[str]:
    """Gain on the holdout by sampler at the same budget; the space is the same, so are seeds and traffic."""
    from tfanalyze.errors import TfanalyzeError

    lines = table("trace | policy | sampler | best on train | tuned over own defaults [95 %] | Optuna's share | search s")
    for name, case in cases().items():
        for policy in (OURS, "smg"):
            for sampler in samplers:
                try:
                    found = tuned(case, policy, trials, sampler=sampler, control=False, rivals=())
                except TfanalyzeError as error:
                    show(lines, name, policy, sampler, error.what, "", "", "")
                    continue
                best = f"{max(row['value'] for row in found['history']):,.1f}" if found.get("history") else "no effect, not searched"
                own = found["against"][f"{policy} defaults"]
                show(lines, name, policy, sampler, best, gain(own), f"{100 * found['optuna_share']:.0f} %", f"{found['search_s']:.1f}")
    return lines


def pruning_table(trials: int) -> list[str]:
    """The same search with and without a short look at each trial first; also on a trace as long as tune takes one for by itself."""
    from tfanalyze.synth import synth

    long = {"synthetic mixed, 130,000 requests": public(synth(None, seconds=14_400.0, rate=9.0, seed=5), 8, 1.0)}
    lines = table("trace | policy | short look | trials run whole | best on train | tuned over own defaults [95 %] | search s")
    for name, case in (cases() | long).items():
        for policy in (OURS, "smg"):
            for short in (False, True):
                found = tuned(case, policy, trials, short_look=short, control=False, rivals=())
                if not found.get("history"):
                    continue
                own, best = found["against"][f"{policy} defaults"], max(row["value"] for row in found["history"])
                show(
                    lines, name, policy, "yes" if short else "no", f"{found['full_trials']} of {found['trials']}", f"{best:,.1f}", gain(own),
                    f"{found['search_s']:.1f}",
                )  # fmt: skip
    return lines


def optuna_table() -> list[str]:
    """Optuna's share of a search of 200 trials, by the size of a replay and where the study is kept."""
    from tfanalyze.synth import synth

    small = public(synth(None, seconds=1800.0, rate=9.0, seed=5), 5, 0.6)
    lines = table("search of 200 trials | study in | search s | Optuna's share | Optuna ms a trial")
    for name, case in {"5 instances, 9,700 requests": small, MOONCAKE: cases().get(MOONCAKE)}.items():
        for where in ("memory", "journal file"):
            if case is None:
                continue
            found = tuned(case, OURS, 200, control=False, rivals=(), **({"storage": None} if where == "memory" else {}))
            each = 1000 * found["optuna_share"] * found["search_s"] / found["trials"]
            show(lines, name, where, f"{found['search_s']:.1f}", f"{100 * found['optuna_share']:.0f} %", f"{each:.1f}")
    return lines


def scale_table(trials: int) -> list[str]:
    """Seconds of one search by number of workers: threads of one process, and processes of a local Ray cluster."""
    from tfanalyze.errors import TfanalyzeError

    case = cases().get(MOONCAKE) or cases()["synthetic mixed"]
    lines = table("workers | cores | threads: search s, best | Ray: search s, best")
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
        show(lines, workers, len(os.sched_getaffinity(0)), *cells)
    return lines


PARTS = {
    "gain": (
        "Gain on traffic the search never saw",
        "*Own defaults* and *tuned* are goodput on the holdout; the two gains are paired differences there. The verdict is about the step from what runs now to the tuned policy.",
    ),
    "rivals": ("Against what needs no tuning", "Positive: tuned TokenPilot with SLOMax is better than the rival. *Random search* had as many trials."),
    "samplers": ("Samplers at the same budget", "Best on train is what the sampler sees; what counts is the gain on the holdout."),
    "pruning": ("A short look first", "The last quarter of the train window is replayed first; a trial below the median of earlier looks ends there."),
    "optuna": ("Optuna's share of the time", "Of the search's wall time, how much was spent in proposing and recording; replays of other workers run meanwhile."),
    "workers": ("Workers (the best value must not depend on them)", "One search of 60 trials."),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few trials, two gateways; RESULTS.md stays")
    parser.add_argument("--only", choices=[*PARTS, "gp"], help="this part alone; gp: the rows of that sampler, which needs PyTorch")
    args = parser.parse_args()
    trials, gateways = (12, GATEWAYS[:2]) if args.quick else (60, GATEWAYS)
    made = {
        "gain": lambda: gain_table(trials, gateways),
        "rivals": lambda: rivals_table(trials),
        "samplers": lambda: sampler_table(trials, tuple(s for s in SAMPLERS if s != "gp")),
        "pruning": lambda: pruning_table(trials),
        "optuna": optuna_table,
        "workers": lambda: scale_table(trials),
        "gp": lambda: sampler_table(trials, ("gp",)),
    }
    for part in [args.only] if args.only else PARTS:
        lines = made[part]()
        if not args.quick:
            write(part, lines)


def write(part: str, lines: list[str]) -> None:
    """Put a table into RESULTS.md in place of the old one; the rows of a sampler measured elsewhere go into the samplers' table."""
    path = HERE / "RESULTS.md"
    text = path.read_text() if path.exists() else ""
    old = {name: re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.M | re.S) for name, (title, _) in PARTS.items()}
    blocks = {name: found[0] for name, found in old.items() if found}
    if part == "gp":
        rest = [row for row in blocks.get("samplers", "").splitlines() if not re.search(r"\| gp \|", row)]
        mine = [row for row in lines if re.search(r"\| gp \|", row)]
        part, lines = "samplers", sorted({row for row in rest if row.startswith("| ")} - {lines[0]} | set(mine))
        lines = [*table("trace | policy | sampler | best on train | tuned over own defaults [95 %] | Optuna's share | search s"), *lines]
    title, how = PARTS[part]
    blocks[part] = "\n".join([f"## {title}", "", how, "", *lines, "", ""])
    body = "\n".join(blocks[name].rstrip("\n") + "\n" for name in PARTS if name in blocks)
    path.write_text(f"# Tuning: results\n\nCommand: `python benchmarks/tune/run.py`. How to read it: [docs/tuning.md](../../docs/tuning.md#measured).\n\n{body}")


if __name__ == "__main__":
    main()
