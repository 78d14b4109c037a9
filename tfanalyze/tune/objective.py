"""What is to be better: metrics, weighted sums of them, constraints, several at once.

Every share's denominator is offered demand, shed and rejected requests included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from tfanalyze.errors import ConfigError
from tfanalyze.trace import F64, I64
from tfanalyze.tune.measure import Measured
from tfanalyze.tune.stats import grouped_sums

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
NAMES = ("goodput", "attainment", "token_attainment", "output", "shed", "fairness", "cost")
SIZE_SHARES = (0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25)  # fleet sizes tried for the cost


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a run. ``target`` is the attainment that a cost is for; ``of`` a class name."""

    name: str
    of: str = ""
    target: float = 0.0

    @property
    def better(self) -> int:
        """+1: more is better, -1: less is."""
        return 1 if self.name in ("goodput", "attainment", "token_attainment", "output", "fairness") else -1

    @property
    def unit(self) -> str:
        units = {"goodput": "tok/s", "output": "tok/s", "cost": "GPU-hours"}
        return units.get(self.name, "s" if "_" in self.name and self.name[0] == "p" else "share")

    @property
    def label(self) -> str:
        tail = f":{self.of}" if self.of else (f":{self.target:g}" if self.target else "")
        return self.name + tail

    def value(self, run: Measured) -> float:
        return float(self.resampled(run, np.zeros(len(run), np.int64), np.ones((1, 1)))[0])

    def resampled(self, run: Measured, group: I64, weights: F64) -> F64:
        """The metric on each draw.

        Shapes: group (n,) bin of each request; weights (draws, bins) how often a bin is drawn; -> (draws,).
        """
        rows = self._rows(run)
        if self.name in ("goodput", "output"):
            tokens = run.good_tokens if self.name == "goodput" else run.delivered_tokens
            total = _sum(tokens, rows, group, weights)
            return np.asarray(total * (weights.shape[1] / weights.sum(axis=1)) / run.span_s, np.float64)
        if self.name == "token_attainment":
            return _ratio(run.good_tokens, run.offered_tokens, rows, group, weights)
        if self.name in ("attainment", "shed"):
            hits = (run.attained if self.name == "attainment" else run.shed).astype(np.float64)
            return _ratio(hits, np.ones(len(run)), rows, group, weights)
        if self.name == "fairness":
            return _jain(run, rows, group, weights)
        if self.name == "cost":
            return self._cost(run, rows, group, weights)
        q, what = self.name.split("_", 1)
        return _quantile(run.ttft_s if what == "ttft" else run.e2e_s, QUANTILES[q], rows, group, weights)

    def _rows(self, run: Measured) -> npt.NDArray[np.bool_] | slice:
        if not self.of:
            return slice(None)
        if self.of not in run.classes:
            raise ConfigError(f"no class '{self.of}' in the trace", "objective", f"it has {', '.join(run.classes)}")
        return np.asarray(run.slo_class == run.classes.index(self.of), np.bool_)

    def _cost(self, run: Measured, rows: npt.NDArray[np.bool_] | slice, group: I64, weights: F64) -> F64:
        """GPU-hours of the window with the fewest instances that reach the target, read between two sizes."""
        sizes = sorted(run.sizes)
        one = np.ones(len(run))
        share = np.array([_ratio(ok.astype(np.float64), one, rows, group, weights) for _, _, ok in sizes])
        share = np.maximum.accumulate(share, axis=0)
        gpus = np.array([g for _, g, _ in sizes])
        need = np.full(share.shape[1], gpus[-1])
        need += (self.target - share[-1]) * gpus[-1] * 4.0 * (share[-1] < self.target)  # not reached at all
        for k in range(len(sizes) - 1, 0, -1):
            reached, below = share[k] >= self.target, share[k - 1] < self.target
            part = (self.target - share[k - 1]) / np.maximum(share[k] - share[k - 1], 1e-12)
            between = gpus[k - 1] + part * (gpus[k] - gpus[k - 1])
            need = np.where(reached, np.where(below, between, gpus[k - 1]), need)
        return np.asarray(need * run.span_s / 3600.0, np.float64)


