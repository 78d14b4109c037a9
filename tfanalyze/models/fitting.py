"""fit: profiles of every pool from what a workspace holds, with intervals, held-out error and health."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.config import DEFAULT_CLASSES, Fleet, Pool
from tfanalyze.errors import ProfileError, WorkspaceError
from tfanalyze.models import health, kv
from tfanalyze.models.calibrate import quiet
from tfanalyze.models.latency import (
    COEFFICIENTS,
    FORMS,
    N_STEP,
    SEQ_SHARE,
    Regression,
    Rows,
    blocks_of,
    bootstrap,
    choose_form,
    identifiability,
    predict,
    rows_from_log,
    rows_from_prior,
    solve,
    with_prior,
)
from tfanalyze.models.metricfit import fit_from_metrics
from tfanalyze.models.observe import Observations, infer_fleet, observe, open_for_reading
from tfanalyze.models.profile import Profile, StepTime, coefficients, load_profile, with_coefficients
from tfanalyze.trace import F64

if TYPE_CHECKING:
    from tfanalyze.workspace import Workspace

Progress = Callable[[float, str], None]
Fitted = tuple[dict[str, Profile], dict[str, list[Profile]], dict[str, Any]]  # profiles, draws, reports, each by profile key
LEAST_ROWS = 20
GRAPH_SEQS = 8.0  # CUDA graphs of decode as vLLM and SGLang capture them; a log without them must predict
GRAPHS_MARGIN = 0.005  # this share better without
MOST_REPLAYED = 300_000  # a whole log is replayed for its hits up to this length
MOST_ROWS = 40_000  # rows used for the regression: a contiguous part keeps neighbours together


@dataclass(frozen=True, slots=True)
class FitResult:
    """`profiles` by pool profile name, the fleet that they belong to, and the report behind them (JSON-ready)."""

    profiles: dict[str, Profile]
    fleet: Fleet
    report: dict[str, Any]
    ensemble: dict[str, list[Profile]]  # bootstrap draws of each profile


def fit(
    db: str | Path | Workspace,
    *,
    fleet: Fleet | None = None,
    calibrate: bool = True,
    draws: int = 100,
    seed: int = 1,
    prior: Profile | str | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Fit step times and KV facts to the requests and metrics of a workspace.

    `fleet` overrides what the log shows. `calibrate` replays the recorded routing and adjusts the coefficients until
    the distributions agree. `prior` (a profile or a shipped one's name) is where coefficients stay that few requests
    tell nothing about: each counts for five requests. Without timed requests the engines' metrics are fitted instead,
    where they are enough. Deterministic for one seed.

    Errors: WorkspaceError when there is nothing to fit; ProfileError when a pool has fewer than 20 timed requests.
    """
    say = progress or quiet
    if isinstance(prior, str):
        prior = load_profile(prior)
    with open_for_reading(db) as workspace:
        say(0.0, "reading requests")
        try:
            seen = observe(workspace, fleet)
        except WorkspaceError:
            found = fit_from_metrics(workspace, fleet, draws, seed)
            if found is None:
                raise
            profile, used, told, sample = found
            told["profiles"][profile.name] |= {"coefficients": coefficients(profile), "held_out": profile.held_out}
            return FitResult({profile.name: profile}, used, told, {profile.name: sample})
        used = infer_fleet(seen, fleet)
        if seen.cached_known < 0.5:
            say(0.03, "prefix hits by a first replay")
            seen = with_replayed_hits(workspace, seen, used)
        profiles: dict[str, Profile] = {}
        ensemble: dict[str, list[Profile]] = {}
        pools: dict[str, Any] = {}
        groups = _groups(seen, used)
        for i, (key, (pool, codes)) in enumerate(groups.items()):
            say(0.05 + 0.35 * i / len(groups), f"regression of {key}")
            profiles[key], ensemble[key], pools[key] = _fit_pool(seen, key, pool, codes, draws, seed, prior)
        report: dict[str, Any] = {
            "rows": seen.rows,
            "timed_rows": len(seen.log),
            "vantage": seen.vantage,
            "engine": seen.engine or "unknown",
            "assumed": list(seen.assumed),
            "kv": kv.pressure(workspace),
            "health": health.coverage(workspace, seen.vantage),
            "profiles": pools,
        }
        capacity = kv.capacity_from_use(workspace, seen.log, 0, seen.facts["origin_us"])
        if capacity:
            report["kv"]["capacity_from_use"] = capacity
        if calibrate:
            from tfanalyze.models.calibrate import calibrate_fit

            def refit(tried: Fleet, form: str = "") -> Fitted:
                """The same of another engine (other chunks, steps planned ahead) or in another form."""
                each = {key: _fit_pool(seen, key, pool, codes, draws, seed, prior, form) for key, (pool, codes) in _groups(seen, tried).items()}
                return {k: one[0] for k, one in each.items()}, {k: one[1] for k, one in each.items()}, {k: one[2] for k, one in each.items()}

            profiles, ensemble, used = calibrate_fit(workspace, seen, used, profiles, ensemble, report, say, refit=None if prior else refit)
    say(1.0, "done")
    engine = {profile_key(pool): asdict(pool.engine) for pool in used.pools}
    profiles = {key: replace(p, facts=p.facts | {"engine": engine[key]}) for key, p in profiles.items()}
    for key, profile in profiles.items():
        report["profiles"][key]["coefficients"] = coefficients(profile)
        report["profiles"][key]["held_out"] = profile.held_out
    return FitResult(profiles, used, report, ensemble)


