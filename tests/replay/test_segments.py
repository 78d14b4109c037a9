"""Segments against their definition: blocks that exactly the same requests share, cut where a prompt's hits or the prompt end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import traces
from tfanalyze.replay.segments import build_segments
from tfanalyze.trace import Trace


def plain_paths(trace: Trace, e: int) -> list[list[list[tuple[int, int]]]]:
    """Each request's engine blocks by key, grouped into segments, the slow way."""
    t = trace.block_size
    keys: list[list[tuple[int, int]]] = []
    users: dict[tuple[int, int], set[int]] = {}
    for r in range(len(trace)):
        ids = trace.block_id[trace.block_off[r] : trace.block_off[r + 1]]
        tokens = min(len(ids) * t, int(trace.input_tokens[r]) + max(1, int(trace.output_tokens[r])))
        keys.append([(int(ids[((j + 1) * e - 1) // t]), j) for j in range(tokens // e)])
        for key in keys[r]:
            users.setdefault(key, set()).add(r)
    paths = []
    for mine in keys:
        path: list[list[tuple[int, int]]] = []
        for j, key in enumerate(mine):
            same = j > 0 and users[key] == users[mine[j - 1]]
            cut = any(j in ((int(trace.input_tokens[q]) - 1) // e, int(trace.input_tokens[q]) // e) for q in users[key])
            if same and not cut:
                path[-1].append(key)
            else:
                path.append([key])
        paths.append(path)
    return paths


@settings(max_examples=300, deadline=None)
@given(traces(), st.sampled_from([1, 2, 3, 4, 6, 8, 16]))
def test_segments_are_blocks_with_the_same_users(trace: Trace, e: int) -> None:
    built, plain = build_segments(trace, e), plain_paths(trace, e)
    blocks_of: dict[int, tuple[tuple[int, int], ...]] = {}
    for r, path in enumerate(plain):
        ids = built.seg_id[built.off[r] : built.off[r + 1]].tolist()
        assert len(ids) == len(path)
        for seg, blocks in zip(ids, path, strict=True):
            assert (built.seg[seg].start, built.seg[seg].end) == (blocks[0][1], blocks[-1][1] + 1)
            assert blocks_of.setdefault(seg, tuple(blocks)) == tuple(blocks)
    assert len(set(blocks_of.values())) == len(blocks_of)
