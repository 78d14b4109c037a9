"""sglang-router: approximate prefix affinity behind two imbalance thresholds, and one FIFO queue at the door.

Source: sglang-router 0.3.2 (last build of sgl-model-gateway), policies/cache_aware.rs and its command line.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import (
    any_ready,
    imbalanced,
    least_loaded,
    longest_match,
    next_in_turn,
    two_choices,
)
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, HOLD, PASS, SHED

CACHE_AWARE, ROUND_ROBIN, RANDOM, POWER_OF_TWO = 0.0, 1.0, 2.0, 3.0


@dataclass(frozen=True)
class Sglang:
    """sglang-router's policies; cache_aware follows the longest match only while the load is balanced.

    Imbalanced (both thresholds needed): least requests in flight.  Else matched / length > threshold, strictly: that
    worker; else the least loaded (its comments say smallest tree, its code takes the load).  Loads are this router's
    own, so thresholds are per router replica.  Matches are of characters there, of token blocks here.
    Source: sglang-router 0.3.2, policies/cache_aware.rs; defaults as there.
    """

    name: ClassVar[str] = "sglang"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    cache_threshold: float = param(
        0.3, "share", 0.0, 1.0, "--cache-threshold: share of the prompt that must match"
    )
    balance_abs_threshold: float = param(
        64, "requests", 0, 1024, "--balance-abs-threshold: spread of requests in flight", integer=True
    )
    balance_rel_threshold: float = param(
        1.5, "factor", 1.0, 10.0, "--balance-rel-threshold: largest load over smallest"
    )
    policy: float = param(
        0,
        "choice",
        0,
        3,
        "--policy",
        integer=True,
        choices=("cache_aware", "round_robin", "random", "power_of_two"),
        tune=False,
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 1

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        cache_threshold, balance_abs_threshold, balance_rel_threshold, policy = (
            params[0],
            params[1],
            params[2],
            params[3],
        )
        if policy == ROUND_ROBIN:
            return next_in_turn(view, memory, 0)
        if policy == RANDOM:
            return any_ready(view, rng, -1)
        if policy == POWER_OF_TWO:
            return two_choices(view, rng)
        if not imbalanced(view, balance_abs_threshold, balance_rel_threshold):
            best = longest_match(view, rng, scores)
            if best >= 0 and view[best].hit_tokens > cache_threshold * request.input_tokens:
                return best
        return least_loaded(view, rng, scores)


@dataclass(frozen=True)
class RouterQueue:
    """One FIFO queue before a concurrency limit: the door of sglang-router, smg and vllm-router.

    No classes.  A full queue answers 429, a wait beyond the time-out 408; both are shed here.  The limit is per
    router replica.  A limit of -1 is none.
    Source: sglang-router 0.3.2, --max-concurrent-requests, --queue-size, --queue-timeout-secs; defaults as there.
    """

    name: ClassVar[str] = "router_queue"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "one"

    max_concurrent_requests: float = param(
        -1, "requests", -1, 65536, "--max-concurrent-requests, -1 = no limit", integer=True
    )
    queue_size: float = param(100, "requests", 0, 65536, "--queue-size: 0 = answer 429 at once", integer=True)
    queue_timeout_secs: float = param(60, "s", 1, 3600, "--queue-timeout-secs", integer=True, log=True)

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        max_concurrent_requests, queue_size, queue_timeout_secs = params[0], params[1], params[2]
        if op == ADMIT_NEXT:
            return 0 if gate[0].queued > 0.0 else -1
        if op != ADMIT_HEAD:
            return 0
        if max_concurrent_requests < 0.0 or gate[0].inflight < max_concurrent_requests:
            return PASS
        if request.queued_s >= queue_timeout_secs or gate[0].queued > queue_size:
            return SHED
        return HOLD
