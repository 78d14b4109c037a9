"""A run made up with numpy: plausible queues and misses of any size, for the report's tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfanalyze.config import DEFAULT_CLASSES, Fleet, Pool, Site
from tfanalyze.replay.outcome import Outcome
from tfanalyze.slo import summarise
from tfanalyze.trace import Trace, from_columns

INSTANCES = 8


def made_trace(n: int, seed: int = 1, rate: float = 40.0) -> Trace:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate, n) * (1 + 0.6 * np.sin(np.linspace(0, 12, n))))
    kind = rng.choice(3, n, p=(0.7, 0.2, 0.1))
    prompt = np.exp(rng.normal(np.array([6.0, 9.0, 7.0])[kind], 0.7)).astype(int) + 1
    answer = np.exp(rng.normal(np.array([5.0, 5.0, 6.0])[kind], 0.6)).astype(int) + 1
    names = np.array(["interactive", "long_context", "offline"])[kind]
    ttft_s = rng.lognormal(-0.4, 0.9, n)
    e2e_s = ttft_s + answer * rng.lognormal(-3.4, 0.4, n)
    return from_columns(
        arrival_s=arrival_s, input_tokens=prompt, output_tokens=answer, slo_class=list(names),
        classes=("interactive", "long_context", "offline"), name="made", notes=("the block size was taken as 16 tokens",),
        instance=[f"i{k}" for k in rng.integers(0, INSTANCES, n)],
        observed={"ttft_s": ttft_s, "e2e_s": e2e_s, "queue_s": ttft_s * 0.4, "cached_tokens": prompt // 3, "status": np.zeros(n, np.int8)},
    )  # fmt: skip


def made_outcome(trace: Trace, speed: float, seed: int = 2, series: bool = True) -> Outcome:
    """Times that grow with a made-up load; some requests are shed, some time out."""
    rng = np.random.default_rng(seed)
    n = len(trace)
    load = 1.2 + np.sin(np.linspace(0, 12, n))
    gateway_s = rng.exponential(0.05, n)
    queue_s = rng.exponential(0.5, n) * load / speed
    prefill_s = trace.input_tokens * 8e-5 / speed + 0.02
    decode_s = trace.output_tokens * rng.lognormal(-3.3, 0.3, n) / speed
    status = np.zeros(n, np.int8)
    status[rng.random(n) < 0.02 / speed] = 2
    shed = rng.random(n) < 0.03
    status[shed] = 4
    reason = np.where(shed, 1, 0).astype(np.int8)
    bad = status != 0
    never = lambda values: np.where(bad, np.nan, values)  # noqa: E731
    admit_s = trace.arrival_s + gateway_s
    start_s, first_s = admit_s + queue_s, admit_s + queue_s + prefill_s
    instance = rng.integers(0, INSTANCES, n).astype(np.int32)
    bins = 60
    wave = 4 * (1 + np.sin(np.linspace(0, 12, bins)))[:, None]
    columns: dict[str, Any] = {
        "t_s": np.linspace(trace.arrival_s[0], trace.arrival_s[-1], bins),
        "running": rng.random((bins, INSTANCES)) * 4 * wave, "waiting": rng.random((bins, INSTANCES)) * wave,
        "kv_used_share": np.clip(rng.random((bins, INSTANCES)) * 0.3 + wave / 12, 0, 1),
        "quota": np.cumsum(rng.normal(0, 2, (bins, 3)), axis=0) + np.array([60.0, 20.0, 30.0]),
    }  # fmt: skip
    return Outcome(
        arrival_s=trace.arrival_s, admit_s=np.where(shed, np.nan, admit_s), start_s=never(start_s), first_token_s=never(first_s),
        finish_s=never(first_s + decode_s), status=status, reason=reason, attempts=np.ones(n, np.int8),
        instance=np.where(shed, -1, instance).astype(np.int32), hit_tokens=(trace.input_tokens * rng.random(n) * 0.5).astype(np.int32),
        delivered_tokens=np.where(bad, 0, trace.output_tokens).astype(np.int32), preemptions=(rng.random(n) < 0.01).astype(np.int16),
        waste_tokens={"timeout": 40 * n, "preempt": 7 * n}, instance_names=tuple(f"i{k}" for k in range(INSTANCES)),
        instance_busy_s=rng.random(INSTANCES) * 0.4 * trace.span_s + 0.5 * trace.span_s, seed=seed, trace_hash="0123456789abcdef",
        profile_hash="fedcba9876543210", policy={"instance": {"name": "made"}}, kernel_s=0.1, series=columns if series else None,
    )  # fmt: skip


def made_fleet() -> Fleet:
    half = INSTANCES // 2
    return Fleet((Pool("east", "east", half), Pool("west", "west", INSTANCES - half)), (Site("east", 0.002), Site("west", 0.03)))


def made_bundle(n: int = 4000) -> dict[str, Any]:
    """A bundle with every part of the report filled."""
    trace = made_trace(n)
    runs = {}
    for label, speed in (("round_robin", 1.0), ("least_requests", 1.15), ("tokenpilot+slomax (tuned)", 1.6)):
        outcome = made_outcome(trace, speed, seed=round(10 * speed))
        runs[label] = {"trace": trace, "outcome": outcome, "summary": summarise(trace, outcome, DEFAULT_CLASSES)}
    return {
        "runs": runs, "fleet": made_fleet(), "classes": DEFAULT_CLASSES, "tune": made_tune(), "validate": made_validation(),
        "fit": made_fit(), "workload": {"requests": n, "span_s": trace.span_s, "sources": [{"path": "a.jsonl", "rows": n}]},
        "ceilings": {"infinite cache": 5200.0, "perfect signals": 5050.0}, "assumed": ["SLO class interactive: TTFT <= 2 s (default)"],
        "export": {"target": "tokenfleet", "out": "export", "files": ["tokenfleet.yaml"], "diff": "-cache_weight: 1\n+cache_weight: 1.7"},
        "meta": {"version": "0.1.0", "command": "tfanalyze report", "seed": 1, "trace_hash": "0123456789abcdef"},
    }  # fmt: skip


def made_tune() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    values = 4000 + 600 * (1 - np.exp(-np.arange(80) / 20)) + rng.normal(0, 120, 80)
    return {
        "trials": 80, "wall_s": 41.0, "optuna_share": 0.12, "policy": "tokenpilot+slomax", "objective": "goodput", "seed": 1,
        "verdict": "gain", "verdict_reason": "The interval lies above zero at every load.", "direction": "maximize",
        "holdout": {"baseline": 3900.0, "tuned": 4650.0, "gain_pct": 19.2, "ci_low_pct": 12.1, "ci_high_pct": 26.6},
        "by_load": {"0.8": {"gain_pct": 6.0, "ci_low_pct": 1.0, "ci_high_pct": 11.0}, "1": {"gain_pct": 19.2, "ci_low_pct": 12.1, "ci_high_pct": 26.6},
                    "1.2": {"gain_pct": 31.0, "ci_low_pct": 20.0, "ci_high_pct": 43.0}},
        "history": [{"trial": k, "value": float(v)} for k, v in enumerate(values)],
        "importance": {"tokenpilot.cache_weight": 0.55, "slomax.interactive_share": 0.3, "tokenpilot.kv_knee": 0.15},
        "best_params": {"tokenpilot.cache_weight": 1.7, "tokenpilot.kv_knee": 0.9},
        "changed_params": {"tokenpilot.cache_weight": {"from": 1.0, "to": 1.7}},
        "baselines": {"least_requests": 4100.0, "lmetric": 4300.0, "random search": 4420.0},
        "pareto": [{"values": {"goodput": 4650.0, "p95_ttft": 2.0}}, {"values": {"goodput": 4500.0, "p95_ttft": 1.4}}],
        "shed_share": 0.03, "canary": {"share": 0.5, "hours": 6.0, "metric": "attainment"},
    }  # fmt: skip


def made_validation() -> dict[str, Any]:
    observed = {"ttft_s": {"p50": 0.6, "p95": 2.9, "p99": 5.5}, "tpot_s": {"p50": 0.03, "p95": 0.06, "p99": 0.09},
                "e2e_s": {"p50": 6.0, "p95": 22.0, "p99": 40.0}, "output_tok_s": 5900.0, "goodput_tok_s": 3900.0, "prefix_hit_share": 0.33}  # fmt: skip
    predicted: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for k, (name, value) in enumerate(observed.items()):
        factor = 1.06 - 0.03 * k
        predicted[name] = {q: v * factor for q, v in value.items()} if isinstance(value, dict) else value * factor
        errors[name] = dict.fromkeys(value, factor - 1) if isinstance(value, dict) else factor - 1
    return {"observed": observed, "predicted": predicted, "errors": errors, "worst_windows": [{"start_s": 0.0, "end_s": 60.0, "metric": "ttft_s", "requests": 12, "error": 0.3}]}


def made_fit() -> dict[str, Any]:
    coefficients = {"c0_s": {"value": 0.004, "low": 0.003, "high": 0.005, "unit": "s a step"}}
    return {"profiles": {"pool": {"coefficients": coefficients, "held_out": {"ttft_s_p95": 0.08}}}, "assumed": ["8 slots"]}
