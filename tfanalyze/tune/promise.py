"""What a study promises for the traffic after the change, how sure it is, and what new logs say became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from typing import Any

import numpy as np

from tfanalyze.tune.measure import Measured
from tfanalyze.tune.objective import Metric, Objective
from tfanalyze.tune.stats import BINS, DRAWS, bin_of, block_length, block_weights, grouped_sums

OUTCOMES = ("as_predicted", "smaller", "gone", "cannot_tell", "unchanged", "below")
Z = 1.645  # one-sided 95 %
FROM_LOGS = ("attainment", "token_attainment", "shed")  # shares; and the quantiles of TTFT and E2E


def judged_metric(objective: Objective) -> Metric:
    """The number that a promise is kept by: the objective's own where logs show it.

    Of goodput the share of offered tokens, so that a busier week is no gain; of a cost, a fairness or a sum the attainment.
    """
    if not objective.plain:
        return Metric("attainment")
    metric = objective.terms[0][1]
    if metric.name in ("goodput", "output"):
        return Metric("token_attainment", metric.of)
    return metric if metric.name in FROM_LOGS or metric.name.startswith("p") else Metric("attainment")


def spread(metric: Metric, runs: Sequence[Measured], other: Sequence[Measured] = (), seed: int = 1) -> float:
    """Standard error of the mean of ``metric`` over ``runs`` of the same requests, less that over ``other`` where given.

    Blocks of time are drawn together for all runs; with few blocks the bootstrap is widened by sqrt(n / (n - 1)).
    """
    first, goal = runs[0], Objective("", ((1.0, metric),))
    bins = int(np.clip(len(first) // 8, 8, BINS))
    group = bin_of(first.arrival_s, first.start_s, first.end_s, bins)
    less = [goal.contribution(m) for m in other] or [np.zeros(len(m)) for m in runs]
    series = [grouped_sums(group, goal.contribution(m) - rest, bins) for m, rest in zip(runs, less, strict=True)]
    block = block_length(np.mean(series, axis=0))
    weights = block_weights(bins, block, DRAWS, np.random.default_rng(seed))
    draws = np.mean([metric.resampled(m, group, weights) for m in runs], axis=0)
    if other:
        draws = draws - np.mean([metric.resampled(m, group, weights) for m in other], axis=0)
    blocks = bins / block
    return float(np.nanstd(draws) * sqrt(blocks / max(blocks - 1.0, 1.0)))


def promise_of(
    objective: Objective,
    present: Sequence[Measured],
    tuned: Sequence[Measured],
    members: Sequence[tuple[Measured, Measured]] = (),
    observed: Measured | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """The promise of a study, as plain numbers.

    ``present``, ``tuned``: holdout runs under several seeds; ``members``: (present, tuned) under each other model;
    ``observed``: the log's own holdout, where it shows what the present config did.
    -> values and standard errors of present, tuned and their difference: ``*_sd`` from the traffic, ``*_model_sd`` from the models.
    """
    metric = judged_metric(objective)
    base, best = [metric.value(m) for m in present], [metric.value(m) for m in tuned]
    at_base, at_best = float(np.mean(base)), float(np.mean(best))
    off = [(metric.value(b) - base[0], metric.value(t) - best[0]) for b, t in members]
    return {
        "metric": metric.label,
        "better": metric.better,
        "present": at_base,
        "tuned": at_best,
        "present_sd": spread(metric, present, seed=seed),
        "tuned_sd": spread(metric, tuned, seed=seed),
        "gain_sd": spread(metric, tuned, present, seed=seed),
        "present_model_sd": _rms([b for b, _ in off]),
        "tuned_model_sd": _rms([t for _, t in off]),
        "gain_model_sd": _rms([t - b for b, t in off]),
        "observed": None if observed is None else metric.value(observed),
        "observed_sd": None if observed is None else spread(metric, [observed], seed=seed),
    }


def _rms(values: Sequence[float]) -> float:
    return sqrt(sum(v * v for v in values) / len(values)) if values else 0.0


def judge(promise: Mapping[str, Any], changed: bool, real: float, real_sd: float) -> dict[str, Any]:
    """What became of a promise.

    -> ``outcome``: one of OUTCOMES; ``expected`` and ``before`` with their standard errors; ``bound``: the worst value of new
    logs that is still as predicted; ``gain_above``: the worst that is surely better than before.

    Where the log shows what the present config did on the holdout, that is *before*, and the expected value is it plus the
    predicted gain; so a model that is off by the same amount for both configs does not count against the promise.
    """
    better = promise["better"]
    known = promise.get("observed") is not None
    before = promise["observed"] if known else promise["present"]
    gain = promise["tuned"] - promise["present"]
    if known:
        before_sd = promise["observed_sd"]
        expected, expected_sd = before + gain, hypot(before_sd, promise["gain_sd"], promise["gain_model_sd"])
    else:
        before_sd = hypot(promise["present_sd"], promise["present_model_sd"])
        expected, expected_sd = promise["tuned"], hypot(promise["tuned_sd"], promise["tuned_model_sd"])
    if not changed:
        expected, expected_sd = before, before_sd
    bound = expected - better * Z * hypot(expected_sd, real_sd)
    gain_above = before + better * Z * hypot(before_sd, real_sd)
    kept, gained = better * (real - bound) >= 0, better * (real - gain_above) > 0
    if not changed:
        outcome = "unchanged" if kept else "below"
    elif kept:
        outcome = "as_predicted" if gained else "cannot_tell"
    else:
        outcome = "smaller" if gained else "gone"
    return {
        "outcome": outcome, "expected": expected, "expected_sd": expected_sd, "before": before, "before_sd": before_sd,
        "before_measured": bool(known), "bound": bound, "gain_above": gain_above, "value": real, "value_sd": real_sd,
    }  # fmt: skip
