"""The search: ask, evaluate on workers, tell; resumable, shared, with a short look before a long one."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tfanalyze.replay.policies import PolicySet
from tfanalyze.tune.measure import Evaluator, Measured, Scenario
from tfanalyze.tune.objective import Constraint, Objective
from tfanalyze.tune.sampler import DEPTH, numbered_sampler
from tfanalyze.tune.space import Space
from tfanalyze.tune.storage import Direction, create_study, is_shared, open_storage

if TYPE_CHECKING:
    import optuna

Progress = Callable[[float, str], None]
PENALTY = 10.0  # a broken constraint costs this many times the present value, times how far it is broken
SHORT_NEEDED = 12  # short looks known before one may end a trial


class Submit(Protocol):
    workers: int

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]: ...


@dataclass(frozen=True)
class Goal:
    """What a trial's value is made of."""

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()
    present: tuple[Measured, ...] = ()  # the present config on the train window, for constraints that compare
    penalty: float = 1.0
    seeds: tuple[int, ...] = (1,)
    sizes: tuple[int, ...] = ()

    def values(self, runs: Sequence[Measured]) -> tuple[float, ...]:
        """One number an objective; a broken constraint makes all of them worse."""
        broken = sum(c.violation(runs, self.present or None) for c in self.constraints)
        return tuple(o.value(runs) - o.better * PENALTY * self.penalty * broken for o in self.objectives)


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial that ended. ``values`` is () for one that the short look ended."""

    number: int
    policy: PolicySet
    values: tuple[float, ...]
    short: float | None = None


@dataclass
class Found:
    """What a search brings home."""

    tried: list[Tried] = field(default_factory=list)
    wall_s: float = 0.0
    optuna_s: float = 0.0
    duplicates: int = 0
    resumed: int = 0
    timed_out: bool = False

    @property
    def full(self) -> list[Tried]:
        return [t for t in self.tried if t.values]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How to search."""

    trials: int = 100
    sampler: str = "tpe"
    seed: int = 1
    short: bool = False  # look at the short window first
    storage: str | None = None
    name: str = "tune"
    timeout_s: float | None = None
    startup: int = 10
    depth: int = DEPTH  # trials in flight at once; the proposals depend on it, so not on the workers


def evaluate_trial(
    evaluator: Evaluator, policy: PolicySet, goal: Goal, short: bool, cutoff: float | None
) -> tuple[float | None, tuple[float, ...]]:
    """(short look, values); values is () when the short look was worse than ``cutoff``."""
    seen = None
    if short:
        look = [evaluator.measure(policy, Scenario("short", seed=goal.seeds[0]), goal.sizes)]
        seen = goal.objectives[0].value(look)
        if cutoff is not None and goal.objectives[0].better * (seen - cutoff) < 0:
            return seen, ()
    runs = [evaluator.measure(policy, Scenario("train", seed=s), goal.sizes) for s in goal.seeds]
    return seen, goal.values(runs)


