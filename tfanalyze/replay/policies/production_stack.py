"""vLLM production-stack's Python router: round robin, session, kvaware and prefixaware.

Source: vllm-project/production-stack a6c01db0, src/vllm_router/routers/routing_logic.py.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import any_ready, by_hash, least, longest_match, next_in_turn

ROUND_ROBIN, SESSION, KV_AWARE, PREFIX_AWARE = 0.0, 1.0, 2.0, 3.0
CHARS_A_TOKEN = 4.0
CHUNK_CHARS = 128.0


@dataclass(frozen=True)
class ProductionStack:
    """production-stack's --routing-logic.  No weights, quotas or overload thresholds.

    kvaware: the instance with the longest cached prefix if it holds at least length - threshold tokens, else the
    session's.  prefixaware: longest match in chunks of 128 characters (four characters a token here), no load term,
    random among equals; below the least match length: random.
    Source: production-stack a6c01db0; defaults as there.
    """

    name: ClassVar[str] = "production_stack"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    routing_logic: float = param(
        0,
        "choice",
        0,
        3,
        "--routing-logic",
        integer=True,
        choices=("roundrobin", "session", "kvaware", "prefixaware"),
    )
    kv_aware_threshold: float = param(
        2000,
        "tokens",
        0,
        262144,
        "--kv-aware-threshold: tokens of the prompt that may be missing",
        integer=True,
    )
    prefix_min_match_length: float = param(
        0, "characters", 0, 1048576, "--prefix-min-match-length", integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 1

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        routing_logic, kv_aware_threshold, prefix_min_match_length = params[0], params[1], params[2]
        if routing_logic == ROUND_ROBIN:
            return next_in_turn(view, memory, 0)
        if routing_logic == SESSION:
            return by_hash(view, request.session)
        best = longest_match(view, rng, scores)
        if best < 0:
            return -1
        if routing_logic == KV_AWARE:
            enough = (
                view[best].hit_tokens > 0.0
                and view[best].hit_tokens >= request.input_tokens - kv_aware_threshold
            )
            return best if enough else by_hash(view, request.session)
        for n in range(view.size):
            scores[n] = -np.floor(view[n].hit_tokens * CHARS_A_TOKEN / CHUNK_CHARS)
        if -scores[best] * CHUNK_CHARS < prefix_min_match_length or scores[best] >= 0.0:
            return any_ready(view, rng, -1)
        return least(scores, view, rng)
