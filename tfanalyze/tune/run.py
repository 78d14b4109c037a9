"""``tune``: split, check power, search, choose, prove on the holdout, say what to do."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tfanalyze.config import Fleet, SloClass
from tfanalyze.errors import ConfigError, ProfileError, ReplayError
from tfanalyze.models.profile import Profile
from tfanalyze.replay.policies import PolicySet
from tfanalyze.trace import Trace
from tfanalyze.tune import evidence as ev
from tfanalyze.tune.compare import Bench, Difference
from tfanalyze.tune.demand import censored, reconstruct
from tfanalyze.tune.measure import (
    Evaluator,
    Measured,
    ReplayEvaluator,
    Runner,
    Scenario,
    Window,
    observed_run,
)
from tfanalyze.tune.objective import Metric, Objective, parse_constraint, parse_objective, sizes_for
from tfanalyze.tune.promise import promise_of
from tfanalyze.tune.select import Power, choose, least_change, power_check, screen, sensitivity, shortlist
from tfanalyze.tune.space import Space, Value, make_space
from tfanalyze.tune.study import Found, Goal, Progress, SearchPlan, Tried, defaults_of, search
from tfanalyze.tune.verdict import Case, canary_plan, model_bound, verdict

SHARES = (0.5, 0.2, 0.3)  # of time: train, validation, holdout
WARM_SHARE = 0.1  # of the span, before a window that is not the first: fills caches and queues, is not counted
SHORT_SHARE = 0.25  # of the train window: the short look
SHORT_FROM = 50_000  # requests in the train window from which a short look pays
SEARCHED = 8  # knobs at most; the ones that move the objective most
MIN_REQUESTS = 60
MAX_MODEL_ERROR = 0.25


@dataclass(frozen=True)
class Setup:
    """Everything a tuning needs, as the stages pass it on."""

    space: Space
    present: PolicySet
    goal: Goal
    bench: Bench
    runner: Any
    plan: SearchPlan
    seed: int
    progress: Progress | None
    observed: Measured | None = None  # the log's own holdout, where it is the present config that the log shows

    def say(self, share: float, what: str) -> None:
        if self.progress is not None:
            self.progress(share, what)

    def part(self, low: float, high: float) -> Progress | None:
        """Progress of one stage, as its share of the whole."""
        if self.progress is None:
            return None
        tell = self.progress
        return lambda share, what: tell(low + share * (high - low), what)


def windows_of(first_s: float, span_s: float, shares: Sequence[float] = SHARES) -> dict[str, Window]:
    """Train, validation and holdout by time, in this order; ``short`` is the last part of train."""
    if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise ConfigError(f"shares are {tuple(shares)}", "tune", "give three that sum to 1: train, validation, holdout")
    a, b = first_s + span_s * shares[0], first_s + span_s * (shares[0] + shares[1])
    warm, look = span_s * WARM_SHARE, span_s * shares[0] * SHORT_SHARE
    return {
        "short": Window(a - look, a, min(warm, look / 2)),
        "train": Window(first_s, a),
        "validation": Window(a, b, warm),
        "holdout": Window(b, first_s + span_s + 1.0, warm),
    }


def tune(
    trace: Trace,
    fleet: Fleet,
    profiles: Mapping[str, Profile] | Profile,
    classes: tuple[SloClass, ...],
    *,
    policy: str = "tokenpilot+slomax",
    baseline: str | PolicySet = "recorded",
    objective: str = "goodput",
    trials: int = 100,
    workers: int | None = None,
    seed: int = 1,
    pin: Mapping[str, Value] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    settings: Mapping[str, Value] | None = None,
    constraints: Sequence[str] = (),
    storage: str | None = None,
    study_name: str | None = None,
    timeout_s: float | None = None,
    accept_model_error: bool = False,
    max_model_error: float = MAX_MODEL_ERROR,
    ensemble: Sequence[Mapping[str, Profile]] = (),
    sampler: str = "tpe",
    short_look: bool | None = None,
    control: bool = True,
    rivals: Sequence[str] = ev.UNTUNED,
    shares: Sequence[float] = SHARES,
    ray: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Tune ``policy`` on a trace and prove the result on its later part; a dict of plain values (JSON).

    ``baseline`` is what runs now: "recorded" (the log's own routing), a policy name, or a PolicySet with its settings.
    ``objective``: see ``objective.parse_objective``; ``constraints``: see ``parse_constraint``.  ``storage``: None =
    memory, a path = journal file, postgresql://... = shared by several processes; a study is gone on with only if
    trace, models, space, goal and seed are the same (their digest is part of its name).  ``control``: also run a random
    search of as many trials.  ``ray``: address of a Ray cluster, "local" starts one.
    Errors: ProfileError when the model's held-out error is above ``max_model_error``; ReplayError for too little data.
    """
    begin = time.monotonic()
    profiles = {profiles.name: profiles} if isinstance(profiles, Profile) else dict(profiles)
    error = ev.worst_error(profiles)
    if error.share is not None and error.share > max_model_error and not accept_model_error:
        raise ProfileError(
            f"held-out error {error.share:.0%} is above {max_model_error:.0%} ({error.by})", "tune",
            "fit on more or newer logs, or take the risk with --accept-model-error",
        )  # fmt: skip
    notes: list[str] = []
    present = _present(trace, baseline, notes)
    if error.share is None:
        notes.append("the profile was never validated on this fleet: gains are judged by an assumed error of 15 %")
    demand = reconstruct(trace, "", seed)
    bands = {how: reconstruct(trace, how, seed) for how in ("low", "high")} if censored(trace).any() else {}
    windows = windows_of(float(trace.arrival_s[0]) if len(trace) else 0.0, trace.span_s, shares)
    members = tuple(ensemble) or ev.ensemble_of(profiles, seed)
    evaluator = ReplayEvaluator(demand, fleet, profiles, classes, windows, ensemble=members, demand=bands)
    _enough(trace, windows)
    goals = parse_objective(objective)
    space = make_space(policy, present=present, pin=pin, bounds=bounds, settings=settings)
    rules = tuple(parse_constraint(text) for text in constraints)
    sizes = sizes_for(fleet.n_instances) if any(g.cost for g in goals) else ()
    train_rows = int(np.searchsorted(trace.arrival_s, windows["train"].end_s))
    identity = _identity(trace, fleet, profiles, classes, policy, objective, pin, bounds, constraints, seed, present)
    plan = SearchPlan(
        trials, sampler, seed, train_rows > SHORT_FROM if short_look is None else short_look,
        storage, f"{study_name or 'tune'}-{identity}", timeout_s,
    )  # fmt: skip
    with _runner(evaluator, workers, ray) as runner:
        bench = Bench(runner, goals[0], sizes, seed)
        base = bench.get([(present, Scenario("train"))])
        goals = tuple(g.scaled(base) for g in goals)
        bench.objective = goals[0]
        goal = Goal(goals, rules, tuple(base), max(abs(goals[0].value(base)), 1e-9), (1,), sizes)
        seen = observed_run(trace, classes, windows["holdout"].start_s) if present.name == "recorded" else None
        setup = Setup(space, present, goal, bench, runner, plan, seed, progress, seen)
        result = tune_with(
            setup, profiles=profiles, members=len(members), fleet=fleet, rivals=rivals, control=control, bands=bool(bands)
        )
    result["max_model_error"] = max_model_error
    return _finish(result, present, trace, profiles, fleet, policy, objective, constraints, notes, error, begin, plan, classes)