def with_replayed_hits(workspace: Workspace, seen: Observations, fleet: Fleet) -> Observations:
    """Where the log does not say what was cached: the hits of a replay of the recorded routing with a rough profile.

    Hits depend on what was sent where and little on speed. Unchanged where the log has no prefixes.
    """
    from tfanalyze.models.calibrate import Replayer
    from tfanalyze.trace import load_trace

    if seen.rows > MOST_REPLAYED:
        return seen
    trace = load_trace(workspace, classes=DEFAULT_CLASSES)
    if not trace.block_size:
        return seen
    rough = load_profile("h100-llama3.1-8b")
    profiles = {profile_key(pool): rough for pool in fleet.pools}
    outcome = Replayer(trace, fleet, profiles, DEFAULT_CLASSES)(profiles)
    hits = {
        key: int(hit)
        for *key_parts, hit in zip(np.rint(trace.arrival_s * 1e6), trace.input_tokens, trace.output_tokens, outcome.hit_tokens, strict=True)
        for key in [tuple(int(x) for x in key_parts)]
    }
    log = seen.log
    keys = zip(np.rint((log.arrival_s - log.arrival_s[0]) * 1e6), log.input_tokens, log.output_tokens, strict=True)
    cached = np.array([hits.get((int(a), int(b), int(c)), np.nan) for a, b, c in keys], dtype=np.float64)
    if np.isnan(cached).mean() > 0.1:
        return seen
    said = np.where(np.isnan(log.cached_tokens), np.nan_to_num(cached), log.cached_tokens)
    note = "cached_tokens: not in the log, taken from a replay of its prefixes"
    return replace(seen, log=replace(log, cached_tokens=said), assumed=(*seen.assumed, note))


def profile_key(pool: Pool) -> str:
    """Name of a pool's profile: as configured, else its GPU type, else its own."""
    return pool.profile or (pool.gpu if pool.gpu != "default" else pool.name)


def _groups(seen: Observations, fleet: Fleet) -> dict[str, tuple[Pool, list[int]]]:
    """Profile key -> one of its pools and the log's instances in any of them."""
    from tfanalyze.replay.fleet import instance_names, pool_of

    names, pools = instance_names(fleet), pool_of(fleet)
    by_name = dict(zip(names, pools, strict=True))
    if not all(name in by_name for name in seen.log.instances):
        order = _fleet_order(seen, fleet)
        by_name = {name: pools[order[i]] for i, name in enumerate(seen.log.instances)}
    groups: dict[str, tuple[Pool, list[int]]] = {}
    for code, name in enumerate(seen.log.instances):
        pool = by_name[name]
        groups.setdefault(profile_key(pool), (pool, []))[1].append(code)
    return groups


def _fleet_order(seen: Observations, fleet: Fleet) -> list[int]:
    """Fleet index of each of the log's instances: by site and model where the fleet was inferred, else in order."""
    from tfanalyze.replay.fleet import pool_of

    pools = pool_of(fleet)
    free = list(range(len(pools)))
    order: list[int] = []
    for site, model in zip(seen.sites, seen.models, strict=True):
        fits = [n for n in free if pools[n].site == site and pools[n].model in ("", model)] or free
        if not fits:
            raise ProfileError(
                f"the log names {len(seen.log.instances)} instances, the fleet has {len(pools)}", "fleet", "add the missing pool to tfanalyze.toml"
            )
        order.append(fits[0])
        free.remove(fits[0])
    return order


