"""Traces: construction, checks, operations, and what loading a log makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfanalyze.errors import ConfigError, FormatError, InputError, WorkspaceError
from tfanalyze.load import with_answers
from tfanalyze.trace import COLUMNS, Trace, from_columns, read_trace, trace_hash
from tfanalyze.traceops import (
    anonymise,
    chain,
    continues,
    cut,
    dequantise,
    scale_load,
    sessions,
    split,
    stitch,
    take,
    tick,
    units,
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Small traces with sessions, tenants and blocks that share prefixes."""
    n = draw(st.integers(1, 12))
    arrival = draw(st.lists(st.floats(0, 100), min_size=n, max_size=n))
    size = draw(st.sampled_from([16, 512]))
    prev, blocks, inputs = [], [], []
    for row in range(n):
        order = sorted(range(n), key=lambda r: (arrival[r], r))
        earlier = order[: order.index(row)]
        link = draw(st.sampled_from([-1, *earlier])) if earlier else -1
        prev.append(link)
        own = draw(st.integers(0, 3))
        shared = draw(st.integers(0, 2))
        blocks.append([10_000 + b for b in range(shared)] + [row * 100 + b for b in range(own)])
        inputs.append(max(1, (shared + own) * size))
    return from_columns(
        arrival_s=arrival,
        input_tokens=inputs,
        output_tokens=draw(st.lists(st.integers(1, 50), min_size=n, max_size=n)),
        slo_class=draw(st.lists(st.sampled_from(["interactive", "offline"]), min_size=n, max_size=n)),
        tenant=draw(st.lists(st.sampled_from(["a", "b", None]), min_size=n, max_size=n)),
        prev=prev,
        think_s=[1.0 if p >= 0 else np.nan for p in prev],
        blocks=blocks,
        block_size=size,
        request_ids=[f"q{r}" for r in range(n)],
    )


def prefixes(trace: Trace) -> list[list[int]]:
    return [trace.block_id[a:b].tolist() for a, b in zip(trace.block_off, trace.block_off[1:], strict=False)]


def shared_pairs(trace: Trace) -> dict[tuple[str, str], int]:
    """Length of the common prefix of every pair of requests, by request id."""
    lists, ids = prefixes(trace), trace.request_ids
    out = {}
    for i in range(len(trace)):
        for j in range(i):
            common = 0
            while common < min(len(lists[i]), len(lists[j])) and lists[i][common] == lists[j][common]:
                common += 1
            out[tuple(sorted((ids[i], ids[j])))] = common
    return out


def test_from_columns_sorts_and_keeps_links() -> None:
    trace = from_columns(
        arrival_s=[5.0, 1.0, 3.0], input_tokens=[10, 20, 30], output_tokens=[1, 2, 3], prev=[2, -1, 1],
        think_s=[0.5, np.nan, 0.25], tenant=["b", None, "a"], blocks=[[7, 8], [7], [7, 9]], block_size=16,
    )  # fmt: skip
    assert trace.input_tokens.tolist() == [20, 30, 10]
    assert trace.prev.tolist() == [-1, 0, 1]
    assert trace.tenants == ("a", "b") and trace.tenant.tolist() == [-1, 0, 1]
    assert prefixes(trace) == [[0], [0, 2], [0, 1]]
    assert trace.classes == ("interactive",) and trace.max_tokens.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("arrival_s", np.array([2.0, 1.0]), "before the row above"),
        ("arrival_s", np.array([0.0, np.nan]), "not finite"),
        ("input_tokens", np.array([1, 0], np.int32), "less than 1"),
        ("prev", np.array([-1, 1], np.int32), "not an earlier row"),
        ("slo_class", np.array([0, 3], np.int8), "no index into 1 names"),
        ("block_off", np.array([0, 3, 2], np.int64), "decreases"),
        ("think_s", np.zeros(3), "float64[3]"),
    ],
)
def test_check_names_column_and_row(column: str, value: object, said: str) -> None:
    good = from_columns(arrival_s=[0, 1], input_tokens=[5, 5], output_tokens=[1, 1], blocks=[[1], [2]], block_size=4)
    with pytest.raises(FormatError, match=said.replace("[", r"\[")):
        replace(good, **{column: value})


