"""What can be done with traces: take, cut, split, scale, stitch, dequantise, anonymise. Each returns a new Trace."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tfanalyze.errors import ConfigError, InputError
from tfanalyze.trace import COLUMNS, F64, I32, I64, OBSERVED, Observed, Trace, dense_ids, offsets, take_blocks

JITTER_S = 30.0  # an added session starts at most this far from the one it copies


def take(trace: Trace, rows: npt.NDArray[Any], shift_s: float = 0.0) -> Trace:
    """The given rows (sorted, distinct); times ``shift_s`` earlier. A turn whose previous one is gone stands alone.

    Shapes: rows (k,) row numbers, or (n,) bool.
    """
    rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, np.int64)
    columns: dict[str, Any] = {name: getattr(trace, name)[rows] for name in COLUMNS}
    new_row = np.full(len(trace) + 1, -1, np.int32)
    new_row[rows] = np.arange(len(rows), dtype=np.int32)
    columns["prev"] = new_row[columns["prev"]]
    columns["think_s"] = np.where(columns["prev"] >= 0, columns["think_s"], np.nan)
    columns["arrival_s"] = columns["arrival_s"] - shift_s
    columns["block_off"], ids = take_blocks(trace.block_off, trace.block_id, rows)
    columns["block_id"] = dense_ids(ids)
    return replace(
        trace,
        **columns,
        observed=_take_observed(trace.observed, rows),
        request_ids=tuple(trace.request_ids[r] for r in rows) if trace.request_ids else (),
        start_us=trace.start_us + round(shift_s * 1e6) if trace.start_us else 0,
    )


def _take_observed(observed: Observed | None, rows: npt.NDArray[Any]) -> Observed | None:
    if observed is None:
        return None
    return Observed(**{name: getattr(observed, name)[rows] for name in OBSERVED})


def cut(trace: Trace, start_s: float, end_s: float) -> Trace:
    """Requests that arrive in [start_s, end_s); arrival_s then counts from start_s."""
    low, high = np.searchsorted(trace.arrival_s, [start_s, end_s])
    return take(trace, np.arange(low, high), start_s)


def split(trace: Trace, shares: Sequence[float]) -> list[Trace]:
    """Consecutive windows of time, ``shares`` of the span from first to last arrival, in order.

    Errors: ConfigError unless the shares are positive and sum to 1.
    """
    if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise ConfigError(f"shares {list(shares)} are not positive with sum 1", "split", "give e.g. 0.7 and 0.3")
    first = float(trace.arrival_s[0]) if len(trace) else 0.0
    edges = first + trace.span_s * np.concatenate(([0.0], np.cumsum(shares)))
    edges[-1] = np.inf
    return [cut(trace, low, high) for low, high in pairwise(edges)]


def sessions(trace: Trace) -> I32:
    """(n,) row of the first turn of each request's session; its own row where it has none."""
    root: I32 = np.where(trace.prev >= 0, trace.prev, np.arange(len(trace), dtype=np.int32))
    while len(root) and not np.array_equal(root[root], root):
        root = root[root]
    return root


