"""validate: replay the recorded routing and hold it against what was observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.config import DEFAULT_CLASSES, EngineLimits, Fleet, SloClass
from tfanalyze.errors import WorkspaceError
from tfanalyze.models.calibrate import Replayer, observed, quiet, simulated
from tfanalyze.models.observe import infer_fleet, observe, open_for_reading
from tfanalyze.models.profile import Profile
from tfanalyze.trace import F64, I8, I32, Trace

if TYPE_CHECKING:
    from tfanalyze.replay import Outcome
    from tfanalyze.workspace import Workspace

Progress = Callable[[float, str], None]
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
GATED = ("p50", "p95")  # quantiles that --max-error looks at; P99 of a small log is noise
LEAST_ERROR = 0.02  # no model of an engine is better than this
WINDOWS = 12
SERIES_BINS = 200


@dataclass(frozen=True, slots=True)
class ObservedEnds:
    """What the log saw, in the shape that slo.py reads."""

    arrival_s: F64
    first_token_s: F64
    finish_s: F64
    status: I8
    reason: I8
    hit_tokens: I32
    delivered_tokens: I32
    waste_tokens: dict[str, int]


def observed_ends(trace: Trace) -> ObservedEnds:
    """Ends of every row as the log has them; a row without an end counts as not served."""
    seen = trace.observed
    assert seen is not None
    done = np.isfinite(seen.e2e_s) & ((seen.status == 0) | (seen.status == -1))
    return ObservedEnds(
        arrival_s=trace.arrival_s,
        first_token_s=np.where(done, trace.arrival_s + seen.ttft_s, np.nan),
        finish_s=np.where(done, trace.arrival_s + seen.e2e_s, np.nan),
        status=np.where(done, 0, 1).astype(np.int8),
        reason=np.zeros(len(trace), np.int8),
        hit_tokens=np.maximum(seen.cached_tokens, 0),
        delivered_tokens=np.where(done, trace.output_tokens, 0).astype(np.int32),
        waste_tokens={},
    )


def validate(
    db: str | Path | Workspace,
    profile: Profile | Mapping[str, Profile] | None = None,
    *,
    max_error: float | None = None,
    fleet: Fleet | None = None,
    classes: tuple[SloClass, ...] = DEFAULT_CLASSES,
    ensemble: Mapping[str, list[Profile]] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Replay the recorded routing of a workspace with a profile and compare with observation.

    Without a profile one is fitted to the same workspace: then the errors are of the fit, not held out, and the result
    says so. `ok` is False when `max_error` (a share) is given and the capacity error, or the largest P50 or P95
    latency error, is above it. Errors are relative and signed: predicted / observed - 1.

    Errors: WorkspaceError when the requests have no observed latencies.
    """
    from tfanalyze.trace import load_trace

    say = progress or quiet
    with open_for_reading(db) as workspace:
        say(0.0, "reading requests")
        seen = observe(workspace, fleet, limits_of(profile))
        used = infer_fleet(seen, fleet)
        held_out = profile is not None
        if profile is None:
            from tfanalyze.models.fitting import fit

            result = fit(workspace, fleet=fleet, draws=20, progress=lambda share, what: say(0.7 * share, what))
            profile, used = result.profiles, result.fleet
        trace = load_trace(workspace, classes=classes)
        if trace.observed is None or not np.isfinite(trace.observed.ttft_s).any():
            raise WorkspaceError("its requests have no observed latencies to compare with", workspace.path, "ingest a log with timings")
        say(0.75, "replaying the recorded routing")
        profiles = {profile.name: profile} if isinstance(profile, Profile) else dict(profile)
        replayer = Replayer(trace, used, profiles, classes, series_bins=SERIES_BINS)
        outcome = replayer(profiles)
        say(0.9, "comparing")
        out = compare(trace, outcome, classes)
        out["state"] = _state(workspace, trace, outcome)
    if ensemble:
        out["intervals"] = prediction_intervals(replayer, ensemble)
    out["held_out"] = held_out
    out["assumed"] = list(seen.assumed)
    out["regime"] = regime(trace, profiles)
    return out | gate(out["errors"], max_error, out["regime"])


def limits_of(profile: Profile | Mapping[str, Profile] | None) -> EngineLimits | None:
    """The engine limits that a fit found, from the one profile that has them."""
    many = [profile] if isinstance(profile, Profile) else list((profile or {}).values())
    known = [p.facts["engine"] for p in many if isinstance(p.facts.get("engine"), dict)]
    return EngineLimits(**known[0]) if len(known) == 1 else None