def _regressed(seen: Observations, pool: Pool, codes: list[int], form: str) -> tuple[Rows, Regression, list[dict[str, Any]], float]:
    """Rows, regression, all forms tried, and the CUDA graphs' batch sizes (StepTime.graph_seqs), of one pool."""
    graphs = pool.engine.scheduler != "llamacpp"
    step = choose_form(_rows(seen, pool, codes, None, graphs))[0].step()
    found: list[tuple[float, float, Rows, Regression, list[dict[str, Any]]]] = []
    for padded in (True, False) if graphs else (False,):
        rows = _rows(seen, pool, codes, step, padded)  # now that steps have a duration, the batch is averaged over them
        fitted, forms = choose_form(rows, form)
        error = next(row["held_out_relative_error"] for row in forms if row["form"] == fitted.form)
        found.append((error * (1.0 + GRAPHS_MARGIN if found else 1.0), GRAPH_SEQS if padded else 0.0, rows.at_split(fitted.split_seqs), fitted, forms))
    _, graph_seqs, rows, fitted, forms = min(found, key=lambda one: one[0])
    return rows, fitted, forms, graph_seqs


def _rows(seen: Observations, pool: Pool, codes: list[int], step: StepTime | None, graphs: bool) -> Rows:
    engine, mine = pool.engine, seen.log.take(np.isin(seen.log.instance, codes))
    share = 0.0 if engine.scheduler == "llamacpp" else SEQ_SHARE  # what is known of GPUs says nothing of a CPU
    rows = rows_from_log(mine, engine.max_num_batched_tokens, engine.async_scheduling, step, graphs, share)
    if len(rows) > MOST_ROWS:
        rows = rows.take(np.argsort(rows.at_s, kind="stable")[-MOST_ROWS:])
    return rows


def _fit_pool(
    seen: Observations, key: str, pool: Pool, codes: list[int], draws: int, seed: int, prior: Profile | None, form: str = ""
) -> tuple[Profile, list[Profile], dict[str, Any]]:
    """One pool's profile, its bootstrap draws and the report; `form` instead of the one that predicts best."""
    chosen = np.isin(seen.log.instance, codes)
    if chosen.sum() < (1 if prior else LEAST_ROWS):
        raise ProfileError(
            f"pool '{key}' has {int(chosen.sum())} timed requests, a fit needs {LEAST_ROWS}", key, "ingest more of the log, or start from a shipped profile (prior)"
        )
    form = _form_of(prior) if prior else form
    believed = rows_from_prior(prior.step, prior.request_s, FORMS[form]) if prior else None
    rows, fitted, forms, graph_seqs = _regressed(seen, pool, codes, form)
    if believed is not None:
        both, weight = with_prior(rows, believed)
        found = solve(both, FORMS[form], weight)
        fitted = replace(fitted, coefficients=found.coefficients, residuals=found.residuals[: len(rows)])
    names = tuple(name for name in FORMS[fitted.form] if name in fitted.coefficients)
    sample = bootstrap(rows, names, count=draws, seed=seed, prior=believed)
    low, high = np.quantile(sample, 0.05, axis=0), np.quantile(sample, 0.95, axis=0)
    overhead = float(seen.facts.get("overhead_s", 0.0))

    def make(values: dict[str, float]) -> Profile:
        return _profile(values, key, pool, seen, overhead, StepTime(c0_s=0.0, split_seqs=fitted.split_seqs, graph_seqs=graph_seqs))

    bounds = [{name: float(value) for name, value in zip(names, edge, strict=True)} for edge in (low, high)]
    if overhead:
        bounds[0]["request_s"], bounds[1]["request_s"] = seen.facts["overhead_low_s"], seen.facts["overhead_high_s"]
    reason = _reason(fitted.form, forms) if prior is None else f"all coefficients of the prior {prior.name}"
    profile = replace(
        make(fitted.coefficients),
        low=bounds[0],
        high=bounds[1],
        held_out=_regression_error(rows, names),
        trusted=_regime(seen, chosen, rows),
        facts={
            "rows": int(chosen.sum()), "form": fitted.form, "form_reason": reason, "calibrated": False, "sources": "requests of the workspace",
            "prior": prior.name if prior else "none", "queue": "observed" if seen.queue_known else "inferred: first come, first served",
            "cached_tokens_known": round(seen.cached_known, 4),
        },
    )  # fmt: skip
    report = {
        "rows": int(chosen.sum()), "form": fitted.form, "forms": forms,
        "form_reason": reason,
        "identifiability": identifiability(sample, names, rows),
        "health": health.residual_health(rows, fitted.residuals, seen.log.instances),
        "residuals": _residuals(rows, fitted, seen.log.instances),
    }  # fmt: skip
    return profile, [make(dict(zip(names, row, strict=True))) for row in sample], report


