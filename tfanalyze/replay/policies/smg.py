"""Shepherd Model Gateway (smg), successor of sglang-router: least_load with a KV barrier, and reserved class slots.

Source: smg 1.13.0 (PyPI, 2026-10): command-line help and behaviour when run; algorithms as in lightseekorg/smg 73da68ca
(1.9.0).  The 1.13 source was not available: its spill gate is a fact of the help text.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import hash_u64, helper, rand01
from tfanalyze.replay.policies import param
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, HOLD, PASS, SHED

LEAST_LOAD, CACHE_AWARE, POWER_OF_TWO, PREFIX_HASH, ROUND_ROBIN, RANDOM = 0.0, 1.0, 2.0, 3.0, 4.0, 5.0


@helper
def drain_tok_s(v, default_throughput):
    """Generated tokens a second of one instance as its step-time profile says for the reported batch."""
    if v.decoding < 1.0:
        return default_throughput
    return v.decoding / max(
        1e-6, v.c0_s + v.c_decode_step_s + v.c_seq_s * v.decoding + v.c_kv_s * v.kv_tokens
    )


@helper
def barrier(kv_used_share):
    """k / (1 - k), k capped at 0.999."""
    k = min(0.999, max(0.0, kv_used_share))
    return k / (1.0 - k)


@helper
def usable(v, guard, max_waiting, max_usage, strict):
    """Ready, and not overloaded unless everything is (strict = 0)."""
    if v.ready != 1:
        return False
    return strict == 0 or guard == 0.0 or (v.waiting < max_waiting and v.kv_used_share < max_usage)


@helper
def argmin_usable(view, rng, scores, guard, max_waiting, max_usage, strict):
    """Least score among the usable, seeded ties."""
    best, ties = -1, 0.0
    for n in range(view.size):
        if not usable(view[n], guard, max_waiting, max_usage, strict):
            continue
        if best < 0 or scores[n] < scores[best]:
            best, ties = n, 1.0
        elif scores[n] == scores[best]:
            ties += 1.0
            if rand01(rng) * ties < 1.0:
                best = n
    return best


@helper
def random_usable(view, rng, guard, max_waiting, max_usage, strict, but):
    found, seen = -1, 0.0
    for n in range(view.size):
        if n != but and usable(view[n], guard, max_waiting, max_usage, strict):
            seen += 1.0
            if rand01(rng) * seen < 1.0:
                found = n
    return found


@helper
def spilled(view, best, absolute, relative):
    """The matched worker has more in flight than the mean by min(abs, max(4, ceil(2 sqrt(mean)))) and than rel * mean."""
    total, count = 0.0, 0.0
    for n in range(view.size):
        if view[n].ready == 1:
            total += view[n].inflight
            count += 1.0
    mean = total / max(1.0, count)
    load = view[best].inflight
    return load - mean > min(absolute, max(4.0, np.ceil(2.0 * np.sqrt(mean)))) and load > relative * mean


@helper
def count_sent(view, memory, now_s):
    """memory[n]: requests sent to n since its last report, which is as old as memory[size + n] says."""
    for n in range(view.size):
        report_s = now_s - view[n].age_s
        if report_s > memory[view.size + n] + 1e-9:
            memory[n] = 0.0
            memory[view.size + n] = report_s


@helper
def known_load(v, sent):
    """What smg takes for a worker's load: requests it reported, and those sent since."""
    return v.running + v.waiting + sent


