"""Simulator: prepare a trace and a fleet once, replay them under any number of policies."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from tfanalyze.config import Fleet, Gateway, SloClass
from tfanalyze.errors import PolicyError, ReplayError
from tfanalyze.models.profile import Profile
from tfanalyze.replay import layout as lo
from tfanalyze.replay.arrays import Arrays, Shared, Sizes, records
from tfanalyze.replay.fleet import (
    event_records,
    instance_names,
    instance_records,
    pool_of,
    profile_hash,
    serves,
)
from tfanalyze.replay.options import Options
from tfanalyze.replay.outcome import Outcome
from tfanalyze.replay.policies import PolicySet
from tfanalyze.replay.segments import build_segments
from tfanalyze.trace import Trace

GROWS = {lo.F_FLIGHTS: "flights", lo.F_ENTRIES: "entries", lo.F_INDEX: "index", lo.F_TIMERS: "timers", lo.F_MESSAGES: "messages"}
WASTE = {1: "error", 2: "timeout", 3: "cancelled", 4: "rejected", 5: "lost", 6: "preempt"}


class Simulator:
    """One trace on one fleet; ``run`` may be called from several threads at once (it releases the GIL)."""

    def __init__(
        self,
        trace: Trace,
        fleet: Fleet,
        profiles: Profile | Mapping[str, Profile],
        classes: tuple[SloClass, ...],
        options: Options = Options(),
    ) -> None:
        self.trace, self.fleet, self.options = trace, fleet, options
        self.profiles = {profiles.name: profiles} if isinstance(profiles, Profile) else dict(profiles)
        self.classes = _classes_of(trace, classes)
        self.gateway = _effective_gateway(fleet, options)
        if options.open_loop is False and options.force_row >= len(trace):
            raise ReplayError(f"row {options.force_row} is not in the trace of {len(trace)}")
        self.shared = _share(trace, fleet, self.profiles, self.classes, options)
        self.sizes = _first_sizes(self.shared, self.gateway)
        self.names = instance_names(fleet)
        self.profile_hash = profile_hash(self.profiles)
        self._trace_hash: str | None = None
        self._idle: list[Arrays] = []
        self._lock = threading.Lock()

    def with_profiles(self, profiles: Profile | Mapping[str, Profile]) -> Simulator:
        """The same trace and fleet with other profiles; only the instances are prepared anew."""
        other = copy.copy(self)
        other.profiles = {profiles.name: profiles} if isinstance(profiles, Profile) else dict(profiles)
        other.shared = replace(self.shared, inst=instance_records(self.fleet, other.profiles)[0])
        other.profile_hash = profile_hash(other.profiles)
        other._idle = []  # arrays in use hold the instances they were made for
        return other

    @property
    def trace_hash(self) -> str:
        if self._trace_hash is None:
            from tfanalyze.trace import trace_hash

            self._trace_hash = trace_hash(self.trace)
        return self._trace_hash

    def run(self, policies: PolicySet | str, seed: int = 1) -> Outcome:
        """Replay under ``policies``; same arguments, same outcome, whatever else runs at the same time."""
        if isinstance(policies, str):
            from tfanalyze.replay.policies import load_policy

            policies = load_policy(policies)
        arrays = self._take()
        while True:
            en, gates = arrays.reset(policies.admit, policies.site, policies.instance, seed)
            from tfanalyze.replay.compile import run_kernel

            start = perf_counter()
            fault = run_kernel(en, gates, type(policies.admit), type(policies.site), type(policies.instance))
            kernel_s = perf_counter() - start
            if fault not in GROWS:
                break
            del arrays, en, gates  # before the larger ones are made
            arrays = self._grow(GROWS[fault])
        self._raise_fault(fault, en, policies)
        outcome = self._outcome(en, gates, policies, seed, kernel_s)
        with self._lock:
            if arrays.sizes == self.sizes:
                self._idle.append(arrays)
        return outcome

    def _take(self) -> Arrays:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            sizes = replace(self.sizes)
        return Arrays(self.shared, self.options, self.gateway, sizes)

    def _grow(self, name: str) -> Arrays:
        with self._lock:
            setattr(self.sizes, name, max(1024, 4 * getattr(self.sizes, name)))
            self._idle.clear()
            sizes = replace(self.sizes)
        return Arrays(self.shared, self.options, self.gateway, sizes)

    def _raise_fault(self, fault: int, en: lo.Engine, policies: PolicySet) -> None:
        if fault == lo.F_NONE:
            return
        cf = en.cf[0]
        if fault == lo.F_POLICY:
            raise PolicyError(
                f"policy {policies.name!r} chose {int(cf['fault_inst'])}, which is not a ready candidate (row {int(cf['fault_row'])})",
                mend="return the index of a candidate whose ready is 1, or -1 for none",
            )
        assert fault != lo.F_CHECK, f"conservation broken at instance {int(cf['fault_inst'])}, t={float(cf['now_s'])}"
        assert fault != lo.F_STUCK, f"{int(cf['live'])} requests never ended"
        raise AssertionError(f"fault {fault}")

    def _outcome(self, en: lo.Engine, gates: lo.GateArrays, policies: PolicySet, seed: int, kernel_s: float) -> Outcome:
        out, cf = en.out, en.cf[0]
        waste = {name: int(en.waste[i]) for i, name in WASTE.items() if en.waste[i] > 0}
        waste_s = {name: float(en.waste[lo.N_WASTE + i]) for i, name in WASTE.items() if en.waste[lo.N_WASTE + i] > 0}
        column = {name: out[name].view(np.ndarray) for name in lo.OUT.names or ()}
        counters = {name: int(cf[name]) for name in ("steps", "computed", "made", "reused")}
        return Outcome(
            arrival_s=column["arrival_s"],
            admit_s=column["admit_s"],
            start_s=column["start_s"],
            first_token_s=column["first_token_s"],
            finish_s=column["finish_s"],
            status=column["status"],
            reason=column["reason"],
            attempts=column["attempts"],
            instance=column["instance"],
            hit_tokens=column["hit_tokens"],
            retry_after_s=column["retry_after_s"],
            delivered_tokens=column["delivered"],
            preemptions=column["preemptions"],
            waste_tokens=waste,
            waste_gpu_s=waste_s,
            instance_names=self.names,
            instance_busy_s=np.array(en.inst["busy_s"]),
            seed=seed,
            trace_hash=self.trace_hash,
            profile_hash=self.profile_hash,
            policy=describe_policies(policies),
            kernel_s=kernel_s,
            counters=counters,
            series=self._series(en, gates) if self.options.series_bins > 0 else None,
            decision=self._decision(en, gates) if cf["traced"] else None,
            options=asdict(self.options),
        )

    def _series(self, en: lo.Engine, gates: lo.GateArrays) -> dict[str, Any]:
        bin_s = float(en.cf[0]["bin_s"])
        mean = gates.series / bin_s
        t = (np.arange(self.options.series_bins) + 0.5) * bin_s
        series = {
            "t_s": t, "bin_s": bin_s, "running": mean[:, :, 0], "waiting": mean[:, :, 1],
            "kv_used_share": mean[:, :, 2], "admitted": gates.admitted.copy(),
        }  # fmt: skip
        if en.cf[0]["quota_step"] > 0:
            series["quota"] = gates.quota.copy()
        return series

    def _decision(self, en: lo.Engine, gates: lo.GateArrays) -> dict[str, Any]:
        view, request = gates.trace_view, gates.trace_req[0]
        return {
            "row": int(self.options.trace_row),
            "request": {name: request[name].item() for name in request.dtype.names},
            "candidates": [
                {"instance": self.names[n], "score": float(gates.trace_scores[n])}
                | {name: view[n][name].item() for name in view.dtype.names if name != "instance"}
                for n in range(len(view))
            ],
        }


def replay(
    trace: Trace,
    fleet: Fleet,
    policies: PolicySet | str,
    profiles: Profile | Mapping[str, Profile],
    *,
    classes: tuple[SloClass, ...],
    seed: int = 1,
    options: Options = Options(),
) -> Outcome:
    """Replay ``trace`` on ``fleet`` under ``policies``: a pure function, same arguments, same outcome."""
    return Simulator(trace, fleet, profiles, classes, options).run(policies, seed)


def describe_policies(policies: PolicySet) -> dict[str, Any]:
    """Names and parameters of the three parts."""
    parts: dict[str, Any] = {}
    for kind, part in zip(("admit", "site", "instance"), policies.parts(), strict=True):
        values = {f.name: getattr(part, f.name) for f in fields(part)} if is_dataclass(part) else {}
        parts[kind] = {"name": type(part).name, "params": values}
    return parts


def _classes_of(trace: Trace, classes: tuple[SloClass, ...]) -> tuple[SloClass, ...]:
    """The SLO class of each of the trace's class names; one without a definition has no limits."""
    known = {c.name: c for c in classes}
    return tuple(known.get(name, SloClass(name)) for name in trace.classes)