def tune_with(
    setup: Setup,
    *,
    profiles: Mapping[str, Profile],
    members: int,
    fleet: Fleet,
    rivals: Sequence[str] = (),
    control: bool = True,
    bands: bool = False,
) -> dict[str, Any]:
    """The stages of a tuning over any evaluator."""
    setup.say(0.0, "power check")
    power = power_check(setup.bench, setup.space, setup.present, setup.seed)
    if not power.enough:
        return _no_power(setup, power)
    narrow = _screened(setup)
    found = search(narrow.space, setup.goal, setup.runner, setup.plan, setup.part(0.05, 0.5))
    tuned = _chosen(narrow, found)
    searched = [k.name for k in narrow.space.knobs]
    result = {"power": power.to_json(), "searched_params": searched, **_search_facts(setup, found)}
    setup.say(0.55, "holdout: present against tuned at three loads")
    moved = tuned != setup.present
    loads = ev.by_load(setup.bench, setup.present, tuned)
    setup.say(0.65, "other models, one instance less")
    models = ev.over_models(setup.bench, setup.present, tuned, members) if moved else []
    case = Case(moved, loads, models, ev.error_of(profiles, setup.goal), _broken(setup, tuned))
    word, reason = verdict(case)
    result |= {"verdict": word, "verdict_reason": reason, "model_error_pct": model_bound(case)}
    result |= _holdout_facts(setup, tuned, loads, models, members)
    if fleet.n_instances > 1:
        result["one_instance_less"] = ev.one_less(setup.bench, setup.present, tuned).to_json()
    if bands:
        result["demand_band"] = ev.demand_band(setup.bench, setup.present, tuned)
    setup.say(0.75, "rivals and random search")
    result |= _rivals(narrow, tuned, rivals, control)
    setup.say(0.9, "which knobs matter")
    window = "short" if setup.plan.short else "train"
    result["knobs"] = sensitivity(setup.bench, setup.space, tuned, window)
    result["importance"] = {name: row["importance"] for name, row in result["knobs"].items()}
    result["plateau"] = ev.plateau(setup.bench, setup.space, setup.present, tuned, list(result["changed_params"]))
    base, best = setup.bench.get(ev.holdout(setup.present)), setup.bench.get(ev.holdout(tuned))
    result["canary"] = canary_plan(base, best, fleet.n_instances, len({p.site for p in fleet.pools}))
    if len(setup.goal.objectives) > 1:
        result["pareto"] = _pareto(setup, found)
    result["recommend"] = describe(tuned if word == "gain" else setup.present)
    setup.say(1.0, f"done: {word}")
    return result


