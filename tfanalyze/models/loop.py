"""Closed loops in a log: a load generator with a fixed number of clients, each of which sends when its last answer is there.

Such a log has a first turn for every conversation that did not come by itself: it came because another conversation had
ended. Replayed at its recorded time, an engine that is simulated 2 % slow has ever more requests at once, and its latency
is wrong by much more than 2 %. Replayed as what it is, the number of requests stays what it was.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tfanalyze.trace import F64, I64, Trace

STEADY = 0.9  # share of the time at which the number of open conversations must be the largest one, or nearly
NEARLY = 0.97
LEAST_TURNOVERS = 3  # conversations per client
UNMATCHED = 0.05  # share of first turns that may have no conversation that ended before them
SLACK_S = 2e-3  # clocks and rounding: an answer may end this much after the next request was sent


def closed_loop(trace: Trace) -> Trace:
    """The trace with first turns linked to the conversation whose end they followed (prev, think_s), where the number of
    open conversations stays at one level; otherwise the trace itself.

    The clients are not known: a first turn follows the earliest conversation that ended and has no successor yet.
    """
    if trace.observed is None or len(trace) < 10:
        return trace
    end_s = trace.arrival_s + trace.observed.e2e_s
    first, last = _conversations(trace)
    known = np.isfinite(end_s[last])
    if known.mean() < 1.0 - UNMATCHED:
        return trace
    first, last = first[known], last[known]
    begin = _steady_from(trace.arrival_s[first], end_s[last])
    if begin is None:
        return trace
    order = np.argsort(end_s[last], kind="stable")
    tails, ends = last[order], end_s[last][order]
    starts = first[trace.arrival_s[first] > begin]
    prev, think = trace.prev.copy(), trace.think_s.copy()
    taken = missed = 0
    for row in starts:  # in order of arrival
        if taken < len(tails) and ends[taken] <= trace.arrival_s[row] + SLACK_S and tails[taken] < row:
            prev[row], think[row] = tails[taken], max(0.0, float(trace.arrival_s[row] - ends[taken]))
            taken += 1
        else:
            missed += 1
    if missed > UNMATCHED * max(len(starts), 1):
        return trace
    return replace(trace, prev=prev, think_s=think)


def _conversations(trace: Trace) -> tuple[I64, I64]:
    """First and last row of every conversation: turns that wait for the one before."""
    n = len(trace)
    waits = (trace.prev >= 0) & ~np.isnan(trace.think_s)
    root = np.where(waits, trace.prev, np.arange(n))
    while not np.array_equal(root[root], root):
        root = root[root]
    last = np.arange(n)
    np.maximum.at(last, root, np.arange(n))
    first = np.flatnonzero(root == np.arange(n))
    return first, last[first]


def _steady_from(start_s: F64, end_s: F64) -> float | None:
    """When the number of open conversations reaches its level, None where it keeps none."""
    times = np.concatenate([start_s, end_s])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.where(order < len(start_s), 1, -1))
    most = int(level.max())
    if most < 2 or len(start_s) < LEAST_TURNOVERS * most:
        return None
    times = times[order]
    begin, until = float(times[int(np.argmax(level == most))]), float(start_s.max())
    inside = (times[:-1] >= begin) & (times[:-1] < until)
    span = np.diff(times)[inside]
    high = span[level[:-1][inside] >= NEARLY * most - 1.0].sum()
    return begin if span.sum() > 0 and high >= STEADY * span.sum() else None