def _effective_gateway(fleet: Fleet, options: Options) -> Gateway:
    gateway = fleet.gateway
    if options.perfect_signals:
        return Gateway()
    if gateway.index not in ("exact", "approx", "none"):
        raise ReplayError(f"index '{gateway.index}' is unknown", "gateway", "use exact, approx or none")
    if gateway.replicas < 1:
        raise ReplayError(f"replicas is {gateway.replicas}", "gateway", "at least one")
    if gateway.index == "exact" and any(pool.engine.cache == "slot" for pool in fleet.pools):
        return replace(gateway, index="approx")  # slot engines send no KV events
    return gateway


def _first_sizes(shared: Shared, gateway: Gateway) -> Sizes:
    n = len(shared.row)
    entries = min(1 << 22, max(1 << 10, 2 * len(shared.path), 1))
    sizes = Sizes(flights=min(n + 8, 1 << 12), entries=min(entries, 1 << 16), timers=min(4 * n + 64, 1 << 13))
    if gateway.index == "approx":
        sizes.index = sizes.entries
    if gateway.index_lag_s > 0 or (gateway.replicas > 1 and gateway.sync_delay_s < np.inf):
        sizes.messages = 1 << 14
    return sizes


def _share(trace: Trace, fleet: Fleet, profiles: Mapping[str, Profile], classes: tuple[SloClass, ...], options: Options) -> Shared:
    inst, block_sizes = instance_records(fleet, profiles)
    seg, path, poff = _paths(trace, fleet, block_sizes)
    models = trace.models or ("",)
    table = np.array([[serves(pool, model) for pool in pool_of(fleet)] for model in models], np.int8)
    return Shared(
        row=_rows(trace, fleet, classes, options),
        seg=seg,
        path=path,
        poff=poff,
        inst=inst,
        event=event_records(fleet),
        cls=_class_records(classes),
        serves=table.reshape(len(models), len(inst)),
        fleet=fleet,
        classes=classes,
        n_tenants=len(trace.tenants),
    )