@given(traces(), st.floats(0, 100), st.floats(0, 100))
def test_cut_keeps_exactly_the_window(trace: Trace, a: float, b: float) -> None:
    low, high = sorted((a, b))
    part = cut(trace, low, high)
    inside = (trace.arrival_s >= low) & (trace.arrival_s < high)
    assert part.request_ids == tuple(np.array(trace.request_ids)[inside])
    assert np.allclose(part.arrival_s + low, trace.arrival_s[inside], atol=1e-9)
    kept = shared_pairs(trace)
    assert all(kept[pair] == common for pair, common in shared_pairs(part).items())


@given(traces(), st.integers(1, 9))
def test_split_loses_nothing_and_keeps_order(trace: Trace, tenths: int) -> None:
    parts = split(trace, [tenths / 10, 1 - tenths / 10])
    assert sum((p.request_ids for p in parts), ()) == trace.request_ids
    assert all((p.prev[p.prev >= 0] < np.flatnonzero(p.prev >= 0)).all() for p in parts)


def test_split_refuses_shares_that_do_not_add_up() -> None:
    trace = from_columns(arrival_s=[0], input_tokens=[1], output_tokens=[1])
    with pytest.raises(ConfigError, match="sum 1"):
        split(trace, [0.5, 0.4])


@given(traces(), st.integers(1, 4))
def test_stitch_repeats_with_blocks_of_its_own(trace: Trace, copies: int) -> None:
    long = stitch(trace, copies)
    n = len(trace)
    assert len(long) == n * copies
    for name in ("input_tokens", "output_tokens", "tenant", "slo_class"):
        assert np.array_equal(getattr(long, name), np.tile(getattr(trace, name), copies))
    seen: set[int] = set()
    for k in range(copies):
        part = take(long, np.arange(k * n, (k + 1) * n))
        assert np.array_equal(part.prev, trace.prev)
        assert prefixes(part) == prefixes(take(trace, np.arange(n)))
        ids = set(long.block_id[long.block_off[k * n] : long.block_off[(k + 1) * n]].tolist())
        assert not ids & seen
        seen |= ids


def test_stitch_refuses_what_int32_cannot_count() -> None:
    trace = from_columns(arrival_s=[0, 1], input_tokens=[1, 1], output_tokens=[1, 1])
    with pytest.raises(InputError, match="2\\^31"):
        stitch(trace, 2**30)


@given(traces(), st.sampled_from([0.3, 0.5, 1.0, 1.5, 2.0, 2.7]), st.integers(0, 5))
def test_scale_load_adds_and_drops_whole_sessions_in_the_same_span(trace: Trace, factor: float, seed: int) -> None:
    scaled = scale_load(trace, factor, seed)
    n_unit = int(units(trace).max()) + 1
    root = sessions(scaled)
    size = {rid: int((sessions(trace) == sessions(trace)[r]).sum()) for r, rid in enumerate(trace.request_ids)}
    for r in range(len(scaled)):
        if root[r] == r and trace_think_kept(trace):
            assert int((root == r).sum()) <= size[scaled.request_ids[r].split("~")[0]]
    assert len(set(scaled.request_ids)) == len(scaled)
    if len(scaled):
        assert scaled.arrival_s[0] >= trace.arrival_s[0] and scaled.arrival_s[-1] <= trace.arrival_s[-1]
    whole_units = round(factor * n_unit)
    assert (len(scaled) == 0) == (whole_units == 0)
    again = scale_load(trace, factor, seed)
    assert trace_hash(again) == trace_hash(scaled)


def trace_think_kept(trace: Trace) -> bool:
    return bool(len(np.unique(trace.arrival_s)) == len(trace))


