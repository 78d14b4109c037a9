"""llm-d's endpoint picker (EPP): weighted scorers, pickers, saturation and priority bands.

Source: llm-d/llm-d-router ebab687 (2026-08-22, after v0.10.0), the picker that was the Gateway API Inference
Extension's before.  total = sum of weight * clamp(score, 0, 1) over the scorers of one scheduling profile.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import helper, rand01
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import least
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, HOLD, PASS, SHED

BLOCK_TOKENS = 64.0  # approx-prefix-cache-producer: smaller block sizes are raised to 64
MIB = 4194304.0


@helper
def min_max_score(x, low, high):
    """(high - x) / (high - low), 1 when all are equal: a queue of one against none is worth the whole weight."""
    return 1.0 if high <= low else (high - x) / (high - low)


@helper
def prefix_score(hit_tokens, input_tokens, length_weight, scale_tokens):
    """(1 - l) * matched / total blocks + l * min(1, matched tokens / scale)^2, in whole blocks of 64 tokens."""
    total = np.floor(input_tokens / BLOCK_TOKENS)
    if total < 1.0:
        return 0.0
    matched = min(np.floor(hit_tokens / BLOCK_TOKENS), total)
    length = min(1.0, matched * BLOCK_TOKENS / scale_tokens)
    return (1.0 - length_weight) * matched / total + length_weight * length * length


@dataclass(frozen=True)
class Llmd:
    """The weighted scorers of one llm-d scheduling profile and its picker.

    Weights are not normalised: only their ratios matter to max-score-picker, their sizes matter to
    weighted-random-picker.  Min-max scores depend on who is a candidate, so weights are not portable between fleet
    sizes.  Simplified: no filters before the scorers; prefix hits in blocks of 64 tokens.
    Source: llm-d-router ebab687, pkg/plugins/scorer and picker; defaults are those of its built-in config.
    """

    name: ClassVar[str] = "llmd"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    queue_weight: float = param(
        2.0, "weight", 0.0, 10.0, "queue-scorer: requests waiting, min-max over candidates"
    )
    kv_weight: float = param(2.0, "weight", 0.0, 10.0, "kv-cache-utilization-scorer: 1 - KV use")
    prefix_weight: float = param(
        3.0, "weight", 0.0, 10.0, "prefix-cache-scorer: share of the prompt cached there"
    )
    running_weight: float = param(
        0.0, "weight", 0.0, 10.0, "running-requests-size-scorer: batch size, min-max"
    )
    token_load_weight: float = param(
        0.0, "weight", 0.0, 10.0, "token-load-scorer: tokens in flight plus this request's"
    )
    load_aware_weight: float = param(
        0.0, "weight", 0.0, 10.0, "load-aware-scorer: never above one half", tune=False
    )
    active_weight: float = param(
        0.0, "weight", 0.0, 10.0, "active-request-scorer: requests in flight from this gateway"
    )
    match_length_weight: float = param(
        0.0, "share", 0.0, 1.0, "prefix-cache-scorer matchLengthWeight: share of the squared length term"
    )
    match_length_scale_tokens: float = param(
        8192,
        "tokens",
        64,
        262144,
        "prefix-cache-scorer matchLengthScaleTokens",
        log=True,
        integer=True,
        tune=False,
    )
    queue_threshold_tokens: float = param(
        MIB, "tokens", 1024, 16 * MIB, "token-load-scorer queueThresholdTokens", log=True, integer=True
    )
    load_threshold: float = param(
        128, "requests", 1, 4096, "load-aware-scorer threshold", integer=True, tune=False
    )
    idle_threshold: float = param(
        0, "requests", 0, 1024, "active-request-scorer idleThreshold", integer=True, tune=False
    )
    max_busy_score: float = param(1.0, "score", 0.0, 1.0, "active-request-scorer maxBusyScore", tune=False)
    picker: float = param(
        0,
        "choice",
        0,
        2,
        "picker of the profile",
        integer=True,
        choices=("max-score-picker", "weighted-random-picker", "random-picker"),
        tune=False,
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        queue_weight, kv_weight, prefix_weight, running_weight = params[0], params[1], params[2], params[3]
        token_load_weight, load_aware_weight, active_weight = params[4], params[5], params[6]
        match_length_weight, match_length_scale_tokens = params[7], params[8]
        queue_threshold_tokens, load_threshold = params[9], params[10]
        idle_threshold, max_busy_score, picker = params[11], params[12], params[13]
        low_q, high_q, low_r, high_r, high_n = np.inf, -np.inf, np.inf, -np.inf, 0.0
        for n in range(view.size):
            if view[n].ready == 1:
                low_q, high_q = min(low_q, view[n].waiting), max(high_q, view[n].waiting)
                low_r, high_r = min(low_r, view[n].running), max(high_r, view[n].running)
                high_n = max(high_n, view[n].inflight)
        best, best_key = -1, -1.0
        for n in range(view.size):
            total = 0.0
            if queue_weight > 0.0:
                total += queue_weight * min_max_score(view[n].waiting, low_q, high_q)
            if running_weight > 0.0:
                total += running_weight * min_max_score(view[n].running, low_r, high_r)
            if kv_weight > 0.0:
                total += kv_weight * min(1.0, max(0.0, 1.0 - view[n].kv_used_share))
            if prefix_weight > 0.0:
                total += prefix_weight * prefix_score(
                    view[n].hit_tokens, request.input_tokens, match_length_weight, match_length_scale_tokens
                )
            if token_load_weight > 0.0:
                tokens = view[n].inflight_tokens + max(0.0, request.input_tokens - view[n].hit_tokens)
                total += token_load_weight * (
                    1.0 - min(tokens, queue_threshold_tokens) / queue_threshold_tokens
                )
            if load_aware_weight > 0.0:
                total += (
                    load_aware_weight * 0.5 * (1.0 - min(view[n].waiting, load_threshold) / load_threshold)
                )
            if active_weight > 0.0:
                idle = view[n].inflight <= idle_threshold
                busy = 0.0 if high_n <= 0.0 else (high_n - view[n].inflight) / high_n * max_busy_score
                total += active_weight * (1.0 if idle else busy)
            scores[n] = -total
            if view[n].ready == 1 and picker > 0.0:
                key = rand01(rng)
                if picker == 1.0:  # A-Res: the largest u^(1/total)
                    key = key ** (1.0 / total) if total > 0.0 else 0.0
                if key > best_key:
                    best, best_key = n, key
        if picker == 2.0 or (picker == 1.0 and best_key > 0.0):
            return best
        if picker == 1.0:  # all totals zero: uniform
            for n in range(view.size):
                scores[n] = 0.0
        return least(scores, view, rng)


@dataclass(frozen=True)
class LlmdFlow:
    """llm-d's flow control: priority bands with queue caps, strict between bands, a pool-wide saturation gate.

    Bands follow the SLO classes: class 0 is the highest.  A band is a queue with a cap, not a reserved slot.  Waiting
    longer than the TTL is shed.  Saturation is the mean over endpoints of max(queue / threshold, KV / threshold)
    upstream; here the larger of the two means, which is never above it.
    Source: llm-d-router ebab687, flowControl of EndpointPickerConfig, utilization-detector; defaults as there.
    """

    name: ClassVar[str] = "llmd_flow"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "class"

    queue_depth_threshold: float = param(
        5, "requests", 1, 256, "utilization-detector queueDepthThreshold", log=True, integer=True
    )
    kv_cache_util_threshold: float = param(
        0.8, "share", 0.05, 1.0, "utilization-detector kvCacheUtilThreshold"
    )
    default_request_ttl_s: float = param(60, "s", 1, 3600, "defaultRequestTTL", log=True, integer=True)
    band0_max_requests: float = param(
        5000, "requests", 1, 100000, "cap of the queue of class 0", log=True, integer=True
    )
    band1_max_requests: float = param(
        5000, "requests", 1, 100000, "cap of the queue of class 1", log=True, integer=True
    )
    band2_max_requests: float = param(
        5000, "requests", 1, 100000, "cap of the queue of class 2", log=True, integer=True
    )
    min_ceiling: float = param(
        1.0,
        "share",
        0.05,
        1.0,
        "priority-holdback-policy minCeiling: saturation at which the lowest band stops",
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        queue_depth_threshold, kv_cache_util_threshold, default_request_ttl_s = (
            params[0],
            params[1],
            params[2],
        )
        band0_max_requests, band1_max_requests, band2_max_requests, min_ceiling = (
            params[3],
            params[4],
            params[5],
            params[6],
        )
        if op == ADMIT_NEXT:
            for q in range(gate.size):
                if gate[q].queued > 0.0:
                    return q
            return -1
        if op != ADMIT_HEAD:
            return 0
        q = min(request.slo_class, gate.size - 1)
        cap = band0_max_requests if q == 0 else (band1_max_requests if q == 1 else band2_max_requests)
        saturation = max(
            gate[q].saturation_queue / queue_depth_threshold, gate[q].kv_used_share / kv_cache_util_threshold
        )
        ceiling = 1.0 - q * (1.0 - min_ceiling) / max(1, gate.size - 1)
        if saturation < ceiling:
            return PASS
        if request.queued_s >= default_request_ttl_s or gate[q].queued > cap:
            return SHED
        return HOLD
