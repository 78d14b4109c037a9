"""Calibration by simulation: replay the recorded routing and move the coefficients until the latencies agree.

The regression of latency.py looks at each interval by itself and has to guess what queued where. The replay knows,
and a replay takes milliseconds, so the last step of a fit compares what matters: the distributions of TTFT, TPOT and
E2E, their course over time, and every request's own latency. The regression stays as the prior: a coefficient that the
replay cannot see keeps its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfanalyze.config import DEFAULT_CLASSES, Fleet, SloClass
from tfanalyze.models.profile import Profile, with_coefficients
from tfanalyze.trace import F64, I64, Trace

if TYPE_CHECKING:
    from tfanalyze.models.observe import Observations
    from tfanalyze.replay import Outcome
    from tfanalyze.workspace import Workspace

Progress = Callable[[float, str], None]
GROUPS: tuple[tuple[str, ...], ...] = (  # coefficients that one multiplier moves together
    ("c0_s", "c_decode_step_s", "c_mem_s"),
    ("c_prefill_step_s", "prefill_least_s"),
    ("c_prefill_s", "c_attn_s", "c_prefill2_s"),
    ("c_seq_s", "c_seq_knee_s"),
    ("c_kv_s", "c_kv2_s"),
    ("c_long_s",),
    ("request_s", "request_token_s"),
)
LEVELS = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])
WINDOWS = 8
PROBE = 0.06  # change of a log multiplier by which derivatives are taken: wide enough to see over single queue swaps
ROUNDS = 6
MOST_ROWS = 15_000  # the replayed trace is cut to its last rows beyond this
MATTERS = 0.05  # a limit whose other values change the loss by less than this share is not searched
FORM_NEAR, FORM_GAIN = 0.15, 0.05  # forms this near in held-out error are replayed too; another must lower the loss by this share
NOISE_FLOOR = 0.02  # relative error below which an agreement is as good as perfect


@dataclass(frozen=True, slots=True)
class Seen:
    """What was observed of every row of the trace, shape (n,); NaN where not."""

    ttft_s: F64
    tpot_s: F64
    e2e_s: F64
    arrival_s: F64

    def columns(self) -> tuple[F64, F64, F64]:
        return self.ttft_s, self.tpot_s, self.e2e_s


def observed(trace: Trace) -> Seen:
    """The observed latencies of requests that ended well."""
    assert trace.observed is not None
    ok = (trace.observed.status == 0) | (trace.observed.status == -1)
    ttft = np.where(ok, trace.observed.ttft_s, np.nan)
    e2e = np.where(ok, trace.observed.e2e_s, np.nan)
    return Seen(ttft, _tpot(ttft, e2e, trace.output_tokens), e2e, trace.arrival_s)


def warmed_up(seen: Seen) -> npt.NDArray[np.bool_]:
    """(n,) rows sent after the first answer began: an engine's first steps load and tune kernels, and teach nothing."""
    return np.asarray(seen.arrival_s > np.nanmin(np.append(seen.arrival_s + seen.ttft_s, np.inf)), np.bool_)


def simulated(trace: Trace, outcome: Outcome) -> Seen:
    """The same of a replay."""
    ok = outcome.status == 0
    ttft = np.where(ok, outcome.first_token_s - outcome.arrival_s, np.nan)
    e2e = np.where(ok, outcome.finish_s - outcome.arrival_s, np.nan)
    return Seen(ttft, _tpot(ttft, e2e, trace.output_tokens), e2e, trace.arrival_s)


def _tpot(ttft: F64, e2e: F64, output: npt.NDArray[np.int32]) -> F64:
    return np.where(output >= 2, (e2e - ttft) / np.maximum(output - 1, 1), np.nan)


class Replayer:
    """Replays one trace under the recorded routing with any profiles; the trace is prepared once."""

    def __init__(
        self, trace: Trace, fleet: Fleet, profiles: Mapping[str, Profile], classes: tuple[SloClass, ...], policies: Any = "recorded",
        series_bins: int = 0,
    ) -> None:  # fmt: skip
        from tfanalyze.models.loop import closed_loop
        from tfanalyze.replay import Options, Simulator

        trace = closed_loop(trace) if policies == "recorded" else trace
        patient = tuple(replace(c, timeout_s=np.inf, max_retries=0) for c in classes)  # rows are attempts already
        self.trace, self.fleet, self.policies = trace, fleet, policies
        self.simulator = Simulator(trace, fleet, dict(profiles), patient, Options(series_bins=series_bins))
        self.count = 0

    def __call__(self, profiles: Mapping[str, Profile], seed: int = 1) -> Outcome:
        self.count += 1
        return self.simulator.with_profiles(profiles).run(self.policies, seed)

    def latencies(self, profiles: Mapping[str, Profile]) -> Seen:
        return simulated(self.trace, self(profiles))


