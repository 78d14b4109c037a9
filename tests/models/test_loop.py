"""Closed loops: found where the number of open conversations stays level, linked so that a slow replay stays as crowded."""

from __future__ import annotations

import numpy as np

from tests.models import truth
from tfanalyze.config import DEFAULT_CLASSES
from tfanalyze.models.loop import closed_loop
from tfanalyze.replay import replay
from tfanalyze.trace import Trace, from_columns


def clients(count: int, turns: int, seconds: float = 2.0, pause_s: float = 0.01, seed: int = 3) -> Trace:
    """`count` clients in closed loop, one-turn conversations of random length, as a log of them would look."""
    rng = np.random.default_rng(seed)
    arrival, e2e = [], []
    for _ in range(count):
        now = float(rng.uniform(0, 0.1))
        for _ in range(turns):
            length = float(rng.uniform(0.5, 1.5)) * seconds
            arrival.append(now)
            e2e.append(length)
            now += length + pause_s
    n = len(arrival)
    seen = {"e2e_s": np.array(e2e), "ttft_s": np.full(n, 0.1), "status": np.zeros(n, np.int8)}
    return from_columns(
        arrival_s=np.array(arrival), input_tokens=np.full(n, 100), output_tokens=np.full(n, 50), instance=["pool"] * n, observed=seen,
        slo_class=["interactive"] * n,
    )


def test_every_request_but_the_first_of_each_client_follows_one_that_ended() -> None:
    trace = clients(8, 20)
    linked = closed_loop(trace)
    waits = (linked.prev >= 0) & ~np.isnan(linked.think_s)
    assert waits.sum() == 8 * 19
    assert linked.observed is not None
    end_s = linked.arrival_s + linked.observed.e2e_s
    np.testing.assert_allclose(end_s[linked.prev[waits]] + linked.think_s[waits], linked.arrival_s[waits], atol=1e-6)
    assert len(set(linked.prev[waits].tolist())) == waits.sum()  # nobody is followed twice
    assert np.median(linked.think_s[waits]) < 0.02


def test_open_arrivals_stay_open() -> None:
    rng = np.random.default_rng(1)
    n = 300
    seen = {"e2e_s": rng.uniform(0.5, 3.0, n), "ttft_s": np.full(n, 0.1), "status": np.zeros(n, np.int8)}
    trace = from_columns(
        arrival_s=np.cumsum(rng.exponential(0.3, n)), input_tokens=np.full(n, 100), output_tokens=np.full(n, 50), observed=seen,
    )
    assert closed_loop(trace) is trace


def test_a_slow_replay_of_a_closed_loop_stays_as_crowded() -> None:
    trace = clients(8, 20, seconds=1.0)
    slow = truth.slower(truth.PROFILE, 3.0)
    ends = [replay(one, truth.fleet(), "recorded", slow, classes=DEFAULT_CLASSES) for one in (trace, closed_loop(trace))]
    crowd = []
    for out in ends:
        times = np.linspace(0.2, float(out.arrival_s.max()), 200)
        crowd.append(max(int(((out.arrival_s <= t) & (out.finish_s > t)).sum()) for t in times))
    assert crowd[1] <= 8
    assert crowd[0] > crowd[1]
