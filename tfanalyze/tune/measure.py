"""What one replay says about one policy: per-request columns, and the runners that get them."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tfanalyze.config import Fleet, SloClass
from tfanalyze.errors import ReplayError
from tfanalyze.models.profile import Profile
from tfanalyze.replay.policies import PolicySet
from tfanalyze.trace import F64, I8, I32, Trace

if TYPE_CHECKING:
    from tfanalyze.replay import Outcome, Simulator

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where a policy is tried: which part of the trace, at which load, on which model and fleet."""

    window: str = "train"  # short | train | validation | holdout
    load: float = 1.0
    seed: int = 1
    profile: int = 0  # 0 = as fitted; 1.. = members of the ensemble
    less: int = 0  # instances fewer than the fleet has (negative: more)
    demand: str = ""  # "" = as reconstructed; else low | high (see demand.py)


@dataclass(frozen=True, slots=True)
class Measured:
    """Columns of shape (n,), offered requests of the window in the trace's order; warm-up left out."""

    arrival_s: F64  # as the trace has it, the same under every policy: what pairs two runs
    start_s: float
    end_s: float
    good_tokens: F64  # output tokens delivered inside the SLO
    offered_tokens: F64
    delivered_tokens: F64
    attained: Bools
    shed: Bools
    ttft_s: F64  # of what was not served: the penalty of penalty_s
    e2e_s: F64
    slo_class: I8
    tenant: I32
    classes: tuple[str, ...]
    gpus: float = 1.0
    sizes: tuple[tuple[int, float, Bools], ...] = field(default=())  # (instances, gpus, attained) for the cost

    @property
    def span_s(self) -> float:
        return max(self.end_s - self.start_s, 1e-9)

    def __len__(self) -> int:
        return len(self.arrival_s)


class Evaluator(Protocol):
    """Replays a policy in a scenario. Must be safe to call from several threads."""

    def measure(self, policy: PolicySet, scenario: Scenario, sizes: tuple[int, ...] = ()) -> Measured: ...


def penalty_s(slo: SloClass) -> float:
    """TTFT charged for a request that was never served: the client's patience, or ten times the limit.

    Without it, shedding the slow ones would make a tail look better.
    """
    if np.isfinite(slo.timeout_s):
        return max(slo.timeout_s, slo.ttft_s if np.isfinite(slo.ttft_s) else 0.0)
    limit = min(slo.ttft_s, slo.e2e_s)
    return 10.0 * limit if np.isfinite(limit) else 600.0


def measured(trace: Trace, outcome: Outcome, classes: tuple[SloClass, ...], from_s: float, gpus: float) -> Measured:
    """Reduce an outcome to what the objectives and the bootstrap need."""
    from tfanalyze.replay.state import OK, REASON_SHED
    from tfanalyze.slo import attained

    known = {c.name: c for c in classes}
    penalties = np.array([penalty_s(known.get(name, SloClass(name))) for name in trace.classes] or [600.0])
    rows = np.flatnonzero(trace.arrival_s >= from_s)
    ok = np.asarray(attained(trace, outcome, classes), bool)
    served = outcome.status == OK
    penalty = penalties[trace.slo_class]
    ttft = np.where(served, outcome.first_token_s - outcome.arrival_s, penalty)
    e2e = np.where(served, outcome.finish_s - outcome.arrival_s, penalty)
    offered = np.maximum(trace.output_tokens, 0).astype(np.float64)
    delivered = np.where(served, np.maximum(outcome.delivered_tokens, 0), 0).astype(np.float64)
    return Measured(
        arrival_s=trace.arrival_s[rows],
        start_s=float(trace.arrival_s[rows[0]]) if len(rows) else from_s,
        end_s=float(trace.arrival_s[rows[-1]]) if len(rows) else from_s,
        good_tokens=np.where(ok, offered, 0.0)[rows],
        offered_tokens=offered[rows],
        delivered_tokens=delivered[rows],
        attained=ok[rows],
        shed=(outcome.reason == REASON_SHED)[rows],
        ttft_s=np.where(np.isnan(ttft), penalty, ttft)[rows],
        e2e_s=np.where(np.isnan(e2e), penalty, e2e)[rows],
        slo_class=trace.slo_class[rows],
        tenant=trace.tenant[rows],
        classes=trace.classes,
        gpus=gpus,
    )


def observed_run(trace: Trace, classes: tuple[SloClass, ...], from_s: float = 0.0) -> Measured | None:
    """The log itself as if it were an outcome, from ``from_s`` on, so that one definition measures both.

    What the log shows cut or rejected counts with the output it would have had.  None without times of finished requests.
    """
    from tfanalyze.replay.outcome import Outcome
    from tfanalyze.replay.state import OK, REASON_NONE, REASON_SHED, REJECTED
    from tfanalyze.tune.demand import reconstruct

    if trace.observed is None or not np.isfinite(trace.observed.e2e_s).any():
        return None
    trace = reconstruct(trace)
    seen, n = trace.observed, len(trace)
    assert seen is not None
    ended = (seen.status == 0) | ((seen.status < 0) & np.isfinite(seen.e2e_s))
    status = np.where(ended, OK, np.where(seen.status == 4, REJECTED, 1)).astype(np.int8)
    first = trace.arrival_s + np.where(np.isfinite(seen.ttft_s), seen.ttft_s, seen.e2e_s)
    nothing = np.zeros(n, np.int32)
    outcome = Outcome(
        arrival_s=trace.arrival_s, admit_s=trace.arrival_s, start_s=trace.arrival_s,
        first_token_s=first, finish_s=trace.arrival_s + seen.e2e_s, status=status,
        reason=np.where(seen.status == 4, REASON_SHED, REASON_NONE).astype(np.int8),
        attempts=np.ones(n, np.int8), instance=seen.instance, hit_tokens=nothing,
        delivered_tokens=np.where(ended, trace.output_tokens, 0).astype(np.int32),
        preemptions=np.zeros(n, np.int16), waste_tokens={}, instance_names=trace.instances,
        instance_busy_s=np.zeros(0), seed=0, trace_hash="", profile_hash="", policy={}, kernel_s=0.0,
    )  # fmt: skip
    return measured(trace, outcome, classes, from_s, 1.0)


