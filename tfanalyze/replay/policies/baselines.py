"""Routing that users run today without weights, and the trivial defaults of the hooks."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import hash_u64, rand01
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers import argmin


@dataclass(frozen=True)
class AnySite:
    """No choice of site: every instance of every site is a candidate (the loop skips the hook)."""

    name: ClassVar[str] = "any_site"
    kind: ClassVar[str] = "site"
    trivial: ClassVar[bool] = True

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose_site(sites, request, params, memory, rng, scores):
        for s in range(sites.size):
            scores[s] = sites[s].rtt_s
        return argmin(scores, sites, rng)


@dataclass(frozen=True)
class RoundRobin:
    """The ready instances in turn, per gateway replica.  Source: every gateway's default (nginx, Envoy, LiteLLM)."""

    name: ClassVar[str] = "round_robin"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 1

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        turn = int(memory[0])
        for n in range(view.size):
            scores[n] = (n - turn) % view.size
        best = argmin(scores, view, rng)
        memory[0] = best + 1 if best >= 0 else turn
        return best


@dataclass(frozen=True)
class Random:
    """A ready instance drawn uniformly (seeded)."""

    name: ClassVar[str] = "random"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        for n in range(view.size):
            scores[n] = 0.0
        return argmin(scores, view, rng)


@dataclass(frozen=True)
class LeastRequests:
    """Fewest requests in flight from this gateway, seeded ties.  Source: Envoy LEAST_REQUEST over all hosts, LiteLLM least-busy."""

    name: ClassVar[str] = "least_requests"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        for n in range(view.size):
            scores[n] = view[n].inflight
        return argmin(scores, view, rng)


@dataclass(frozen=True)
class PowerOfTwo:
    """The less busy of two different random instances.  Source: Mitzenmacher 2001; SGLang router power_of_two."""

    name: ClassVar[str] = "power_of_two"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        for n in range(view.size):
            scores[n] = rand01(rng)
        first = argmin(scores, view, rng)
        if first < 0:
            return -1
        scores[first] = 2.0
        second = argmin(scores, view, rng)
        return first if view[first].inflight <= view[second].inflight else second


@dataclass(frozen=True)
class SessionAffinity:
    """A session keeps its instance: rendezvous hashing, so an instance that goes moves only its own sessions.

    Source: Thaler and Ravishankar 1998 (HRW); the effect of Envoy's and nginx's consistent hashing.
    """

    name: ClassVar[str] = "session_affinity"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        key = hash_u64(request.session)
        for n in range(view.size):
            scores[n] = -float(hash_u64(key ^ hash_u64(view[n].instance)))
        return argmin(scores, view, rng)


@dataclass(frozen=True)
class LeastKv:
    """Smallest reported KV use, then fewest in flight.  Source: Gateway API Inference Extension's least-kv-cache filter."""

    name: ClassVar[str] = "least_kv"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        for n in range(view.size):
            scores[n] = view[n].kv_used_share + 1e-9 * view[n].inflight
        return argmin(scores, view, rng)


@dataclass(frozen=True)
class PrefixAffinity:
    """Longest prefix believed cached, whatever the load; fewest requests in flight among equals.

    The extreme: where all prompts begin alike, whoever has that beginning gets everything.  Source: vLLM production-stack's
    prefix-aware router has no load term either.
    """

    name: ClassVar[str] = "prefix_affinity"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        for n in range(view.size):
            scores[n] = view[n].inflight / (1.0 + view[n].inflight) - view[n].hit_tokens
        return argmin(scores, view, rng)


@dataclass(frozen=True)
class BoundedAffinity:
    """Longest prefix believed cached among instances whose requests in flight are within a factor of the mean.

    Source: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018), as gateways use it for prompt prefixes:
    KubeAI's PrefixHash (mean load factor 125 %).  They hash the prefix; here it is looked up, ties go to the fewest in flight.
    """

    name: ClassVar[str] = "bounded_affinity"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    load_factor: float = param(
        1.25, "share", 1.0, 10.0, "requests in flight there with this one, over the mean, at most"
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        load_factor = params[0]
        ready, total = 0.0, 1.0
        for n in range(view.size):
            if view[n].ready == 1:
                ready += 1.0
                total += view[n].inflight
        most = np.ceil(load_factor * total / max(ready, 1.0))
        for n in range(view.size):
            load = view[n].inflight
            scores[n] = load / (1.0 + load) - view[n].hit_tokens
            if load + 1.0 > most:
                scores[n] += 1e9
        return argmin(scores, view, rng)


@dataclass(frozen=True)
class Recorded:
    """Where the log says the request went; least requests where it says nothing, or that instance is not ready."""

    name: ClassVar[str] = "recorded"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        for n in range(view.size):
            scores[n] = -1.0 if n == request.recorded_instance else view[n].inflight
        return argmin(scores, view, rng)


@dataclass(frozen=True)
class StickyLeast:
    """A session stays where its last turn went unless that instance has far more in flight than the least busy one."""

    name: ClassVar[str] = "sticky_least"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    slack_requests: float = param(
        8, "requests", 0, 256, "how many more in flight the last instance may have", integer=True
    )

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 0

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        slack_requests = params[0]
        for n in range(view.size):
            scores[n] = view[n].inflight
            if n == request.last_instance:
                scores[n] -= slack_requests + 0.5
        return argmin(scores, view, rng)