def test_scale_load_rekeys_private_blocks_and_shares_common_ones() -> None:
    trace = from_columns(
        arrival_s=[0, 10, 20], input_tokens=[48, 48, 48], output_tokens=[1, 1, 1], blocks=[[1, 2, 3], [1, 4, 5], [1, 6, 7]],
        block_size=16, request_ids=["a", "b", "c"],
    )  # fmt: skip
    twice = scale_load(trace, 2.0, 1)
    assert len(twice) == 6
    lists = dict(zip(twice.request_ids, prefixes(twice), strict=True))
    assert len({p[0] for p in lists.values()}) == 1
    assert len({p[1] for p in lists.values()}) == 6
    assert len({p[2] for p in lists.values()}) == 6


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_scale_load_refuses(factor: float) -> None:
    with pytest.raises(ConfigError, match="positive"):
        scale_load(from_columns(arrival_s=[0], input_tokens=[1], output_tokens=[1]), factor, 1)


def test_dequantise_spreads_ties_inside_their_tick() -> None:
    arrival = np.repeat(np.arange(50) * 3.0, 4)
    trace = from_columns(arrival_s=arrival, input_tokens=np.ones(200), output_tokens=np.ones(200))
    assert tick(trace) == 3.0
    spread = dequantise(trace, 7)
    assert (np.diff(spread.arrival_s) >= 0).all()
    assert (np.floor(spread.arrival_s / 3.0) * 3.0 == arrival).all()
    assert len(np.unique(spread.arrival_s)) > 190
    assert trace_hash(dequantise(trace, 7)) == trace_hash(spread) != trace_hash(dequantise(trace, 8))
    poisson = from_columns(arrival_s=np.cumsum(np.full(50, 0.1234567)), input_tokens=np.ones(50), output_tokens=np.ones(50))
    assert dequantise(poisson, 7) is poisson


def test_anonymise_keeps_the_work_and_drops_the_names() -> None:
    trace = from_columns(
        arrival_s=[0, 1], input_tokens=[5, 6], output_tokens=[1, 2], tenant=["acme", "bolt"], model=["m", "m"],
        instance=["gpu-7", "gpu-8"], request_ids=["x1", "x2"], name="secret-project", start_us=1_700_000_000_000_000,
    )  # fmt: skip
    hidden = anonymise(trace, "k")
    text = repr((hidden.tenants, hidden.models, hidden.instances, hidden.request_ids, hidden.name, hidden.notes))
    assert not any(word in text for word in ("acme", "bolt", "gpu-7", "x1", "secret"))
    assert hidden.start_us == 0
    assert all(np.array_equal(getattr(hidden, c), getattr(trace, c), equal_nan=True) for c in COLUMNS)
    assert anonymise(trace, "k").tenants == hidden.tenants != anonymise(trace, "other").tenants


@given(traces())
def test_hash_tells_traces_apart(trace: Trace) -> None:
    assert trace_hash(trace) == trace_hash(replace(trace, name="other", notes=("said",)))
    longer = replace(trace, output_tokens=(trace.output_tokens + 1).astype(np.int32))
    assert trace_hash(trace) != trace_hash(longer)
    assert trace_hash(trace) != trace_hash(replace(trace, classes=(*trace.classes, "more")))


def test_chain_makes_ids_of_single_blocks_stand_for_prefixes() -> None:
    off = np.array([0, 2, 4, 6], np.int64)
    flat = np.array([0, 1, 2, 1, 0, 1], np.int32)  # block 1 after 0, after 2, after 0
    ids, made = chain(off, flat)
    assert made
    assert ids[1] != ids[3] and ids[1] == ids[5] and ids[0] == ids[4]
    assert chain(np.array([0, 2, 4], np.int64), np.array([0, 1, 0, 2], np.int32))[1] is False


