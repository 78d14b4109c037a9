"""The verdict in words, and the canary plan that goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from tfanalyze.tune.compare import Difference
from tfanalyze.tune.measure import Measured
from tfanalyze.tune.objective import Metric
from tfanalyze.tune.stats import BINS, bin_of, grouped_sums

VERDICTS = ("gain", "within_model_error", "keep_current", "worse_under_overload")
MIN_GAIN_PCT = 0.5  # a smaller gain is not worth a change, however sure it is
WORSE_PCT = -0.5  # a loss at 1.2x that is smaller is not called one


@dataclass(frozen=True, slots=True)
class Case:
    """What the verdict is made of; percent, positive = better than the present config."""

    moved: bool  # the search chose something else than what runs now
    loads: Mapping[float, Difference]
    models: Sequence[Difference]
    error_pct: float | None  # held-out error of the objective's figure
    broken: Sequence[str]  # constraints that the holdout breaks


def verdict(case: Case) -> tuple[str, str]:
    """One of VERDICTS and the reason, in one sentence."""
    if not case.moved:
        return "keep_current", "Nothing that was tried beats the present config on the validation window."
    now = case.loads[1.0]
    if case.broken:
        return "keep_current", f"On the holdout the tuned config breaks: {', '.join(case.broken)}."
    if not now.sure:
        return "keep_current", (
            f"On the holdout the difference is {now.gain_pct:+.1f} % and may be none "
            f"(95 % interval {now.ci_low_pct:+.1f} to {now.ci_high_pct:+.1f} %)."
        )
    if now.gain_pct < MIN_GAIN_PCT:
        return "keep_current", (
            f"The gain of {now.gain_pct:+.2f} % on the holdout is too small to be worth a change (under {MIN_GAIN_PCT} %)."
        )
    heavy = [d for load, d in case.loads.items() if load > 1.0]
    if any(d.gain_pct < WORSE_PCT and d.ci_high_pct < -WORSE_PCT for d in heavy):
        worst = min(d.gain_pct for d in heavy)
        return "worse_under_overload", (
            f"{now.gain_pct:+.1f} % at the recorded load, but {worst:+.1f} % when load grows: not recommended."
        )
    bound = model_bound(case)
    if now.gain_pct <= bound:
        return "within_model_error", (
            f"The gain of {now.gain_pct:+.1f} % is not larger than the model's error of {bound:.1f} %."
        )
    bad = [d for d in case.models if d.gain_pct <= 0]
    if bad:
        return "within_model_error", (
            f"The gain of {now.gain_pct:+.1f} % is gone under {len(bad)} of {len(case.models)} models that fit the data too."
        )
    return "gain", (
        f"{now.gain_pct:+.1f} % on traffic that the tuning never saw "
        f"(95 % interval {now.ci_low_pct:+.1f} to {now.ci_high_pct:+.1f} %), at every load and under every model tried."
    )


def model_bound(case: Case) -> float:
    """Percent that a gain must pass: the measured error, else the half range of the gain over the ensemble."""
    if case.error_pct is not None:
        return case.error_pct
    gains = [d.gain_pct for d in case.models]
    return (max(gains) - min(gains)) / 2 if gains else 0.0


def canary_plan(base: Sequence[Measured], tuned: Sequence[Measured], instances: int, sites: int) -> dict[str, Any]:
    """Which share, how long, which metric, when to roll back.

    The metric is the attainment of requests: logs give it without a model.  Duration: two arms, 90 % power at 5 %,
    with the variance of attainment between time slices as the holdout shows it.
    """
    before = float(np.mean([Metric("attainment").value(m) for m in base]))
    after = float(np.mean([Metric("attainment").value(m) for m in tuned]))
    run = tuned[0]
    bins = int(np.clip(len(run) // 20, 6, BINS))
    group = bin_of(run.arrival_s, run.start_s, run.end_s, bins)
    count = np.maximum(grouped_sums(group, np.ones(len(run)), bins), 1.0)
    per_bin = grouped_sums(group, run.attained.astype(np.float64), bins) / count
    slice_s, spread = run.span_s / bins, float(np.std(per_bin))
    effect = abs(after - before)
    slices = ceil(2 * (1.96 + 1.28) ** 2 * (spread / effect) ** 2) if effect > 1e-6 else None
    hours = max(1.0, 2 * slices * slice_s / 3600.0) if slices is not None else None
    by_site = sites > 1
    return {
        "how": "one site first" if by_site else "switchback: the whole pool alternates between both configs",
        "why": (
            "requests routed by both configs share queues and caches, so a share of one pool's requests is no fair test"
        ),
        "share": 1.0 / sites if by_site else 0.5,
        "slice_minutes": max(5.0, round(slice_s / 60.0, 1)),
        "hours": None if hours is None else round(min(hours, 24.0 * 14), 1),
        "metric": "attainment",
        "predicted": {"present": before, "tuned": after},
        "roll_back_when": {
            "attainment_below": max(0.0, min(before, after) - 2.0 * spread / max(1.0, np.sqrt(slices or 1))),
            "within_minutes": 15,
            "or": "any class's P95 TTFT above 1.5 times what it was in the present config's slices",
        },
        "instances": instances,
        "then": "tfanalyze check compares predicted with realised from the new logs",
    }