def continues(trace: Trace) -> I32:
    """(n,) row whose whole prompt begins this row's prompt, the longest and latest such, -1 = none.

    Logs without session ids (Mooncake) still show conversations this way. A prefix that more than one in a hundred
    requests share (at least 50) is a system prompt, no conversation.
    """
    n, t = len(trace), trace.block_size
    none = np.full(n, -1, np.int32)
    if not n or not len(trace.block_id):
        return none
    counts = np.diff(trace.block_off)
    full = np.minimum(trace.input_tokens // t, counts)
    ends = np.flatnonzero(full > 0)
    end_id = trace.block_id[trace.block_off[:-1][ends] + full[ends] - 1].astype(np.int64)
    common = np.bincount(trace.block_id) > max(50, n // 100)
    keep = ~common[end_id]
    keys = np.sort(end_id[keep] * n + ends[keep])
    if not len(keys):
        return none
    row = np.repeat(np.arange(n), counts)
    at = np.searchsorted(keys, trace.block_id.astype(np.int64) * n + row) - 1
    hit = (at >= 0) & (keys[at] // n == trace.block_id)
    place = np.flatnonzero(hit)
    none[row[place]] = (keys[at[place]] % n).astype(np.int32)  # the last assignment is the deepest block
    return none


def units(trace: Trace, by: str = "session") -> I32:
    """(n,) number of the unit that is added or dropped whole: the session or conversation, or the tenant."""
    if by == "tenant":
        lone = len(trace.tenants) + np.arange(len(trace), dtype=np.int32)
        return dense_ids(np.where(trace.tenant >= 0, trace.tenant, lone))
    if by != "session":
        raise ConfigError(f"by is {by!r}", "scale_load", "use session or tenant")
    linked = replace(trace, prev=np.where(trace.prev >= 0, trace.prev, continues(trace)).astype(np.int32))
    return dense_ids(sessions(linked))


def scale_load(trace: Trace, factor: float, seed: int, by: str = "session") -> Trace:
    """Change the load by adding or dropping whole sessions (or tenants); time is never squeezed.

    An added session is a copy of a random one, moved by up to 30 s inside the trace's span; blocks that only its
    original used get new ids, blocks shared with others stay shared. Deterministic in ``seed``.
    Errors: ConfigError for a factor that is not positive.
    """
    if not factor > 0 or not np.isfinite(factor):
        raise ConfigError(f"load factor is {factor}", "scale_load", "give a positive number")
    unit = units(trace, by)
    n_unit = int(unit.max()) + 1 if len(unit) else 0
    whole, rest = divmod(round(factor * n_unit), n_unit) if n_unit else (0, 0)
    if (whole, rest) == (1, 0) or not n_unit:
        return trace
    rng = np.random.default_rng(seed)
    times = np.full(n_unit, whole)
    times[rng.permutation(n_unit)[:rest]] += 1
    parts = [take(trace, times[unit] > 0)] if whole < 1 else [trace]
    parts += [_moved(trace, unit, times > k, rng) for k in range(1, int(times.max()))]
    return replace(_merge(trace, unit, parts), name=f"{trace.name} x{factor:g}".strip())


def _moved(trace: Trace, unit: I32, wanted: npt.NDArray[np.bool_], rng: np.random.Generator) -> Trace:
    """Copies of the wanted units, each moved by one offset; rows not sorted yet, so columns are kept by row."""
    first, last = trace.arrival_s[0], trace.arrival_s[-1]
    n_unit = len(wanted)
    begin = np.full(n_unit, np.inf)
    end = np.full(n_unit, -np.inf)
    np.minimum.at(begin, unit, trace.arrival_s)
    np.maximum.at(end, unit, trace.arrival_s)
    low, high = np.maximum(-JITTER_S, first - begin), np.minimum(JITTER_S, last - end)
    move = low + rng.random(n_unit) * (high - low)
    arrival = np.clip(trace.arrival_s + move[unit], first, last)
    rows = np.flatnonzero(wanted[unit])
    order = rows[np.argsort(arrival[rows], kind="stable")]
    return _reordered(trace, order, arrival)


def _reordered(trace: Trace, order: npt.NDArray[Any], arrival: F64) -> Trace:
    """Rows ``order`` with new arrivals (n,) by old row; block ids are left as they are."""
    columns: dict[str, Any] = {name: getattr(trace, name)[order] for name in COLUMNS}
    new_row = np.full(len(trace) + 1, -1, np.int32)
    new_row[order] = np.arange(len(order), dtype=np.int32)
    columns["prev"] = new_row[columns["prev"]]
    columns["arrival_s"] = arrival[order]
    columns["block_off"], columns["block_id"] = take_blocks(trace.block_off, trace.block_id, order)
    ids = tuple(trace.request_ids[r] for r in order) if trace.request_ids else ()
    return replace(trace, **columns, observed=_take_observed(trace.observed, order), request_ids=ids)


def _merge(trace: Trace, unit: I32, parts: list[Trace]) -> Trace:
    """Put copies together by arrival; what only one unit used gets new block ids in each further copy."""
    if len(parts) == 1:
        return parts[0]
    n_id = int(trace.block_id.max()) + 1 if len(trace.block_id) else 0
    private = _private_blocks(trace, unit, n_id)
    base = np.cumsum([0, *(len(p) for p in parts)])
    columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in COLUMNS}
    columns["prev"] = np.concatenate(
        [np.where(p.prev >= 0, p.prev + b, -1) for p, b in zip(parts, base[:-1], strict=True)]
    ).astype(np.int32)
    ids = [np.where(private[p.block_id], p.block_id.astype(np.int64) + k * n_id, p.block_id) for k, p in enumerate(parts)]
    columns["block_off"] = offsets(np.concatenate([np.diff(p.block_off) for p in parts]))
    columns["block_id"] = dense_ids(np.concatenate(ids))
    observed = None
    if trace.observed is not None:
        observed = Observed(**{f: np.concatenate([getattr(p.observed, f) for p in parts]) for f in OBSERVED})
    order = np.argsort(columns["arrival_s"], kind="stable")
    rank = np.empty(len(order) + 1, np.int32)
    rank[order], rank[-1] = np.arange(len(order)), -1
    columns["prev"] = rank[columns["prev"]]
    columns["block_off"], columns["block_id"] = take_blocks(columns["block_off"], columns["block_id"], order)
    for name in COLUMNS:
        columns[name] = columns[name][order]
    ids_of = [f"{rid}~{k}" if k else rid for k, p in enumerate(parts) for rid in p.request_ids]
    named = tuple(ids_of[r] for r in order) if ids_of else ()
    return replace(trace, **_settled(columns), observed=_take_observed(observed, order), request_ids=named)


def _settled(columns: dict[str, Any]) -> dict[str, Any]:
    """A turn that landed before its predecessor (equal times, copies merged) stands alone."""
    late = columns["prev"] >= np.arange(len(columns["prev"]))
    columns["prev"][late] = -1
    columns["think_s"][late] = np.nan
    return columns


def _private_blocks(trace: Trace, unit: I32, n_id: int) -> npt.NDArray[np.bool_]:
    """(n_id,) True where all users of a block are of one unit."""
    owner = np.repeat(unit, np.diff(trace.block_off))
    low = np.full(n_id, np.iinfo(np.int32).max, np.int32)
    high = np.full(n_id, -1, np.int32)
    np.minimum.at(low, trace.block_id, owner)
    np.maximum.at(high, trace.block_id, owner)
    private: npt.NDArray[np.bool_] = low == high
    return private


def stitch(trace: Trace, copies: int) -> Trace:
    """``copies`` of the trace end to end, each with block ids of its own, one mean gap apart.

    Cost: O(copies * n), vectorised: 10 million requests in seconds. Request ids are dropped.
    Errors: ConfigError for copies < 1; InputError when block ids or rows would pass 2^31.
    """
    if copies < 1:
        raise ConfigError(f"copies is {copies}", "stitch", "give at least 1")
    n = len(trace)
    n_id = int(trace.block_id.max()) + 1 if len(trace.block_id) else 0
    if max(n_id, n) * copies >= 2**31:
        raise InputError(f"{copies} copies need more than 2^31 block ids or rows", trace.name or "trace", "use fewer")
    first = float(trace.arrival_s[0]) if n else 0.0
    period = trace.span_s + (trace.span_s / (n - 1) if n > 1 else 1.0)
    copy = np.repeat(np.arange(copies, dtype=np.int64), n)
    columns: dict[str, Any] = {name: np.tile(getattr(trace, name), copies) for name in COLUMNS}
    columns["arrival_s"] = columns["arrival_s"] - first + copy * period
    prev = columns["prev"]
    columns["prev"] = np.where(prev >= 0, prev + copy * n, -1).astype(np.int32)
    columns["block_off"] = offsets(np.tile(np.diff(trace.block_off), copies))
    shift = np.repeat(np.arange(copies, dtype=np.int32) * np.int32(n_id), len(trace.block_id))
    columns["block_id"] = np.tile(trace.block_id, copies) + shift
    observed = None
    if trace.observed is not None:
        observed = Observed(**{f: np.tile(getattr(trace.observed, f), copies) for f in OBSERVED})
    return replace(trace, **columns, observed=observed, request_ids=(), name=f"{trace.name} *{copies}".strip())


def dequantise(trace: Trace, seed: int) -> Trace:
    """Spread arrivals that a log rounded to a tick (Mooncake: 3 s) evenly at random inside their tick.

    The tick is the largest step that divides every arrival; a trace with fewer than a tenth of its rows tied, or a
    tick of 1 ms or less, is returned as it is. Order of rows is kept. Deterministic in ``seed``.
    """
    tick_s = tick(trace)
    if not tick_s:
        return trace
    rng = np.random.default_rng(seed)
    group = np.concatenate(([0], np.cumsum(np.diff(trace.arrival_s) > 0)))
    jitter = rng.random(len(trace)) * tick_s
    order = np.lexsort((jitter, group))
    note = f"arrivals rounded to {tick_s:g} s were spread inside their tick (seed {seed})"
    return replace(trace, arrival_s=trace.arrival_s + jitter[order], notes=(*trace.notes, note))


def tick(trace: Trace) -> float:
    """Step in seconds that arrivals were rounded to, 0 = none found."""
    if len(trace) < 3:
        return 0.0
    us = np.rint((trace.arrival_s - trace.arrival_s[0]) * 1e6).astype(np.int64)
    tied = float(np.mean(np.diff(us) == 0))
    step = int(np.gcd.reduce(us))
    return step / 1e6 if tied >= 0.1 and step > 1000 else 0.0


def anonymise(trace: Trace, key: bytes | str) -> Trace:
    """Names become keyed pseudonyms (HMAC-SHA-256) or numbers; the absolute start, file names and notes go.

    The same key gives the same pseudonyms, so that two traces of one fleet can still be compared.
    """
    secret = key.encode() if isinstance(key, str) else key

    def pseudonym(name: str, kind: str) -> str:
        return f"{kind}-{hmac.new(secret, f'{kind}/{name}'.encode(), hashlib.sha256).hexdigest()[:12]}"

    return replace(
        trace,
        tenants=tuple(pseudonym(name, "tenant") for name in trace.tenants),
        models=tuple(pseudonym(name, "model") for name in trace.models),
        sites=tuple(pseudonym(name, "site") for name in trace.sites),
        instances=tuple(pseudonym(name, "instance") for name in trace.instances),
        request_ids=tuple(pseudonym(name, "request") for name in trace.request_ids),
        start_us=0,
        name="",
        notes=(),
    )


def chain(off: I64, ids: I32) -> tuple[I32, bool]:
    """Ids that stand for the whole prefix up to their block, and whether they had to be made.

    A log whose hash covers one block's text alone has equal ids at unequal prefixes; each (parent, id) pair then
    gets its own id. Ids that are chained already come back as they are. Cost: O(blocks log blocks).
    """
    if not len(ids):
        return ids, False
    counts = np.diff(off)
    first = np.zeros(len(ids), np.bool_)
    first[off[:-1][counts > 0]] = True
    parent = np.where(first, -1, np.concatenate(([-1], ids[:-1])))
    known = np.empty(int(ids.max()) + 1, np.int64)
    known[ids] = parent
    if np.array_equal(known[ids], parent):
        return ids, False
    made = ids.astype(np.int64)
    n_id = int(ids.max()) + 1
    last = np.full(len(counts), -1, np.int64)
    base = 0
    for place in range(int(counts.max())):
        rows = np.flatnonzero(counts > place)
        at = off[:-1][rows] + place
        _, number = np.unique((last[rows] + 1) * n_id + ids[at], return_inverse=True)
        made[at] = last[rows] = base + number
        base += int(number.max()) + 1
    return made.astype(np.int32), True
