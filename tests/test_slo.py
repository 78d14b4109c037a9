"""SLO attainment against a for-loop, and the identities between its metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfanalyze.config import SloClass
from tfanalyze.slo import attained, missed, quantiles, summarise
from tfanalyze.trace import F64, I8, I32, Trace, from_columns

CLASSES = (
    SloClass("chat", ttft_s=1.0, tpot_s=0.1),
    SloClass("batch", e2e_s=20.0),
    SloClass("free"),
)


@dataclass
class Ends:
    arrival_s: F64
    first_token_s: F64
    finish_s: F64
    status: I8
    reason: I8
    hit_tokens: I32
    delivered_tokens: I32
    waste_tokens: dict[str, int] = field(default_factory=lambda: {"timeout": 7})


@st.composite
def runs(draw: st.DrawFn) -> tuple[Trace, Ends]:
    n = draw(st.integers(1, 15))
    arrival = sorted(draw(st.lists(st.floats(0, 50), min_size=n, max_size=n)))
    outputs = draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    inputs = draw(st.lists(st.integers(1, 100), min_size=n, max_size=n))
    names = draw(st.lists(st.sampled_from(["chat", "batch", "free", "undeclared"]), min_size=n, max_size=n))
    deadline = draw(st.lists(st.sampled_from([math.nan, 5.0, 40.0]), min_size=n, max_size=n))
    trace = from_columns(
        arrival_s=arrival, input_tokens=inputs, output_tokens=outputs, slo_class=names, deadline_s=deadline
    )
    status = np.array(draw(st.lists(st.sampled_from([0, 0, 0, 2, 4]), min_size=n, max_size=n)), np.int8)
    ok = status == 0
    ttft = np.array(draw(st.lists(st.sampled_from([0.1, 1.0, 1.5, 9.0]), min_size=n, max_size=n)))
    rest = np.array(draw(st.lists(st.sampled_from([0.0, 0.4, 2.9, 30.0]), min_size=n, max_size=n)))
    rest[trace.output_tokens == 1] = 0.0
    first = np.where(ok, trace.arrival_s + ttft, np.nan)
    return trace, Ends(
        arrival_s=trace.arrival_s.copy(), first_token_s=first, finish_s=first + rest, status=status,
        reason=np.where(status == 4, 1, 0).astype(np.int8),
        hit_tokens=np.where(ok, trace.input_tokens // 2, 0).astype(np.int32),
        delivered_tokens=np.where(ok, trace.output_tokens, 0).astype(np.int32),
    )  # fmt: skip


def plain(trace: Trace, ends: Ends) -> list[bool]:
    """Attainment as one says it."""
    out = []
    for r in range(len(trace)):
        limit = next((c for c in CLASSES if c.name == trace.classes[trace.slo_class[r]]), SloClass("x"))
        if ends.status[r] != 0:
            out.append(False)
            continue
        ttft = ends.first_token_s[r] - ends.arrival_s[r]
        e2e = ends.finish_s[r] - ends.arrival_s[r]
        good = ttft <= limit.ttft_s + 1e-9 and e2e <= limit.e2e_s + 1e-9
        if trace.output_tokens[r] > 1:
            good = good and (ends.finish_s[r] - ends.first_token_s[r]) / (trace.output_tokens[r] - 1) <= limit.tpot_s + 1e-9
        if not math.isnan(trace.deadline_s[r]):
            good = good and e2e <= trace.deadline_s[r] + 1e-9
        out.append(bool(good))
    return out


@given(runs())
def test_attained_is_what_the_words_say(run: tuple[Trace, Ends]) -> None:
    trace, ends = run
    assert attained(trace, ends, CLASSES).tolist() == plain(trace, ends)


@given(runs())
def test_every_miss_has_a_cause_and_only_misses_have(run: tuple[Trace, Ends]) -> None:
    trace, ends = run
    causes = np.any(list(missed(trace, ends, CLASSES).values()), axis=0)
    assert np.array_equal(causes, ~attained(trace, ends, CLASSES))


@given(runs())
def test_metrics_add_up(run: tuple[Trace, Ends]) -> None:
    trace, ends = run
    total = summarise(trace, ends, CLASSES)
    parts = total["by_class"].values()
    for name in ("requests", "served", "offered_output_tokens"):
        assert total[name] == sum(part[name] for part in parts)
    for name in ("output_tok_s", "goodput_tok_s"):
        assert total[name] == pytest.approx(sum(part[name] for part in parts))
    assert total["goodput_tok_s"] <= total["output_tok_s"] + 1e-9
    assert 0 <= total["token_attainment"] <= 1 and 0 <= total["attainment"] <= 1
    if total["window_s"]:
        offered = total["offered_output_tokens"] / total["window_s"]
        assert total["goodput_tok_s"] == pytest.approx(total["token_attainment"] * offered)
    assert total["attainment"] == pytest.approx(sum(plain(trace, ends)) / len(trace))
    assert total["waste_tokens"] == {"timeout": 7}


def test_shedding_gains_nothing_in_attainment() -> None:
    trace = from_columns(arrival_s=[0, 10], input_tokens=[10, 10], output_tokens=[5, 5], slo_class=["chat", "chat"])
    first = np.array([0.5, np.nan])
    ends = Ends(
        trace.arrival_s, first, first + 0.1, np.array([0, 4], np.int8), np.array([0, 1], np.int8),
        np.array([4, 0], np.int32), np.array([5, 0], np.int32),
    )  # fmt: skip
    total = summarise(trace, ends, CLASSES)
    assert total["attainment"] == 0.5 and total["token_attainment"] == 0.5 and total["shed_share"] == 0.5
    assert total["prefix_hit_share"] == 0.4
    assert total["goodput_tok_s"] == 0.5 and total["output_tok_s"] == 0.5
    assert total["tpot_s"]["p50"] == pytest.approx(0.025)


def test_limits_count_from_the_clients_first_attempt() -> None:
    trace = from_columns(arrival_s=[0.0], input_tokens=[1], output_tokens=[1], slo_class=["chat"])
    late = Ends(
        np.array([5.0]), np.array([5.9]), np.array([5.9]), np.zeros(1, np.int8), np.zeros(1, np.int8),
        np.zeros(1, np.int32), np.ones(1, np.int32),
    )  # fmt: skip
    assert attained(trace, late, CLASSES).tolist() == [True]  # a later turn, that arrived at 5 s in the replay
    late.first_token_s = late.finish_s = np.array([6.1])
    assert attained(trace, late, CLASSES).tolist() == [False]


def test_quantiles_of_nothing_are_none() -> None:
    assert quantiles(np.array([np.nan])) == {"p50": None, "p95": None, "p99": None}
    assert quantiles(np.arange(101.0)) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
