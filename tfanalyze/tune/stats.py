"""Paired block bootstrap: how sure a difference between two replays of the same requests is.

Requests of a queueing system are not independent: a backlog lasts.  So time is cut into bins, runs of
neighbouring bins are drawn together, and both policies are read on the same draw.
"""

from __future__ import annotations

from math import ceil, sqrt

import numpy as np

from tfanalyze.trace import F64, I64

BINS = 120
DRAWS = 2000


def bin_of(arrival_s: F64, start_s: float, end_s: float, bins: int = BINS) -> I64:
    """Time bin of each request, 0..bins-1; the ends belong to the first and last bin."""
    width = max(end_s - start_s, 1e-9) / bins
    return np.clip(((arrival_s - start_s) / width).astype(np.int64), 0, bins - 1)


def block_length(series: F64) -> int:
    """Length of a block in bins: twice the lag at which the autocorrelation of ``series`` is gone.

    Source: the flat-top rule of Politis and White (2004): the first lag after which three lags in a row stay
    inside 2 sqrt(log10(n)/n).  Never under n^(1/3), never above n/6: six blocks at least make a sample.
    """
    n = len(series)
    low, high = max(1, int(n ** (1 / 3)) + 1), max(1, n // 6)
    centred = series - series.mean()
    power = float(centred @ centred)
    if n < 8 or power <= 0.0:
        return int(min(low, high))
    band = 2.0 * sqrt(np.log10(n) / n)
    lags = [float(centred[:-lag] @ centred[lag:]) / power for lag in range(1, n // 2)]
    quiet = [abs(rho) < band for rho in lags]
    gone: int = next((i for i in range(len(quiet) - 2) if all(quiet[i : i + 3])), len(quiet))
    return int(min(max(low, 2 * gone), high))


def block_weights(bins: int, block: int, draws: int, rng: np.random.Generator) -> F64:
    """How often each bin is in each draw of a circular block bootstrap; shape (draws, bins), rows sum to bins."""
    per_draw = ceil(bins / block)
    starts = rng.integers(0, bins, (draws, per_draw))
    picked = (starts[:, :, None] + np.arange(block)) % bins
    picked = picked.reshape(draws, -1)[:, :bins]
    weights = np.zeros((draws, bins))
    np.add.at(weights, (np.arange(draws)[:, None], picked), 1.0)
    return weights


def t_quantile(share: float, freedom: float) -> float:
    """Quantile of Student's t for ``share`` above 0.5.

    Source: Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5); within 1 % from 4 degrees of freedom up.
    """
    from statistics import NormalDist

    z = NormalDist().inv_cdf(share)
    v = max(freedom, 3.0)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return float(z + g1 / v + g2 / v**2 + g3 / v**3 + g4 / v**4)


def interval(point: float, draws: F64, blocks: float, level: float = 0.95) -> tuple[float, float]:
    """Two-sided interval from bootstrap ``draws``, widened for the small number of independent ``blocks``.

    Source: the expanded percentile interval of Hesterberg (2015, "What teachers should know about the
    bootstrap"): the plain one is too narrow by sqrt((n-1)/n) and by the step from normal to t.
    """
    draws = draws[np.isfinite(draws)]
    if len(draws) == 0 or not np.isfinite(point):
        return (float("nan"), float("nan"))
    tail = (1.0 - level) / 2
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    m = max(blocks, 2.0)
    wide = t_quantile(1.0 - tail, m - 1.0) / t_quantile(1.0 - tail, 1e9) * sqrt(m / (m - 1.0))
    return (float(point - wide * (point - low)), float(point + wide * (high - point)))


def grouped_sums(group: I64, values: F64, bins: int) -> F64:
    """Sum of ``values`` in each bin."""
    return np.bincount(group, weights=values, minlength=bins).astype(np.float64)
