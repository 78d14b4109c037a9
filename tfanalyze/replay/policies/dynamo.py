"""NVIDIA Dynamo's KV router: one cost of prefill and decode blocks, and policy-class queues drained by deficit.

Source: ai-dynamo 1.6.1 (lib/llm kv_router scheduler and policy-class queues); costs checked against its own selector.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import rand01
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import least
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, HOLD, PASS, SHED

DEFAULT_COST, TWO_TIER, LMETRIC = 0.0, 1.0, 2.0


@dataclass(frozen=True)
class Dynamo:
    """cost = scale * max(0, active prefill + request - credit * overlap blocks) + decode blocks + a * active requests.

    All in KV blocks of the engine.  decay = 1 / (1 + d * excess active prefill blocks / request blocks) multiplies the
    credit, excess over the least-loaded worker.  Decode blocks are the distinct blocks of the prompts in flight there after
    adding the request: what requests in flight share counts once (upstream's router_track_active_blocks; no output blocks).
    Temperature: softmax of -cost / ((max - min) * temperature).  Two-tier and lmetric are its other selectors.
    Source: Dynamo 1.6.1 dynamo-default-cost-fn, dynamo-two-tier-cost-fn, router_selection_policy=lmetric.
    """

    name: ClassVar[str] = "dynamo"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False
    counts_blocks: ClassVar[bool] = True

    overlap_score_credit: float = param(
        1.0, "block/block", 0.0, 4.0, "prefill blocks saved for each block cached there"
    )
    overlap_score_credit_decay: float = param(
        0.0, "factor", 0.0, 4.0, "credit lost with the worker's excess of prefill"
    )
    prefill_load_scale: float = param(
        1.0, "block/block", 0.01, 20.0, "a block of prefill against a block of decode", log=True
    )
    decode_active_request_weight: float = param(
        0.0, "blocks", 0.0, 256.0, "cost of one active request, in blocks"
    )
    router_temperature: float = param(
        0.0, "factor", 0.0, 2.0, "softmax over normalised costs; 0 = least cost", tune=False
    )
    selection: float = param(
        0,
        "choice",
        0,
        2,
        "worker_selection type",
        integer=True,
        choices=("dynamo-default-cost-fn", "dynamo-two-tier-cost-fn", "lmetric"),
        tune=False,
    )
    cache_threshold: float = param(
        0.5, "share", 0.0, 1.0, "two-tier: share of blocks that must be cached", tune=False
    )
    balance_abs_threshold: float = param(
        32, "requests", 0, 1024, "two-tier: spread of active requests", integer=True, tune=False
    )
    balance_rel_threshold: float = param(
        1.1, "factor", 1.0, 10.0, "two-tier: largest over smallest", tune=False
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        overlap_score_credit, overlap_score_credit_decay, prefill_load_scale = params[0], params[1], params[2]
        decode_active_request_weight, router_temperature, selection = params[3], params[4], params[5]
        cache_threshold, balance_abs_threshold, balance_rel_threshold = params[6], params[7], params[8]
        low_prefill, low_n, high_n, best_hit = np.inf, np.inf, 0.0, 0.0
        for n in range(view.size):
            if view[n].ready == 1:
                low_prefill = min(low_prefill, view[n].inflight_prefill_tokens)
                low_n, high_n = min(low_n, view[n].inflight), max(high_n, view[n].inflight)
                best_hit = max(best_hit, view[n].hit_tokens)
        if selection == TWO_TIER:
            uneven = high_n - low_n > balance_abs_threshold and high_n > balance_rel_threshold * low_n
            follow = not uneven and best_hit > cache_threshold * request.input_tokens
            for n in range(view.size):
                scores[n] = view[n].inflight if not follow or view[n].hit_tokens == best_hit else np.inf
            return least(scores, view, rng)
        if selection == LMETRIC:
            for n in range(view.size):
                prefill = view[n].inflight_prefill_tokens + request.input_tokens - view[n].hit_tokens
                scores[n] = max(1.0, prefill) * (view[n].inflight + 1.0)
            return least(scores, view, rng)
        low, high = np.inf, -np.inf
        for n in range(view.size):
            block = max(1.0, view[n].block_size)
            need = max(1.0, np.ceil(request.input_tokens / block))
            hit = np.floor(view[n].hit_tokens / block)
            excess = (view[n].inflight_prefill_tokens - low_prefill) / block
            decay = 1.0 / (1.0 + overlap_score_credit_decay * max(0.0, excess) / need)
            prefill = view[n].inflight_prefill_tokens / block + need - overlap_score_credit * decay * hit
            decode = view[n].active_blocks + need - view[n].active_hit_blocks
            scores[n] = (
                prefill_load_scale * max(0.0, prefill)
                + decode
                + decode_active_request_weight * view[n].inflight
            )
            if view[n].ready == 1:
                low, high = min(low, scores[n]), max(high, scores[n])
        if router_temperature <= 0.0 or high <= low:
            return least(scores, view, rng)
        total = 0.0
        for n in range(view.size):
            if view[n].ready == 1:
                total += np.exp(-(scores[n] - low) / ((high - low) * router_temperature))
        left = rand01(rng) * total
        for n in range(view.size):
            if view[n].ready == 1:
                left -= np.exp(-(scores[n] - low) / ((high - low) * router_temperature))
                if left <= 0.0:
                    return n
        return least(scores, view, rng)


@dataclass(frozen=True)
class DynamoQueues:
    """Dynamo's policy classes: a queue a class, drained by deficit round robin, limits a worker.

    SLO class k is policy family k (the last takes all later ones).  A class queues while every worker has more than its
    busy threshold of prefill tokens; deficits are charged in prompt tokens (upstream: uncached ones).  Limits are
    multiplied by the number of workers; the overflow answers 529 and is shed here.
    Source: Dynamo 1.6.1, --router-policy-config policy_classes.
    """

    name: ClassVar[str] = "dynamo_queues"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "class"

    quantum_0: float = param(
        4096, "tokens", 64, 262144, "class 0 quantum: prompt tokens a turn", log=True, integer=True
    )
    quantum_1: float = param(2048, "tokens", 64, 262144, "class 1 quantum", log=True, integer=True)
    quantum_2: float = param(512, "tokens", 64, 262144, "class 2 quantum", log=True, integer=True)
    prefill_busy_threshold_0: float = param(
        65536, "tokens", 256, 4194304, "class 0 prefill_busy_threshold", log=True, integer=True
    )
    prefill_busy_threshold_1: float = param(
        65536, "tokens", 256, 4194304, "class 1 prefill_busy_threshold", log=True, integer=True
    )
    prefill_busy_threshold_2: float = param(
        16384, "tokens", 256, 4194304, "class 2 prefill_busy_threshold", log=True, integer=True
    )
    request_queue_limit_per_worker_0: float = param(
        64, "requests", 1, 65536, "class 0 request_queue_limit_per_worker", log=True, integer=True
    )
    request_queue_limit_per_worker_1: float = param(
        64, "requests", 1, 65536, "class 1 request_queue_limit_per_worker", log=True, integer=True
    )
    request_queue_limit_per_worker_2: float = param(
        1024, "requests", 1, 65536, "class 2 request_queue_limit_per_worker", log=True, integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return n_queues + 2

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        quantum_0, quantum_1, quantum_2 = params[0], params[1], params[2]
        prefill_busy_threshold_0, prefill_busy_threshold_1, prefill_busy_threshold_2 = (
            params[3],
            params[4],
            params[5],
        )
        request_queue_limit_per_worker_0, request_queue_limit_per_worker_1 = params[6], params[7]
        request_queue_limit_per_worker_2 = params[8]
        if op == ADMIT_NEXT:
            waiting = 0.0
            for q in range(gate.size):
                waiting += gate[q].queued
                if gate[q].queued <= 0.0 and memory[q] > 0.0:
                    memory[q] = 0.0
            if waiting <= 0.0:
                return -1
            turn, paid = np.int64(memory[gate.size]), memory[gate.size + 1]
            for k in range(100000):  # visits until a class is out of debt: ends, each visit pays a quantum
                q = (turn + k) % gate.size
                if gate[q].queued > 0.0:
                    quantum = quantum_0 if q == 0 else (quantum_1 if q == 1 else quantum_2)
                    if paid == 0.0:
                        memory[q] = min(memory[q] + quantum, quantum)
                    if memory[q] > 0.0:
                        memory[gate.size], memory[gate.size + 1] = q, 1.0
                        return q
                paid = 0.0
            return -1
        if op != ADMIT_HEAD:
            return 0
        q = min(request.slo_class, gate.size - 1)
        busy = (
            prefill_busy_threshold_0
            if q == 0
            else (prefill_busy_threshold_1 if q == 1 else prefill_busy_threshold_2)
        )
        workers = max(1.0, gate[q].instances)
        backlog = (
            gate[q].min_wait_s * gate[q].prefill_tok_s / workers
        )  # prompt tokens at the least busy worker
        if backlog <= busy:
            memory[q] -= request.input_tokens
            if memory[q] <= 0.0:
                memory[gate.size], memory[gate.size + 1] = (q + 1) % gate.size, 0.0
            return PASS
        limit = (
            request_queue_limit_per_worker_0
            if q == 0
            else (request_queue_limit_per_worker_1 if q == 1 else request_queue_limit_per_worker_2)
        )
        if gate[q].queued > limit * workers:
            return SHED
        return HOLD
