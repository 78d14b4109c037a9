"""TokenPilot: which instance of a pool gets the request, in seconds saved against seconds waited."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import helper
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers import (
    argmin_within,
    decode_step_s,
    expected_wait_s,
    kv_after_tokens,
    kv_wait_s,
    prefill_time_s,
    prefill_token_s,
)


@helper
def wait_s(v, request, stale_s):
    """Predicted time from engine arrival to the first chunk of this request, its wait for KV included."""
    new = max(1.0, request.input_tokens - v.hit_tokens)
    after = kv_after_tokens(v, new, 0.0, stale_s)
    out = request.expected_output_tokens
    return expected_wait_s(v, out, stale_s) + kv_wait_s(v, after, out)


@helper
def saved_s(v, request):
    """Prefill time that the cached prefix saves."""
    hit = min(v.hit_tokens, request.input_tokens - 1.0)
    if hit <= 0.0:
        return 0.0
    cold = prefill_time_s(v, request.input_tokens, 0.0)
    return max(0.0, cold - prefill_time_s(v, request.input_tokens - hit, hit))


@helper
def busy_share(v, rate_tok_s, window_s, age_s):
    """Share of its time that the instance prefills: prompt tokens sent there lately (a decaying rate) times their cost.

    Reports that count more requests than this gateway sent tell how much of the load is others'.
    """
    rate = rate_tok_s * np.exp(-max(0.0, age_s) / window_s)
    if v.running + v.waiting > v.inflight > 0.0:
        rate *= (v.running + v.waiting) / v.inflight
    return min(0.95, rate * prefill_token_s(v, 2048.0))


@helper
def decode_s(v, request, busy):
    """Predicted decode time of this request: a step for each expected token, stretched by the time that prefill takes."""
    step = decode_step_s(v, v.decoding + 1.0, v.kv_tokens + request.input_tokens)
    return request.expected_output_tokens * step / (1.0 - busy)


@helper
def stall_s(v, request, prefill):
    """Seconds that all running decodes together lose: they wait for its prefill, and its row makes each step longer."""
    longer = request.expected_output_tokens * (v.c_seq_s + v.c_kv_s * request.input_tokens)
    return v.decoding * (prefill + longer)


@helper
def recompute_s(v, request, kv_knee, stale_s):
    """Seconds of prefill that eviction and preemption will cost: the tokens above the knee, computed once more."""
    new = max(1.0, request.input_tokens - v.hit_tokens)
    after = kv_after_tokens(v, new, request.expected_output_tokens, stale_s)
    over = max(0.0, after - kv_knee * v.kv_capacity_tokens)
    return min(over, v.kv_capacity_tokens) * prefill_token_s(v, request.input_tokens)


@helper
def miss_s(v, request, wait, prefill, decode):
    """Predicted seconds beyond the SLOs: of the first token, of all gaps together, of the end."""
    ttft = request.now_s - request.arrival_s + v.rtt_s + v.request_s + wait + prefill
    late = max(0.0, ttft - request.ttft_slo_s)
    late += max(0.0, decode - request.tpot_slo_s * request.expected_output_tokens)
    end = min(request.e2e_slo_s, request.deadline_s - request.arrival_s)
    return late + max(0.0, ttft + decode - end)


@dataclass(frozen=True)
class TokenPilot:
    """Send a request where what a cached prefix saves in prefill outweighs what the longer queue there costs.

    score [s] = wait + cold prefill                       (load: all that is left with every weight at 0)
                - cache_weight * saved prefill            (only where it beats the extra wait by the margin)
                + decode_weight * own decode + stall_weight * stall of the others
                + kv_weight * recompute above the KV knee + slo_weight * predicted miss
    The least score wins; all within the tie band are equal, and of equals the session's last instance is kept, else a
    seeded draw decides, so that gateways with the same stale view do not all run to one instance.
    Source: TokenFleet's published rule (its inputs and its trade); formulas and margin are this project's.
    """

    name: ClassVar[str] = "tokenpilot"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    cache_weight: float = param(
        1.0, "s/s", 0.0, 4.0, "seconds of score for each second of prefill that the cache saves"
    )
    margin_s: float = param(
        0.01, "s", 0.0, 1.0, "how much more than the extra wait a cached prefix must save to count"
    )
    decode_weight: float = param(
        0.05, "s/s", 0.0, 1.0, "seconds of score for each second of its own predicted decode"
    )
    stall_weight: float = param(
        0.02, "s/s", 0.0, 0.5, "seconds of score for each second that all other decodes lose"
    )
    kv_weight: float = param(
        0.5, "s/s", 0.0, 4.0, "seconds of score for each second of recomputation above the KV knee"
    )
    kv_knee: float = param(0.9, "share", 0.5, 1.0, "KV use above which eviction and preemption are charged")
    slo_weight: float = param(0.5, "s/s", 0.0, 4.0, "seconds of score for each second of predicted SLO miss")
    tie_s: float = param(0.002, "s", 0.0, 0.2, "scores this close are equal")
    tie_age_weight: float = param(
        0.02, "s/s", 0.0, 1.0, "the tie band grows by this for each second of report age"
    )
    window_s: float = param(
        10.0, "s", 1.0, 120.0, "span over which prompt tokens sent count as prefill load", log=True
    )
    stale_s: float = param(
        1.0, "s", 0.05, 60.0, "report age at which half of it is believed", log=True, tune=False
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return (
            2 * n_instances
        )  # of each: prompt tokens a second sent lately, and when that was last brought up to date

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        cache_weight, margin_s, decode_weight, stall_weight = params[0], params[1], params[2], params[3]
        kv_weight, kv_knee, slo_weight = params[4], params[5], params[6]
        tie_s, tie_age_weight, window_s, stale_s = params[7], params[8], params[9], params[10]
        least, age = np.inf, 0.0
        for n in range(view.size):
            scores[n] = np.inf
            if view[n].ready == 1:
                scores[n] = wait_s(view[n], request, stale_s)
                least = min(least, scores[n])
                age = max(age, view[n].age_s)
        for n in range(view.size):
            if view[n].ready != 1:
                continue
            v = view[n]
            wait = scores[n]
            cold = prefill_time_s(v, request.input_tokens, 0.0)
            saved = saved_s(v, request)
            score = wait + cold
            if cache_weight * saved > wait - least + margin_s:
                score -= cache_weight * saved
            if decode_weight > 0.0 or slo_weight > 0.0:
                busy = busy_share(v, memory[2 * n], window_s, request.now_s - memory[2 * n + 1])
                decode = decode_s(v, request, busy)
                score += decode_weight * decode
                if slo_weight > 0.0:
                    score += slo_weight * miss_s(v, request, wait, cold - saved, decode)
            if stall_weight > 0.0:
                score += stall_weight * stall_s(v, request, cold - saved)
            if kv_weight > 0.0:
                score += kv_weight * recompute_s(v, request, kv_knee, stale_s)
            scores[n] = score
        best = argmin_within(scores, view, rng, tie_s + tie_age_weight * age, request.last_instance)
        if best >= 0:
            fade = np.exp(-max(0.0, request.now_s - memory[2 * best + 1]) / window_s)
            new = max(1.0, request.input_tokens - view[best].hit_tokens)
            memory[2 * best] = memory[2 * best] * fade + new / window_s
            memory[2 * best + 1] = request.now_s
        return best

    @staticmethod
    def terms(view, request, params, scores):
        """Each candidate's score by term, in seconds; only Python calls it, for `explain`.

        The decode time rests on the policy's memory, which is gone by then: it is what explains the rest of the score.
        """
        cache_weight, margin_s, decode_weight, stall_weight = params[0], params[1], params[2], params[3]
        kv_weight, kv_knee, slo_weight, stale_s = params[4], params[5], params[6], params[10]
        waits = [wait_s(v, request, stale_s) if v.ready == 1 else np.inf for v in view]
        rows = []
        for v, wait, score in zip(view, waits, scores, strict=True):
            cold, saved = prefill_time_s(v, request.input_tokens, 0.0), saved_s(v, request)
            follows = cache_weight * saved > wait - min(waits) + margin_s
            row = {
                "wait_s": wait,
                "cold_prefill_s": cold,
                "cache_credit_s": -cache_weight * saved if follows else 0.0,
                "stall_s": stall_weight * stall_s(v, request, cold - saved),
                "kv_s": kv_weight * recompute_s(v, request, kv_knee, stale_s),
            }
            rest = score - sum(row.values())
            low = high = decode_s(v, request, 0.0)
            high *= 25.0
            for _ in range(60):
                decode = 0.5 * (low + high)
                miss = slo_weight * miss_s(v, request, wait, cold - saved, decode)
                low, high = (decode, high) if decode_weight * decode + miss < rest else (low, decode)
            rows.append({**row, "decode_s": decode_weight * decode, "miss_s": miss})
        return rows
