"""Prefix blocks of chats whose log has sessions but no block hashes: a turn's prompt begins with all that was said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tfanalyze.trace import I64, Trace, offsets

BLOCK_TOKENS = 16  # vLLM's default
LEAST_TURNS = 5
EXTENDING_SHARE = 0.9  # of later turns must be as long as the conversation so far, else sessions are no chats
SLACK = 0.9  # a chat template may count a little less than prompt + answer
MOST_BLOCKS = 40_000_000


def with_session_blocks(trace: Trace) -> Trace:
    """The trace with blocks of BLOCK_TOKENS implied by its sessions, noted as assumed; unchanged where that does not hold.

    Holds when there are no block hashes and nine of ten later turns have prompts at least as long as the previous
    prompt and answer. A turn that is shorter starts a new conversation.
    """
    later = np.flatnonzero(trace.prev >= 0)
    if trace.block_size or len(later) < LEAST_TURNS:
        return trace
    before = trace.prev[later]
    total = trace.input_tokens.astype(np.int64) + trace.output_tokens
    extends = trace.input_tokens[later] >= SLACK * total[before]
    if extends.mean() < EXTENDING_SHARE:
        return trace
    root = np.arange(len(trace))
    root[later[extends]] = before[extends]
    while not np.array_equal(root[root], root):
        root = root[root]
    counts = np.where(np.bincount(root, minlength=len(trace))[root] > 1, total // BLOCK_TOKENS, 0)
    if counts.sum() > MOST_BLOCKS:
        return trace
    off, ids = _blocks(root, counts)
    note = (
        f"no block hashes: turns are taken to start with the conversation so far ({extends.mean():.0%} of later turns are as long), "
        f"in blocks of {BLOCK_TOKENS} tokens"
    )
    return replace(trace, block_off=off, block_id=ids.astype(np.int32), block_size=BLOCK_TOKENS, notes=(*trace.notes, note))


def _blocks(root: I64, counts: I64) -> tuple[I64, I64]:
    """Offsets and ids: block j of a conversation is the same for all its turns."""
    longest = np.zeros(len(root), np.int64)
    np.maximum.at(longest, root, counts)
    base = offsets(longest)[:-1]
    off = offsets(counts)
    place = np.arange(off[-1]) - np.repeat(off[:-1], counts)
    return off, np.repeat(base[root], counts) + place
