"""Work rebuilt from a log: nothing is lost, nothing is made up."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tfanalyze.models.timeline import RequestLog, attention_tokens, build, state_at, with_starts

SPANS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5), st.floats(0.01, 5), st.floats(0.01, 20), st.integers(1, 5000), st.integers(2, 300)), min_size=1, max_size=30)


def log_of(rows: list[tuple[float, float, float, float, int, int]]) -> RequestLog:
    a = np.array(rows, dtype=np.float64)
    start = a[:, 0] + a[:, 1]
    first = start + a[:, 2]
    n = len(a)
    return RequestLog(np.zeros(n, np.int32), a[:, 0], start, first, first + a[:, 3], a[:, 4], np.full(n, np.nan), a[:, 5])


@settings(max_examples=50, deadline=None)
@given(SPANS)
def test_every_prompt_token_is_counted_once(rows: list[tuple[float, float, float, float, int, int]]) -> None:
    log = log_of(rows)
    (line,) = build(log, 512)
    work = line.between(np.array([-1.0]), np.array([1e6]))[:, 0]
    np.testing.assert_allclose(work[3], log.input_tokens.sum(), rtol=1e-6)
    np.testing.assert_allclose(work[4], attention_tokens(np.zeros(len(log)), log.input_tokens).sum(), rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(SPANS)
def test_work_adds_up_over_neighbouring_intervals_and_is_never_negative(rows: list[tuple[float, float, float, float, int, int]]) -> None:
    (line,) = build(log_of(rows), 512)
    cuts = np.linspace(0, 140, 15)
    parts = line.between(cuts[:-1], cuts[1:])
    assert (parts >= -1e-6).all()
    np.testing.assert_allclose(parts.sum(axis=1), line.between(cuts[:1], cuts[-1:])[:, 0], rtol=1e-9, atol=1e-6)


def test_a_lone_request_has_its_own_steps_and_reads() -> None:
    log = log_of([(0.0, 0.0, 0.1, 1.0, 1000, 101)])
    (line,) = build(log, 2048)
    work = line.between(np.array([0.1]), np.array([1.1]))[:, 0]
    np.testing.assert_allclose(work[0], 100, rtol=1e-6)  # 101 tokens: 100 decode steps after the first token
    np.testing.assert_allclose(work[5], 100, rtol=1e-6)
    np.testing.assert_allclose(work[6], 100 * (1000 + 50 + 1), rtol=1e-3)


def test_unknown_starts_follow_first_come_first_served() -> None:
    log = log_of([(0.0, 0.0, 1.0, 5.0, 100, 10), (0.2, 0.0, 1.8, 5.0, 100, 10), (3.0, 0.0, 0.5, 5.0, 100, 10)])
    guessed = with_starts(RequestLog(log.instance, log.arrival_s, np.full(3, np.nan), log.first_s, log.finish_s, log.input_tokens, log.cached_tokens, log.output_tokens))
    np.testing.assert_allclose(guessed.start_s, [0.0, 1.0, 3.0])


def test_state_counts_waiting_prefilling_decoding() -> None:
    log = log_of([(0.0, 2.0, 1.0, 4.0, 100, 9), (1.0, 0.5, 0.5, 8.0, 50, 9)])
    state = state_at(log, 0, np.array([0.5, 1.2, 1.7, 2.5, 5.0, 50.0]))
    assert state.waiting.tolist() == [1, 2, 1, 0, 0, 0]
    assert state.prefilling.tolist() == [0, 0, 1, 1, 0, 0]
    assert state.decoding.tolist() == [0, 0, 0, 1, 2, 0]
    assert state.kv_tokens[0] == 0
    assert state.kv_tokens[4] > 150
    assert not state.reliable[-1]