def _screened(setup: Setup) -> Setup:
    """The setup with the knobs that matter; a choice between policies keeps them all."""
    space = setup.space
    if space.conditional or len(space.groups(space.reference)) <= SEARCHED:
        return setup
    setup.say(0.02, "which knobs are worth searching")
    window = "short" if setup.plan.short else "train"
    return replace(setup, space=space.only(screen(setup.bench, space, window, SEARCHED, setup.seed)))


def _chosen(setup: Setup, found: Found) -> PolicySet:
    if not found.full:
        return setup.space.reference
    candidates = shortlist(found, setup.goal, setup.space)
    setup.say(0.5, "validation, least change")
    best = choose(setup.bench, setup.goal, setup.space, candidates)
    return least_change(setup.bench, setup.goal, setup.space, best)


def _no_power(setup: Setup, power: Power) -> dict[str, Any]:
    loads = ev.by_load(setup.bench, setup.present, setup.present)
    text = (
        f"None of {power.tries} random settings of these knobs moves the objective by more than chance does on this traffic "
        f"(the largest difference is {power.largest_pct:+.2f} %): no search can help. Try a heavier load, other classes or another policy."
    )
    usual = defaults_of(setup.space)
    against = ev.against(setup.bench, {"present": setup.present, f"{usual.name} defaults": usual}, setup.present)
    setup.say(1.0, "done: the knobs do not matter here")
    return {
        "power": power.to_json(), "trials": 0, "search_s": 0.0, "optuna_share": 0.0, "verdict": "keep_current", "verdict_reason": text,
        "model_error_pct": None, "knobs": {},
        "baselines": {name: row["goodput"] for name, row in against.items() if name != "present"}, "against": against, "recommend": describe(setup.present),
        **_holdout_facts(setup, setup.present, loads, [], 0),
    }  # fmt: skip


def _search_facts(setup: Setup, found: Found) -> dict[str, Any]:
    objective = setup.goal.objectives[0]
    return {
        "history": [{"trial": t.number, "value": t.values[0]} for t in found.full],
        "direction": "maximize" if objective.better > 0 else "minimize",
        "trials": len(found.tried), "full_trials": len(found.full), "duplicates": found.duplicates,
        "resumed_trials": found.resumed, "timed_out": found.timed_out, "search_s": found.wall_s,
        "optuna_share": found.optuna_s / max(found.wall_s, 1e-9), "sampler": setup.plan.sampler,
        "study": setup.plan.name, "storage": (setup.plan.storage or "memory").split("@")[-1],
    }  # fmt: skip


