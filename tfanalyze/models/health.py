"""Health of a fit: drift, outlier instances, change points, a second client that the log does not show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.models.kv import counter_growth
from tfanalyze.models.latency import Rows
from tfanalyze.trace import F64

if TYPE_CHECKING:
    from tfanalyze.workspace import Workspace

DRIFT = 0.10  # a median residual of a time block this far from the rest, in both directions of the run, is reported
OUTLIER = 0.10  # the same of an instance
COVERAGE = (0.95, 1.02)  # rows / requests counted by the engine; outside, the log is not the whole load
BLOCKS = 8
CONTENTION = 0.03  # slowing down by less than this is not worth a word
MINUTE_S, GRID = 60.0, 20_000


def residual_health(rows: Rows, residuals: F64, instances: tuple[str, ...]) -> list[dict[str, Any]]:
    """Findings on relative residuals (predicted over observed; > 0 = the engine was faster than the fit)."""
    found: list[dict[str, Any]] = []
    by_instance = {}
    for code, name in enumerate(instances):
        mine = rows.instance == code
        if mine.sum() >= 20:
            by_instance[name] = float(np.median(residuals[mine]))
    for name, value in by_instance.items():
        rest = float(np.median([other for key, other in by_instance.items() if key != name] or [0.0]))
        if len(by_instance) > 1 and abs(value - rest) > OUTLIER and abs(value) > abs(rest):
            found.append(
                {"kind": "outlier_instance", "instance": name, "residual": value, "text": f"{name} is {_pace(value - rest)} than the others"}
            )
    found += _contention(rows, residuals)
    for code, name in enumerate(instances):
        found += _drift(rows.at_s[rows.instance == code], residuals[rows.instance == code], name)
    return found


def _contention(rows: Rows, residuals: F64, seed: int = 1) -> list[dict[str, Any]]:
    """Do instances slow each other down? Slowness against the share of an interval in which another instance is busy.

    Only differences inside a minute and an instance count, so that a drift of the machine, which also makes everything
    busy at once, is not taken for it. Bootstrap over those minutes; a finding needs its 90 % interval above zero.
    """
    timed = rows.kind < 2
    codes = np.unique(rows.instance[timed])
    if len(codes) < 2 or timed.sum() < 4 * BLOCKS:
        return []
    at_s, end_s, instance, slow = rows.at_s[timed], (rows.at_s + rows.seconds)[timed], rows.instance[timed], -residuals[timed]
    grid = np.linspace(float(at_s.min()), float(end_s.max()), GRID)
    share = np.zeros(len(at_s))
    for code in codes:
        others = instance != code
        started, ended = np.sort(at_s[others]), np.sort(end_s[others])
        busy = np.searchsorted(started, grid, side="right") > np.searchsorted(ended, grid, side="right")
        total = np.concatenate([[0.0], np.cumsum(busy[:-1] * np.diff(grid))])
        mine = instance == code
        share[mine] = (np.interp(end_s[mine], grid, total) - np.interp(at_s[mine], grid, total)) / np.maximum(end_s[mine] - at_s[mine], 1e-9)
    _, group = np.unique(np.stack([at_s // MINUTE_S, instance], axis=1), axis=0, return_inverse=True)
    group = np.ravel(group)
    x = share - (np.bincount(group, share) / np.bincount(group))[group]
    y = slow - np.array([np.median(slow[group == g]) for g in range(int(group.max()) + 1)])[group]
    weight = np.minimum(1.0, 0.5 / np.maximum(np.abs(y), 1e-9))
    top, bottom = np.bincount(group, weight * x * y), np.bincount(group, weight * x * x)
    if bottom.sum() <= 1e-9:
        return []
    draws = np.random.default_rng(seed).integers(0, len(top), (500, len(top)))
    spread = top[draws].sum(axis=1) / np.maximum(bottom[draws].sum(axis=1), 1e-12)
    value, low, high = float(top.sum() / bottom.sum()), float(np.quantile(spread, 0.05)), float(np.quantile(spread, 0.95))
    if low <= 0 or value < CONTENTION:
        return []
    text = f"instances are {value:.0%} slower while another one is busy ({low:.0%} to {high:.0%}): a shared host; replay has each to itself"
    return [{"kind": "contention", "slowdown": value, "low": low, "high": high, "text": text}]


def _pace(value: float) -> str:
    return f"{abs(value):.0%} {'faster' if value > 0 else 'slower'}"


def _drift(at_s: F64, residuals: F64, name: str) -> list[dict[str, Any]]:
    """Speed of one instance over time: medians of time blocks, held against what their own noise allows."""
    if len(at_s) < 5 * BLOCKS:
        return []
    order = np.argsort(at_s, kind="stable")
    parts = [part for part in np.array_split(order, BLOCKS) if len(part)]
    median = np.array([np.median(residuals[part]) for part in parts])
    noise = np.array([1.2533 * np.std(residuals[part]) / np.sqrt(len(part)) for part in parts])
    spread = float(median.max() - median.min())
    limit = max(DRIFT, 3.0 * float(np.mean(noise)))
    if spread <= limit:
        return []
    slow, fast = int(np.argmin(median)), int(np.argmax(median))
    finding = {
        "kind": "drift", "instance": name, "spread": spread, "noise": float(np.mean(noise)),
        "slowest_s": [float(at_s[parts[slow][0]]), float(at_s[parts[slow][-1]])],
        "fastest_s": [float(at_s[parts[fast][0]]), float(at_s[parts[fast][-1]])],
        "text": f"{name} changed speed by {spread:.0%} during the log (slowest around {np.median(at_s[parts[slow]]):.0f} s, "
        f"fastest around {np.median(at_s[parts[fast]]):.0f} s): same work, other duration",
    }  # fmt: skip
    return [finding, *_change_point(at_s[order], residuals[order], name)]


def _change_point(at_s: F64, residuals: F64, name: str) -> list[dict[str, Any]]:
    """One step in the level that explains most of the drift: least absolute deviation over all splits."""
    n = len(at_s)
    best, where = np.inf, 0
    total = float(np.abs(residuals - np.median(residuals)).sum())
    for cut in range(n // 10, n - n // 10, max(1, n // 200)):
        left, right = residuals[:cut], residuals[cut:]
        cost = float(np.abs(left - np.median(left)).sum() + np.abs(right - np.median(right)).sum())
        if cost < best:
            best, where = cost, cut
    if where == 0 or best > 0.75 * total:
        return []
    change = float(np.median(residuals[where:]) - np.median(residuals[:where]))
    return [
        {"kind": "change_point", "instance": name, "time_s": float(at_s[where]), "change": change,
         "text": f"{name} became {_pace(change)} at {at_s[where]:.0f} s and stayed so: an upgrade, a new limit, or a neighbour"}
    ]  # fmt: skip


def coverage(workspace: Workspace, vantage: str) -> list[dict[str, Any]]:
    """Rows against the engines' own counters over the metrics' span: a second client, or rows that are missing."""
    found: list[dict[str, Any]] = []
    rows, tokens = workspace.con.execute(
        "SELECT count(*), coalesce(sum(output_tokens), 0) FROM requests WHERE coalesce(vantage, '') = ? AND coalesce(status, 'ok') = 'ok'", [vantage]
    ).fetchall()[0]
    for name, what, amount in (("requests_finished_total", "requests", rows), ("generation_tokens_total", "output tokens", tokens)):
        grown = counter_growth(workspace, name)
        counted = sum(grown.values()) if grown else 0.0
        if counted <= 0:
            continue
        share = float(amount) / counted
        if not COVERAGE[0] <= share <= COVERAGE[1]:
            text = (
                f"the log holds {share:.0%} of the {what} that the engines counted: "
                + ("another client used them, or rows are missing" if share < 1 else "the metrics cover only a part of the log")
            )
            found.append({"kind": "coverage", "what": what, "share": share, "text": text})
    return found
