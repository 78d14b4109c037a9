"""LMetric: new prefill tokens times batch size, no parameters: what every tuned policy has to beat."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tfanalyze.replay.policies.helpers import argmin


@dataclass(frozen=True)
class Lmetric:
    """Least product of prompt tokens to compute there (own uncached ones and those before them) and batch size.

    The product needs no weight: scaling either factor scales all candidates alike.
    Source: LMetric, arXiv 2603.15202; as offered by NVIDIA Dynamo 1.6 (router_selection_policy=lmetric).
    """

    name: ClassVar[str] = "lmetric"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        for n in range(view.size):
            new = max(1.0, request.input_tokens - view[n].hit_tokens) + view[n].inflight_prefill_tokens
            batch = max(view[n].inflight, view[n].running + view[n].waiting) + 1.0
            scores[n] = new * batch
        return argmin(scores, view, rng)