@dataclass
class _Search:
    """State of one running search: what is in flight and what is known."""

    space: Space
    goal: Goal
    plan: SearchPlan
    runner: Submit
    study: optuna.Study
    progress: Progress | None
    found: Found = field(default_factory=Found)
    known: dict[PolicySet, tuple[float | None, tuple[float, ...]]] = field(default_factory=dict)
    unasked: list[Any] = field(default_factory=list)  # trials whose proposal must wait for earlier ones
    flying: dict[Future[Any], list[tuple[Any, PolicySet]]] = field(default_factory=dict)
    begin_s: float = field(default_factory=time.monotonic)
    beat_s: float = 0.0
    noticed: set[int] = field(default_factory=set)  # running trials of a shared study that were seen here

    def run(self) -> Found:
        self._start()
        while not self._over():
            with _Clock(self.found):
                self._fill()
            if self.flying:
                done, _ = wait(self.flying, timeout=1.0, return_when=FIRST_COMPLETED)
                with _Clock(self.found):
                    for future in done:
                        self._tell(future)
            elif not self._over():
                time.sleep(0.1)  # another process has the trials that are left
            self._beat()
        self.found.wall_s = time.monotonic() - self.begin_s
        with _Clock(self.found):
            self._collect()
        return self.found

    # -- beginning

    def _start(self) -> None:
        import optuna

        trials = self.study.get_trials(deepcopy=False)
        self.found.resumed = sum(t.state.is_finished() for t in trials)
        if not trials:
            for start in dict.fromkeys((self.space.reference, defaults_of(self.space))):
                self.study.enqueue_trial(self.space.params_of(start), skip_if_exists=True)
        for t in trials:
            if t.state in (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED):
                policy = policy_of(self.space, t.params)
                if policy is not None:
                    self.known[policy] = (t.intermediate_values.get(0), _values(t))
            elif t.state == optuna.trial.TrialState.RUNNING and not is_shared(self.plan.storage):
                self.unasked.append(optuna.trial.Trial(self.study, t._trial_id))  # left by a killed process

    # -- one round

    def _over(self) -> bool:
        if self.flying:
            return False
        if self.found.timed_out:
            return True
        return self._finished() >= self.plan.trials

    def _finished(self) -> int:
        return len(self.study._get_trials(deepcopy=False, states=_done_states()))

    def _late(self) -> bool:
        limit = self.plan.timeout_s
        self.found.timed_out = limit is not None and time.monotonic() - self.begin_s >= limit
        return self.found.timed_out

    def _fill(self) -> None:
        if self._late():
            return
        states = self._states()
        room = min(self.plan.depth, 2 * self.runner.workers)
        while len(self.flying) < room:
            waiting = sum(s == "WAITING" for s in states.values())
            if not self.unasked:
                live = sum(s != "FAIL" for s in states.values())
                if live - waiting >= self.plan.trials and not waiting:
                    return
                trial = _ask(self.study)
                if is_shared(self.plan.storage):
                    states.update(self._states())  # others may have asked since
                states[trial.number] = "RUNNING"
                if self._over_budget(trial, states):
                    continue
                self.unasked.append(trial)
            trial = self.unasked[0]
            if any(states.get(i, "FAIL") in ("RUNNING", "WAITING") for i in range(trial.number - self.plan.depth + 1)):
                return
            self.unasked.pop(0)
            self._launch(trial, states)

    def _states(self) -> dict[int, str]:
        return {t.number: t.state.name for t in self.study._get_trials(deepcopy=False)}

    def _over_budget(self, trial: Any, states: dict[int, str]) -> bool:
        """Two processes may ask for the last trial at once: the later one is given up."""
        rank = sum(s != "FAIL" for n, s in states.items() if n < trial.number)
        if rank < self.plan.trials:
            return False
        self.study.tell(trial, state=_state("FAIL"))
        states[trial.number] = "FAIL"
        return True

    def _launch(self, trial: Any, states: dict[int, str]) -> None:
        policy = self.space.suggest(trial)
        twin = next((f for f, asked in self.flying.items() if asked[0][1] == policy), None)
        if policy in self.known:
            self.found.duplicates += 1
            self._record(trial, *self.known[policy])
            states[trial.number] = "COMPLETE"
        elif twin is not None:
            self.found.duplicates += 1
            self.flying[twin].append((trial, policy))
        else:
            cutoff = self._cutoff(trial.number) if self.plan.short else None
            args = (policy, self.goal, self.plan.short and len(self.goal.objectives) == 1, cutoff)
            self.flying[self.runner.submit(evaluate_trial, *args)] = [(trial, policy)]

    def _cutoff(self, number: int) -> float | None:
        """The median short look of the trials that this one may know of."""
        past = [
            t.intermediate_values[0]
            for t in self.study._get_trials(deepcopy=False)
            if t.number <= number - self.plan.depth and 0 in t.intermediate_values
        ]
        return float(np.median(past)) if len(past) >= SHORT_NEEDED else None

    def _tell(self, future: Future[Any]) -> None:
        asked = self.flying.pop(future)
        short, values = future.result()
        for trial, policy in asked:
            self.known[policy] = (short, values)
            self._record(trial, short, values)
        self._report()

    def _record(self, trial: Any, short: float | None, values: tuple[float, ...]) -> None:
        if short is not None and len(self.goal.objectives) == 1:
            trial.report(short, 0)
        if values:
            self.study.tell(trial, list(values))
        else:
            self.study.tell(trial, state=_state("PRUNED"))

    def _beat(self) -> None:
        """Say that this process lives, and give trials of dead ones to the living."""
        import optuna

        from tfanalyze.tune.storage import HEARTBEAT_S

        if not is_shared(self.plan.storage) or time.monotonic() - self.beat_s < HEARTBEAT_S:
            return
        self.beat_s = time.monotonic()
        storage: Any = self.study._storage
        mine = [t for asked in self.flying.values() for t, _ in asked] + self.unasked
        alive = {trial._trial_id for trial in mine}
        for t in self.study._get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            if t._trial_id not in self.noticed:  # its process may have died before its first beat: from now on it counts
                self.noticed.add(t._trial_id)
                alive.add(t._trial_id)
        for trial_id in alive:
            storage.record_heartbeat(trial_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)

    def _report(self) -> None:
        if self.progress is None:
            return
        done = self._finished()
        best = max((o.better * v[0] for _, v in self.known.values() if v for o in self.goal.objectives[:1]), default=0.0)
        spent = time.monotonic() - self.begin_s
        rate = (done - self.found.resumed) / max(spent, 1e-9)
        left = (self.plan.trials - done) / max(rate, 1e-9)
        if self.plan.timeout_s is not None:
            left = min(left, max(0.0, self.plan.timeout_s - spent))
        goal = self.goal.objectives[0]
        text = f"trial {done}/{self.plan.trials}, best {goal.text} {goal.better * best:,.4g} {goal.unit}, holdout pending, {left:.0f} s left"
        self.progress(min(1.0, done / self.plan.trials), text)

    def _collect(self) -> None:
        """All trials of the study, by number: also those of other processes and earlier runs."""
        for t in self.study.get_trials(deepcopy=False, states=_done_states()):
            policy = policy_of(self.space, t.params)
            if policy is not None:
                self.found.tried.append(Tried(t.number, policy, _values(t), t.intermediate_values.get(0)))