def compare(trace: Trace, outcome: Outcome, classes: tuple[SloClass, ...]) -> dict[str, Any]:
    """Observed and predicted metrics with their errors: overall, by class, by time window."""
    from tfanalyze.slo import summarise

    ends = observed_ends(trace)
    obs, sim = summarise(trace, ends, classes), summarise(trace, outcome, classes)
    for summary, source in ((obs, ends), (sim, outcome)):
        summary["capacity_tok_s"] = capacity_tok_s(source)
        for part in summary["by_class"].values():
            part["capacity_tok_s"] = None
    return {
        "requests": len(trace),
        "observed": _contract(obs),
        "predicted": _contract(sim),
        "errors": _errors(obs, sim),
        "by_class": {
            name: {"observed": _contract(obs["by_class"][name]), "predicted": _contract(sim["by_class"][name]), "errors": _errors(obs["by_class"][name], sim["by_class"][name])}
            for name in obs["by_class"]
        },
        "worst_windows": worst_windows(trace, outcome),
    }


def capacity_tok_s(ends: Any) -> float | None:
    """Output tokens delivered over the time from the first arrival to the last finish: what the engines got done."""
    done = np.isfinite(ends.finish_s)
    span = float(ends.finish_s[done].max() - ends.arrival_s.min()) if done.any() else 0.0
    return float(ends.delivered_tokens[done].sum()) / span if span > 0 else None


def _contract(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: summary[name] for name in ("capacity_tok_s", *LATENCIES, "output_tok_s", "goodput_tok_s", "attainment", "prefix_hit_share")}


def _errors(obs: Mapping[str, Any], sim: Mapping[str, Any]) -> dict[str, Any]:
    """Relative signed errors; of shares (attainment, hits) the signed difference in points (0..1)."""

    def relative(a: float | None, b: float | None) -> float | None:
        return None if not a or b is None else b / a - 1.0

    out: dict[str, Any] = {"capacity_tok_s": relative(obs["capacity_tok_s"], sim["capacity_tok_s"])}
    out |= {name: {q: relative(obs[name][q], sim[name][q]) for q in obs[name]} for name in LATENCIES}
    out |= {name: relative(obs[name], sim[name]) for name in ("output_tok_s", "goodput_tok_s")}
    out |= {name: sim[name] - obs[name] for name in ("attainment", "prefix_hit_share")}
    return out


def gate(errors: Mapping[str, Any], max_error: float | None, regime_: Mapping[str, Any]) -> dict[str, Any]:
    """Is the model good enough? Capacity first: a small capacity error becomes a huge latency error near saturation."""
    found: list[tuple[float, str]] = []
    if errors["capacity_tok_s"] is not None:
        found.append((abs(errors["capacity_tok_s"]), "capacity_tok_s"))
    for name in LATENCIES:
        found += [(abs(errors[name][q]), f"{name}.{q}") for q in GATED if errors[name][q] is not None]
    worst = max(found, default=(0.0, "nothing to compare"))
    ok = max_error is None or worst[0] <= max_error
    return {"worst_error": {"value": worst[0], "of": worst[1]}, "max_error": max_error, "ok": ok, "trusted_regime": not regime_["outside"]}


def worst_windows(trace: Trace, outcome: Outcome, count: int = 3) -> list[dict[str, Any]]:
    """The time windows in which predicted and observed medians differ most."""
    mine, theirs = simulated(trace, outcome), observed(trace)
    edges = np.linspace(0.0, float(trace.arrival_s[-1]) + 1e-9, WINDOWS + 1)
    found: list[dict[str, Any]] = []
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        rows = np.flatnonzero((trace.arrival_s >= start) & (trace.arrival_s < end))
        for name, sim, obs in zip(LATENCIES, mine.columns(), theirs.columns(), strict=True):
            both = rows[~np.isnan(sim[rows]) & ~np.isnan(obs[rows])]
            if len(both) >= 5:
                error = float(np.median(sim[both]) / max(float(np.median(obs[both])), 1e-9) - 1.0)
                found.append({"start_s": float(start), "end_s": float(end), "metric": name, "requests": len(both), "error": error})
    return sorted(found, key=lambda row: -abs(np.log1p(max(row["error"], -0.999))))[:count]


