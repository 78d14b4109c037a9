"""Does the replay rank policies as real runs did?  VTC-artifact (admission) and AIBrix (routing stacks).

The latency model is calibrated on ONE of the measured policies only (FCFS; the naive stack at its lowest load); the others are predicted.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from measure import table

from tfanalyze.config import EngineLimits, Fleet, Pool, SloClass
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay import Simulator
from tfanalyze.replay.policies import load_policy
from tfanalyze.trace import Trace, from_columns

ANY = (SloClass("interactive"),)


def kendall(a: Any, b: Any) -> float:
    """Kendall's tau-b: agreement of two rankings over all pairs, ties counted."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    i, j = np.triu_indices(len(a), 1)
    da, db = np.sign(a[i] - a[j]), np.sign(b[i] - b[j])
    size = np.sqrt((da != 0).sum() * (db != 0).sum())
    return float((da * db).sum() / size) if size else float("nan")


def section(data: Path) -> str:
    text = "## Rankings against measured runs (Kendall tau-b)\n"
    for name, part in (("vtc_artifact", vtc), ("aibrix", aibrix)):
        folder = data / name
        text += "\n" + (
            part(folder) if folder.is_dir() else f"{name}: no data at {folder}, set TFANALYZE_DATA\n"
        )
    return text


# --- VTC: 1,500 requests of 27 tenants, one A10G, Llama-2-7b under S-LoRA ---------------------------------------------

VTC_FILES = {  # measured file -> policies, settings
    "FCFS": ("round_robin", {}),
    "VTC": ("round_robin+vtc_fair", {"limit_requests": 0}),  # the limit is set to the calibrated batch
    "LShare__rpm5": ("round_robin+request_rate", {"requests_per_min": 5}),
    "LShare__rpm15": ("round_robin+request_rate", {"requests_per_min": 15}),
    "LShare__rpm30": ("round_robin+request_rate", {"requests_per_min": 30}),
}


def vtc_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    with (folder / f"{name}__all_results_real.jsonl").open() as file:
        rows: list[dict[str, Any]] = json.loads(file.readline())["result"]["responses"]
    return rows


def vtc_trace(rows: list[dict[str, Any]]) -> Trace:
    return from_columns(
        arrival_s=[r["req_time"] for r in rows], input_tokens=[max(1, r["prompt_len"]) for r in rows],
        output_tokens=[max(1, r["output_len"]) for r in rows], tenant=[r["adapter_dir"] for r in rows],
    )  # fmt: skip


def vtc_measures(ttft: Any, e2e: Any, served: Any, tenant: Any, output: Any) -> dict[str, float]:
    by_tenant = [
        ttft[served & (tenant == t)].mean() for t in np.unique(tenant) if (served & (tenant == t)).any()
    ]
    return {
        "mean TTFT s": float(ttft[served].mean()),
        "median tenant's TTFT s": float(np.median(by_tenant)),
        "worst tenant's TTFT s": float(np.max(by_tenant)),
        "mean E2E s": float(e2e[served].mean()),
        "served share": float(served.mean()),
        "output tokens": float(output[served].sum()),
    }


def vtc_measured(rows: list[dict[str, Any]]) -> dict[str, float]:
    column = {
        k: np.array([r[k] for r in rows])
        for k in ("first_token_latency", "request_latency", "output_len", "adapter_dir")
    }
    ttft = column["first_token_latency"]
    return vtc_measures(
        ttft, column["request_latency"], ttft >= 0.0, column["adapter_dir"], column["output_len"]
    )


def vtc_replayed(
    trace: Trace, fleet: Fleet, profile: Profile, spec: tuple[str, dict[str, float]]
) -> dict[str, float]:
    outcome = Simulator(trace, fleet, profile, ANY).run(load_policy(*spec))
    ttft, e2e = outcome.first_token_s - outcome.arrival_s, outcome.finish_s - outcome.arrival_s
    return vtc_measures(ttft, e2e, outcome.status == 0, trace.tenant, trace.output_tokens)


