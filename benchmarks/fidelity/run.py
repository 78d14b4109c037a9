"""Fidelity on real sets: fit on one part, predict another. `python benchmarks/fidelity/run.py [--quick]`.

Prints one table and rewrites RESULTS.md. Every row is a fit on the runs left of the arrow (or, "first 70 %", on the
first 70 % of requests by arrival) and a prediction of what is right of it, never seen by the fit.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import sets

from tfanalyze.models import fit, validate
from tfanalyze.models.fitting import FitResult
from tfanalyze.models.latency import FORMS, predict, solve

Table = list[dict[str, Any]]
LOOKED_AT = (
    "What was looked at while the method was made: the terms of the step time and the weights of the regression were settled on B200 tp1 (all runs) and "
    "RTX 4090; B200 tp8 and RTX PRO 6000 Llama were watched meanwhile, and that 9 to 16 sequences share a CUDA graph was learnt from tp8_bs16; the llama.cpp "
    "runs were looked at for drift and contention. Qwen3 was seen in this table only."
)
QUANTILES = ("p50", "p95", "p99")


def row_of(train: str, test: str, errors: dict[str, Any], note: str = "", inside: str = "-") -> dict[str, Any]:
    out: dict[str, Any] = {"train": train, "test": test, "capacity": errors.get("capacity_tok_s")}
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        out[metric] = [errors[metric].get(q) for q in QUANTILES]
    return out | {"note": note, "inside": inside}


def held_out_row(name: str, result: FitResult) -> dict[str, Any]:
    found = result.report["calibration"]["held_out_calibrated"]
    errors: dict[str, Any] = {m: {q: found.get(f"{m}_{q}") for q in QUANTILES} for m in ("ttft_s", "tpot_s", "e2e_s")}
    return row_of(f"{name}, first 70 %", "last 30 %", errors, "same run: the two parts overlap in the engine")


def sweep_rows(quick: bool) -> Table:
    pairs = [(("tp1_bs16", "tp1_bs64"), "tp1_bs32")]
    if not quick:
        pairs += [
            (("tp1_bs16", "tp1_bs32"), "tp1_bs64"), (("tp1_bs32", "tp1_bs64"), "tp1_bs16"),
            (("tp1_bs16", "tp1_bs32", "tp1_bs64"), "tp1_bs256"), (("tp8_bs16",), "tp8_bs64"), (("tp8_bs64",), "tp8_bs16"),
        ]  # fmt: skip
    out: Table = []
    for train, test in pairs:
        learn, judge = sets.sweep(*(f"{t}_offloadoff" for t in train)), sets.sweep(f"{test}_offloadoff")
        result = fit(learn.workspace, fleet=learn.fleet, draws=40)
        got = validate(judge.workspace, result.profiles, fleet=judge.fleet, ensemble=result.ensemble)
        hit, counted = got["predicted"]["prefix_hit_share"], judge.counted_hit_share
        drift = [f for f in result.report["profiles"]["b200"]["health"] if f["kind"] == "drift"]
        note = f"hits {hit:.2f}, engine counted {counted:.2f}" + ("; drift found in the training runs" if drift else "")
        out.append(row_of("B200 70B " + " + ".join(train), test, got["errors"], note, covered(got)))
    return out


def untold_rows() -> Table:
    """The same through the commands' own path: raw files ingested, no configuration given, everything else inferred."""
    out: Table = []
    for train, test in (("tp1_bs32", "tp1_bs64"), ("tp1_bs64", "tp1_bs32"), ("tp1_bs16", "tp1_bs32"), ("tp8_bs64", "tp8_bs16"), ("tp8_bs16", "tp8_bs64")):
        learn, judge = sets.sweep_raw(f"{train}_offloadoff"), sets.sweep_raw(f"{test}_offloadoff")
        result = fit(learn, draws=40)
        got = validate(judge, result.profiles, ensemble=result.ensemble)
        engine = result.fleet.pools[0].engine
        note = f"KV {engine.kv_tokens:,} tokens inferred" + (", 782,160 true" if "tp1" in train else "")
        note += f"; planned ahead: {'yes' if engine.async_scheduling else 'no'} inferred, yes true"
        out.append(row_of(f"B200 70B {train}, nothing told", test, got["errors"], note, covered(got)))
    run = sets.llmservingsim("RTX4090/Llama-3.1-8B")
    result = fit(run.workspace, draws=20)
    row = held_out_row("RTX4090 8B, nothing told", result)
    return [*out, row | {"note": f"KV {result.fleet.pools[0].engine.kv_tokens:,} tokens inferred, 41,408 true"}]


