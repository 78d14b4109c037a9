"""Ray Serve LLM's PrefixCacheAffinityRouter.

Source: ray 2.60.0, ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import least, two_choices


@dataclass(frozen=True)
class RayServe:
    """Spread of queues above the threshold: power of two.  Else the longest match, or the smallest prefix tree.

    Of several replicas with the best match (or the smallest tree) the one with the shortest queue is taken.  An
    imbalanced_threshold of 1e9 stands for Ray's default, infinity.
    Source: ray 2.60.0 PrefixCacheAffinityRouter; defaults as there.  Matches are of characters there, of token blocks here.
    """

    name: ClassVar[str] = "ray_serve"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    imbalanced_threshold: float = param(
        1e9,
        "requests",
        1,
        1e9,
        "spread of queue lengths that still counts as balanced",
        log=True,
        integer=True,
    )
    match_rate_threshold: float = param(0.1, "share", 0.0, 1.0, "least share of the prompt that must match")

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        imbalanced_threshold, match_rate_threshold = params[0], params[1]
        low, high, best, smallest = np.inf, 0.0, 0.0, np.inf
        for n in range(view.size):
            if view[n].ready == 1:
                low, high = min(low, view[n].inflight), max(high, view[n].inflight)
                best, smallest = max(best, view[n].hit_tokens), min(smallest, view[n].index_tokens)
        if high - low > imbalanced_threshold:
            return two_choices(view, rng)
        matched = best >= match_rate_threshold * request.input_tokens and best > 0.0
        for n in range(view.size):
            among = view[n].hit_tokens == best if matched else view[n].index_tokens == smallest
            scores[n] = view[n].inflight if among else np.inf
        return least(scores, view, rng)