def vtc_calibrate(trace: Trace, rows: list[dict[str, Any]]) -> tuple[Profile, int]:
    """Step time by least squares on the measured gaps is not identifiable from one run: c0 and the batch by grid on FCFS's TTFT."""
    measured = vtc_measured(rows)
    best: tuple[float, Profile, int] = (np.inf, Profile("", StepTime()), 0)
    for step_s in (0.030, 0.033, 0.036, 0.039):
        for seq_s in (0.0001, 0.0002, 0.0003, 0.0004):
            for batch in (16, 18, 20, 22, 24, 26, 28):
                profile = Profile("a10g", StepTime(c0_s=step_s, c_prefill_s=1.5e-4, c_seq_s=seq_s))
                found = vtc_replayed(trace, vtc_fleet(batch), profile, VTC_FILES["FCFS"])
                error = sum(
                    abs(found[k] / measured[k] - 1.0)
                    for k in ("mean TTFT s", "median tenant's TTFT s", "mean E2E s")
                )
                if error < best[0]:
                    best = (error, profile, batch)
    return best[1], best[2]


def vtc_fleet(batch: int) -> Fleet:
    return Fleet(
        (
            Pool(
                "a10g",
                engine=EngineLimits(
                    max_num_seqs=batch,
                    kv_tokens=20_000,
                    cache="none",
                    scheduler="sglang",
                    new_token_ratio=0.0,
                ),
            ),
        )
    )


def vtc(folder: Path) -> str:
    fcfs = vtc_rows(folder, "FCFS")
    trace = vtc_trace(fcfs)
    profile, batch = vtc_calibrate(trace, fcfs)
    measured = {name: vtc_measured(vtc_rows(folder, name)) for name in VTC_FILES}
    replayed = {}
    for name, (policy, settings) in VTC_FILES.items():
        given = {**settings, "limit_requests": batch} if name == "VTC" else settings
        replayed[name] = vtc_replayed(trace, vtc_fleet(batch), profile, (policy, given))
    keys = list(measured["FCFS"])
    rows = [
        [name, *(f"{measured[name][k]:,.2f} / {replayed[name][k]:,.2f}" for k in keys)] for name in VTC_FILES
    ]
    taus = [kendall([measured[n][k] for n in VTC_FILES], [replayed[n][k] for n in VTC_FILES]) for k in keys]
    rows.append(["Kendall tau-b", *(f"{tau:.2f}" for tau in taus)])
    return (
        f"### VTC-artifact: five admission policies, measured / replayed\n\nCalibrated on FCFS alone: step {profile.step.c0_s * 1e3:.0f} ms + "
        f"{profile.step.c_seq_s * 1e3:.1f} ms a sequence, batch {batch}.\n\n" + table(["policy", *keys], rows) + "\n"
    )  # fmt: skip


# --- AIBrix: five stacks at eleven request rates, eight replicas, 21,073-token prompts ----------------------------------