def moved(profiles: Mapping[str, Profile], names: list[tuple[str, int]], x: F64) -> dict[str, Profile]:
    """Profiles with each (profile, group) of `names` multiplied by exp(x)."""
    out = dict(profiles)
    for (key, group), value in zip(names, x, strict=True):
        profile, factor = out[key], float(np.exp(value))
        step = {f: getattr(profile.step, f) * factor for f in GROUPS[group] if hasattr(profile.step, f)}
        whole = {f: getattr(profile, f) * factor for f in GROUPS[group] if f.startswith("request")}
        out[key] = replace(profile, step=with_coefficients(profile.step, step), **whole)
    return out


def residuals(mine: Seen, theirs: Seen, rows: I64, windows: I64) -> F64:
    """What must vanish: log ratios of quantiles, of window means, and the spread of single requests.

    Each is divided by about the error that its own number of requests allows.
    """
    parts: list[F64] = []
    for sim, obs in zip(mine.columns(), theirs.columns(), strict=True):
        both = rows[~np.isnan(sim[rows]) & ~np.isnan(obs[rows])]
        if len(both) < 10:
            parts.append(np.zeros(len(LEVELS) + WINDOWS + 1))
            continue
        a, b = np.maximum(sim[both], 1e-6), np.maximum(obs[both], 1e-6)
        spread = float(np.std(np.log(b)))
        qa, qb = np.quantile(a, LEVELS), np.quantile(b, LEVELS)
        error = NOISE_FLOOR + spread / np.sqrt(len(both) * np.minimum(LEVELS, 1 - LEVELS) * 4.0)
        parts.append(np.log(qa / qb) / error / np.sqrt(len(LEVELS)))
        window = windows[both]
        count = np.maximum(np.bincount(window, minlength=WINDOWS), 1)
        mean = np.bincount(window, np.log(a / b), minlength=WINDOWS) / count
        parts.append(np.where(count > 3, mean / (NOISE_FLOOR + spread / np.sqrt(count)), 0.0) / np.sqrt(WINDOWS))
        ratio = np.log(a / b)
        huber = np.where(np.abs(ratio) < 0.3, ratio**2 / 2, 0.3 * (np.abs(ratio) - 0.15))
        parts.append(np.array([np.sqrt(huber.mean()) / 0.1]))
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibrated profiles, log multipliers (k,) with their names, the loss before and after, replays used, draws (m, k)."""

    profiles: dict[str, Profile]
    names: list[tuple[str, int]]
    x: F64
    loss_before: float
    loss_after: float
    replays: int
    draws: F64


def windows_of(arrival_s: F64) -> I64:
    """(n,) index of WINDOWS windows with equal numbers of requests."""
    return (np.argsort(np.argsort(arrival_s, kind="stable"), kind="stable") * WINDOWS // max(len(arrival_s), 1)).astype(np.int64)


def calibrate(
    replayer: Replayer,
    profiles: Mapping[str, Profile],
    target: Seen,
    rows: I64,
    *,
    draws: int = 0,
    seed: int = 1,
    progress: Progress | None = None,
) -> Calibration:
    """Move the coefficient groups of every profile until replay and observation agree on `rows`.

    Damped Gauss-Newton with differences of replays; a step is kept only if the loss falls. Deterministic.
    """
    say = progress or quiet
    start = {key: _opened(profile) for key, profile in profiles.items()}
    names = [(key, g) for key in sorted(start) for g in range(len(GROUPS)) if _movable(start[key], g)]
    width = np.array([_prior_width(start[key], g) for key, g in names])
    windows = windows_of(target.arrival_s)
    x, damping = np.zeros(len(names)), 1.0

    def at(x: F64) -> Seen:
        return replayer.latencies(moved(start, names, x))

    def loss(r: F64, x: F64) -> float:
        return float(r @ r + ((x / width) ** 2).sum() / 10.0)

    base = at(x)
    r = residuals(base, target, rows, windows)
    before = best = loss(r, x)
    probes: list[Seen] = []
    for round_ in range(ROUNDS):
        say(round_ / ROUNDS, f"calibration by replay, loss {best:.2f}")
        probes = [at(x + PROBE * np.eye(len(x))[i]) for i in range(len(x))]
        jacobian = np.stack([(residuals(p, target, rows, windows) - r) / PROBE for p in probes], axis=1)
        improved = False
        for _ in range(4):
            step = _step(jacobian, r, x, width, damping)
            trial = np.clip(x + np.clip(step, -0.7, 0.7), -3.0, 3.0)
            got = at(trial)
            r_new = residuals(got, target, rows, windows)
            value = loss(r_new, trial)
            if value < best * 0.999:
                improved, damping = True, max(damping / 4.0, 1e-3)
                gain = best - value
                x, r, base, best = trial, r_new, got, value
                break
            damping *= 5.0
        if not improved or gain < 0.002 * best:
            break
    probes = [at(x + PROBE * np.eye(len(x))[i]) for i in range(len(x))]
    sample = _bootstrap(base, probes, target, rows, windows, x, width, draws, seed)
    return Calibration(moved(start, names, x), names, x, before, best, replayer.count, sample)


def _step(jacobian: F64, r: F64, x: F64, width: F64, damping: float) -> F64:
    prior = np.diag(1.0 / width**2 / 10.0)
    normal = jacobian.T @ jacobian + prior
    return np.asarray(np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -(jacobian.T @ r + prior @ x)), np.float64)


def _opened(profile: Profile) -> Profile:
    """A multiplier cannot move a zero: the requests' own time starts at a millisecond at least."""
    return replace(profile, request_s=max(profile.request_s, 1e-3))