def test_answers_are_appended_as_far_as_they_reach() -> None:
    off = np.array([0, 3, 9], np.int64)
    ids = np.array([0, 1, 2, 0, 1, 3, 4, 5, 6], np.int32)  # block 2 is the prompt's partial last one
    inputs, output, prev = np.array([40, 96], np.int32), np.array([30, 5], np.int32), np.array([-1, 0], np.int32)
    new_off, new_ids = with_answers(off, ids, 16, inputs, output, prev)
    assert new_ids[: new_off[1]].tolist() == [0, 1, 3, 4]  # (40 + 30) // 16 = 4 whole blocks
    assert new_ids[new_off[1] :].tolist() == [0, 1, 3, 4, 5, 6]
    other = np.array([0, 9, 2, 0, 1, 3, 4, 5, 6], np.int32)  # not the same prompt: left alone
    assert with_answers(off, other, 16, inputs, output, prev)[1].tolist() == other.tolist()


def test_continues_finds_conversations_without_ids() -> None:
    trace = from_columns(
        arrival_s=[0, 1, 2, 3], input_tokens=[32, 32, 64, 48], output_tokens=[9, 9, 9, 9],
        blocks=[[1, 2], [1, 3], [1, 2, 5, 6], [7, 8, 9]], block_size=16,
    )  # fmt: skip
    assert continues(trace).tolist() == [-1, -1, 0, -1]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_load_links_sessions_and_says_what_it_assumed(tmp_path: Path) -> None:
    base = {"prompt_tokens": 32, "completion_tokens": 4, "status": "ok", "session_id": "s", "slo_class": "interactive"}
    rows = [
        base | {"request_id": "a", "arrival": 1_796_000_000.0, "turn": 0, "e2e_ms": 2000.0, "ttft_ms": 500.0},
        base | {"request_id": "b", "arrival": 1_796_000_005.0, "turn": 1, "e2e_ms": 1000.0, "ttft_ms": 400.0},
        base | {"request_id": "c", "arrival": 1_796_000_005.5, "turn": 2, "e2e_ms": 900.0, "completion_tokens": None, "status": "error"},
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "log.jsonl", rows))
    assert trace.request_ids == ("a", "b", "c")
    assert trace.prev.tolist() == [-1, 0, 1]
    assert trace.think_s[1] == pytest.approx(3.0) and np.isnan(trace.think_s[[0, 2]]).all()
    assert trace.start_us == 1_796_000_000_000_000
    assert trace.output_tokens.tolist() == [4, 4, 4]
    assert trace.observed is not None
    assert trace.observed.status.tolist() == [0, 0, 1]
    assert trace.observed.ttft_s[:2].tolist() == [0.5, 0.4]
    said = " ".join(trace.notes)
    assert "before the previous answer" in said and "without output" in said


def test_retries_are_one_request(tmp_path: Path) -> None:
    rows = [
        {"request_id": "a", "arrival": 1_796_000_000.0, "prompt_tokens": 9, "completion_tokens": 0, "status": "timeout", "e2e_ms": 3000.0},
        {"request_id": "a2", "retry_of": "a", "arrival": 1_796_000_004.0, "prompt_tokens": 9, "completion_tokens": 7, "status": "ok", "e2e_ms": 1000.0, "ttft_ms": 250.0},
        {"request_id": "b", "arrival": 1_796_000_004.0, "prompt_tokens": 8, "completion_tokens": 5, "status": "ok", "e2e_ms": 1000.0},
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "log.jsonl", rows))
    assert len(trace) == 2 and trace.output_tokens.tolist() == [7, 5]
    assert trace.observed is not None
    assert trace.observed.e2e_s.tolist() == [5.0, 1.0] and trace.observed.ttft_s[0] == 4.25
    assert trace.observed.status.tolist() == [0, 0]


