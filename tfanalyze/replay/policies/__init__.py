"""Policies: one small file each, a frozen dataclass of parameters and a compiled decision.

Three hooks, always in this order: admit (who may enter, when) -> site -> instance.  A policy class has
``kind`` ("admit", "site" or "instance"), fields declared with ``param`` and one static decision function:

    instance:  choose(view, request, params, memory, rng, scores) -> index of the instance
    site:      choose_site(sites, request, params, memory, rng, scores) -> index of the site
    admit:     admit(op, gate, request, params, memory, rng) -> see replay/state.py

Layouts of ``view``, ``request``, ``sites`` and ``gate`` are the records of ``replay/state.py``.  None holds
the true output length: a policy cannot read the future because there is no such field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def param(
    default: float,
    unit: str,
    low: float,
    high: float,
    doc: str,
    *,
    log: bool = False,
    integer: bool = False,
    choices: tuple[str, ...] = (),
    tune: bool = True,
    simplex: str = "",
) -> Any:
    """Declare a parameter once: CLI, TOML, tuner, exporters and docs all read this declaration.

    ``choices``: the value is an index into these names.  ``log``: search on a log scale.  ``tune=False``:
    settable, but not searched unless asked.  ``simplex``: parameters with the same name here are shares
    that sum to one.
    """
    meta = {
        "unit": unit, "low": float(low), "high": float(high), "doc": doc, "log": log,
        "integer": integer, "choices": choices, "tune": tune, "simplex": simplex,
    }  # fmt: skip
    return field(default=default, metadata=meta)


# name on the command line -> "module:Class"; the module is imported when it is asked for
POLICIES: dict[str, str] = {
    # TokenFleet's three
    "tokenpilot": "tfanalyze.replay.policies.tokenpilot:TokenPilot",
    "fleetmind": "tfanalyze.replay.policies.fleetmind:FleetMind",
    "slomax": "tfanalyze.replay.policies.slomax:SloMax",
    # baselines: instance
    "round_robin": "tfanalyze.replay.policies.baselines:RoundRobin",
    "random": "tfanalyze.replay.policies.baselines:Random",
    "least_requests": "tfanalyze.replay.policies.baselines:LeastRequests",
    "power_of_two": "tfanalyze.replay.policies.baselines:PowerOfTwo",
    "session_affinity": "tfanalyze.replay.policies.baselines:SessionAffinity",
    "sticky_least": "tfanalyze.replay.policies.baselines:StickyLeast",
    "least_kv": "tfanalyze.replay.policies.baselines:LeastKv",
    "prefix_affinity": "tfanalyze.replay.policies.baselines:PrefixAffinity",
    "bounded_affinity": "tfanalyze.replay.policies.baselines:BoundedAffinity",
    "recorded": "tfanalyze.replay.policies.baselines:Recorded",
    "lmetric": "tfanalyze.replay.policies.lmetric:Lmetric",
    # baselines: site, admission
    "any_site": "tfanalyze.replay.policies.baselines:AnySite",
    "admit_all": "tfanalyze.replay.policies.admission:AdmitAll",
    "fcfs_queue": "tfanalyze.replay.policies.admission:FcfsQueue",
    "concurrency_limit": "tfanalyze.replay.policies.admission:ConcurrencyLimit",
    "token_rate": "tfanalyze.replay.policies.admission:TokenRate",
    "request_rate": "tfanalyze.replay.policies.admission:RequestRate",
    "adaptive_concurrency": "tfanalyze.replay.policies.admission:AdaptiveConcurrency",
    "vtc_fair": "tfanalyze.replay.policies.admission:VtcFair",
    # the gateways' own
    "llmd": "tfanalyze.replay.policies.llmd:Llmd",
    "llmd_flow": "tfanalyze.replay.policies.llmd:LlmdFlow",
    "sglang": "tfanalyze.replay.policies.sglang:Sglang",
    "router_queue": "tfanalyze.replay.policies.sglang:RouterQueue",
    "smg": "tfanalyze.replay.policies.smg:Smg",
    "smg_priority": "tfanalyze.replay.policies.smg:SmgPriority",
    "dynamo": "tfanalyze.replay.policies.dynamo:Dynamo",
    "dynamo_queues": "tfanalyze.replay.policies.dynamo:DynamoQueues",
    "vllm_router": "tfanalyze.replay.policies.vllm_router:VllmRouter",
    "production_stack": "tfanalyze.replay.policies.production_stack:ProductionStack",
    "aibrix": "tfanalyze.replay.policies.aibrix:Aibrix",
    "litellm": "tfanalyze.replay.policies.litellm:Litellm",
    "envoy": "tfanalyze.replay.policies.envoy:EnvoySites",
    "envoy_lb": "tfanalyze.replay.policies.envoy:EnvoyLb",
    "envoy_breakers": "tfanalyze.replay.policies.envoy:EnvoyBreakers",
    "ray_serve": "tfanalyze.replay.policies.ray_serve:RayServe",
}


@dataclass(frozen=True)
class PolicySet:
    """One policy for each hook; any of them may be the trivial default."""

    admit: Any
    site: Any
    instance: Any

    @property
    def name(self) -> str:
        return "+".join(type(p).name for p in (self.instance, self.site, self.admit) if not type(p).trivial)

    def parts(self) -> tuple[Any, Any, Any]:
        return (self.admit, self.site, self.instance)


def load_policy(spec: str, settings: Mapping[str, float | str] | None = None) -> PolicySet:
    """Policies from "tokenpilot+fleetmind+slomax", "round_robin" or "path/to/file.py:Name", see ``loading``."""
    from tfanalyze.replay.policies.loading import load_policy as load

    return load(spec, settings or {})