def _holdout_facts(
    setup: Setup, tuned: PolicySet, loads: Mapping[float, Difference], models: Sequence[Difference], members: int
) -> dict[str, Any]:
    now = loads[1.0]
    others = [
        (setup.bench.get(ev.holdout(setup.present, ev.HOLDOUT_SEEDS[:1], profile=m))[0], setup.bench.get(ev.holdout(tuned, ev.HOLDOUT_SEEDS[:1], profile=m))[0])
        for m in range(1, members + 1)
    ]
    runs = setup.bench.get(ev.holdout(tuned))
    base = setup.bench.get(ev.holdout(setup.present))
    shed = float(np.mean([Metric("shed").value(m) for m in runs]))
    return {
        "best_policy": describe(tuned)["policy"],
        "best_params": describe(tuned)["settings"],
        "changed_params": changed(setup.space, tuned),
        "tuned": describe(tuned),
        "present": describe(setup.present),
        "holdout": now.to_json() | {"requests": len(runs[0]), "blocks": now.blocks, "seeds": now.seeds},
        "by_load": {str(load): d.to_json() for load, d in loads.items()},
        "by_model": [d.to_json() for d in models],
        "by_class": {"present": _by_class(base), "tuned": _by_class(runs)},
        "shed_share": shed,
        "shed_share_present": float(np.mean([Metric("shed").value(m) for m in base])),
        "predicted": _features(runs),
        "predicted_present": _features(base),
        "promise": promise_of(setup.goal.objectives[0], base, runs, others, setup.observed, setup.seed),
    }


def _by_class(runs: Sequence[Any]) -> dict[str, dict[str, float]]:
    names = [n for i, n in enumerate(runs[0].classes) if np.any(runs[0].slo_class == i)]
    wanted = ("attainment", "goodput", "shed", "p50_ttft", "p95_ttft", "p95_e2e")
    return {n: {w: float(np.mean([Metric(w, n).value(m) for m in runs])) for w in wanted} for n in names}


def _features(runs: Sequence[Any]) -> dict[str, float]:
    """What check compares with the logs after the change."""
    wanted = ("attainment", "goodput", "shed", "p50_ttft", "p95_ttft")
    return {w: float(np.mean([Metric(w).value(m) for m in runs])) for w in wanted}


def _rivals(setup: Setup, tuned: PolicySet, names: Sequence[str], control: bool) -> dict[str, Any]:
    """Untuned policies, the policy's own defaults and random search on the same holdout."""
    from tfanalyze.replay.policies import load_policy

    rivals = {"present": setup.present, f"{defaults_of(setup.space).name} defaults": defaults_of(setup.space)}
    rivals |= {name: load_policy(name) for name in names}
    if control:
        plan = replace(setup.plan, sampler="random", storage=None, name="control", timeout_s=setup.plan.timeout_s)
        found = search(setup.space, setup.goal, setup.runner, plan)
        rivals["random search"] = _chosen(setup, found)
    table = ev.against(setup.bench, rivals, tuned)
    untuned = {n: row for n, row in table.items() if n not in ("present", "random search")}
    better = setup.goal.objectives[0].better
    strongest = max(untuned, key=lambda n: better * untuned[n]["baseline"], default="")
    return {
        "baselines": {name: row["goodput"] for name, row in table.items() if name != "present"},
        "against": table,
        "strongest_untuned": strongest,
        "beats_untuned": bool(strongest and untuned[strongest]["ci_low_pct"] > 0),
        "beats_random": bool(control and table["random search"]["gain_pct"] > 0) if control else None,
    }


def _broken(setup: Setup, tuned: PolicySet) -> list[str]:
    runs, base = setup.bench.get(ev.holdout(tuned)), setup.bench.get(ev.holdout(setup.present))
    return [
        f"{c.text} (is {c.value(runs, base):.3g})" for c in setup.goal.constraints if c.violation(runs, base) > 0
    ]


def _pareto(setup: Setup, found: Found) -> list[dict[str, Any]]:
    """Trials that no other beats in every objective, with their holdout values; at most eight, evenly spread."""
    signs = np.array([o.better for o in setup.goal.objectives])
    front: list[Tried] = []
    for t in found.full:
        mine = signs * np.array(t.values)
        others = (signs * np.array(o.values) for o in found.full)
        if not any(np.all(o >= mine) and np.any(o > mine) for o in others):
            front.append(t)
    front.sort(key=lambda t: t.values)
    keep = [front[i] for i in sorted(set(np.linspace(0, len(front) - 1, min(8, len(front))).astype(int).tolist()))]
    setup.bench.get([job for t in keep for job in ev.holdout(t.policy, ev.HOLDOUT_SEEDS[:1])])
    found_rows = []
    for t in keep:
        runs = setup.bench.get(ev.holdout(t.policy, ev.HOLDOUT_SEEDS[:1]))
        found_rows.append(
            {
                "params": _shown(setup.space, t.policy),
                "values": {o.text: o.value(runs) for o in setup.goal.objectives},  # on the holdout
                "train": {o.text: v for o, v in zip(setup.goal.objectives, t.values, strict=True)},
            }
        )
    return found_rows