def sizes_for(instances: int) -> tuple[int, ...]:
    """Fleet sizes at which a cost is measured."""
    return tuple(sorted({max(1, ceil(instances * share)) for share in SIZE_SHARES}))


def _sum(values: F64, rows: npt.NDArray[np.bool_] | slice, group: I64, weights: F64) -> F64:
    return weights @ grouped_sums(group[rows], values[rows], weights.shape[1])


def _ratio(hits: F64, base: F64, rows: npt.NDArray[np.bool_] | slice, group: I64, weights: F64) -> F64:
    below = _sum(base, rows, group, weights)
    return np.asarray(_sum(hits, rows, group, weights) / np.where(below > 0, below, np.nan), np.float64)


def _jain(run: Measured, rows: npt.NDArray[np.bool_] | slice, group: I64, weights: F64) -> F64:
    """Jain's index over tenants of the share of what they offered that was served inside the SLO."""
    known = np.unique(run.tenant[run.tenant >= 0])
    if len(known) < 2:
        raise ConfigError("the trace has fewer than two tenants", "objective fairness", "ingest the tenant, or choose another objective")
    shares = []
    for tenant in known:
        mine = run.tenant == tenant
        mine = mine & rows if isinstance(rows, np.ndarray) else mine
        shares.append(np.nan_to_num(_ratio(run.good_tokens, run.offered_tokens, mine, group, weights), nan=0.0))
    x = np.array(shares)
    squares = (x**2).sum(axis=0)
    return np.asarray(x.sum(axis=0) ** 2 / np.where(squares > 0, len(x) * squares, 1.0), np.float64)


def _quantile(values: F64, q: float, rows: npt.NDArray[np.bool_] | slice, group: I64, weights: F64) -> F64:
    """Weighted quantile on each draw: the smallest value at which the weight reaches q of the total."""
    mine, bins = values[rows], group[rows]
    if len(mine) == 0:
        return np.full(len(weights), np.nan)
    order = np.argsort(mine, kind="stable")
    sorted_values, sorted_bins = mine[order], bins[order]
    found = np.empty(len(weights))
    for i, w in enumerate(weights):
        reach = np.cumsum(w[sorted_bins])
        at = int(np.searchsorted(reach, q * reach[-1] - 1e-9)) if reach[-1] > 0 else 0
        found[i] = sorted_values[min(at, len(sorted_values) - 1)] if reach[-1] > 0 else np.nan
    return found


@dataclass(frozen=True, slots=True)
class Constraint:
    """``metric >= limit`` or ``<= limit``; ``class_loss`` is the largest loss of attainment of any class."""

    text: str
    metric: Metric | None
    at_least: bool
    limit: float

    def violation(self, runs: Sequence[Measured], present: Sequence[Measured] | None) -> float:
        """How far it is broken, as a share of the limit (of 1 for a share); 0 = kept."""
        value = self.value(runs, present)
        gap = self.limit - value if self.at_least else value - self.limit
        scale = abs(self.limit) if self.metric is not None and self.metric.unit == "s" else 1.0
        return max(0.0, gap / max(scale, 1e-9)) if np.isfinite(gap) else 0.0

    def value(self, runs: Sequence[Measured], present: Sequence[Measured] | None) -> float:
        if self.metric is not None:
            return mean([self.metric.value(run) for run in runs])
        if present is None:
            return 0.0
        lost = [
            mean([Metric("attainment", name).value(m) for m in present])
            - mean([Metric("attainment", name).value(m) for m in runs])
            for name in runs[0].classes
            if np.any(runs[0].slo_class == runs[0].classes.index(name))
        ]
        return max(lost, default=0.0)