@dataclass(frozen=True)
class Smg:
    """smg's policies; least_load is argmin (queued + sent since the last poll) / throughput + w * k / (1 - k).

    A request sent counts a fixed number of tokens: over HTTP the router does not know its length.  Workers above an overload
    threshold are left out unless all are.  cache_aware follows the longest match above the threshold (ties: the smaller
    load) until the matched worker has too many in flight against the mean; then, and below the threshold, the least load.
    Load, for power_of_two too, is what the worker last reported, running and waiting, and what was sent there since.
    Throughput is read from the profile for the reported batch (the real one reads gen_throughput); prefix_hash rings on the
    first prefix block.  The slice for workers that warm up is not modelled.
    Source: smg 1.13.0, rules found by asking the program (tests/gateways/test_router_choices.py); defaults as there.
    """

    name: ClassVar[str] = "smg"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    policy: float = param(
        0,
        "choice",
        0,
        5,
        "--policy",
        integer=True,
        choices=("least_load", "cache_aware", "power_of_two", "prefix_hash", "round_robin", "random"),
    )
    least_load_kv_pressure_weight: float = param(
        0.15, "s", 0.0, 20.0, "--least-load-kv-pressure-weight: seconds at half-full KV"
    )
    least_load_default_throughput: float = param(
        2000, "tok/s", 1, 1e6, "--least-load-default-throughput", log=True, tune=False
    )
    least_load_mean_prefill_tokens: float = param(
        1024,
        "tokens",
        1,
        1048576,
        "--least-load-mean-prefill-tokens: what one request sent since the last poll counts",
        log=True,
        integer=True,
    )
    worker_overload_waiting_requests: float = param(
        8, "requests", 1, 4096, "--worker-overload-waiting-requests", log=True, integer=True
    )
    worker_overload_token_usage: float = param(0.8, "share", 0.05, 1.0, "--worker-overload-token-usage")
    worker_overload_protection: float = param(
        1,
        "choice",
        0,
        1,
        "off: --disable-worker-overload-protection",
        integer=True,
        choices=("off", "on"),
        tune=False,
    )
    cache_threshold: float = param(0.3, "share", 0.0, 1.0, "--cache-threshold")
    balance_abs_threshold: float = param(
        64, "requests", 0, 1024, "--balance-abs-threshold: above the mean load", integer=True
    )
    balance_rel_threshold: float = param(
        1.5, "factor", 1.0, 10.0, "--balance-rel-threshold: times the mean load"
    )
    prefix_hash_load_factor: float = param(
        1.25, "factor", 1.0, 10.0, "--prefix-hash-load-factor: times the mean load", tune=False
    )
    prefix_hash_balance_abs_threshold: float = param(
        10, "requests", 0, 1024, "--prefix-hash-balance-abs-threshold: above the mean load", integer=True, tune=False
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 2 * n_instances + 1

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        policy, least_load_kv_pressure_weight, least_load_default_throughput = params[0], params[1], params[2]
        least_load_mean_prefill_tokens, worker_overload_waiting_requests = params[3], params[4]
        worker_overload_token_usage, worker_overload_protection = params[5], params[6]
        cache_threshold, balance_abs_threshold = params[7], params[8]
        balance_rel_threshold, prefix_hash_load_factor = params[9], params[10]
        prefix_hash_balance_abs_threshold = params[11]
        guard, wait, usage = (
            worker_overload_protection,
            worker_overload_waiting_requests,
            worker_overload_token_usage,
        )
        size = view.size
        strict = 1
        if random_usable(view, rng, guard, wait, usage, 1, -1) < 0:
            strict = 0
        count_sent(view, memory, request.now_s)
        best = -1
        if policy == ROUND_ROBIN:
            for k in range(size):
                n = (np.int64(memory[2 * size]) + k) % size
                if usable(view[n], guard, wait, usage, strict):
                    memory[2 * size] = n + 1
                    return n
            return -1
        if policy == RANDOM:
            return random_usable(view, rng, guard, wait, usage, strict, -1)
        if policy == LEAST_LOAD:
            for n in range(size):
                sent = memory[n] * least_load_mean_prefill_tokens
                drain_s = (view[n].queued_prefill_tokens + sent) / drain_tok_s(
                    view[n], least_load_default_throughput
                )
                scores[n] = drain_s + least_load_kv_pressure_weight * barrier(view[n].kv_used_share)
            best = argmin_usable(view, rng, scores, guard, wait, usage, strict)
        elif policy == POWER_OF_TWO:
            a = random_usable(view, rng, guard, wait, usage, strict, -1)
            b = random_usable(view, rng, guard, wait, usage, strict, a)
            for n in range(size):
                scores[n] = known_load(view[n], memory[n])
            best = a if b < 0 or (a >= 0 and scores[a] <= scores[b]) else b
        elif policy == CACHE_AWARE:
            hit = 0.0
            for n in range(size):
                if usable(view[n], guard, wait, usage, strict):
                    hit = max(hit, view[n].hit_tokens)
            if hit > cache_threshold * request.input_tokens:
                for n in range(size):  # only those with the longest match
                    scores[n] = known_load(view[n], memory[n]) if view[n].hit_tokens == hit else np.inf
                best = argmin_usable(view, rng, scores, guard, wait, usage, strict)
                if best >= 0 and spilled(view, best, balance_abs_threshold, balance_rel_threshold):
                    best = -1
            if best < 0:
                for n in range(size):
                    scores[n] = known_load(view[n], memory[n])
                best = argmin_usable(view, rng, scores, guard, wait, usage, strict)
        else:  # prefix_hash: the key's place on the ring, unless that is above the mean by both thresholds
            total, count = 1.0, 0.0
            for n in range(size):
                scores[n] = view[n].inflight
                if view[n].ready == 1:
                    total += view[n].inflight
                    count += 1.0
            for n in range(size):  # rendezvous hashing in place of a ring: the same key keeps its worker
                if usable(view[n], guard, wait, usage, strict):
                    weight = hash_u64(hash_u64(request.prefix) + np.uint64(n))
                    if best < 0 or weight > hash_u64(hash_u64(request.prefix) + np.uint64(best)):
                        best = n
            mean = total / max(1.0, count)
            if (
                best >= 0
                and view[best].inflight > mean * prefix_hash_load_factor
                and view[best].inflight - mean > prefix_hash_balance_abs_threshold
            ):
                best = argmin_usable(view, rng, scores, guard, wait, usage, strict)
        if best >= 0:
            memory[best] += 1.0
        return best


@dataclass(frozen=True)
class SmgPriority:
    """smg's priority scheduler: slots reserved for classes, borrowed while they are free, queues with time-outs.

    SLO class 0 is smg's `interactive`, class 1 `default`, every later one `bulk`; `system` stays empty.  A class may use
    capacity - used - sum over higher classes of what they reserve and do not use.  Reservation = max(floor, share *
    capacity).  A queue whose head waited longer than the starvation threshold goes first.  Preemption is not modelled.
    Source: smg 1.13.0, --priority-scheduler-config; defaults as there.
    """

    name: ClassVar[str] = "smg_priority"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "class"

    interactive_reserved_per_slot: float = param(0.25, "share", 0.0, 0.8, "interactive reserved_per_slot")
    default_reserved_per_slot: float = param(0.10, "share", 0.0, 0.8, "default reserved_per_slot")
    interactive_queue_size: float = param(
        256, "requests", 1, 65536, "interactive queue_size", log=True, integer=True
    )
    default_queue_size: float = param(512, "requests", 1, 65536, "default queue_size", log=True, integer=True)
    bulk_queue_size: float = param(1024, "requests", 1, 65536, "bulk queue_size", log=True, integer=True)
    interactive_queue_timeout_secs: float = param(
        30, "s", 1, 3600, "interactive queue_timeout_secs", log=True, integer=True
    )
    default_queue_timeout_secs: float = param(
        60, "s", 1, 3600, "default queue_timeout_secs", log=True, integer=True
    )
    bulk_queue_timeout_secs: float = param(
        300, "s", 1, 86400, "bulk queue_timeout_secs", log=True, integer=True
    )
    bulk_starvation_threshold_secs: float = param(
        120, "s", 1, 86400, "bulk starvation_threshold_secs", log=True, integer=True, tune=False
    )
    max_concurrent_requests: float = param(
        0, "requests", 0, 65536, "--max-concurrent-requests; 0 = the workers' slots", integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        interactive_reserved_per_slot, default_reserved_per_slot = params[0], params[1]
        interactive_queue_size, default_queue_size, bulk_queue_size = params[2], params[3], params[4]
        interactive_queue_timeout_secs, default_queue_timeout_secs, bulk_queue_timeout_secs = (
            params[5],
            params[6],
            params[7],
        )
        bulk_starvation_threshold_secs, max_concurrent_requests = params[8], params[9]
        if op == ADMIT_NEXT:
            for q in range(2, gate.size):
                if gate[q].queued > 0.0 and gate[q].oldest_s > bulk_starvation_threshold_secs:
                    return q
            for q in range(gate.size):
                if gate[q].queued > 0.0:
                    return q
            return -1
        if op != ADMIT_HEAD:
            return 0
        q = min(request.slo_class, gate.size - 1)
        capacity = gate[q].slots
        if max_concurrent_requests > 0.0:
            capacity = min(capacity, max_concurrent_requests)
        used, spoken_for = 0.0, 0.0
        for c in range(gate.size):
            used += gate[c].inflight
            if c < q and c < 2:
                share = interactive_reserved_per_slot if c == 0 else default_reserved_per_slot
                spoken_for += max(0.0, np.ceil(share * capacity) - gate[c].inflight)
        if used + spoken_for < capacity:
            return PASS
        cap = interactive_queue_size if q == 0 else (default_queue_size if q == 1 else bulk_queue_size)
        wait = (
            interactive_queue_timeout_secs
            if q == 0
            else (default_queue_timeout_secs if q == 1 else bulk_queue_timeout_secs)
        )
        if request.queued_s >= wait or gate[q].queued > cap:
            return SHED
        return HOLD
