"""FleetMind: which site gets the request.  A free GPU is not "can serve now"."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import helper
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers import argmin_within, share_below

MAX_CLASSES = 16


@helper
def site_ttft_s(z, request):
    """Predicted first token at the site: round trip, the best instance's queue or the site's mean one, own prefill."""
    backlog = max(z.queued_prefill_tokens, z.inflight_prefill_tokens)
    rate = max(z.prefill_tok_s, 1e-9)
    wait = max(z.min_wait_s, 0.0) if z.min_wait_s < np.inf else 0.0
    wait = max(
        wait, 0.5 * backlog / rate
    )  # reports are old: the site's mean backlog bounds what the best can be
    new = max(1.0, request.input_tokens - z.hit_tokens)
    return request.now_s - request.arrival_s + z.rtt_s + wait + new * max(z.instances, 1.0) / rate


@helper
def servable_requests(z, request, ttft, kv_knee):
    """How many more requests like this one the site can take now and still meet the first-token SLO.

    The least of what its slots, its KV and its prefill rate leave; seconds left to the SLO times tokens a second.
    """
    load = max(z.running + z.waiting, z.inflight)
    slots = max(0.0, z.slots - load)
    kv = max(0.0, kv_knee - z.kv_used_share) / kv_knee * z.slots
    if request.ttft_slo_s == np.inf:
        return min(slots, kv)
    new = max(1.0, request.input_tokens - z.hit_tokens)
    return min(min(slots, kv), max(0.0, request.ttft_slo_s - ttft) * z.prefill_tok_s / new)


@helper
def prefill_share(z, memory, at, now_s, window_s):
    """Share of the site's time that prefill takes: prompt tokens sent there lately over what it computes.

    memory[at] is a decaying rate in tokens a second, memory[at + 1] its time.  Reports that count more requests than
    this gateway sent tell how much of the load is others'.
    """
    rate = memory[at] * np.exp(-max(0.0, now_s - memory[at + 1]) / window_s)
    if z.running + z.waiting > z.inflight > 0.0:
        rate *= (z.running + z.waiting) / z.inflight
    return rate / max(z.prefill_tok_s, 1e-9)


@helper
def token_gap_s(z, busy):
    """Mean gap between tokens there: a decode step of the present batch, stretched by the time that prefill takes."""
    step = max(z.decoding, z.instances) / max(z.decode_tok_s, 1e-9)
    return step / max(1.0 - busy, 0.02)


@helper
def site_success(z, request, gap, spread_s, kv_knee):
    """Probability that a request sent there now meets the SLO of its class, from the site's state alone."""
    if z.ready != 1 or z.instances <= 0.0:
        return 0.0
    ttft = site_ttft_s(z, request)
    p = servable_requests(z, request, ttft, kv_knee)
    p = min(1.0, p)
    if request.ttft_slo_s < np.inf:
        p *= share_below(request.ttft_slo_s, ttft, spread_s + 0.05 * ttft)
    if request.tpot_slo_s < np.inf:
        p *= share_below(request.tpot_slo_s, gap, 0.5 * gap)
    end = min(request.e2e_slo_s, request.deadline_s - request.arrival_s)
    if end < np.inf:
        whole = ttft + gap * request.expected_output_tokens
        p *= share_below(end, whole, spread_s + 0.25 * whole)
    return p