def changed(space: Space, tuned: PolicySet) -> dict[str, dict[str, Any]]:
    """Knobs that differ from what runs now, {name: {from, to, unit}}; from is None where the present policy has no such knob."""
    now = space.values_of(space.reference)
    found: dict[str, dict[str, Any]] = {}
    for k in space.used(tuned):
        value = space.values_of(tuned)[k.name]
        if now.get(k.name) != value:
            before = k.show(now[k.name]) if k.name in now else None
            found[k.name] = {"from": before, "to": k.show(value), "unit": k.unit}
    return found


def _shown(space: Space, policy: PolicySet) -> dict[str, Value]:
    values = space.values_of(policy)
    return {k.name: k.show(values[k.name]) for k in space.used(policy)}


def describe(policy: PolicySet) -> dict[str, Any]:
    """A policy as load_policy takes it: spec and every setting."""
    found: dict[str, Any] = {}
    for part in policy.parts():
        for f in fields(part):
            if "low" in f.metadata:
                value, choices = getattr(part, f.name), f.metadata["choices"]
                found[f"{type(part).name}.{f.name}"] = choices[int(value)] if choices else value
    return {"policy": policy.name or type(policy.instance).name, "settings": found}


def _present(trace: Trace, baseline: str | PolicySet, notes: list[str]) -> PolicySet:
    from tfanalyze.replay.policies import load_policy

    if isinstance(baseline, PolicySet):
        return baseline
    seen = trace.observed is not None and bool((trace.observed.instance >= 0).any())
    if baseline == "recorded" and not seen:
        notes.append("the trace does not say which instance served a request: least_requests stands for what runs now")
        return load_policy("least_requests")
    return load_policy(baseline)


def _enough(trace: Trace, windows: Mapping[str, Window]) -> None:
    for name in ("train", "validation", "holdout"):
        low, high = np.searchsorted(trace.arrival_s, [windows[name].start_s, windows[name].end_s])
        if high - low < MIN_REQUESTS:
            raise ReplayError(
                f"the {name} window has {high - low} requests, too few to judge by", trace.name or "trace",
                f"give a trace with at least {MIN_REQUESTS} in each window",
            )  # fmt: skip


def _runner(evaluator: Evaluator, workers: int | None, ray: str | None) -> Any:
    count = workers or len(os.sched_getaffinity(0))
    if ray is None:
        return Runner(evaluator, count)
    from tfanalyze.tune.remote import RayRunner

    return RayRunner(evaluator, ray, workers)


def _identity(*parts: Any) -> str:
    """Twelve hex digits over all that makes two studies the same."""
    from tfanalyze.trace import trace_hash

    text = repr([trace_hash(p) if isinstance(p, Trace) else p for p in parts])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _finish(
    result: dict[str, Any],
    present: PolicySet,
    trace: Trace,
    profiles: Mapping[str, Profile],
    fleet: Fleet,
    policy: str,
    objective: str,
    constraints: Sequence[str],
    notes: Sequence[str],
    error: ev.ModelError,
    begin: float,
    plan: SearchPlan,
    classes: tuple[SloClass, ...],
) -> dict[str, Any]:
    from tfanalyze.models.validating import regime as fitted_regime
    from tfanalyze.replay.fleet import profile_hash
    from tfanalyze.trace import trace_hash
    from tfanalyze.tune.check import regime

    outside = fitted_regime(trace, profiles)["text"]

    goal: tuple[Objective, ...] = parse_objective(objective)
    return result | {
        "wall_s": time.monotonic() - begin, "policy": policy, "baseline": describe(present)["policy"], "objective": objective, "unit": goal[0].unit,
        "constraints": list(constraints), "seed": plan.seed, "trace_hash": trace_hash(trace), "instances": fleet.n_instances, "gateway_replicas": fleet.gateway.replicas,
        "profile_hash": profile_hash(profiles), "notes": [*trace.notes, *notes],
        "model_error": ev.error_facts(profiles), "regime": regime(trace),
        "outside_regime": [f"the traffic is outside of what the profile was fitted on: {outside}"] if outside else [],
        "classes": [c.name for c in classes],
    }  # fmt: skip
