"""Envoy as the site chooser: locality weights, priority levels with health-based spill, circuit breakers.

Source: Envoy 1.40.0, upstream load balancing (priority levels, locality-weighted) and cluster circuit breakers.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tfanalyze.replay.jit import helper, rand01
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers_gateway import any_ready, least, next_in_turn, two_choices
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, PASS, SHED

SITES = 4  # weight_k and priority_k are those of site k; later sites share the last
LEVELS = 3
LEAST_REQUEST, ROUND_ROBIN, RANDOM, LEAST_ALL = 0.0, 1.0, 2.0, 3.0


@helper
def level_health(sites, levels, level):
    """Healthy share of a priority level's hosts, 0 when it has none."""
    healthy, hosts = 0.0, 0.0
    for s in range(sites.size):
        if levels[min(s, SITES - 1)] == level:
            hosts += max(sites[s].configured, sites[s].instances)
            healthy += sites[s].instances if sites[s].ready == 1 else 0.0
    return healthy / hosts if hosts > 0.0 else 0.0


@dataclass(frozen=True)
class EnvoySites:
    """Site by priority level, then by locality weight.

    Level p gets min(what is left, healthy share * overprovisioning / 100), scaled up when the levels together are below
    one: spill follows health, not load.  Inside a level a locality is drawn by weight * min(1, healthy share * overprovisioning / 100).
    Source: Envoy 1.40.0, locality_weighted_lb_config, overprovisioning_factor; default 140.
    """

    name: ClassVar[str] = "envoy"
    kind: ClassVar[str] = "site"
    trivial: ClassVar[bool] = False

    weight_0: float = param(1, "weight", 0, 1000, "load_balancing_weight of site 0", integer=True)
    weight_1: float = param(1, "weight", 0, 1000, "load_balancing_weight of site 1", integer=True)
    weight_2: float = param(1, "weight", 0, 1000, "load_balancing_weight of site 2", integer=True)
    weight_3: float = param(1, "weight", 0, 1000, "load_balancing_weight of site 3", integer=True)
    priority_0: float = param(
        0, "level", 0, 2, "priority level of site 0: lower first", integer=True, tune=False
    )
    priority_1: float = param(0, "level", 0, 2, "priority level of site 1", integer=True, tune=False)
    priority_2: float = param(0, "level", 0, 2, "priority level of site 2", integer=True, tune=False)
    priority_3: float = param(0, "level", 0, 2, "priority level of site 3", integer=True, tune=False)
    overprovisioning_factor: float = param(
        140, "%", 100, 1000, "share of a level that may fail before it spills", integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose_site(sites, request, params, memory, rng, scores):
        weight_0, weight_1, weight_2, weight_3 = params[0], params[1], params[2], params[3]
        priority_0, priority_1, priority_2, priority_3, overprovisioning_factor = (
            params[4],
            params[5],
            params[6],
            params[7],
            params[8],
        )
        weights = (weight_0, weight_1, weight_2, weight_3)
        levels = (priority_0, priority_1, priority_2, priority_3)
        spare = overprovisioning_factor / 100.0
        whole = 0.0
        for level in range(LEVELS):
            whole += min(1.0, level_health(sites, levels, level) * spare)
        left, chosen = rand01(rng) * min(1.0, whole), -1
        for level in range(LEVELS):
            share = min(1.0, level_health(sites, levels, level) * spare)
            if share > 0.0:
                chosen = level
                left -= share
                if left <= 0.0:
                    break
        total = 0.0
        for s in range(sites.size):
            k = min(s, SITES - 1)
            scores[s] = 0.0
            if sites[s].ready == 1 and levels[k] == chosen:
                hosts = max(sites[s].configured, sites[s].instances, 1.0)
                scores[s] = -weights[k] * min(1.0, sites[s].instances / hosts * spare)
                total -= scores[s]
        left = rand01(rng) * total
        best = -1
        for s in range(sites.size):
            if scores[s] < 0.0:
                best = s
                left += scores[s]
                if left <= 0.0:
                    break
        if best < 0:  # weights of zero where only they are ready: the first ready site
            for s in range(sites.size):
                if sites[s].ready == 1 and best < 0:
                    best = s
        return best


@dataclass(frozen=True)
class EnvoyLb:
    """Envoy's lb_policy inside the chosen site.

    LEAST_REQUEST compares two random hosts by active requests (choice_count 2), as Envoy does for equal weights.
    Source: Envoy 1.40.0, Cluster.LbPolicy.
    """

    name: ClassVar[str] = "envoy_lb"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    lb_policy: float = param(
        0,
        "choice",
        0,
        3,
        "lb_policy; LEAST_REQUEST_ALL looks at every host",
        integer=True,
        choices=("LEAST_REQUEST", "ROUND_ROBIN", "RANDOM", "LEAST_REQUEST_ALL"),
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 1

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        lb_policy = params[0]
        if lb_policy == ROUND_ROBIN:
            return next_in_turn(view, memory, 0)
        if lb_policy == RANDOM:
            return any_ready(view, rng, -1)
        if lb_policy == LEAST_REQUEST:
            return two_choices(view, rng)
        for n in range(view.size):
            scores[n] = view[n].inflight
        return least(scores, view, rng)


@dataclass(frozen=True)
class EnvoyBreakers:
    """Circuit breakers a class: class 0 uses the row HIGH, every other class shares the row DEFAULT.

    A request beyond max_requests is answered 503 at once: there is no queue.  Limits hold for each Envoy process.
    Source: Envoy 1.40.0, circuit_breakers.thresholds max_requests and RouteAction.priority; default 1024.
    """

    name: ClassVar[str] = "envoy_breakers"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "class"

    high_max_requests: float = param(
        1024, "requests", 1, 65536, "HIGH max_requests: class 0 in flight", log=True, integer=True
    )
    default_max_requests: float = param(
        1024, "requests", 1, 65536, "DEFAULT max_requests: other classes in flight", log=True, integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        high_max_requests, default_max_requests = params[0], params[1]
        if op == ADMIT_NEXT:
            for q in range(gate.size):
                if gate[q].queued > 0.0:
                    return q
            return -1
        if op != ADMIT_HEAD:
            return 0
        if request.slo_class == 0:
            return PASS if gate[0].inflight < high_max_requests else SHED
        used = 0.0
        for q in range(1, gate.size):
            used += gate[q].inflight
        return PASS if used < default_max_requests else SHED