def resized(fleet: Fleet, less: int) -> Fleet:
    """The fleet with ``less`` instances fewer (more, if negative), taken from the largest pool first."""
    counts = [pool.count for pool in fleet.pools]
    for _ in range(abs(less)):
        k = int(np.argmax(counts)) if less > 0 else int(np.argmin(counts))
        counts[k] += -1 if less > 0 else 1
    if min(counts) < 0 or sum(counts) < 1:
        raise ReplayError(f"{less} instances cannot be taken from {fleet.n_instances}", "fleet")
    pools = tuple(replace(pool, count=c) for pool, c in zip(fleet.pools, counts, strict=True) if c > 0)
    kept = {pool.name for pool in pools} | {site.name for site in fleet.sites}
    names = {f"{pool.name}-{i}" for pool in pools for i in range(pool.count)}
    events = tuple(e for e in fleet.events if e.target in kept or e.target in names)
    return replace(fleet, pools=pools, events=events)


def gpu_count(fleet: Fleet) -> float:
    return float(sum(pool.count * pool.gpus_per_instance for pool in fleet.pools))


@dataclass(frozen=True)
class Window:
    """A part of the trace, in its own seconds; ``warm_s`` of traffic before it fill the caches and are not counted."""

    start_s: float
    end_s: float
    warm_s: float = 0.0


class ReplayEvaluator:
    """Replays windows of one trace; keeps the prepared simulators of the scenarios used last."""

    def __init__(
        self,
        trace: Trace,
        fleet: Fleet,
        profiles: Mapping[str, Profile],
        classes: tuple[SloClass, ...],
        windows: Mapping[str, Window],
        *,
        ensemble: tuple[Mapping[str, Profile], ...] = (),
        demand: Mapping[str, Trace] | None = None,
        keep: int = 12,
    ) -> None:
        self.key = uuid.uuid4().hex  # a worker process recognises its evaluator by it
        self.traces = {"": trace} | dict(demand or {})
        self.fleet, self.classes, self.windows = fleet, classes, dict(windows)
        self.profiles = (profiles, *ensemble)
        self._keep, self._lock = keep, threading.Lock()
        self._kept: OrderedDict[Any, tuple[Simulator, float, float]] = OrderedDict()
        self._making: dict[Any, threading.Lock] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without prepared simulators and locks: each process makes its own."""
        left_out = ("_kept", "_making", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._kept, self._making = threading.Lock(), OrderedDict(), {}

    def measure(self, policy: PolicySet, scenario: Scenario, sizes: tuple[int, ...] = ()) -> Measured:
        """Replay ``policy`` in ``scenario``; ``sizes``: also at these fleet sizes (instances), for the cost."""
        found = self._run(policy, scenario)
        if not sizes:
            return found
        total = self.fleet.n_instances
        others = [(n, self._run(policy, replace(scenario, less=total - n))) for n in sizes]
        return replace(found, sizes=tuple((n, m.gpus, m.attained) for n, m in others))

    def _run(self, policy: PolicySet, scenario: Scenario) -> Measured:
        simulator, from_s, gpus = self._simulator(scenario)
        outcome = simulator.run(policy, scenario.seed)
        return measured(simulator.trace, outcome, self.classes, from_s, gpus)

    def _simulator(self, scenario: Scenario) -> tuple[Simulator, float, float]:
        key = replace(scenario, seed=0)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._kept:
                    return self._kept[key]
            made = self._prepare(scenario)
            with self._lock:
                self._kept[key] = made
                while len(self._kept) > self._keep:
                    self._kept.popitem(last=False)
                self._making.pop(key, None)
        return made

    def _prepare(self, scenario: Scenario) -> tuple[Simulator, float, float]:
        from tfanalyze.replay import Simulator
        from tfanalyze.trace import cut, scale_load

        window = self.windows[scenario.window]
        begin = max(0.0, window.start_s - window.warm_s)
        trace = cut(self.traces[scenario.demand], begin, window.end_s)
        if scenario.load != 1.0:
            trace = scale_load(trace, scenario.load, seed=LOAD_SEED)
        fleet = resized(self.fleet, scenario.less) if scenario.less else self.fleet
        simulator = Simulator(trace, fleet, self.profiles[scenario.profile], self.classes)
        return simulator, window.start_s - begin, gpu_count(fleet)


LOAD_SEED = 20_011  # which sessions are added or dropped is the same for every policy


Job = tuple[PolicySet, Scenario]


def evaluate(evaluator: Evaluator, policy: PolicySet, scenario: Scenario, sizes: tuple[int, ...] = ()) -> Measured:
    return evaluator.measure(policy, scenario, sizes)


class Runner:
    """Runs evaluations on threads; the kernel releases the GIL and all threads share the trace."""

    def __init__(self, evaluator: Evaluator, workers: int) -> None:
        self.evaluator, self.workers = evaluator, max(1, workers)
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="tune")

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """``fn(evaluator, *args)`` on a worker."""
        return self._pool.submit(fn, self.evaluator, *args)

    def run(self, jobs: Iterable[Job], sizes: tuple[int, ...] = ()) -> list[Measured]:
        """All results, in the order of the jobs."""
        futures = [self.submit(evaluate, policy, scenario, sizes) for policy, scenario in jobs]
        return [future.result() for future in futures]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
