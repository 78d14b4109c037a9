"""Chats without block hashes: turns of one conversation share its prefix, and nothing else does."""

from __future__ import annotations

import numpy as np

from tfanalyze.sessionblocks import BLOCK_TOKENS, with_session_blocks
from tfanalyze.trace import Trace, check, from_columns


def chats(growing: bool = True, sessions: int = 8, turns: int = 3) -> Trace:
    rows = [(s + t * 100.0, 160 + (320 * t if growing else -t), s * turns + t) for s in range(sessions) for t in range(turns)]
    return from_columns(
        arrival_s=[r[0] for r in rows], input_tokens=[r[1] for r in rows], output_tokens=[160] * len(rows),
        prev=[-1 if r[2] % turns == 0 else r[2] - 1 for r in rows],
    )  # fmt: skip


def blocks(trace: Trace, row: int) -> list[int]:
    return [int(b) for b in trace.block_id[trace.block_off[row] : trace.block_off[row + 1]]]


def test_a_later_turn_starts_with_all_that_was_said() -> None:
    plain = chats()
    trace = with_session_blocks(plain)
    check(trace)
    assert trace.block_size == BLOCK_TOKENS
    assert any("no block hashes" in note for note in trace.notes)
    for row in np.flatnonzero(trace.prev >= 0):
        before = blocks(trace, int(trace.prev[row]))
        assert blocks(trace, int(row))[: len(before)] == before
        assert len(before) == (plain.input_tokens[trace.prev[row]] + 160) // BLOCK_TOKENS
    firsts = [set(blocks(trace, int(row))) for row in np.flatnonzero(trace.prev < 0)]
    assert sum(len(f) for f in firsts) == len(set().union(*firsts))


def test_sessions_that_do_not_grow_are_no_chats() -> None:
    plain = chats(growing=False)
    assert with_session_blocks(plain) is plain


def test_hashes_of_the_log_are_left_alone() -> None:
    hashed = from_columns(arrival_s=[0.0], input_tokens=[32], output_tokens=[4], blocks=[[1, 2]], block_size=16)
    assert with_session_blocks(hashed) is hashed
