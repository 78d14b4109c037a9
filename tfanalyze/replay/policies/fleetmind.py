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
def site_success(z, request, swing_weight, drift, history_weight, kv_knee):
    """Probability that a request sent there now meets its SLO."""
    if z.ready != 1 or z.instances <= 0.0:
        return 0.0
    ttft = site_ttft_s(z, request)
    spread = swing_weight * np.sqrt(max(z.ttft_var_s2, 0.0)) + drift * z.age_s + 0.05 * ttft
    slo = request.ttft_slo_s
    if slo == np.inf:
        slo = min(request.e2e_slo_s, request.deadline_s - request.arrival_s)
    p = 1.0 if slo == np.inf else share_below(slo, ttft, spread)
    p *= min(1.0, servable_requests(z, request, ttft, kv_knee))
    if z.ttft_mean_s > 0.0:
        p = (1.0 - history_weight) * p + history_weight * p * z.attained
    return p


@dataclass(frozen=True)
class FleetMind:
    """Send a request to the site with the best predicted success and first token, at home as long as home can serve.

    Home is the ready site with the least round trip (all within near_s of it are home).  Servable capacity counts
    ready instances only and comes from their profiles, their load, its swing (mean and spread of TTFT by class) and the
    age of the report; a site that is idle but not ready (model or version missing, warming, pinned out) has ready = 0 and
    is never chosen.  Below `spill_below` the class leaves home; it returns at `spill_below + hysteresis`.
    score [s] = predicted TTFT + miss_s * (1 - success).
    Source: TokenFleet's published idea of servable capacity; formulas are this project's.
    """

    name: ClassVar[str] = "fleetmind"
    kind: ClassVar[str] = "site"
    trivial: ClassVar[bool] = False

    miss_s: float = param(5.0, "s", 0.0, 60.0, "seconds of score that a certain SLO miss costs")
    spill_below: float = param(
        0.8, "share", 0.0, 1.0, "success at home below which other sites are considered"
    )
    hysteresis: float = param(0.1, "share", 0.0, 0.5, "how far above that success at home must be to return")
    near_s: float = param(
        0.005, "s", 0.0, 0.2, "sites whose round trip is this close to the least are home too", tune=False
    )
    swing_weight: float = param(
        1.0, "s/s", 0.0, 4.0, "spread of the prediction for each second of TTFT spread seen"
    )
    drift: float = param(0.2, "s/s", 0.0, 2.0, "spread of the prediction for each second of report age")
    history_weight: float = param(
        0.2, "share", 0.0, 1.0, "how much of success rests on the class's recent attainment there"
    )
    kv_knee: float = param(0.9, "share", 0.5, 1.0, "mean KV use at which a site has no capacity left")
    tie_s: float = param(
        0.002, "s", 0.0, 0.2, "scores this close are equal; the session's last site is kept", tune=False
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return MAX_CLASSES

    @staticmethod
    def choose_site(sites, request, params, memory, rng, scores):
        miss_s, spill_below, hysteresis, near_s = params[0], params[1], params[2], params[3]
        swing_weight, drift, history_weight, kv_knee, tie_s = (
            params[4],
            params[5],
            params[6],
            params[7],
            params[8],
        )
        home_rtt, home_success = np.inf, 0.0
        for s in range(sites.size):
            if sites[s].ready == 1:
                home_rtt = min(home_rtt, sites[s].rtt_s)
        for s in range(sites.size):
            scores[s] = np.inf
            if sites[s].ready == 1:
                success = site_success(sites[s], request, swing_weight, drift, history_weight, kv_knee)
                scores[s] = site_ttft_s(sites[s], request) + miss_s * (1.0 - success)
                if sites[s].rtt_s <= home_rtt + near_s:
                    home_success = max(home_success, success)
        k = request.slo_class % MAX_CLASSES
        away = home_success < (spill_below + hysteresis if memory[k] > 0.0 else spill_below)
        memory[k] = 1.0 if away else 0.0
        if not away:
            for s in range(sites.size):
                if sites[s].rtt_s > home_rtt + near_s:
                    scores[s] = np.inf
        return argmin_within(scores, sites, rng, tie_s, request.last_site)
