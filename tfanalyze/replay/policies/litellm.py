"""LiteLLM proxy's router: weighted shuffle, least busy or latency based, over deployments of one model name.

Source: litellm 1.108.7 (PyPI), litellm/router.py and router_strategy/.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import helper, rand01
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import least

SHUFFLE, LEAST_BUSY, LATENCY = 0.0, 1.0, 2.0
SITES = 4  # weight_k and order_k are those of site k; later sites share the last


@helper
def open_order(view, orders, limit):
    """Lowest order among ready deployments below their limit of parallel requests; inf when there is none."""
    lowest = np.inf
    for n in range(view.size):
        if view[n].ready == 1 and view[n].inflight < limit:
            lowest = min(lowest, orders[min(view[n].site, SITES - 1)])
    return lowest


@dataclass(frozen=True)
class Litellm:
    """LiteLLM's routing_strategy over deployments; each instance is one deployment with its site's weight and order.

    simple-shuffle draws with probability weight / sum of weights; least-busy takes the fewest in flight;
    latency-based-routing the lowest mean latency (unknown first).  Only the lowest `order` with room is used;
    with max_parallel_requests reached everywhere the limit is ignored here, where the proxy answers 429.
    Source: litellm 1.108.7.  No cache and no KV term exist.
    """

    name: ClassVar[str] = "litellm"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    routing_strategy: float = param(
        0,
        "choice",
        0,
        2,
        "router_settings.routing_strategy",
        integer=True,
        choices=("simple-shuffle", "least-busy", "latency-based-routing"),
    )
    weight_0: float = param(
        1, "weight", 0, 1000, "litellm_params.weight of site 0's deployments", integer=True
    )
    weight_1: float = param(
        1, "weight", 0, 1000, "litellm_params.weight of site 1's deployments", integer=True
    )
    weight_2: float = param(
        1, "weight", 0, 1000, "litellm_params.weight of site 2's deployments", integer=True
    )
    weight_3: float = param(
        1, "weight", 0, 1000, "litellm_params.weight of site 3's deployments", integer=True
    )
    order_0: float = param(
        1, "order", 1, 9, "litellm_params.order of site 0: lower first", integer=True, tune=False
    )
    order_1: float = param(1, "order", 1, 9, "litellm_params.order of site 1", integer=True, tune=False)
    order_2: float = param(1, "order", 1, 9, "litellm_params.order of site 2", integer=True, tune=False)
    order_3: float = param(1, "order", 1, 9, "litellm_params.order of site 3", integer=True, tune=False)
    max_parallel_requests: float = param(
        0, "requests", 0, 65536, "litellm_params.max_parallel_requests, 0 = none", integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        routing_strategy, weight_0, weight_1, weight_2, weight_3 = (
            params[0],
            params[1],
            params[2],
            params[3],
            params[4],
        )
        order_0, order_1, order_2, order_3, max_parallel_requests = (
            params[5],
            params[6],
            params[7],
            params[8],
            params[9],
        )
        weights = (weight_0, weight_1, weight_2, weight_3)
        orders = (order_0, order_1, order_2, order_3)
        limit = max_parallel_requests if max_parallel_requests > 0.0 else np.inf
        order = open_order(view, orders, limit)
        if order == np.inf:
            limit = np.inf
            order = open_order(view, orders, limit)
        total = 0.0
        for n in range(view.size):
            site = min(view[n].site, SITES - 1)
            scores[n] = np.inf
            if view[n].ready == 1 and view[n].inflight < limit and orders[site] == order:
                if routing_strategy == SHUFFLE:
                    scores[n] = -weights[site]
                    total += weights[site]
                else:
                    scores[n] = view[n].inflight if routing_strategy == LEAST_BUSY else view[n].ttft_ewma_s
        if routing_strategy != SHUFFLE:
            return least(scores, view, rng)
        if total <= 0.0:  # all weights zero: uniform over the open ones
            for n in range(view.size):
                scores[n] = 0.0 if scores[n] < np.inf else np.inf
            return least(scores, view, rng)
        left = rand01(rng) * total
        for n in range(view.size):
            if scores[n] < np.inf:
                left += scores[n]
                if left < 0.0:
                    return n
        return least(scores, view, rng)
