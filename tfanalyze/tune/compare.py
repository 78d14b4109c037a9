"""One policy against another on the same requests: the paired difference and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfanalyze.tune.measure import Job, Measured, Runner
from tfanalyze.tune.objective import Objective
from tfanalyze.tune.stats import BINS, DRAWS, bin_of, block_length, block_weights, grouped_sums, interval

SMALL = 1e-9


@dataclass(frozen=True, slots=True)
class Difference:
    """``tuned`` against ``baseline``; percent of the baseline, positive = better, whatever the objective's direction."""

    baseline: float
    tuned: float
    gain_pct: float
    ci_low_pct: float
    ci_high_pct: float
    blocks: float  # independent stretches of time that the interval rests on
    seeds: int

    @property
    def sure(self) -> bool:
        """Better, and the interval says so."""
        return self.ci_low_pct > 0

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline, "tuned": self.tuned, "gain_pct": self.gain_pct,
            "ci_low_pct": self.ci_low_pct, "ci_high_pct": self.ci_high_pct,
        }  # fmt: skip


def difference(
    objective: Objective,
    base: Sequence[Measured],
    tuned: Sequence[Measured],
    *,
    level: float = 0.95,
    seed: int = 1,
    draws: int = DRAWS,
) -> Difference:
    """Paired block bootstrap over time and seeds. ``base[i]`` and ``tuned[i]`` have the same requests and seed.

    Both are read on the same draw of time blocks; so what moves both, such as a burst, cancels.
    """
    at_base, at_tuned = objective.value(base), objective.value(tuned)
    first = base[0]
    bins = int(np.clip(len(first) // 8, 8, BINS))
    group = bin_of(first.arrival_s, first.start_s, first.end_s, bins)
    moved = [
        grouped_sums(group, objective.contribution(t) - objective.contribution(b), bins)
        for b, t in zip(base, tuned, strict=True)
    ]
    block = block_length(np.mean(moved, axis=0))
    rng = np.random.default_rng(seed)
    weights = block_weights(bins, block, draws, rng)
    picks = rng.multinomial(len(base), np.full(len(base), 1 / len(base)), draws) / len(base)
    many_base = np.einsum("sd,ds->d", np.array([objective.resampled(m, group, weights) for m in base]), picks)
    many_tuned = np.einsum("sd,ds->d", np.array([objective.resampled(m, group, weights) for m in tuned]), picks)
    gain = _gain_pct(objective, at_base, at_tuned)
    with np.errstate(invalid="ignore", divide="ignore"):
        gains = objective.better * (many_tuned - many_base) / np.maximum(np.abs(many_base), SMALL) * 100.0
    low, high = interval(gain, gains, bins / block, level)
    return Difference(at_base, at_tuned, gain, low, high, bins / block, len(base))


def _gain_pct(objective: Objective, base: float, tuned: float) -> float:
    return float(objective.better * (tuned - base) / max(abs(base), SMALL) * 100.0)


class Bench:
    """Runs evaluations once each and remembers them: the same run serves several comparisons."""

    def __init__(self, runner: Runner, objective: Objective, sizes: tuple[int, ...] = (), seed: int = 1) -> None:
        self.runner, self.objective, self.sizes, self.seed = runner, objective, sizes, seed
        self._seen: dict[Job, Measured] = {}

    def get(self, jobs: Sequence[Job]) -> list[Measured]:
        """Results in the order of ``jobs``; those not known are run together on all workers, by scenario."""
        missing = list(dict.fromkeys(job for job in jobs if job not in self._seen))
        missing.sort(key=lambda job: (job[1].window, job[1].load, job[1].profile, job[1].less, job[1].demand))
        for job, run in zip(missing, self.runner.run(missing, self.sizes), strict=True):
            self._seen[job] = run
        return [self._seen[job] for job in jobs]

    def value(self, jobs: Sequence[Job]) -> float:
        return self.objective.value(self.get(jobs))

    def difference(self, base: Sequence[Job], tuned: Sequence[Job], level: float = 0.95) -> Difference:
        runs = self.get([*base, *tuned])
        return difference(
            self.objective, runs[: len(base)], runs[len(base) :], level=level, seed=self.seed
        )


