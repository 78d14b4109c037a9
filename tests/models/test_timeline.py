"""Work rebuilt from a log: nothing is lost, nothing is made up."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tfanalyze.models.profile import StepTime
from tfanalyze.models.timeline import RequestLog, attention_tokens, build, state_at, with_starts

SPANS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5), st.floats(0.01, 5), st.floats(0.01, 20), st.integers(1, 5000), st.integers(2, 300)), min_size=1, max_size=30)


def log_of(rows: list[tuple[float, float, float, float, int, int]]) -> RequestLog:
    a = np.array(rows, dtype=np.float64)
    start = a[:, 0] + a[:, 1]
    first = start + a[:, 2]
    n = len(a)
    return RequestLog(np.zeros(n, np.int32), a[:, 0], start, first, first + a[:, 3], a[:, 4], np.full(n, np.nan), a[:, 5])


@settings(max_examples=50, deadline=None)
@given(SPANS, st.integers(64, 4096))
def test_every_prompt_token_is_computed_in_one_step(rows: list[tuple[float, float, float, float, int, int]], chunk: int) -> None:
    log = log_of(rows)
    (line,) = build(log, chunk)
    np.testing.assert_allclose(line.tokens[-1], log.input_tokens.sum(), rtol=1e-9)
    np.testing.assert_allclose(line.attention[-1], attention_tokens(np.zeros(len(log)), log.input_tokens).sum(), rtol=1e-9)
    assert (np.diff(line.end_s) > 0).all()
    np.testing.assert_allclose(line.end_s[line.own], log.first_s, atol=len(log) * line.apart_s)  # its last chunk ends with its first token


@settings(max_examples=50, deadline=None)
@given(SPANS)
def test_the_batch_holds_every_decoding_second_once(rows: list[tuple[float, float, float, float, int, int]]) -> None:
    log = log_of(rows)
    (line,) = build(log, 512)
    np.testing.assert_allclose(line.seqs[-1], (log.finish_s - log.first_s).sum(), rtol=1e-6)
    cuts = np.linspace(float(log.start_s.min()), float(log.finish_s.max()), 15)
    seqs, reads, _ = line.batch(cuts[:-1], cuts[1:])
    assert (seqs >= 0).all() and (seqs <= len(log) + 1e-9).all() and (reads >= 0).all()


def test_a_lone_request_reads_its_own_context() -> None:
    log = log_of([(0.0, 0.0, 0.1, 1.0, 1000, 101)])
    (line,) = build(log, 2048, splits=(0.0, 8.5))
    seqs, reads, longest = line.batch(log.first_s, log.finish_s)
    np.testing.assert_allclose(seqs, 1.0, rtol=1e-3)
    np.testing.assert_allclose(reads, 1000 + 50 + 1, rtol=1e-3)
    np.testing.assert_allclose(longest[0], [1051, 1051 / 8.0], rtol=1e-3)  # read whole; in parts that leave no block idle


def test_slow_steps_count_as_the_few_that_they_are() -> None:
    """Half the time four long contexts, then one short one alone: by steps the quick half weighs more."""
    log = log_of([(0.0, 0.0, 0.1, 5.0, 9000, 51)] * 4 + [(0.0, 0.0, 0.1, 10.0, 100, 551)])
    by_time, by_step = (
        build(log, 8192, step=step)[0].batch(log.first_s[4:], log.finish_s[4:])[0][0] for step in (None, StepTime(c0_s=0.01, c_kv_s=2.5e-6))
    )
    assert abs(by_time - 3.0) < 0.05
    assert by_step < 1.6  # 50 steps of 100 ms with five sequences, 500 of 10 ms with one: 1.4


def test_first_tokens_of_one_step_are_one_step() -> None:
    log = log_of([(0.0, 0.0, 1.0, 4.0, 600, 101), (0.2, 0.0, 0.801, 4.0, 600, 101), (0.0, 0.0, 1.3, 4.0, 50, 101)])
    (line,) = build(log, 8192)  # steps of 40 ms: the first two came together
    assert line.own.tolist() == [0, 0, 1]
    assert np.diff(line.tokens).tolist() == [1200, 50]
    count, tokens, _ = line.chunks(line.own[:1] + 1, line.steps_by(log.finish_s[:1]))
    assert (count.tolist(), tokens.tolist()) == ([1.0], [50.0])


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
