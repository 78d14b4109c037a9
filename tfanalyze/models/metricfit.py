"""A fit from engine metrics alone: between two scrapes of a busy engine, time equals the cost of the work counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.config import EngineLimits, Fleet, Pool
from tfanalyze.models.health import residual_health
from tfanalyze.models.kv import capacity_from_metrics, pressure
from tfanalyze.models.latency import COEFFICIENTS, FORMS, Rows, bootstrap, choose_form, identifiability
from tfanalyze.models.profile import Profile, StepTime, with_coefficients
from tfanalyze.trace import F64

if TYPE_CHECKING:
    from tfanalyze.workspace import Workspace

LEAST_SCRAPES = 50
NEEDED = ("running", "generation_tokens_total")
USED = (*NEEDED, "prompt_tokens_total", "computed_prompt_tokens_total", "prefix_hit_tokens_total", "requests_finished_total", "kv_usage")


def scrapes(workspace: Workspace) -> dict[str, dict[str, F64]]:
    """By instance: `ts_s` and the used metrics as columns over common scrape times; NaN where a metric is missing."""
    got = workspace.con.execute(
        "SELECT coalesce(instance, 'default') AS instance, ts_us, "
        + ", ".join(f"sum(value) FILTER (name = '{name}') AS {name}" for name in USED)
        + " FROM metrics WHERE name IN ("
        + ", ".join(f"'{name}'" for name in USED)
        + ") GROUP BY ALL ORDER BY instance, ts_us"
    ).fetchnumpy()
    instance = np.asarray(got["instance"]).astype(str)
    out: dict[str, dict[str, F64]] = {}
    for one in np.unique(instance) if len(instance) else ():
        mine = instance == one
        columns = {name: np.asarray(np.ma.filled(np.ma.asarray(got[name]).astype(np.float64), np.nan))[mine] for name in USED}
        if not any(np.isnan(columns[name]).all() for name in NEEDED):
            out[str(one)] = columns | {"ts_s": np.asarray(got["ts_us"], dtype=np.float64)[mine] * 1e-6}
    return out


def rows_from_metrics(workspace: Workspace, capacity_tokens: int) -> Rows:
    """One observation an interval between scrapes in which the engine ran something at both ends and made tokens.

    Steps are tokens made over sequences running; prompt tokens are those computed (counted, else all less hits), each
    request's at its mean position; KV tokens read are the KV use times the capacity.
    """
    parts: list[tuple[F64, F64, F64, int]] = []
    for code, (_, at) in enumerate(sorted(scrapes(workspace).items())):
        step = {name: np.diff(at[name]) for name in (*USED, "ts_s")}
        running = (at["running"][1:] + at["running"][:-1]) / 2.0
        made = step["generation_tokens_total"]
        computed = step["computed_prompt_tokens_total"]
        if np.isnan(computed).all():
            computed = step["prompt_tokens_total"] - np.nan_to_num(step["prefix_hit_tokens_total"])
        finished = np.nan_to_num(step["requests_finished_total"])
        use = np.nan_to_num((at["kv_usage"][1:] + at["kv_usage"][:-1]) / 2.0)
        keep = (at["running"][1:] >= 1) & (at["running"][:-1] >= 1) & (made > 0) & (step["ts_s"] > 0) & (computed >= 0)
        steps = made / np.maximum(running, 1.0)
        work = np.zeros((len(made), len(COEFFICIENTS)))
        per_request = computed / np.maximum(finished, 1.0)
        values = (steps, np.minimum(finished, steps), steps, computed, computed * per_request / 2.0, made, steps * use * capacity_tokens)
        for column, value in enumerate(values):
            work[:, column] = value
        parts.append((work[keep], step["ts_s"][keep], at["ts_s"][1:][keep], code))
    if not parts:
        return Rows(np.zeros((0, len(COEFFICIENTS))), np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int8))
    return Rows(
        np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts]),
        np.concatenate([np.full(len(p[1]), p[3], np.int64) for p in parts]), np.concatenate([np.full(len(p[1]), 1, np.int8) for p in parts]),
    )  # fmt: skip


def regime_of(rows: Rows) -> dict[str, Any]:
    """Sequences and KV tokens a step that the metrics show (P0.1 to P99.9)."""
    steps = np.maximum(rows.work[:, 0], 1e-9)
    columns = {"decode_seqs": rows.work[:, 5] / steps, "kv_tokens_read": rows.work[:, 6] / steps}
    return {name: (float(np.quantile(v, 0.001)), float(np.quantile(v, 0.999))) for name, v in columns.items()}


def fit_from_metrics(workspace: Workspace, fleet: Fleet | None, draws: int, seed: int) -> tuple[Profile, Fleet, dict[str, Any], list[Profile]] | None:
    """Profile, fleet, report and bootstrap draws from metrics alone; None where they show fewer than LEAST_SCRAPES busy intervals.

    Nothing in the metrics tells a request's own overhead: `request_s` is 0.
    """
    instances = sorted(scrapes(workspace))
    told = capacity_from_metrics(workspace)
    engine = fleet.pools[0].engine if fleet else EngineLimits()
    if fleet is None and told[0]:
        engine = replace(engine, kv_tokens=told[0], block_size=told[1] or engine.block_size)
    rows = rows_from_metrics(workspace, engine.kv_tokens)
    if len(rows) < LEAST_SCRAPES:
        return None
    used = fleet or Fleet((Pool("pool", count=len(instances), engine=engine),))
    pool = used.pools[0]
    key = pool.profile or (pool.gpu if pool.gpu != "default" else pool.name)
    fitted, forms = choose_form(rows)
    names = tuple(name for name in FORMS[fitted.form] if name in fitted.coefficients)
    sample = bootstrap(rows, names, count=draws, seed=seed)

    def make(values: Mapping[str, float]) -> Profile:
        step = with_coefficients(StepTime(c0_s=0.0), values)
        return Profile(key, step, gpu=pool.gpu, model=pool.model, kv_tokens=engine.kv_tokens, block_size=engine.block_size)

    low, high = np.quantile(sample, 0.05, axis=0), np.quantile(sample, 0.95, axis=0)
    profile = replace(
        make(fitted.coefficients), trusted=regime_of(rows),
        low={name: float(v) for name, v in zip(names, low, strict=True)}, high={name: float(v) for name, v in zip(names, high, strict=True)},
        facts={"rows": len(rows), "form": fitted.form, "calibrated": False, "sources": "engine metrics alone", "engine": asdict(engine)},
    )  # fmt: skip
    assumed = ["request_s 0 (no request timings)"]
    if fleet is None:
        assumed += ([] if told[0] else [f"kv_tokens {engine.kv_tokens} (no metric says it)"]) + [f"max_num_seqs {engine.max_num_seqs}"]
    one = {"rows": len(rows), "form": fitted.form, "forms": forms, "identifiability": identifiability(sample, names, rows)}
    one |= {"health": residual_health(rows, fitted.residuals, tuple(instances))}
    report = {
        "rows": 0, "timed_rows": 0, "vantage": "metrics", "engine": "unknown", "assumed": assumed, "kv": pressure(workspace), "health": [],
        "profiles": {key: one}, "calibration": {"done": False, "why": "no request timings to compare a replay with"},
    }  # fmt: skip
    return profile, used, report, [make(dict(zip(names, row, strict=True))) for row in sample]
