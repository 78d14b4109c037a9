"""KV memory: capacity, block size, hits, preemption; from the engine's own metrics, cross-checked with the log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.models.timeline import RequestLog, state_at
from tfanalyze.trace import F64

if TYPE_CHECKING:
    from tfanalyze.workspace import Workspace

LEAST_CROWDED = 30
FULL_SHARE = 0.95  # KV use from which memory is taken to be the limit


def capacity_from_metrics(workspace: Workspace) -> tuple[int | None, int | None]:
    """KV capacity of one instance in tokens and the block size, where the engine says so: vLLM's cache_config_info
    labels, SGLang's max_total_num_tokens, block counts of TensorRT-LLM and Dynamo."""
    con = workspace.con
    row = con.execute(
        "SELECT max(TRY_CAST(labels['num_gpu_blocks'] AS BIGINT)), max(TRY_CAST(labels['block_size'] AS BIGINT)) FROM metrics WHERE name = 'kv_config'"
    ).fetchone()
    if row and row[0] and row[1]:
        return int(row[0]) * int(row[1]), int(row[1])
    tokens = con.execute("SELECT median(value) FROM metrics WHERE name = 'kv_capacity_tokens'").fetchone()
    if tokens and tokens[0]:
        return int(tokens[0]), None
    blocks = con.execute(
        "SELECT median(value) FILTER (name = 'kv_capacity_blocks'), median(value) FILTER (name = 'kv_block_tokens') FROM metrics"
    ).fetchone()
    if blocks and blocks[0] and blocks[1]:
        return int(blocks[0] * blocks[1]), int(blocks[1])
    return None, None


def capacity_from_use(workspace: Workspace, log: RequestLog, instance: int, origin_us: int) -> dict[str, Any] | None:
    """Capacity inferred by holding the engine's KV use share against the tokens that the log says were in flight.

    Shared prefixes and blocks kept for reuse put both off, so this is a check of a configured figure, or a rough
    figure where none is known. None without a KV use metric above 5 %.
    """
    name = log.instances[instance]
    got = workspace.con.execute(
        "SELECT ts_us, value FROM metrics WHERE name = 'kv_usage' AND (instance = ? OR ?) ORDER BY ts_us", [name, len(log.instances) == 1]
    ).fetchnumpy()
    if not len(got["ts_us"]):
        return None
    share = np.asarray(got["value"], dtype=np.float64)
    at_s = (got["ts_us"] - origin_us) * 1e-6
    state = state_at(log, instance, at_s)
    inside = (at_s >= log.arrival_s.min()) & (at_s <= log.finish_s.max())  # two clocks may not meet at all
    use = inside & (share > 0.05) & (state.reliable | (share > 0.5)) & (state.kv_tokens > 0)
    if use.sum() >= 10:
        ratio = state.kv_tokens[use] / share[use]
        low, middle, high = (float(x) for x in np.quantile(ratio, (0.1, 0.5, 0.9)))
        return {"kv_tokens": int(middle), "low": int(low), "high": int(high), "samples": int(use.sum()), "by": "time"}
    if (share > 0.05).sum() < 10:  # clocks that do not meet: compare the levels
        return None
    levels = np.array([0.5, 0.75, 0.9])
    state = state_at(log, instance, np.linspace(0.0, float(log.finish_s.max()), len(share)))
    ratio = np.quantile(state.kv_tokens, levels) / np.quantile(share, levels)
    return {"kv_tokens": int(np.median(ratio)), "low": int(ratio.min()), "high": int(ratio.max()), "samples": len(share), "by": "level"}


def _crowded(log: RequestLog, instance: int) -> tuple[F64, F64]:
    """Running requests and their KV tokens at moments when requests waited for a place for long: at least three that
    have waited ten times as long as the quickest twentieth waits for its first token."""
    rows = log.take(log.instance == instance)
    if len(rows) == 0:
        return np.zeros(0), np.zeros(0)
    times = np.sort(rows.first_s)
    patience = 10.0 * float(np.quantile(rows.first_s - rows.arrival_s, 0.05))
    late = np.minimum(rows.arrival_s + patience, rows.first_s)
    state = state_at(replace(rows, arrival_s=late, start_s=rows.first_s, instance=np.zeros(len(rows), np.int32), instances=("0",)), 0, times)
    crowded = state.waiting >= 3
    return state.decoding[crowded], state.kv_tokens[crowded]


def seats(log: RequestLog) -> int | None:
    """The engine's limit on running requests, where the log runs into it: decoding requests stay at one level while
    others wait. Taken up to the next multiple of 8 when that is within 3 % (a prompt being computed has a seat too)."""
    found: list[int] = []
    for code in range(len(log.instances)):
        decoding, _ = _crowded(log, code)
        if len(decoding) < LEAST_CROWDED:
            continue
        low, middle, high = np.quantile(decoding, (0.25, 0.5, 0.9))
        at_top = float(np.mean(decoding >= 0.97 * decoding.max() - 1.0))
        if high - low <= 0.12 * middle + 1.0 or at_top > 0.3:  # memory gives no level: requests differ in size
            level = int(np.bincount(np.rint(decoding[decoding >= middle]).astype(np.int64)).argmax())
            rounded = -(-level // 8) * 8
            found.append(rounded if rounded <= 1.03 * level + 1 else level)
    return max(found) if found else None


def tokens_under_pressure(log: RequestLog) -> int | None:
    """KV capacity where requests waited for memory, not for a seat: the level that tokens in flight reach."""
    if seats(log) is not None:
        return None
    found = [float(np.quantile(tokens, 0.99)) for tokens in (_crowded(log, code)[1] for code in range(len(log.instances))) if len(tokens) >= LEAST_CROWDED]
    return int(max(found)) if found else None


def pressure(workspace: Workspace) -> dict[str, Any]:
    """KV facts as the engines counted them: highest use, preemptions, hit share, share of time near full."""
    con = workspace.con
    row = con.execute(
        "SELECT max(value), avg(CASE WHEN value >= ? THEN 1.0 ELSE 0.0 END), count(*) FROM metrics WHERE name = 'kv_usage'", [FULL_SHARE]
    ).fetchone()
    facts: dict[str, Any] = {}
    if row and row[2]:
        facts = {"kv_used_share_max": float(row[0]), "share_of_time_full": float(row[1])}
    for key, name in (("preemptions", "preemptions_total"), ("hit_tokens", "prefix_hit_tokens_total"), ("query_tokens", "prefix_query_tokens_total")):
        grown = counter_growth(workspace, name)
        if grown is not None:
            facts[key] = int(sum(grown.values()))
    if facts.get("query_tokens"):
        facts["prefix_hit_share"] = facts["hit_tokens"] / facts["query_tokens"]
    return facts


def counter_growth(workspace: Workspace, name: str) -> dict[str, float] | None:
    """Growth of a counter by instance over the metrics' span; a fall is a restart, counted from zero."""
    got = workspace.con.execute(
        "SELECT coalesce(instance, 'default') AS instance, ts_us, sum(value) AS value FROM metrics WHERE name = ? GROUP BY ALL ORDER BY instance, ts_us",
        [name],
    ).fetchnumpy()
    if not len(got["ts_us"]):
        return None
    instance, value = np.asarray(got["instance"]).astype(str), np.asarray(got["value"], dtype=np.float64)
    out: dict[str, float] = {}
    for one in np.unique(instance):
        series = value[instance == one]
        step = np.diff(series)
        out[str(one)] = float(np.where(step < 0, series[1:], step).sum())
    return out