def _form_of(prior: Profile) -> str:
    """The shortest form that has all coefficients of the prior."""
    known = {name for name in COEFFICIENTS if (getattr(prior.step, name, 0.0) or getattr(prior, name, 0.0)) > 0}
    wide = [name for name in FORMS if known - {"c_decode_step_s"} <= set(FORMS[name])]
    return wide[0] if wide else list(FORMS)[-1]


def _profile(values: dict[str, float], key: str, pool: Pool, seen: Observations, overhead_s: float, shape: StepTime) -> Profile:
    step = {name: float(values[name]) for name in COEFFICIENTS[:N_STEP] if name in values}
    return Profile(
        name=key, step=with_coefficients(shape, step),
        request_s=float(values.get("request_s", 0.0)) or overhead_s, request_token_s=float(values.get("request_token_s", 0.0)),
        gpu=pool.gpu, model=pool.model, kv_tokens=pool.engine.kv_tokens, block_size=pool.engine.block_size,
    )  # fmt: skip


def _reason(form: str, forms: list[dict[str, Any]]) -> str:
    error = {row["form"]: row["held_out_relative_error"] for row in forms}
    best = min(error, key=lambda name: error[name])
    if best == form:
        return f"least held-out error over time blocks ({error[form]:.1%})"
    return f"held-out error {error[form]:.1%}; '{best}' has {error[best]:.1%}, too little better to pay for its extra coefficients"


def _regression_error(rows: Rows, names: tuple[str, ...]) -> dict[str, float]:
    """Median relative error of intervals in the last 30 % of time, by a fit to the first 70 %."""
    late = blocks_of(rows, 10) >= 7
    fitted = solve(rows.take(~late), names)
    out: dict[str, float] = {}
    for kind, name in ((0, "prefill_interval"), (1, "decode_interval")):
        test = rows.take(late & (rows.kind == kind))
        if len(test):
            out[name] = float(np.median(np.abs(predict(test, fitted.coefficients) / test.seconds - 1.0)))
    return out


def _residuals(rows: Rows, fitted: Regression, instances: tuple[str, ...]) -> dict[str, Any]:
    """Median and 90th percentile of absolute relative residuals by interval kind, median residual by instance."""

    def of(values: F64) -> dict[str, float]:
        return {"median": float(np.median(values)), "abs_p50": float(np.median(np.abs(values))), "abs_p90": float(np.quantile(np.abs(values), 0.9))}

    kinds = {name: of(fitted.residuals[rows.kind == k]) for k, name in ((0, "prefill"), (1, "decode")) if (rows.kind == k).any()}
    each = {name: of(fitted.residuals[rows.instance == c]) for c, name in enumerate(instances) if (rows.instance == c).any()}
    return {"by_kind": kinds, "by_instance": each}


def _regime(seen: Observations, chosen: Any, rows: Rows) -> dict[str, tuple[float, float]]:
    """What the fit has seen: outside of it a replay is extrapolation."""
    log = seen.log.take(chosen)
    decode = rows.kind == 1
    batch = rows.work[decode, 5] / np.maximum(rows.work[decode, 0], 1.0)
    reads = rows.work[decode, 6] / np.maximum(rows.work[decode, 0], 1.0)
    out = {"input_tokens": log.input_tokens, "output_tokens": log.output_tokens}
    if decode.any():
        out |= {"decode_seqs": batch, "kv_tokens_read": reads}
    return {name: (float(np.quantile(values, 0.001)), float(np.quantile(values, 0.999))) for name, values in out.items()}
