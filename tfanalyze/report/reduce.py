"""Millions of requests brought down to what a figure can show: bins over time, quantile points, heat maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfanalyze.report.columns import Run
from tfanalyze.trace import F64

MAX_BINS = 240
MAX_ROWS = 64  # rows of a heat map; more instances than that are averaged in groups
QUANTILES = np.concatenate([np.linspace(0.0, 0.9, 46), np.linspace(0.91, 0.99, 9), [0.993, 0.996, 0.998, 0.999, 1.0]])


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal windows over the arrivals of a trace. `cut` (bins+1,) gives each window's first row."""

    edge_s: F64  # (bins+1,)
    cut: npt.NDArray[np.int64]
    width_s: float

    @property
    def middle_s(self) -> F64:
        return np.asarray((self.edge_s[:-1] + self.edge_s[1:]) / 2, np.float64)

    def __len__(self) -> int:
        return len(self.edge_s) - 1


def bins_of(arrival_s: F64, most: int = MAX_BINS, least_rows: int = 20) -> Bins:
    """Windows for sorted arrivals: at most `most`, about `least_rows` arrivals in each, in a short trace fewer."""
    known = arrival_s[np.isfinite(arrival_s)]  # sorted, so that what never arrived stands at the end
    n = len(known)
    bins = int(min(most, max(n // least_rows, min(24, n // 6), 1)))
    first, last = (float(known[0]), float(known[-1])) if n else (0.0, 1.0)
    last = last if last > first else first + 1.0
    edge_s = np.linspace(first, last, bins + 1)
    cut = np.searchsorted(arrival_s, edge_s, side="left")
    cut[-1] = n
    return Bins(edge_s, cut.astype(np.int64), (last - first) / bins)


def sums(bins: Bins, values: npt.NDArray[Any]) -> F64:
    """Sum of a column in each window, shape (bins,); rows in the trace's order."""
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return np.asarray(total[bins.cut[1:]] - total[bins.cut[:-1]], np.float64)


def quantile_line(bins: Bins, values: F64, q: float) -> F64:
    """A quantile of a column in each window, shape (bins,); NaN where nothing is known."""
    found = np.full(len(bins), np.nan)
    for k in range(len(bins)):
        part = values[bins.cut[k] : bins.cut[k + 1]]
        part = part[np.isfinite(part)]
        if len(part):
            found[k] = np.quantile(part, q)
    return found


def quantile_points(values: F64, unserved: int = 0) -> tuple[F64, F64]:
    """Points (value, share of all) of a distribution function; `unserved` counts as "never"."""
    known = np.sort(values[np.isfinite(values)])
    total = len(known) + unserved
    if not len(known):
        return np.zeros(0), np.zeros(0)
    return np.asarray(np.quantile(known, QUANTILES), np.float64), QUANTILES * (len(known) / total)


def quantiles(values: F64) -> dict[str, float]:
    """P50, P95 and P99 of what is known; NaN where nothing is."""
    known = values[np.isfinite(values)]
    found = np.quantile(known, (0.5, 0.95, 0.99)) if len(known) else (np.nan,) * 3
    return dict(zip(("p50", "p95", "p99"), (float(x) for x in found), strict=True))


def occupancy(run: Run, since_s: F64, until_s: F64, at_s: F64, weight: npt.NDArray[Any] | None = None) -> F64:
    """How many of a run's requests (or how much weight) each instance held at times `at_s`, shape (N, bins).

    A request counts from `since_s` until `until_s`, both (n,); one with an unknown end is left out.
    """
    known = np.isfinite(since_s) & np.isfinite(until_s) & (run.instance >= 0)
    where = run.instance[known].astype(np.int64)
    amount = np.ones(len(where)) if weight is None else weight[known].astype(np.float64)
    width = len(at_s) + 1
    change = np.zeros(len(run.instances) * width)
    for moment, sign in ((since_s[known], 1.0), (until_s[known], -1.0)):
        slot = where * width + np.searchsorted(at_s, moment, side="left")
        change += sign * np.bincount(slot, amount, minlength=len(change))
    return np.asarray(np.cumsum(change.reshape(len(run.instances), width), axis=1)[:, :-1], np.float64)


def grouped(rows: F64, names: tuple[str, ...], most: int = MAX_ROWS) -> tuple[F64, tuple[str, ...]]:
    """A heat map with at most `most` rows: neighbouring instances are averaged."""
    if len(rows) <= most:
        return rows, names
    cuts = np.linspace(0, len(rows), most + 1).astype(int)
    parts = [rows[low:high].mean(axis=0) for low, high in zip(cuts, cuts[1:], strict=False)]
    labels = tuple(f"{names[low]} .. {names[high - 1]}" for low, high in zip(cuts, cuts[1:], strict=False))
    return np.asarray(parts), labels


def thinned(t_s: F64, rows: F64, most: int = MAX_BINS) -> tuple[F64, F64]:
    """A recorded series (bins, k) with at most `most` points: neighbours are averaged."""
    if len(t_s) <= most:
        return t_s, rows
    cuts = np.linspace(0, len(t_s), most + 1).astype(int)[:-1]
    sizes = np.diff(np.append(cuts, len(t_s)))
    means = np.add.reduceat(rows, cuts, axis=0) / (sizes[:, None] if rows.ndim == 2 else sizes)
    return np.add.reduceat(t_s, cuts) / sizes, np.asarray(means, np.float64)
