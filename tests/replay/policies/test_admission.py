"""Admission baselines on hand-made gates."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfanalyze.replay.policies.loading import policy_class
from tfanalyze.replay.state import (
    ADMIT_DONE,
    ADMIT_HEAD,
    ADMIT_JOIN,
    ADMIT_NEXT,
    ADMIT_TICK,
    HOLD,
    PASS,
    SHED,
)
from tfanalyze.testing import Decider, make_gate, make_request


def door(name: str, n_queues: int = 1, **values: float) -> Decider:
    return Decider(policy_class(name)(**values), n_queues=n_queues)


def head(decider: Decider, gate: Any, **request: Any) -> int:
    return decider.admit(ADMIT_HEAD, gate, make_request(**request))


def test_concurrency_limit_holds_then_sheds() -> None:
    limit = door("concurrency_limit", limit_requests=10, queue_requests=5, max_wait_s=30)
    assert head(limit, make_gate(1, inflight=39)) == PASS  # 4 instances
    assert head(limit, make_gate(1, inflight=40, queued=5)) == HOLD
    assert limit.admit(ADMIT_JOIN, make_gate(1, inflight=40, queued=4), make_request()) == PASS
    assert limit.admit(ADMIT_JOIN, make_gate(1, inflight=40, queued=5), make_request()) == SHED
    assert limit.admit(ADMIT_JOIN, make_gate(1, inflight=39, queued=5), make_request()) == PASS
    assert head(limit, make_gate(1, inflight=40, queued=1), queued_s=31.0) == SHED


def test_fcfs_queue_looks_at_engine_queues_and_counts_its_own_releases() -> None:
    queue = door("fcfs_queue", engine_queue=2)
    gate = make_gate(1, waiting=6, inflight=50, now_s=1.0)
    assert [head(queue, gate) for _ in range(4)] == [PASS, PASS, PASS, HOLD]  # 2 * 4 engines
    assert head(queue, make_gate(1, waiting=20, inflight=50, now_s=2.0)) == HOLD
    assert head(queue, make_gate(1, waiting=20, inflight=0, now_s=3.0)) == PASS


def test_oldest_head_goes_first() -> None:
    gate = make_gate(3, queued=[0, 1, 1], head_arrival_s=[np.inf, 7.0, 5.0])
    for name in ("concurrency_limit", "token_rate", "fcfs_queue"):
        assert door(name, 3).admit(ADMIT_NEXT, gate, make_request()) == 2


def test_token_rate_is_a_bucket_for_each_tenant() -> None:
    rate = door("token_rate", 2, tokens_per_min=60_000, burst_s=10)  # 1,000 tokens/s, 10,000 in the bucket
    ask = {"input_tokens": 4000, "expected_output_tokens": 1000}
    gate = make_gate(2)
    assert [head(rate, gate, tenant=0, now_s=0.0, **ask) for _ in range(3)] == [PASS, PASS, SHED]
    assert head(rate, gate, tenant=1, now_s=0.0, **ask) == PASS
    assert head(rate, gate, tenant=0, now_s=5.0, **ask) == PASS  # 5,000 came back
    assert head(rate, gate, tenant=0, now_s=6.0, **ask) == SHED


def test_token_rate_lets_one_oversized_request_through_a_full_bucket() -> None:
    rate = door("token_rate", 1, tokens_per_min=60_000, burst_s=10)
    assert head(rate, make_gate(1), input_tokens=50_000) == PASS


def test_request_rate_counts_in_windows() -> None:
    rate = door("request_rate", 2, requests_per_min=2)
    gate = make_gate(2)
    assert [head(rate, gate, tenant=0, now_s=t) for t in (1.0, 2.0, 3.0, 59.0, 60.0)] == [
        PASS,
        PASS,
        SHED,
        SHED,
        PASS,
    ]
    assert head(rate, gate, tenant=1, now_s=3.0) == PASS


def test_adaptive_concurrency_backs_off_when_latency_grows_and_recovers() -> None:
    policy = door("adaptive_concurrency", start_requests=32)

    def ticks(count: int, gap_s: float) -> float:
        for _ in range(count):
            policy.admit(
                ADMIT_TICK, make_gate(1, tpot_ewma_s=gap_s, inflight=policy.memory[0]), make_request()
            )
        return float(policy.memory[0])

    head(policy, make_gate(1))
    calm = ticks(20, 0.02)
    slow = ticks(40, 0.3)
    assert calm > 128 > slow
    assert ticks(60, 0.02) > slow
    assert head(policy, make_gate(1, inflight=policy.memory[0] + 1)) == HOLD


def test_adaptive_concurrency_does_not_grow_unused() -> None:
    policy = door("adaptive_concurrency", start_requests=32)
    head(policy, make_gate(1))
    for _ in range(50):
        policy.admit(ADMIT_TICK, make_gate(1, tpot_ewma_s=0.02, inflight=3), make_request())
    assert policy.memory[0] == 128


def test_vtc_serves_the_least_served_tenant() -> None:
    vtc = door("vtc_fair", 2, limit_requests=1)
    gate = make_gate(2, queued=1)
    served = []
    for _ in range(8):
        q = vtc.admit(ADMIT_NEXT, gate, make_request())
        served.append(q)
        # tenant 0 asks for three times as much each time
        assert head(vtc, gate, tenant=q, input_tokens=3000 if q == 0 else 1000) == PASS
    assert served.count(0) == 2
    assert served.count(1) == 6
    assert head(vtc, make_gate(2, inflight=[3, 1])) == HOLD


def test_vtc_lifts_a_tenant_that_was_away() -> None:
    vtc = door("vtc_fair", 2)
    busy = make_gate(2, queued=[1, 0], inflight=[1, 0])
    for _ in range(10):
        assert vtc.admit(ADMIT_NEXT, busy, make_request()) == 0
        head(vtc, busy, tenant=0, input_tokens=1000)
        vtc.admit(ADMIT_DONE, busy, make_request(tenant=0))
        vtc.admit(ADMIT_TICK, busy, make_request())
    both = make_gate(2, queued=1)
    served = []
    for _ in range(6):
        q = vtc.admit(ADMIT_NEXT, both, make_request())
        served.append(q)
        head(vtc, both, tenant=q, input_tokens=1000)
    assert served.count(1) <= 4  # it does not get ten turns in a row for having been away