def _paths(trace: Trace, fleet: Fleet, block_sizes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Segments for every block size of the fleet, numbered through."""
    cached = any(pool.engine.cache != "none" for pool in fleet.pools)
    parts = [build_segments(trace, size) for size in block_sizes] if cached else []
    if not parts or not any(len(p.seg_id) for p in parts):
        return records(1, lo.SEG), np.zeros(1, np.int32), np.zeros((len(block_sizes), len(trace) + 1), np.int64)
    if len(parts) == 1:
        return parts[0].seg, parts[0].seg_id, parts[0].off.reshape(1, -1)
    poff = np.zeros((len(block_sizes), len(trace) + 1), np.int64)
    paths, base, at = [], 0, 0
    for e, part in enumerate(parts):
        poff[e] = part.off + at
        paths.append(part.seg_id + np.int32(base))
        base += len(part.seg)
        at += len(part.seg_id)
    return np.concatenate([part.seg for part in parts]).view(np.recarray), np.concatenate(paths), poff


def _rows(trace: Trace, fleet: Fleet, classes: tuple[SloClass, ...], options: Options) -> Any:
    n = len(trace)
    row = records(n, lo.ROW)
    row["arrival_s"], row["deadline_s"] = trace.arrival_s, trace.deadline_s
    row["input"], row["output"] = np.maximum(trace.input_tokens, 1), np.maximum(trace.output_tokens, 1)
    row["max_tokens"], row["tenant"] = trace.max_tokens, trace.tenant
    row["slo_class"] = trace.slo_class
    class_priority = np.array([c.priority for c in classes], np.int32)
    row["priority"] = np.where(trace.priority != 0, trace.priority, class_priority[trace.slo_class] if n else 0)
    row["last"], row["think_s"] = trace.prev, trace.think_s
    row["succ"] = lo.NONE
    waits = (trace.prev >= 0) & ~np.isnan(trace.think_s)
    if options.open_loop:
        waits[:] = False
    later = np.flatnonzero(waits)
    row["succ"][trace.prev[later]] = later
    taken = row["succ"][trace.prev[later]] == later  # two rows may name the same turn: the last one wins
    waits[later[~taken]] = False
    row["think_s"][~waits] = np.nan
    row["think_s"][waits] = np.maximum(row["think_s"][waits], 0.0)
    root = np.where(trace.prev >= 0, trace.prev, np.arange(n))
    while n and not np.array_equal(root[root], root):
        root = root[root]
    row["session"] = root
    row["model"] = trace.model
    site_index = {site.name: i for i, site in enumerate(fleet.sites)} | {site.region: i for i, site in enumerate(fleet.sites) if site.region}
    pins = np.array([site_index.get(name, lo.NONE) for name in trace.sites] + [lo.NONE], np.int16)
    row["region"] = pins[trace.site]
    row["recorded"] = _recorded(trace, fleet)
    return row


def _recorded(trace: Trace, fleet: Fleet) -> Any:
    """Fleet index of the instance that the log names; by name, else by order where the counts agree."""
    if trace.observed is None or not trace.instances:
        return np.full(len(trace), lo.NONE, np.int32)
    names = instance_names(fleet)
    index = {name: i for i, name in enumerate(names)}
    if not all(name in index for name in trace.instances):
        index = {name: i for i, name in enumerate(trace.instances)} if len(names) >= len(trace.instances) else index
    table = np.array([index.get(name, lo.NONE) for name in trace.instances] + [lo.NONE], np.int32)
    return table[trace.observed.instance]


def _class_records(classes: tuple[SloClass, ...]) -> Any:
    cls = records(len(classes), lo.CLASS)
    for i, c in enumerate(classes):
        wait = (c.retry_backoff_s, c.retry_jitter, c.retry_after_max_s)
        cls[i] = (c.ttft_s, c.tpot_s, c.e2e_s, c.timeout_s, *wait, c.max_retries, c.priority)
    return cls
