"""vllm-router (the Rust router of the vLLM project, of sglang-router's line): gates, not weights.

Source: vllm-router 0.1.17 (PyPI), command-line help; kv_aware as in an older public revision of vllm-project/router.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import (
    any_ready,
    by_hash,
    imbalanced,
    least_loaded,
    longest_match_least_loaded,
    next_in_turn,
    two_choices,
)

CACHE_AWARE, ROUND_ROBIN, RANDOM, POWER_OF_TWO, KV_AWARE, CONSISTENT_HASH, STICKY = (
    0.0,
    1.0,
    2.0,
    3.0,
    4.0,
    5.0,
    6.0,
)


@dataclass(frozen=True)
class VllmRouter:
    """vllm-router's policies; cache_aware as sglang-router's, but over tokens; kv_aware follows the longest cached prefix.

    The tokens are what the worker's /v1/chat/completions/render answers: with workers that have no such route the real one
    takes the least loaded, whatever is cached.  Of equal matches the one with fewer in flight.

    kv_aware without any hit takes the least loaded.  consistent_hash keeps a session on its worker by hashing;
    sticky_least_loaded keeps it where its last turn went and places new sessions on the least loaded.
    Source: vllm-router 0.1.17; defaults as there.  The tier credits of kv_aware's newer cost are not modelled.
    """

    name: ClassVar[str] = "vllm_router"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    policy: float = param(
        0,
        "choice",
        0,
        6,
        "--policy",
        integer=True,
        choices=(
            "cache_aware",
            "round_robin",
            "random",
            "power_of_two",
            "kv_aware",
            "consistent_hash",
            "sticky_least_loaded",
        ),
    )
    cache_threshold: float = param(
        0.3, "share", 0.0, 1.0, "--cache-threshold: share of the prompt that must match"
    )
    balance_abs_threshold: float = param(
        64, "requests", 0, 1024, "--balance-abs-threshold: spread of requests in flight", integer=True
    )
    balance_rel_threshold: float = param(
        1.5, "factor", 1.0, 10.0, "--balance-rel-threshold: largest load over smallest"
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 1

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        policy, cache_threshold, balance_abs_threshold, balance_rel_threshold = (
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
        if policy == STICKY:
            last = request.last_instance
            if last >= 0 and view[last].ready == 1:
                return last
            return least_loaded(view, rng, scores)
        if policy == CONSISTENT_HASH:
            return by_hash(view, request.session)
        if policy == KV_AWARE or not imbalanced(view, balance_abs_threshold, balance_rel_threshold):
            best = longest_match_least_loaded(view, rng, scores)
            least = 0.0 if policy == KV_AWARE else cache_threshold * request.input_tokens
            if best >= 0 and view[best].hit_tokens > least:
                return best
        return least_loaded(view, rng, scores)
