"""``plan``: how many instances meet the SLOs at a load, and what a better policy saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from tfanalyze.config import Fleet, SloClass
from tfanalyze.errors import ConfigError
from tfanalyze.models.profile import Profile
from tfanalyze.replay.policies import PolicySet
from tfanalyze.trace import Trace

Progress = Callable[[float, str], None]
GROW_LIMIT = 64  # times the fleet's size: beyond that the SLOs are out of reach, whatever is bought


@dataclass(frozen=True, slots=True)
class Point:
    """One fleet size under one policy."""

    instances: int
    gpus: float
    attainment: float
    by_class: Mapping[str, float]
    goodput_tok_s: float
    busy_share: float

    def meets(self, target: Mapping[str, float]) -> bool:
        return all(self.by_class.get(name, 1.0) >= share for name, share in target.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "instances": self.instances, "gpus": self.gpus, "attainment": self.attainment, "by_class": dict(self.by_class),
            "goodput_tok_s": self.goodput_tok_s, "busy_share": self.busy_share,
        }  # fmt: skip


def fleet_of(fleet: Fleet, instances: int, pool: str = "", gpu: str = "") -> Fleet:
    """The fleet with ``instances`` in all: one pool grown or shrunk, or every pool in proportion.

    ``gpu``: all instances of this GPU type instead (its profile is then the one of that name).
    Errors: ConfigError for a pool that does not exist or cannot shrink that far.
    """
    pools = fleet.pools
    if gpu:
        pools = tuple(replace(p, gpu=gpu, profile=gpu) for p in pools)
    if pool:
        if pool not in {p.name for p in pools}:
            raise ConfigError(f"no pool '{pool}'", "plan", f"use one of {', '.join(p.name for p in pools)}")
        others = sum(p.count for p in pools if p.name != pool)
        if instances <= others:
            raise ConfigError(f"{instances} instances leave none to pool '{pool}'", "plan", f"give more than {others}")
        pools = tuple(replace(p, count=instances - others) if p.name == pool else p for p in pools)
    else:
        pools = tuple(
            replace(p, count=c) for p, c in zip(pools, _proportional([p.count for p in pools], instances), strict=True)
        )
    pools = tuple(p for p in pools if p.count > 0)
    return replace(fleet, pools=pools, events=())


def _proportional(counts: Sequence[int], total: int) -> list[int]:
    """``total`` split like ``counts`` (largest remainder)."""
    exact = np.asarray(counts, float) * total / max(sum(counts), 1)
    found = np.floor(exact).astype(int)
    for i in np.argsort(-(exact - found), kind="stable")[: total - int(found.sum())]:
        found[i] += 1
    return [int(c) for c in found]


def plan(
    trace: Trace,
    fleet: Fleet,
    profiles: Mapping[str, Profile] | Profile,
    classes: tuple[SloClass, ...],
    *,
    policy: str | PolicySet = "tokenpilot+slomax",
    baseline: str | PolicySet = "least_requests",
    target: float | Mapping[str, float] = 0.95,
    loads: Sequence[float] = (1.0,),
    gpus: Sequence[str] = (),
    pool: str = "",
    settings: Mapping[str, float | str] | None = None,
    seed: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fewest instances that reach ``target`` attainment (in every class), for two policies, loads and GPU types.

    ``target``: one share for every class of the trace, or {class: share}.  ``gpus``: GPU types to compare, each
    a key of ``profiles``; () = the fleet as it is.  ``pool``: grow this pool alone (a site), else all in proportion.
    -> {"target", "cases": [{load, gpu, policy, needed, gpus, gpu_hours, curve: [...]}], "savings": [...]}.
    Sizes are found by doubling and halving, then every size around the answer is replayed.
    """
    from tfanalyze.traceops import scale_load
    from tfanalyze.tune.run import describe

    profiles = {profiles.name: profiles} if isinstance(profiles, Profile) else dict(profiles)
    for name in gpus:
        if name not in profiles:
            raise ConfigError(f"no profile for GPU '{name}'", "plan", f"profiles are {', '.join(profiles)}")
    wanted = _targets(trace, target)
    sets = {"baseline": _load(baseline), "policy": _load(policy, settings)}
    work = [(load, gpu, name) for load in loads for gpu in (gpus or ("",)) for name in sets]
    cases: list[dict[str, Any]] = []
    traces = {load: trace if load == 1.0 else scale_load(trace, load, seed) for load in loads}
    for i, (load, gpu, name) in enumerate(work):
        if progress is not None:
            progress(i / len(work), f"load {load:g}{' on ' + gpu if gpu else ''}, {sets[name].name or name}")
        measure = _Curve(traces[load], fleet, profiles, classes, sets[name], pool, gpu, seed)
        needed = measure.fewest(wanted)
        cases.append(
            {
                "load": load, "gpu": gpu, "role": name, "policy": describe(sets[name])["policy"],
                "needed": needed, "gpus": measure.points[needed].gpus if needed else None,
                "gpu_hours": measure.points[needed].gpus * trace.span_s / 3600 if needed else None,
                "limit": measure.limit if not needed else "",
                "curve": [measure.points[n].to_json() for n in sorted(measure.points)],
            }
        )  # fmt: skip
    if progress is not None:
        progress(1.0, "done")
    return {"target": dict(wanted), "instances": fleet.n_instances, "cases": cases, "savings": _savings(cases)}