def _movable(profile: Profile, group: int) -> bool:
    return any((getattr(profile.step, f, 0.0) or getattr(profile, f, 0.0)) > 0 for f in GROUPS[group])


def _prior_width(profile: Profile, group: int) -> float:
    """How far a log multiplier may stray: the regression's interval, at least 15 %, at most a factor of e."""
    widths = []
    for name in GROUPS[group]:
        value = getattr(profile.step, name, 0.0) or getattr(profile, name, 0.0)
        if value > 0 and name in profile.high:
            low, high = max(profile.low[name], value / 20.0), max(profile.high[name], value)
            widths.append(float(np.log(high / low)) / 3.29)
    return float(np.clip(min(widths, default=1.0), 0.15, 1.0)) * 2.0


def _bootstrap(
    base: Seen, probes: list[Seen], target: Seen, rows: I64, windows: I64, x: F64, width: F64, draws: int, seed: int
) -> F64:
    """(draws, k) log multipliers: one Gauss-Newton step on rows resampled by time block, from the replays at hand."""
    rng = np.random.default_rng(seed)
    count = max(4, min(20, len(rows) // 10))
    ordered = rows[np.argsort(target.arrival_s[rows], kind="stable")]
    parts = np.array_split(ordered, count)
    r0 = residuals(base, target, rows, windows)
    jacobian = np.stack([(residuals(p, target, rows, windows) - r0) / PROBE for p in probes], axis=1)
    covariance = np.linalg.inv(jacobian.T @ jacobian + np.diag(1.0 / width**2 / 10.0))
    root = np.linalg.cholesky((covariance + covariance.T) / 2.0)
    out = np.empty((draws, len(x)))
    for draw in range(draws):
        picked = np.concatenate([parts[i] for i in rng.integers(0, count, count)])
        r = residuals(base, target, picked, windows)
        jacobian = np.stack([(residuals(p, target, picked, windows) - r) / PROBE for p in probes], axis=1)
        shift = _step(jacobian, r - r0, np.zeros_like(x), width, 0.0) + root @ rng.standard_normal(len(x))
        out[draw] = np.clip(x + np.clip(shift, -1.0, 1.0), -4.0, 4.0)
    return out


BUDGETS = (2048, 4096, 16_384)  # engines' usual max_num_batched_tokens beside the assumed one
KV_SHARES = (0.97, 0.94, 0.9)  # of the tokens seen in flight: shared prefixes are counted twice there


def calibrate_fit(
    workspace: Workspace,
    seen: Observations,
    fleet: Fleet,
    profiles: dict[str, Profile],
    ensemble: dict[str, list[Profile]],
    report: dict[str, Any],
    say: Progress,
    classes: tuple[SloClass, ...] = DEFAULT_CLASSES,
    seed: int = 1,
    refit: Callable[..., Any] | None = None,
) -> tuple[dict[str, Profile], dict[str, list[Profile]], Fleet]:
    """Calibrate on the first 70 % of the trace, judge on the rest, keep what is better there, then use all of it.

    Engine limits that nobody said (KV tokens inferred from the log, token budget a step) are tried at other values,
    with what `refit(fleet, form)` gives for them (profiles, draws, reports); those that agree best on the 70 % are kept. Forms of the
    step time whose intervals were predicted nearly as well are calibrated too; the one that predicts the rest best is kept.
    """
    from tfanalyze.trace import cut, load_trace

    trace = load_trace(workspace, classes=classes)
    if len(trace) > MOST_ROWS:
        trace = cut(trace, float(trace.arrival_s[-MOST_ROWS]), float("inf"))
    if trace.observed is None or np.isfinite(trace.observed.ttft_s).sum() < 50:
        report["calibration"] = {"done": False, "why": "fewer than 50 requests with a time to first token can be replayed"}
        return profiles, ensemble, fleet
    target = observed(trace)
    late = trace.arrival_s > np.quantile(trace.arrival_s, 0.7)
    warm = warmed_up(target)
    early_rows, late_rows = np.flatnonzero(~late & warm), np.flatnonzero(late & warm)
    replayer = Replayer(trace, fleet, profiles, classes)
    trained = calibrate(replayer, profiles, target, early_rows, seed=seed, progress=_part(say, 0.4, 0.6))
    again = refit or (lambda *_: (profiles, ensemble, report["profiles"]))
    for assumed, others in _alternatives(report["assumed"]) if refit else []:
        before = getattr(fleet.pools[0].engine, assumed)
        for make in others:
            tried_fleet = make(fleet)
            other = Replayer(trace, tried_fleet, profiles, classes)
            if abs(_loss(other, trained.profiles, target, early_rows) / _loss(replayer, trained.profiles, target, early_rows) - 1.0) < MATTERS:
                continue  # this limit was never reached: nothing to find
            first = again(tried_fleet)
            tried = calibrate(other, first[0], target, early_rows, seed=seed)
            if tried.loss_after < 0.9 * trained.loss_after:
                replayer, trained = other, tried
                profiles, ensemble = first[0], first[1]
                report["profiles"] = first[2]
        fleet = replayer.fleet
        value = getattr(fleet.pools[0].engine, assumed)
        why = "agrees best in replay, of the usual values" if value != before else "assumed: no other usual value agrees clearly better in replay"
        kept = [text for text in report["assumed"] if not text.startswith(assumed)]
        report["assumed"] = [*kept, f"{assumed} {value} ({why})"]
    for form in _other_forms(report) if refit else []:
        first = again(fleet, form)
        tried = calibrate(replayer, first[0], target, early_rows, seed=seed)
        ours, theirs = (_loss(replayer, one.profiles, target, late_rows) for one in (trained, tried))
        if theirs < (1.0 - FORM_GAIN) * ours:
            trained, profiles, ensemble, report["profiles"] = tried, first[0], first[1], first[2]
            why = f"nearly the best in single intervals, and its replay of the last 30 % agrees better (loss {theirs:.2f}, the best one's {ours:.2f})"
            profiles = {key: replace(p, facts=p.facts | {"form_reason": why}) for key, p in profiles.items()}
            for one in report["profiles"].values():
                one["form_reason"] = why
    plain_error = quantile_errors(replayer.latencies(profiles), target, late_rows)
    held_out = quantile_errors(replayer.latencies(trained.profiles), target, late_rows)
    better = _score(held_out) <= _score(plain_error)
    draws = len(next(iter(ensemble.values()), []))
    final = calibrate(replayer, profiles, target, np.flatnonzero(warm), draws=draws, seed=seed, progress=_part(say, 0.7, 0.98))
    report["calibration"] = {
        "done": True, "kept": better, "replays": final.replays, "loss_before": final.loss_before, "loss_after": final.loss_after,
        "held_out_regression": plain_error, "held_out_calibrated": held_out,
        "moved": {f"{key}: {' + '.join(GROUPS[g])}": float(np.exp(v)) for (key, g), v in zip(final.names, final.x, strict=True)},
    }  # fmt: skip
    if not better:
        return {key: replace(p, held_out=p.held_out | plain_error) for key, p in profiles.items()}, _judged(ensemble, plain_error), replayer.fleet
    start = {key: _opened(profile) for key, profile in profiles.items()}
    sampled = [moved(start, final.names, x) for x in final.draws]
    return (
        {key: _with_intervals(p, [s[key] for s in sampled], held_out) for key, p in final.profiles.items()},
        {key: [replace(s[key], held_out=held_out) for s in sampled] or ensemble[key] for key in profiles},
        replayer.fleet,
    )


def _other_forms(report: dict[str, Any]) -> list[str]:
    """Forms as good as the chosen one in single intervals, or nearly: of every pool."""
    each = []
    for one in report["profiles"].values():
        mine = next(row["coefficients"] for row in one["forms"] if row["form"] == one["form"])
        alike = [row for row in one["forms"] if ("c_long_s" in row["coefficients"]) == ("c_long_s" in mine)]
        error = {row["form"]: row["held_out_relative_error"] for row in alike}
        each.append({form for form, value in error.items() if value < (1.0 + FORM_NEAR) * error[one["form"]] and form != one["form"]})
    return sorted(set.intersection(*each)) if each else []


def _loss(replayer: Replayer, profiles: Mapping[str, Profile], target: Seen, rows: I64) -> float:
    r = residuals(replayer.latencies(profiles), target, rows, windows_of(target.arrival_s))
    return float(r @ r) + 1e-9


def _alternatives(assumed: list[str]) -> list[tuple[str, list[Callable[[Fleet], Fleet]]]]:
    """Limits worth trying: KV capacity where it was read off tokens in flight, and the token budget where nobody said it."""
    found: list[tuple[str, list[Callable[[Fleet], Fleet]]]] = []
    if any(text.startswith("async_scheduling") for text in assumed):
        found.append(("async_scheduling", [_ahead(True), _ahead(False)]))
    if any(text.startswith("kv_tokens") and "requests waited" in text for text in assumed):
        found.append(("kv_tokens", [_scaled_kv(share) for share in KV_SHARES]))
    if any(text.startswith("max_num_batched_tokens") for text in assumed):
        found.append(("max_num_batched_tokens", [_budget(value) for value in BUDGETS]))
    return found


def _scaled_kv(share: float) -> Callable[[Fleet], Fleet]:
    def change(fleet: Fleet) -> Fleet:
        pools = (replace(p, engine=replace(p.engine, kv_tokens=int(share * p.engine.kv_tokens))) for p in fleet.pools)
        return replace(fleet, pools=tuple(pools))

    return change


def _ahead(value: bool) -> Callable[[Fleet], Fleet]:
    def change(fleet: Fleet) -> Fleet:
        return replace(fleet, pools=tuple(replace(p, engine=replace(p.engine, async_scheduling=value)) for p in fleet.pools))

    return change


def _budget(value: int) -> Callable[[Fleet], Fleet]:
    def change(fleet: Fleet) -> Fleet:
        pools = (replace(p, engine=replace(p.engine, max_num_batched_tokens=max(value, p.engine.max_num_seqs))) for p in fleet.pools)
        return replace(fleet, pools=tuple(pools))

    return change


def quiet(share: float, what: str) -> None:
    """Progress that nobody looks at."""


def _part(say: Progress, low: float, high: float) -> Progress:
    """The progress of one part of a longer work."""

    def part(share: float, what: str) -> None:
        say(low + (high - low) * share, what)

    return part


def quantile_errors(mine: Seen, theirs: Seen, rows: I64) -> dict[str, float]:
    """Signed relative error of P50, P95 and P99 by metric, over rows that both have."""
    out: dict[str, float] = {}
    for name, sim, obs in zip(("ttft_s", "tpot_s", "e2e_s"), mine.columns(), theirs.columns(), strict=True):
        both = rows[~np.isnan(sim[rows]) & ~np.isnan(obs[rows])]
        if len(both) < 10:
            continue
        for q in (50, 95, 99):
            out[f"{name}_p{q}"] = float(np.percentile(sim[both], q) / max(float(np.percentile(obs[both], q)), 1e-9) - 1.0)
    return out


def _score(errors: dict[str, float]) -> float:
    return float(np.mean([min(abs(np.log1p(max(e, -0.99))), 3.0) for e in errors.values()] or [np.inf]))


def _judged(ensemble: dict[str, list[Profile]], held_out: dict[str, float]) -> dict[str, list[Profile]]:
    return {key: [replace(p, held_out=held_out) for p in members] for key, members in ensemble.items()}


def _with_intervals(profile: Profile, sampled: list[Profile], held_out: dict[str, float]) -> Profile:
    """Intervals: 90 % of the calibrated draws; never narrower than the coefficient itself."""
    low, high = dict(profile.low), dict(profile.high)
    for names in GROUPS:
        for name in names:
            owner = profile.step if hasattr(profile.step, name) else profile
            value = float(getattr(owner, name, 0.0))
            if value <= 0 or not sampled:
                continue
            drawn = np.array([getattr(s.step if hasattr(s.step, name) else s, name) for s in sampled])
            low[name], high[name] = min(float(np.quantile(drawn, 0.05)), value), max(float(np.quantile(drawn, 0.95)), value)
    return replace(profile, low=low, high=high, held_out=profile.held_out | held_out, facts=profile.facts | {"calibrated": True})