@dataclass(frozen=True, slots=True)
class Objective:
    """One goal: a metric, or a weighted sum of metrics, each then counted relative to the present config's."""

    text: str
    terms: tuple[tuple[float, Metric], ...]
    scale: tuple[float, ...] = ()  # value of each term for the present config; () = a single term, as it is

    @property
    def plain(self) -> bool:
        return len(self.terms) == 1 and not self.scale

    @property
    def better(self) -> int:
        return self.terms[0][1].better if self.plain else 1

    @property
    def unit(self) -> str:
        return self.terms[0][1].unit if self.plain else "relative"

    @property
    def cost(self) -> bool:
        return any(metric.name == "cost" for _, metric in self.terms)

    def scaled(self, present: Sequence[Measured]) -> Objective:
        """The same goal, with its terms counted relative to the present config."""
        if self.plain:
            return self
        at = tuple(max(abs(mean([m.value(run) for run in present])), 1e-9) for _, m in self.terms)
        return Objective(self.text, self.terms, at)

    def value(self, runs: Sequence[Measured]) -> float:
        return mean([self._one(run, np.zeros(len(run), np.int64), np.ones((1, 1)))[0] for run in runs])

    def resampled(self, run: Measured, group: I64, weights: F64) -> F64:
        return self._one(run, group, weights)

    def _one(self, run: Measured, group: I64, weights: F64) -> F64:
        if self.plain:
            return self.terms[0][1].resampled(run, group, weights)
        total = np.zeros(len(weights))
        for (weight, metric), scale in zip(self.terms, self.scale or (1.0,) * len(self.terms), strict=True):
            total += weight * metric.better * metric.resampled(run, group, weights) / scale
        return total

    def contribution(self, run: Measured) -> F64:
        """(n,) what each request adds, for the block length; of a tail or a sum of terms, the TTFT or good tokens."""
        metric = self.terms[0][1]
        if metric.name in ("attainment", "cost", "shed"):
            return run.attained.astype(np.float64)
        if metric.name.startswith("p"):
            return run.ttft_s if metric.name.endswith("ttft") else run.e2e_s
        return run.good_tokens


def mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))


def parse_metric(text: str) -> Metric:
    """``goodput``, ``attainment:interactive``, ``p95_ttft:interactive``, ``cost:0.95``, ``fairness``."""
    name, _, tail = text.strip().partition(":")
    quantile = re.fullmatch(r"(p50|p90|p95|p99)_(ttft|e2e)", name)
    if name not in NAMES and not quantile:
        tails = ", ".join(f"{q}_ttft" for q in QUANTILES)
        raise ConfigError(f"no objective '{name}'", "objective", f"use {', '.join(NAMES)}, {tails} or p.._e2e")
    if name == "cost":
        target = float(tail or 0.95) if re.fullmatch(r"[0-9.]*", tail) else -1.0
        if not 0.0 < target <= 1.0:
            raise ConfigError(f"cost has the target '{tail}'", "objective", "give an attainment, e.g. cost:0.95")
        return Metric(name, target=target)
    return Metric(name, tail)


def parse_objective(text: str) -> tuple[Objective, ...]:
    """One goal, or several separated by commas (Pareto). ``goodput + 0.5*p95_ttft:interactive`` is a weighted sum.

    A weight says how much an improvement of that term counts; that less is better of a tail or a cost is known.
    """
    goals = []
    for goal in text.split(","):
        terms = []
        for term in goal.split("+"):
            found = re.fullmatch(r"\s*(?:([0-9.]+(?:e-?[0-9]+)?)\s*\*\s*)?([a-z][a-z0-9_]*(?::[^\s*]+)?)\s*", term)
            if not found:
                raise ConfigError(f"'{term.strip()}' is no term", "objective", "write e.g. goodput + 0.5*p95_ttft:interactive")
            terms.append((float(found[1] or 1.0), parse_metric(found[2])))
        goals.append(Objective(goal.strip(), tuple(terms)))
    return tuple(goals)


def parse_constraint(text: str) -> Constraint:
    """``attainment:interactive >= 0.95``, ``p95_ttft:interactive <= 2``, ``shed <= 5%``, ``class_loss <= 2%``."""
    found = re.fullmatch(r"\s*([a-z0-9_]+(?::[^\s<>=]+)?)\s*(>=|<=)\s*([0-9.]+)\s*(%?)\s*", text)
    if not found:
        raise ConfigError(f"'{text}' is no constraint", "constraint", "write e.g. attainment:interactive >= 0.95")
    limit = float(found[3]) * (0.01 if found[4] else 1.0)
    metric = None if found[1] == "class_loss" else parse_metric(found[1])
    if metric is not None and metric.name == "cost":
        raise ConfigError("cost cannot be a constraint", "constraint", "use it as an objective: --objective cost:0.95")
    return Constraint(text.strip(), metric, found[2] == ">=", limit)
