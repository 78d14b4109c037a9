"""AIBrix's gateway: one strategy, or a weighted list of strategies each min-max normalised.

Source: vllm-project/aibrix e3e10f9e, pkg/plugins/gateway/algorithms and the environment variables it reads.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import helper
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import least

PREFIX_CACHE, WEIGHTED, LEAST_REQUEST, LEAST_KV, RANDOM = 0.0, 1.0, 2.0, 3.0, 4.0


@helper
def metric(v, k):
    """Strategy k's metric of one pod, larger is better: prefix hits, -requests, -KV use, -latency."""
    if k == 0:
        return v.hit_tokens
    if k == 1:
        return -v.inflight
    if k == 2:
        return -v.kv_used_share
    return -v.ttft_ewma_s


@dataclass(frozen=True)
class Aibrix:
    """AIBrix's routing algorithm: `prefix-cache`, or a weighted list such as `prefix-cache:3,least-request:2`.

    Weighted: each strategy's metric min-max normalised over pods, weights normalised, largest sum.  prefix-cache alone:
    spread of running requests above the absolute count -> least requests; else the longest match among pods
    with running <= mean + factor * sigma; no match -> least requests.
    Source: AIBrix e3e10f9e; defaults as there.  Running requests are the gateway's own count.
    """

    name: ClassVar[str] = "aibrix"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    algorithm: float = param(
        0,
        "choice",
        0,
        4,
        "ROUTING_ALGORITHM",
        integer=True,
        choices=("prefix-cache", "weighted", "least-request", "least-kv-cache", "random"),
    )
    prefix_cache_weight: float = param(3, "weight", 0, 100, "prefix-cache:N in the list", integer=True)
    least_request_weight: float = param(2, "weight", 0, 100, "least-request:N in the list", integer=True)
    least_kv_cache_weight: float = param(1, "weight", 0, 100, "least-kv-cache:N in the list", integer=True)
    least_latency_weight: float = param(0, "weight", 0, 100, "least-latency:N in the list", integer=True)
    imbalance_abs_count: float = param(
        8, "requests", 1, 1024, "AIBRIX_PREFIX_CACHE_POD_RUNNING_REQUEST_IMBALANCE_ABS_COUNT", integer=True
    )
    standard_deviation_factor: float = param(
        1, "sigma", 1, 10, "AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR", integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        algorithm = params[0]
        prefix_cache_weight, least_request_weight, least_kv_cache_weight, least_latency_weight = (
            params[1],
            params[2],
            params[3],
            params[4],
        )
        imbalance_abs_count, standard_deviation_factor = params[5], params[6]
        total, squares, count, low, high = 0.0, 0.0, 0.0, np.inf, 0.0
        for n in range(view.size):
            scores[n] = 0.0
            if view[n].ready == 1:
                load = view[n].inflight
                total, squares, count = total + load, squares + load * load, count + 1.0
                low, high = min(low, load), max(high, load)
        if algorithm == RANDOM:
            return least(scores, view, rng)
        if algorithm == WEIGHTED:
            weights = (prefix_cache_weight, least_request_weight, least_kv_cache_weight, least_latency_weight)
            for k in range(4):
                worst, best = np.inf, -np.inf
                for n in range(view.size):
                    if view[n].ready == 1:
                        worst, best = min(worst, metric(view[n], k)), max(best, metric(view[n], k))
                if weights[k] > 0.0 and best > worst:
                    for n in range(view.size):
                        scores[n] -= weights[k] * (metric(view[n], k) - worst) / (best - worst)
            return least(scores, view, rng)
        if algorithm == PREFIX_CACHE and high - low <= imbalance_abs_count:
            mean = total / max(1.0, count)
            limit = mean + standard_deviation_factor * np.sqrt(
                max(0.0, squares / max(1.0, count) - mean * mean)
            )
            matched = False
            for n in range(view.size):
                fits = view[n].inflight <= limit + 1e-9
                scores[n] = -view[n].hit_tokens if fits else 0.0
                matched = matched or (view[n].ready == 1 and fits and view[n].hit_tokens > 0.0)
            if matched:
                return least(scores, view, rng)
        for n in range(view.size):
            scores[n] = view[n].kv_used_share if algorithm == LEAST_KV else view[n].inflight
        return least(scores, view, rng)