TOKEN_BYTES = 131_072  # Llama-3.1-8B: 32 layers x 8 KV heads x 128 x 2 x 2 bytes
STACKS = {  # file prefix -> policies, host-memory KV tokens (LMCACHE_MAX_LOCAL_CPU_SIZE 120 GB)
    "naive": ("random", 0),
    "aibrix_naive_7": ("random", 0),
    "ps_naive": ("session_affinity", 0),
    "ps_stack_high_low": ("session_affinity", 120 * 10**9 // TOKEN_BYTES),
    "ps_stack_low_high": ("session_affinity", 120 * 10**9 // TOKEN_BYTES),
}
SYSTEM, USER, BLOCK = 1000, 20_000, 40  # shared system prompt and a user's own history, in tokens


def stack_rows(folder: Path, stack: str) -> list[dict[str, float]]:
    rows = []
    for path in sorted((folder / "ps_experiment_v0.2.1").glob(f"{stack}_output_*.csv")):
        with path.open() as file:
            rows += [
                {k: float(v) for k, v in r.items()} | {"qps": float(path.stem.rpartition("_")[2])}
                for r in csv.DictReader(file)
            ]
    return sorted(rows, key=lambda r: r["launch_time"])


def stack_trace(rows: list[dict[str, float]]) -> Trace:
    """All rates one after the other, as they ran: caches carry over from one rate to the next."""
    start, users = rows[0]["launch_time"], {}
    blocks, prev, last = [], [], {}
    per_user = USER // BLOCK
    for row, r in enumerate(rows):
        user = int(r["user_id"])
        first = SYSTEM // BLOCK + per_user * users.setdefault(user, len(users))
        blocks.append([*range(SYSTEM // BLOCK), *range(first, first + per_user)])
        prev.append(last.get(user, -1))
        last[user] = row
    return from_columns(
        arrival_s=[r["launch_time"] - start for r in rows], input_tokens=[int(r["prompt_tokens"]) for r in rows],
        output_tokens=[max(1, int(r["generation_tokens"])) for r in rows], blocks=blocks, block_size=BLOCK, prev=prev,
    )  # fmt: skip


def stack_calibrate(rows: list[dict[str, float]]) -> Profile:
    """Cold prefill and token gap from the naive stack's lowest rate, where every request is alone."""
    alone = [r for r in rows if r["qps"] == min(r["qps"] for r in rows)]
    cold = float(np.percentile([r["ttft"] for r in alone], 75))
    gap = float(np.median([r["generation_time"] / (r["generation_tokens"] - 1) for r in alone]))
    length = float(np.median([r["prompt_tokens"] for r in alone]))
    per_token = (cold - gap) / (length * 1.3)  # attention over 21,000 tokens: about 30 % of it (8B model)
    return Profile(
        "a100-8b", StepTime(c0_s=gap, c_prefill_s=per_token, c_attn_s=0.6 * per_token / length, c_kv_s=1e-8)
    )


def aibrix(folder: Path) -> str:
    profile = stack_calibrate(stack_rows(folder, "naive"))
    measured, replayed = {}, {}
    for stack, (policy, host_tokens) in STACKS.items():
        rows = stack_rows(folder, stack)
        engine = EngineLimits(
            scheduler="sglang", new_token_ratio=0.0, max_num_batched_tokens=32_000, block_size=BLOCK, kv_tokens=412_000,
            host_kv_tokens=host_tokens, host_load_tok_s=160_000.0 if host_tokens else 0.0,
        )  # fmt: skip
        outcome = Simulator(
            stack_trace(rows), Fleet((Pool("a100", count=8, engine=engine),)), profile, ANY
        ).run(policy)
        ttft = outcome.first_token_s - outcome.arrival_s
        qps = np.array([r["qps"] for r in rows])
        real = np.array([r["ttft"] for r in rows])
        for rate in np.unique(qps):
            measured[stack, rate], replayed[stack, rate] = (
                real[qps == rate].mean(),
                np.nanmean(ttft[qps == rate]),
            )
    rates = sorted({rate for _, rate in measured})
    lines, taus = [], []
    for rate in rates:
        a, b = [measured[s, rate] for s in STACKS], [replayed[s, rate] for s in STACKS]
        taus.append(kendall(a, b))
        lines.append(
            [f"{rate:g}", *(f"{x:.2f} / {y:.2f}" for x, y in zip(a, b, strict=True)), f"{taus[-1]:.2f}"]
        )
    whole = kendall(list(measured.values()), [replayed[key] for key in measured])
    return (
        "### AIBrix experiment v0.2.1: mean TTFT in s, measured / replayed\n\nThree kinds of stack can be expressed: a Kubernetes service (random), a session-affine router, and "
        "that router with LMCache's host tier; the distributed KV cache of aibrix_kvcache cannot.\n\n"
        + table(["requests/s", *STACKS, "tau-b"], lines)
        + f"\n\nTau-b over all {len(measured)} cells {whole:.2f}, mean of the rows {np.nanmean(taus):.2f}. The two random stacks are the same policy: "
        "their order is chance in both columns.\n"
    )