class _Curve:
    """Attainment by fleet size for one policy, each size replayed once."""

    def __init__(
        self, trace: Trace, fleet: Fleet, profiles: Mapping[str, Profile], classes: tuple[SloClass, ...],
        policy: PolicySet, pool: str, gpu: str, seed: int,
    ) -> None:  # fmt: skip
        self.trace, self.fleet, self.profiles, self.classes = trace, fleet, profiles, classes
        self.policy, self.pool, self.gpu, self.seed = policy, pool, gpu, seed
        self.points: dict[int, Point] = {}
        self.least = sum(p.count for p in fleet.pools if p.name != pool) + 1 if pool else 1
        self.limit = ""

    def at(self, instances: int) -> Point:
        if instances not in self.points:
            self.points[instances] = self._measure(instances)
        return self.points[instances]

    def _measure(self, instances: int) -> Point:
        from tfanalyze.replay import replay
        from tfanalyze.slo import attained, summarise
        from tfanalyze.tune.measure import gpu_count

        fleet = fleet_of(self.fleet, instances, self.pool, self.gpu)
        outcome = replay(self.trace, fleet, self.policy, self.profiles, classes=self.classes, seed=self.seed)
        ok = attained(self.trace, outcome, self.classes)
        shares = {
            name: float(ok[self.trace.slo_class == i].mean())
            for i, name in enumerate(self.trace.classes)
            if (self.trace.slo_class == i).any()
        }
        ends = outcome.finish_s[np.isfinite(outcome.finish_s)]
        until = float(ends.max()) - float(self.trace.arrival_s[0]) if len(ends) else 0.0
        busy = float(outcome.instance_busy_s.sum()) / max(instances * until, 1e-9)
        goodput = summarise(self.trace, outcome, self.classes)["goodput_tok_s"]
        return Point(instances, gpu_count(fleet), float(ok.mean()), shares, goodput, busy)

    def fewest(self, target: Mapping[str, float]) -> int:
        """Smallest size found that meets the target, 0 if none does; sizes beside it are replayed too.

        More instances may, rarely, do worse (caches spread thinner): the answer's neighbours are therefore on the curve.
        """
        start = max(self.fleet.n_instances, self.least)
        high = start
        while not self.at(high).meets(target):
            best_before = self.points[high].attainment
            if high >= GROW_LIMIT * start:
                self.limit = f"not reached with {high} instances"
                return 0
            bigger = high * 2
            if high >= 4 * start and self.at(bigger).attainment <= best_before + 1e-4:
                self.limit = (
                    f"not reached: more than {high} instances change nothing (attainment stays {best_before:.1%}); "
                    "some requests miss their SLO on an idle instance"
                )
                return 0
            high = bigger
        low = self.least - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.at(middle).meets(target):
                high = middle
            else:
                low = middle
        for near in (ceil(high * 0.9), high + 1, ceil(high * 1.1)):
            if near >= self.least:
                self.at(near)
        return min(n for n, p in self.points.items() if p.meets(target))


def _targets(trace: Trace, target: float | Mapping[str, float]) -> Mapping[str, float]:
    used = [name for i, name in enumerate(trace.classes) if (trace.slo_class == i).any()]
    wanted = dict(target) if isinstance(target, Mapping) else {name: float(target) for name in used}
    for name, share in wanted.items():
        if name not in used:
            raise ConfigError(f"no class '{name}' in the trace", "plan", f"it has {', '.join(used)}")
        if not 0.0 < share <= 1.0:
            raise ConfigError(f"target of '{name}' is {share}", "plan", "give an attainment above 0, up to 1")
    return wanted


def _load(policy: str | PolicySet, settings: Mapping[str, float | str] | None = None) -> PolicySet:
    from tfanalyze.replay.policies import load_policy

    return load_policy(policy, settings or {}) if isinstance(policy, str) else policy


def _savings(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each load and GPU type: what the policy saves against the baseline."""
    found = []
    for case in cases:
        if case["role"] != "policy":
            continue
        base = next(c for c in cases if (c["load"], c["gpu"], c["role"]) == (case["load"], case["gpu"], "baseline"))
        known = case["needed"] and base["needed"]
        saved = base["gpus"] - case["gpus"] if known else None
        found.append(
            {
                "load": case["load"], "gpu": case["gpu"], "baseline_needs": base["needed"], "policy_needs": case["needed"],
                "gpus_saved": saved, "saved_share": saved / base["gpus"] if known else None,
            }
        )  # fmt: skip
    return found
