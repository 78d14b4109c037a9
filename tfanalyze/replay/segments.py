"""Prefix blocks of a trace as segments: runs of engine blocks that exactly the same requests share.

A request's path is a handful of segments instead of dozens of blocks, and since every request uses a segment whole,
one `held` count a segment and instance says which of its blocks are in memory (docs/engine.md section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfanalyze.replay.jit import builder
from tfanalyze.replay.layout import SEG
from tfanalyze.trace import I32, I64, Trace


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments for one engine block size.  Paths: request r owns seg_id[off[r]:off[r+1]], from the root down."""

    block_size: int
    seg: Any  # (n_seg,) SEG: first engine block, and one past the last
    off: I64  # (n+1,)
    seg_id: I32


def build_segments(trace: Trace, block_size: int) -> Segments:
    """Cut the block lists of ``trace`` into segments of engine blocks of ``block_size`` tokens.

    Cost: O(blocks) time; 9 bytes a distinct block and about 60 a request besides the result.
    """
    n = len(trace)
    if trace.block_size <= 0 or len(trace.block_id) == 0:
        none = np.zeros(0, SEG).view(np.recarray)
        return Segments(block_size, none, np.zeros(n + 1, np.int64), np.zeros(0, np.int32))
    t, e = int(trace.block_size), int(block_size)
    off, ids = trace.block_off, trace.block_id
    output = np.maximum(trace.output_tokens, 1)
    limit = _limits(off, trace.input_tokens, output, t, e)
    n_node = int(ids.max()) + 1
    keys = _cut_keys(off, ids, trace.input_tokens, limit, t, e)
    keys = _distinct(keys)
    forced = _forced_keys(off, ids, trace.input_tokens, limit, t, e)
    forced = _distinct(forced)
    cuts = _cuts_of(keys, n_node)
    piece0, n_piece = _first_pieces(off, ids, limit, n_node, t, e, cuts)
    has = cuts > 0  # nodes with a cut: only for those are the keys searched
    del cuts
    seg_of = np.zeros(n_piece, np.int32)
    _count(off, ids, limit, piece0, has, keys, seg_of, t, e)
    path_off = np.zeros(n + 1, np.int64)
    n_seg = _merge(off, ids, limit, piece0, has, keys, forced, seg_of, path_off, t, e)
    path = np.empty(path_off[-1], np.int32)
    seg = np.zeros(n_seg, SEG).view(np.recarray)
    _paths(off, ids, limit, piece0, has, keys, seg_of, path_off, path, seg, t, e)
    return Segments(e, seg, path_off, path)


def _distinct(keys: I64) -> I64:
    """Sorted distinct non-negative keys; they come nearly sorted, which timsort likes."""
    keys = keys[keys >= 0]
    keys.sort(kind="stable")
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys[first]


@builder
def _cuts_of(keys, n_node):  # type: ignore[no-untyped-def]
    """Number of cuts in each node."""
    cuts = np.zeros(n_node, np.int32)
    for key in keys:
        cuts[key >> 24] += 1
    return cuts


@builder
def _limits(off, inputs, outputs, t, e):  # type: ignore[no-untyped-def]
    """Engine blocks of each request: list reach and length both count."""
    limit = np.empty(len(inputs), np.int32)
    for r in range(len(inputs)):
        tokens = min((off[r + 1] - off[r]) * t, np.int64(inputs[r]) + outputs[r])
        limit[r] = tokens // e
    return limit