@dataclass(frozen=True)
class FleetMind:
    """Send a request to the site with the best predicted success and first token, at home as long as home can serve.

    Home is the ready site with the least round trip (all within near_s of it are home).  Servable capacity counts
    ready instances only and comes from their profiles, their load (queues, slots, KV, share of time that prefill takes),
    its swing (spread of TTFT by class) and the age of the report; a site that is idle but not ready (model or version missing, warming, pinned out) has ready = 0 and
    is never chosen.  Below `spill_below` the class leaves home; it returns at `spill_below + hysteresis`.
    score [s] = predicted TTFT + miss_s * (1 - success).
    Source: TokenFleet's published idea of servable capacity; formulas are this project's.
    """

    name: ClassVar[str] = "fleetmind"
    kind: ClassVar[str] = "site"
    trivial: ClassVar[bool] = False

    miss_s: float = param(5.0, "s", 0.0, 60.0, "seconds of score that a certain SLO miss costs")
    spill_below: float = param(
        0.95, "share", 0.0, 1.0, "success at home below which other sites are considered"
    )
    hysteresis: float = param(0.05, "share", 0.0, 0.5, "how far above that success at home must be to return")
    near_s: float = param(
        0.005, "s", 0.0, 0.2, "sites whose round trip is this close to the least are home too", tune=False
    )
    swing_weight: float = param(
        1.0, "s/s", 0.0, 4.0, "spread of the prediction for each second of TTFT spread seen"
    )
    drift: float = param(0.2, "s/s", 0.0, 2.0, "spread of the prediction for each second of report age")
    history_weight: float = param(
        0.5, "share", 0.0, 1.0, "how much of success rests on the class's recent attainment there"
    )
    forget_s: float = param(
        30.0,
        "s",
        1.0,
        600.0,
        "that history fades so fast once the class sends nothing there",
        log=True,
        tune=False,
    )
    window_s: float = param(
        10.0, "s", 1.0, 120.0, "span over which prompt tokens sent are counted as load", log=True
    )
    kv_knee: float = param(0.9, "share", 0.5, 1.0, "mean KV use at which a site has no capacity left")
    tie_s: float = param(
        0.002, "s", 0.0, 0.2, "scores this close are equal; the session's last site is kept", tune=False
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return MAX_CLASSES + 2 * n_sites + MAX_CLASSES * n_sites

    @staticmethod
    def choose_site(sites, request, params, memory, rng, scores):
        miss_s, spill_below, hysteresis, near_s = params[0], params[1], params[2], params[3]
        swing_weight, drift, history_weight, forget_s = params[4], params[5], params[6], params[7]
        window_s, kv_knee, tie_s = params[8], params[9], params[10]
        k = request.slo_class % MAX_CLASSES
        sent = MAX_CLASSES + 2 * sites.size + k * sites.size  # when this class last went to each site
        home_rtt, home_success = np.inf, 0.0
        for s in range(sites.size):
            if sites[s].ready == 1:
                home_rtt = min(home_rtt, sites[s].rtt_s)
        for s in range(sites.size):
            scores[s] = np.inf
            if sites[s].ready == 1:
                z = sites[s]
                busy = prefill_share(z, memory, MAX_CLASSES + 2 * s, request.now_s, window_s)
                spread = swing_weight * np.sqrt(max(z.ttft_var_s2, 0.0)) + drift * z.age_s
                success = site_success(z, request, token_gap_s(z, busy), spread, kv_knee)
                if z.ttft_mean_s > 0.0:
                    weight = history_weight * np.exp(-max(0.0, request.now_s - memory[sent + s]) / forget_s)
                    success *= 1.0 - weight * (1.0 - z.attained)
                scores[s] = site_ttft_s(z, request) + miss_s * (1.0 - success)
                if z.rtt_s <= home_rtt + near_s:
                    home_success = max(home_success, success)
        away = home_success < (spill_below + hysteresis if memory[k] > 0.0 else spill_below)
        memory[k] = 1.0 if away else 0.0
        if not away:
            for s in range(sites.size):
                if sites[s].rtt_s > home_rtt + near_s:
                    scores[s] = np.inf
        best = argmin_within(scores, sites, rng, tie_s, request.last_site)
        if best >= 0:
            at = MAX_CLASSES + 2 * best
            fade = np.exp(-max(0.0, request.now_s - memory[at + 1]) / window_s)
            new = max(1.0, request.input_tokens - sites[best].hit_tokens)
            memory[at], memory[at + 1] = memory[at] * fade + new / window_s, request.now_s
            memory[sent + best] = request.now_s
        return best
