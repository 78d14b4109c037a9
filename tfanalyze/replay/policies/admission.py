"""Admission that gateways run today: none, one queue, limits, rates, adaptive limits, fair shares."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import helper
from tfanalyze.replay.policies import param
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


@helper
def oldest_queue(gate):
    """The queue whose head arrived first, -1 when all are empty."""
    best = -1
    for q in range(gate.size):
        if gate[q].queued > 0.0 and (best < 0 or gate[q].head_arrival_s < gate[best].head_arrival_s):
            best = q
    return best


@helper
def all_inflight(gate):
    """Requests admitted and not finished, over all queues."""
    total = 0.0
    for q in range(gate.size):
        total += gate[q].inflight
    return total


@dataclass(frozen=True)
class AdmitAll:
    """No admission control: every request enters at once (the loop skips the hook)."""

    name: ClassVar[str] = "admit_all"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = True
    queue_by: ClassVar[str] = "one"

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        if op == ADMIT_NEXT:
            return oldest_queue(gate)
        return PASS


@dataclass(frozen=True)
class FcfsQueue:
    """One queue, first come first served: enter while the engines' mean queue is short.

    Source: the central queue of a gateway in front of engines (vLLM production-stack, SGLang router queue).
    """

    name: ClassVar[str] = "fcfs_queue"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "one"

    engine_queue: float = param(
        2, "requests", 0, 256, "mean requests waiting in an engine at which the gateway holds", integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 2

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        engine_queue = params[0]
        if op == ADMIT_NEXT:
            return oldest_queue(gate)
        if op == ADMIT_HEAD:
            if gate[0].now_s != memory[0]:
                memory[0], memory[1] = gate[0].now_s, 0.0
            if (
                gate[0].waiting + memory[1] > engine_queue * max(1.0, gate[0].instances)
                and gate[0].inflight > 0.0
            ):
                return HOLD
            memory[1] += 1.0
            return PASS
        return 0


@dataclass(frozen=True)
class ConcurrencyLimit:
    """At most so many requests in flight for each ready instance; a bounded queue before it, the rest is shed.

    Source: SGLang router --max-concurrent-requests with --queue-size, Envoy's circuit breakers, Ray Serve's
    max_ongoing_requests; the limit counts one gateway replica's own requests.
    """

    name: ClassVar[str] = "concurrency_limit"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "one"

    limit_requests: float = param(
        64, "requests/instance", 1, 1024, "requests in flight for each ready instance", log=True, integer=True
    )
    queue_requests: float = param(
        10000, "requests", 0, 100000, "requests that may wait at the gateway", integer=True
    )
    max_wait_s: float = param(60.0, "s", 0.1, 3600.0, "a request that has waited longer is shed", log=True)

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        limit_requests, queue_requests, max_wait_s = params[0], params[1], params[2]
        free = all_inflight(gate) < limit_requests * max(1.0, gate[0].instances)
        if op == ADMIT_NEXT:
            return oldest_queue(gate)
        if op == ADMIT_JOIN:
            return PASS if free or gate[0].queued < queue_requests else SHED
        if op == ADMIT_HEAD:
            if free:
                return PASS
            return SHED if request.queued_s > max_wait_s else HOLD
        return 0


@dataclass(frozen=True)
class TokenRate:
    """A token bucket for each tenant: input and expected output tokens a minute, shed when it is empty.

    Source: LiteLLM's and OpenAI's tokens-per-minute limits (TPM), Envoy's ai_gateway token limits.
    """

    name: ClassVar[str] = "token_rate"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "tenant"

    tokens_per_min: float = param(600000, "tokens/min", 1000, 1e9, "rate of each tenant", log=True)
    burst_s: float = param(60.0, "s", 1.0, 600.0, "the bucket holds what this much time brings", log=True)

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 2 * n_queues

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        tokens_per_min, burst_s = params[0], params[1]
        if op == ADMIT_NEXT:
            return oldest_queue(gate)
        if op == ADMIT_HEAD:
            q = max(np.int64(request.tenant), 0) % gate.size
            rate = tokens_per_min / 60.0
            spent = max(0.0, memory[2 * q] - (request.now_s - memory[2 * q + 1]) * rate)
            need = request.input_tokens + request.expected_output_tokens
            memory[2 * q + 1] = request.now_s
            memory[2 * q] = spent
            if spent > 0.0 and spent + need > burst_s * rate:
                return SHED
            memory[2 * q] = spent + need
            return PASS
        return 0


@dataclass(frozen=True)
class RequestRate:
    """A request bucket for each tenant: so many requests a minute, the rest is shed or held.

    Source: requests-per-minute limits (RPM) of LiteLLM, OpenAI; the baseline of VTC (Sheng et al., OSDI 2024).
    """

    name: ClassVar[str] = "request_rate"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "tenant"

    requests_per_min: float = param(30, "requests/min", 1, 100000, "rate of each tenant", log=True)
    window_s: float = param(60.0, "s", 1.0, 600.0, "fixed window in which requests are counted", tune=False)
    limit_requests: float = param(
        0,
        "requests/instance",
        0,
        1024,
        "requests in flight for each instance, 0 = no limit",
        integer=True,
        tune=False,
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 2 * n_queues

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        requests_per_min, window_s, limit_requests = params[0], params[1], params[2]
        if op == ADMIT_NEXT:
            return oldest_queue(gate)
        if op == ADMIT_HEAD:
            q = max(np.int64(request.tenant), 0) % gate.size
            window = np.floor(request.now_s / window_s) + 1.0
            if memory[2 * q + 1] != window:
                memory[2 * q], memory[2 * q + 1] = 0.0, window
            if memory[2 * q] >= requests_per_min * window_s / 60.0:
                return SHED
            if limit_requests > 0.0 and all_inflight(gate) >= limit_requests * max(1.0, gate[0].instances):
                return HOLD
            memory[2 * q] += 1.0
            return PASS
        return 0


@dataclass(frozen=True)
class AdaptiveConcurrency:
    """A concurrency limit that follows the ratio of the usual latency to the present one.

    gradient = clamp(tolerance * long / now, 0.5, 1), limit <- (1 - smooth) limit + smooth (limit * gradient + sqrt(limit)) each
    period; now = smoothed gap between tokens (TTFT would hold the wait in its own queue), long = its average over many
    periods, which comes back faster once latency has halved.  It does not grow while less than half of it is used.
    Source: Gradient2 of Netflix's concurrency-limits (Envoy's adaptive_concurrency filter is its first form).
    """

    name: ClassVar[str] = "adaptive_concurrency"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "one"

    start_requests: float = param(
        64, "requests/instance", 1, 512, "limit for each instance at the start", log=True, integer=True
    )
    least_requests: float = param(
        16, "requests/instance", 1, 64, "the limit never falls below this", log=True, integer=True
    )
    tolerance: float = param(3.0, "factor", 1.0, 10.0, "how much worse than the usual latency is normal")
    smooth: float = param(0.2, "share", 0.01, 1.0, "how far the limit moves in one period")
    max_wait_s: float = param(60.0, "s", 0.1, 3600.0, "a request that has waited longer is shed", log=True)
    period_s: float = param(1.0, "s", 0.1, 60.0, "control period", tune=False)

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 2

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        start_requests, least_requests, tolerance, smooth = params[0], params[1], params[2], params[3]
        max_wait_s = params[4]
        instances = max(1.0, gate[0].instances)
        if op == ADMIT_NEXT:
            return oldest_queue(gate)
        if memory[0] == 0.0:
            memory[0] = start_requests * instances
        if op == ADMIT_HEAD:
            if gate[0].inflight < memory[0]:
                return PASS
            return SHED if request.queued_s > max_wait_s else HOLD
        now = gate[0].tpot_ewma_s
        if op == ADMIT_TICK and now > 0.0:
            long = now if memory[1] == 0.0 else memory[1] + (now - memory[1]) / 100.0
            if long > 2.0 * now:
                long *= 0.95
            memory[1] = long
            gradient = min(1.0, max(0.5, tolerance * long / now))
            wanted = memory[0] * gradient + np.sqrt(memory[0])
            if gate[0].inflight < 0.5 * memory[0] and wanted > memory[0]:
                return 0  # the limit was not what held traffic back
            limit = (1.0 - smooth) * memory[0] + smooth * wanted
            memory[0] = min(max(1.0, gate[0].slots), max(least_requests * instances, limit))
        return 0


@dataclass(frozen=True)
class VtcFair:
    """Virtual token counters: the tenant that was served the least goes next, a new one starts at the least counter.

    A tenant's counter grows by its input tokens when it enters and by output_weight a delivered token when it is done.
    Source: VTC, Sheng et al., OSDI 2024 (weights 1 and 2); inside a server there, at the gateway here.
    """

    name: ClassVar[str] = "vtc_fair"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "tenant"

    limit_requests: float = param(
        64, "requests/instance", 1, 1024, "requests in flight for each ready instance", log=True, integer=True
    )
    output_weight: float = param(
        2.0, "factor", 0.0, 8.0, "an output token's cost in input tokens", tune=False
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 2 * n_queues + 1

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        limit_requests, output_weight = params[0], params[1]
        size = gate.size
        if op == ADMIT_NEXT:
            best, least = -1, np.inf
            for q in range(size):
                counter = memory[2 * q] + output_weight * gate[q].finished_tokens
                if gate[q].queued > 0.0 and counter < least:
                    best, least = q, counter
            if best >= 0:
                memory[2 * size] = least
            return best
        if op == ADMIT_HEAD:
            if all_inflight(gate) >= limit_requests * max(1.0, gate[0].instances):
                return HOLD
            q = max(np.int64(request.tenant), 0) % size
            memory[2 * q] += request.input_tokens
            return PASS
        if op == ADMIT_DONE:
            q = max(np.int64(request.tenant), 0) % size
            if gate[q].inflight <= 0.0 and gate[q].queued <= 0.0:
                memory[2 * q + 1] = 1.0  # idle: lifted to the least active counter when it comes back
        if op == ADMIT_TICK:
            for q in range(size):
                counter = memory[2 * q] + output_weight * gate[q].finished_tokens
                if gate[q].queued <= 0.0 and gate[q].inflight <= 0.0 and counter < memory[2 * size]:
                    memory[2 * q] += memory[2 * size] - counter
        return 0