def test_classes_come_first_and_rules_fill_gaps(tmp_path: Path) -> None:
    rows = [{"arrival": 1_796_000_000.0 + i, "prompt_tokens": n, "completion_tokens": 5} for i, n in enumerate([10, 9000, 70])]
    path = write(tmp_path / "log.jsonl", rows)
    plain = read_trace(path)
    assert [plain.classes[c] for c in plain.slo_class] == ["interactive", "long_context", "interactive"]
    ruled = read_trace(
        path, classes=["offline", "interactive"],
        classify=lambda columns: ["offline" if tokens == 70 else None for tokens in columns["input_tokens"]],
    )  # fmt: skip
    assert ruled.classes[:2] == ("offline", "interactive")
    assert [ruled.classes[c] for c in ruled.slo_class] == ["interactive", "long_context", "offline"]


def test_an_empty_workspace_is_named(tmp_path: Path) -> None:
    from tfanalyze.trace import load_trace
    from tfanalyze.workspace import Workspace

    with Workspace.open(tmp_path / "w.duckdb") as workspace, pytest.raises(WorkspaceError, match="no requests"):
        load_trace(workspace)


# --- the public traces, against their known statistics (benchmarks of the loader, too) --------------------------------

TRUTH = {
    "azure_llm_2023/AzureLLMInferenceTrace_code.csv": (8819, 3436, (1469, 5188, 7436, 7437), (13, 55, 252, 1899), None),
    "azure_llm_2023/AzureLLMInferenceTrace_conv.csv": (19366, 3502, (1020, 2735, 4142, 14050), (129, 424, 601, 1000), None),
    "mooncake/conversation_trace.jsonl": (12031, 3537, (6909, 27367, 85400, 126195), (350, 597, 1119, 2000), 0.366),
    "mooncake/synthetic_trace.jsonl": (3993, 1022, (11587, 38611, 66456, 191378), (69, 389, 768, 893), 0.640),
}


def reuse_share(trace: Trace) -> float:
    """Share of blocks that an infinite cache would hold already."""
    first = np.zeros(len(trace.block_id), np.bool_)
    first[np.unique(trace.block_id, return_index=True)[1]] = True
    return float(1 - first.mean())


@pytest.mark.parametrize("path", list(TRUTH))
def test_public_traces_have_their_known_statistics(data_dir: Path, path: str) -> None:
    rows, span_s, inputs, outputs, reuse = TRUTH[path]
    trace = read_trace(data_dir / path)
    assert len(trace) == rows and round(trace.span_s) == span_s
    for column, known in ((trace.input_tokens, inputs), (trace.output_tokens, outputs)):
        assert np.percentile(column, [50, 90, 99, 100]) == pytest.approx(known, abs=1)
    if reuse is not None:
        assert reuse_share(trace) == pytest.approx(reuse, abs=5e-4)


def test_measured_sample_links_turns_and_blocks(data_dir: Path) -> None:
    path = data_dir / "llamacpp_two_instances" / "rr-mid" / "requests.jsonl"
    rows = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda row: row["arrival"])
    trace = read_trace(path)
    assert trace.request_ids == tuple(row["request_id"] for row in rows)
    assert trace.input_tokens.tolist() == [row["prompt_tokens"] for row in rows]
    assert trace.observed is not None and np.allclose(trace.observed.ttft_s, [row["ttft_ms"] / 1e3 for row in rows])
    of = {row["request_id"]: row for row in rows}
    for r in np.flatnonzero(trace.prev >= 0):
        here, before = of[trace.request_ids[r]], of[trace.request_ids[trace.prev[r]]]
        assert here["session_id"] == before["session_id"] and here["turn"] == before["turn"] + 1


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_scaling_mooncake_keeps_reuse(data_dir: Path, factor: float) -> None:
    trace = read_trace(data_dir / "mooncake/conversation_trace.jsonl")
    scaled = scale_load(trace, factor, 1)
    assert len(scaled) == pytest.approx(factor * len(trace), rel=0.03)
    assert reuse_share(scaled) == pytest.approx(reuse_share(trace), abs=0.03)