def _ask(study: optuna.Study) -> Any:
    """Ask without Optuna's word that heartbeats are its own loop's business: this loop sends them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Heartbeat of storage")
        return study.ask()


class _Clock:
    """Counts the time that goes to the search itself."""

    def __init__(self, found: Found) -> None:
        self.found = found

    def __enter__(self) -> None:
        self.begin_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.found.optuna_s += time.perf_counter() - self.begin_s


def search(
    space: Space, goal: Goal, runner: Submit, plan: SearchPlan, progress: Progress | None = None
) -> Found:
    """Run ``plan.trials`` trials, present config and defaults first. Same plan, same trials, at any number of workers.

    A study that exists under this name and storage is gone on with. Ctrl-C and kill lose nothing that was told.
    """
    with open_storage(plan.storage) as storage:
        directions: list[Direction] = ["maximize" if o.better > 0 else "minimize" for o in goal.objectives]
        sampler = numbered_sampler(plan.sampler, plan.seed, startup=plan.startup, depth=plan.depth, distributions=distributions_of(space))
        study = create_study(storage, plan.name, directions, sampler)
        return _Search(space, goal, plan, runner, study, progress).run()


class _Listing:
    """A trial that notes what it is asked for."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        import optuna

        self.found[name] = optuna.distributions.FloatDistribution(low, high, log=log)
        return low

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        import optuna

        self.found[name] = optuna.distributions.CategoricalDistribution(tuple(choices))
        return choices[0]


def distributions_of(space: Space) -> dict[str, Any] | None:
    """Every parameter's distribution, by name in order; None where trials differ in their parameters."""
    if space.conditional:
        return None
    listing = _Listing()
    space.suggest(listing)
    return dict(sorted(listing.found.items()))


def defaults_of(space: Space) -> PolicySet:
    """Every knob at its declared default, in the first policy of each hook."""
    from dataclasses import fields, replace

    parts = {}
    for kind, options in space.alternatives.items():
        usual = {f.name: f.default for f in fields(options[0]) if f"{type(options[0]).name}.{f.name}" in {k.name for k in space.knobs}}
        parts[kind] = replace(options[0], **usual)
    return PolicySet(**parts)


def policy_of(space: Space, params: dict[str, Any]) -> PolicySet | None:
    """The policy that these suggestions made; None when they are not of this space (another version's study)."""
    import optuna

    try:
        return space.suggest(optuna.trial.FixedTrial(params))
    except ValueError:
        return None


def _values(trial: Any) -> tuple[float, ...]:
    return tuple(trial.values) if trial.state.name == "COMPLETE" and trial.values else ()


def _state(name: str) -> Any:
    import optuna

    return optuna.trial.TrialState[name]


def _done_states() -> tuple[Any, Any]:
    return (_state("COMPLETE"), _state("PRUNED"))