def regime(trace: Trace, profiles: Mapping[str, Profile]) -> dict[str, Any]:
    """Which of the trace's quantities lie outside what the profile was fitted on (P1 to P99 of each, 10 % slack)."""
    outside: list[dict[str, Any]] = []
    for key, profile in profiles.items():
        for name, values in (("input_tokens", trace.input_tokens), ("output_tokens", trace.output_tokens)):
            if name not in profile.trusted or not len(values):
                continue
            low, high = profile.trusted[name]
            a, b = float(np.percentile(values, 1)), float(np.percentile(values, 99))
            if b > 1.1 * high or a < 0.9 * low:
                outside.append({"profile": key, "quantity": name, "trusted": [low, high], "found": [a, b]})
    return {"outside": outside, "text": "; ".join(f"{o['quantity']} {o['found'][0]:.0f}..{o['found'][1]:.0f}, fitted on {o['trusted'][0]:.0f}..{o['trusted'][1]:.0f}" for o in outside)}


def prediction_intervals(replayer: Replayer, ensemble: Mapping[str, list[Profile]], most: int = 40) -> dict[str, Any]:
    """90 % intervals of predicted quantiles: the spread over the ensemble's profiles, widened by the held-out error."""
    keys = sorted(ensemble)
    count = min(most, *(len(ensemble[key]) for key in keys))
    rows = []
    for draw in range(count):
        got = replayer.latencies({key: ensemble[key][draw] for key in keys})
        rows.append([np.nanpercentile(column, (50, 95, 99)) for column in got.columns()])
    spread = np.log(np.maximum(np.array(rows), 1e-9))
    low, high = np.quantile(spread, 0.05, axis=0), np.quantile(spread, 0.95, axis=0)
    out: dict[str, Any] = {}
    for i, name in enumerate(LATENCIES):
        model = 1.645 * _model_error(name, [ensemble[key][0] for key in keys])
        centre, half = (low[i] + high[i]) / 2.0, np.hypot((high[i] - low[i]) / 2.0, model)
        edges = np.exp(np.stack([centre - half, centre + half], axis=1))
        out[name] = {q: [float(edges[j, 0]), float(edges[j, 1])] for j, q in enumerate(("p50", "p95", "p99"))}
    return out


def _model_error(metric: str, profiles: list[Profile]) -> float:
    """Root mean square of the held-out log errors of a metric's P50 and P95; LEAST_ERROR where none is known."""
    found = [p.held_out[f"{metric}_{q}"] for p in profiles for q in GATED if f"{metric}_{q}" in p.held_out]
    logs = [float(np.log(max(1.0 + error, 0.05))) for error in found]
    return max(float(np.sqrt(np.mean(np.square(logs)))) if logs else 0.0, LEAST_ERROR)


def _state(workspace: Workspace, trace: Trace, outcome: Outcome) -> dict[str, Any]:
    """Time series of running, waiting and KV use: simulated, and as the engines reported it where they did."""
    series = outcome.series
    if series is None:
        return {}
    t = np.asarray(series["t_s"], dtype=np.float64)
    out: dict[str, Any] = {"t_s": t.tolist(), "instances": list(outcome.instance_names)}
    out["predicted"] = {name: np.asarray(series[name]).sum(axis=1).tolist() for name in ("running", "waiting")}
    out["predicted"]["kv_used_share"] = np.asarray(series["kv_used_share"]).mean(axis=1).tolist()
    out["observed"] = {}
    for name, metric, how in (("running", "running", "sum"), ("waiting", "waiting", "sum"), ("kv_used_share", "kv_usage", "mean")):
        values = _reported(workspace, trace, metric, t, how)
        if values is not None:
            out["observed"][name] = [None if np.isnan(v) else float(v) for v in values]
    return out


def _reported(workspace: Workspace, trace: Trace, metric: str, t: F64, how: str) -> F64 | None:
    got = workspace.con.execute(
        "SELECT coalesce(instance, '') AS instance, ts_us, sum(value) AS value FROM metrics WHERE name = ? GROUP BY ALL ORDER BY ts_us", [metric]
    ).fetchnumpy()
    if not len(got["ts_us"]) or len(t) < 2:
        return None
    at = (np.asarray(got["ts_us"], dtype=np.float64) - trace.start_us) * 1e-6
    bin_s = t[1] - t[0]
    each = []
    instance = np.asarray(got["instance"]).astype(str)
    for one in np.unique(instance):
        mine = instance == one
        slot = np.floor((at[mine] - t[0] + bin_s / 2) / bin_s).astype(np.int64)
        inside = (slot >= 0) & (slot < len(t))
        total = np.bincount(slot[inside], np.asarray(got["value"], dtype=np.float64)[mine][inside], minlength=len(t))
        count = np.bincount(slot[inside], minlength=len(t))
        each.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    stacked = np.array(each)
    if np.isnan(stacked).all():
        return None
    return np.asarray(stacked.sum(axis=0) if how == "sum" else stacked.mean(axis=0))