@builder
def _key(off, ids, r, j, t, e):  # type: ignore[no-untyped-def]
    """(node, block) of engine block j of request r as one integer."""
    return (np.int64(ids[off[r] + ((j + 1) * e - 1) // t]) << 24) | j


@builder
def _cut_keys(off, ids, inputs, limit, t, e):  # type: ignore[no-untyped-def]
    """Blocks before which a node must be split: a prompt's hit limit, its end, the end of the request."""
    n = len(inputs)
    keys = np.full(3 * n, -1, np.int64)
    for r in range(n):
        last = np.int64(-1)
        for which in range(3):
            j = np.int64((inputs[r] - 1) // e if which == 0 else inputs[r] // e if which == 1 else limit[r])
            # the node that holds block j, if the list reaches there (also when j == limit: someone else goes on)
            if j <= 0 or j > limit[r] or j == last:
                continue
            last = j
            i = ((j + 1) * e - 1) // t
            if i < off[r + 1] - off[r]:
                keys[3 * r + which] = (np.int64(ids[off[r] + i]) << 24) | j
    return keys


@builder
def _forced_keys(off, ids, inputs, limit, t, e):  # type: ignore[no-untyped-def]
    """Blocks that start a segment even if the same requests share both sides."""
    n = len(inputs)
    keys = np.full(2 * n, -1, np.int64)
    for r in range(n):
        for which in range(2):
            j = np.int64((inputs[r] - 1) // e if which == 0 else inputs[r] // e)
            if 0 < j < limit[r]:
                keys[2 * r + which] = _key(off, ids, r, j, t, e)
    return keys


@builder
def _first_pieces(off, ids, limit, n_node, t, e, extra):  # type: ignore[no-untyped-def]
    """Number the pieces: each node that ends an engine block has one, and one more for each cut inside it."""
    piece0 = np.full(n_node, -1, np.int32)
    n_piece = 0
    ratio = t // e if t % e == 0 else 0  # engine blocks a trace block, where that is whole
    for r in range(len(limit)):
        hi = np.int64(0)
        for i in range(off[r + 1] - off[r]):
            if hi >= limit[r]:
                break
            lo, hi = hi, hi + ratio if ratio > 0 else ((i + 1) * t) // e
            node = ids[off[r] + i]
            if hi > lo and piece0[node] < 0:
                piece0[node] = n_piece
                n_piece += 1 + extra[node]
    return piece0, n_piece


@builder
def _next_piece(keys, node, lo, hi, at):  # type: ignore[no-untyped-def]
    """End of the piece of ``node`` that starts at block ``lo``; ``at`` = index into keys; returns end, next index."""
    base = np.int64(node) << 24
    while at < len(keys) and keys[at] <= (base | lo):
        at += 1
    if at < len(keys) and keys[at] < (base | hi):
        return keys[at] & 0xFFFFFF, at
    return np.int64(hi), at


@builder
def _count(off, ids, limit, piece0, has, keys, count, t, e):  # type: ignore[no-untyped-def]
    ratio = t // e if t % e == 0 else 0
    for r in range(len(limit)):
        hi = np.int64(0)
        for i in range(off[r + 1] - off[r]):
            if hi >= limit[r]:
                break
            lo, hi = hi, hi + ratio if ratio > 0 else ((i + 1) * t) // e
            if hi <= lo:
                continue
            node = ids[off[r] + i]
            piece = piece0[node]
            at = np.searchsorted(keys, np.int64(node) << 24) if has[node] else len(keys)
            while lo < hi and lo < limit[r]:
                count[piece] += 1
                lo, at = _next_piece(keys, node, lo, hi, at)
                piece += 1


@builder
def _merge(off, ids, limit, piece0, has, keys, forced, seg_of, path_off, t, e):  # type: ignore[no-untyped-def]
    """Give every piece its segment: the one above it if the same requests go on and no one's prompt ends between.

    seg_of holds how many requests use each piece, and is overwritten by -1 - segment.  Fills path_off; returns the
    number of segments.
    """
    n_seg = 0
    ratio = t // e if t % e == 0 else 0
    users = np.empty(5 * len(limit) + 1, np.int32)  # of each segment; at most one starts at each branch and each cut
    for r in range(len(limit)):
        above = -1  # segment of the piece above
        hi = np.int64(0)
        for i in range(off[r + 1] - off[r]):
            if hi >= limit[r]:
                break
            lo, hi = hi, hi + ratio if ratio > 0 else ((i + 1) * t) // e
            if hi <= lo:
                continue
            node = ids[off[r] + i]
            piece = piece0[node]
            at = np.searchsorted(keys, np.int64(node) << 24) if has[node] else len(keys)
            while lo < hi and lo < limit[r]:
                stop, at = _next_piece(keys, node, lo, hi, at)
                mine = -1 - seg_of[piece]
                if mine < 0:  # still the count of those who use it
                    joined = False
                    if above >= 0 and users[above] == seg_of[piece]:
                        joined = True
                        if has[node]:
                            key = (np.int64(node) << 24) | lo
                            f = np.searchsorted(forced, key)
                            joined = not (f < len(forced) and forced[f] == key)
                    mine = above
                    if not joined:
                        mine = n_seg
                        users[mine] = seg_of[piece]
                        n_seg += 1
                    seg_of[piece] = -1 - mine
                if above != mine:
                    path_off[r + 1] += 1
                above = mine
                lo = stop
                piece += 1
        path_off[r + 1] += path_off[r]
    return n_seg


@builder
def _paths(off, ids, limit, piece0, has, keys, seg_of, path_off, path, seg, t, e):  # type: ignore[no-untyped-def]
    """Write down the paths, and where each segment starts and ends."""
    ratio = t // e if t % e == 0 else 0
    for r in range(len(limit)):
        at_path = path_off[r]
        last = -1
        hi = np.int64(0)
        for i in range(off[r + 1] - off[r]):
            if hi >= limit[r]:
                break
            lo, hi = hi, hi + ratio if ratio > 0 else ((i + 1) * t) // e
            if hi <= lo:
                continue
            node = ids[off[r] + i]
            piece = piece0[node]
            at = np.searchsorted(keys, np.int64(node) << 24) if has[node] else len(keys)
            while lo < hi and lo < limit[r]:
                if -1 - seg_of[piece] != last:
                    last = -1 - seg_of[piece]
                    path[at_path] = last
                    at_path += 1
                    if seg[last].end == 0:
                        seg[last].start = lo
                lo, at = _next_piece(keys, node, lo, hi, at)
                seg[last].end = max(seg[last].end, lo)
                piece += 1