def covered(got: dict[str, Any]) -> str:
    """How many of the observed P50 and P95 lie inside the 90 % prediction intervals."""
    inside = [
        got["intervals"][m][q][0] <= got["observed"][m][q] <= got["intervals"][m][q][1] for m in ("ttft_s", "tpot_s", "e2e_s") for q in ("p50", "p95")
    ]
    return f"{sum(inside)}/{len(inside)}"


def step_row() -> Table:
    """Steps sampled by the scheduler of vLLM on H100: regression on the first 70 %, error on the rest."""
    rows = sets.blis_steps("codellama-34b")
    late = rows.at_s > np.quantile(rows.at_s, 0.7)
    names = FORMS["and KV reads"]
    fitted = solve(rows.take(~late), names)
    error = np.abs(predict(rows.take(late), fitted.coefficients) / rows.seconds[late] - 1)
    note = f"{int(late.sum())} steps: median error {np.median(error):.1%}, P95 {np.quantile(error, 0.95):.1%}"
    return [row_of("H100 CodeLlama-34B TP2 steps, first 70 %", "last 30 % of steps", {m: {} for m in ("ttft_s", "tpot_s", "e2e_s")}, note)]


def scheduler_rows(quick: bool) -> Table:
    names = ["RTX4090/Llama-3.1-8B"]
    if not quick:
        names += ["RTXPRO6000/Llama-3.1-8B", "RTXPRO6000/Qwen3-30B-A3B-Instruct-2507"]
    out: Table = []
    for name in names:
        run = sets.llmservingsim(name)
        out.append(held_out_row(name, fit(run.workspace, fleet=run.fleet, draws=20)))
    return out


def policy_rows() -> tuple[Table, list[str]]:
    """Another routing policy and load on a real fleet: the sign and size of the change is what counts."""
    runs = {name: sets.llamacpp(name) for name in ("rr-low", "rr-mid", "affinity-mid")}
    fits = {name: fit(runs[name].workspace, draws=40) for name in ("rr-low", "rr-mid")}
    out: Table = []
    lines: list[str] = []
    for train, test in (("rr-low", "rr-mid"), ("rr-mid", "rr-low"), ("rr-low", "affinity-mid"), ("rr-mid", "affinity-mid")):
        got = validate(runs[test].workspace, fits[train].profiles, ensemble=fits[train].ensemble)
        note = f"hits {got['predicted']['prefix_hit_share']:.2f}, observed {got['observed']['prefix_hit_share']:.2f}"
        out.append(row_of(f"llama.cpp {train}", test, got["errors"], note, covered(got)))
    before = validate(runs["rr-mid"].workspace, fits["rr-low"].profiles)
    after = validate(runs["affinity-mid"].workspace, fits["rr-low"].profiles)
    right = total = 0
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        for q in ("p50", "p95"):
            predicted = after["predicted"][metric][q] / before["predicted"][metric][q] - 1
            measured = after["observed"][metric][q] / before["observed"][metric][q] - 1
            total += 1
            right += predicted * measured > 0
            lines.append(f"| {metric} {q} | {measured:+.0%} | {predicted:+.0%} |")
    lines.append(f"\nSign right in {right} of {total}. Profile fitted on rr-low alone.")
    drift = [f["text"] for f in fits["rr-mid"].report["profiles"]["pool"]["health"]]
    return out, [*lines, "\nHealth of rr-mid as found by the fit:", *(f"- {text}" for text in drift)]


def render(table: Table) -> str:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:+.1%}"

    head = "| fitted on | predicted | capacity | TTFT P50 / P95 / P99 | TPOT P50 / P95 / P99 | E2E P50 / P95 / P99 | inside 90 % interval | notes |\n|---|---|---|---|---|---|---|---|"
    rows = [
        f"| {r['train']} | {r['test']} | {share(r['capacity'])} | "
        + " | ".join(" / ".join(share(v) for v in r[m]) for m in ("ttft_s", "tpot_s", "e2e_s"))
        + f" | {r['inside']} | {r['note']} |"
        for r in table
    ]
    return "\n".join([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one row of each kind")
    quick = parser.parse_args().quick
    start = time.perf_counter()
    table, policy = policy_rows()
    table = scheduler_rows(quick) + step_row() + sweep_rows(quick) + ([] if quick else untold_rows()) + table
    text = "\n\n".join(
        [
            "# Fidelity: predicted / observed - 1 on what the fit never saw",
            f"`python benchmarks/fidelity/run.py{' --quick' if quick else ''}`, Python {platform.python_version()}, "
            f"{time.perf_counter() - start:.0f} s. Sets and sources: docs/models.md.",
            LOOKED_AT,
            render(table),
            "## A change of policy and load on a real fleet: rr-mid -> affinity-mid",
            "| metric | measured change | predicted change |\n|---|---|---|\n" + "\n".join(policy),
        ]
    )
    print(text)
    if not quick:
        Path(__file__).with_name("RESULTS.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
