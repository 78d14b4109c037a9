"""From many trials to one config: a power check before, a validation window after, and the least change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfanalyze.replay.policies import PolicySet
from tfanalyze.tune.compare import Bench
from tfanalyze.tune.measure import Job, Scenario
from tfanalyze.tune.space import Knob, Space
from tfanalyze.tune.study import Found, Goal, defaults_of

POWER_TRIES = 12
POWER_LEVEL = 0.995  # of each of the tries: one false alarm in about twenty checks
POWER_PCT = 0.2  # a smaller effect is not worth a change
SHORTLIST = 8
VALIDATION_SEEDS = (1, 2, 3)
TOLERANCE_SHARE = 0.05  # of the gain that may be given up for a smaller change
TOLERANCE_PCT = 0.1


class Draw:
    """Even random suggestions from a seeded generator: the space without a search."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        if log:
            return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))
        return float(self.rng.uniform(low, high))

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return choices[int(self.rng.integers(len(choices)))]


@dataclass(frozen=True, slots=True)
class Power:
    """Whether the knobs do anything on this traffic."""

    enough: bool
    largest_pct: float  # best or worst effect seen, percent of the present config
    tries: int

    def to_json(self) -> dict[str, Any]:
        return {"enough": self.enough, "largest_effect_pct": self.largest_pct, "tries": self.tries}


def power_check(bench: Bench, space: Space, present: PolicySet, seed: int) -> Power:
    """Try a dozen random settings on the train window: if none differs from the present config, no search can help."""
    rng = np.random.default_rng([seed, 7])
    tries = [defaults_of(space), *(space.suggest(Draw(rng)) for _ in range(POWER_TRIES - 1))]
    scenario = Scenario("train")
    bench.get([(present, scenario), *((policy, scenario) for policy in tries)])
    found = [bench.difference([(present, scenario)], [(policy, scenario)], POWER_LEVEL) for policy in tries]
    largest = max((d.gain_pct for d in found), key=abs)
    clear = [d for d in found if (d.ci_low_pct > 0 or d.ci_high_pct < 0) and abs(d.gain_pct) >= POWER_PCT]
    return Power(bool(clear), largest, len(tries))


def shortlist(found: Found, goal: Goal, space: Space, count: int = SHORTLIST) -> list[PolicySet]:
    """The best trials on the train window, then what runs now and the defaults; no policy twice."""
    objective = goal.objectives[0]
    ranked = sorted(found.full, key=lambda t: (-objective.better * t.values[0], t.number))
    best = list(dict.fromkeys(t.policy for t in ranked))[:count]
    return list(dict.fromkeys([*best, space.reference, defaults_of(space)]))


def validated(bench: Bench, goal: Goal, candidates: Sequence[PolicySet]) -> dict[PolicySet, float]:
    """Value of each candidate on the validation window, mean over seeds, broken constraints charged."""
    jobs = [_jobs(policy, "validation") for policy in candidates]
    bench.get([job for some in jobs for job in some])
    return {p: goal.values(bench.get(some))[0] for p, some in zip(candidates, jobs, strict=True)}


def choose(bench: Bench, goal: Goal, space: Space, candidates: Sequence[PolicySet]) -> PolicySet:
    """Of the candidates within noise of the best on the validation window, the one nearest to what runs now."""
    values = validated(bench, goal, candidates)
    better = goal.objectives[0].better
    best = max(values, key=lambda p: better * values[p])
    reference = values.get(space.reference, values[best])
    give = max(TOLERANCE_SHARE * abs(values[best] - reference), TOLERANCE_PCT / 100 * abs(values[best]))
    close = []
    for policy in candidates:
        lost = better * (values[best] - values[policy])
        if policy == best or lost <= give or (lost <= 5 * give and _same(bench, best, policy)):
            close.append(policy)
    return min(close, key=lambda p: (space.distance(p, space.reference), -better * values[p]))


def _same(bench: Bench, best: PolicySet, other: PolicySet) -> bool:
    d = bench.difference(_jobs(best, "validation"), _jobs(other, "validation"))
    return d.ci_high_pct >= 0


def _jobs(policy: PolicySet, window: str, seeds: Sequence[int] = VALIDATION_SEEDS) -> list[Job]:
    return [(policy, Scenario(window, seed=s)) for s in seeds]


def least_change(bench: Bench, goal: Goal, space: Space, policy: PolicySet) -> PolicySet:
    """Put knobs back to what runs now, one after the other, as long as nothing worth having is lost.

    Judged on train and validation together; the least missed knob goes first. Never looks at the holdout.
    """
    groups = [g for g in space.groups(policy) if _can_revert(space, policy, g)]
    if not groups:
        return policy
    better = goal.objectives[0].better

    def jobs(p: PolicySet) -> list[Job]:
        return [(p, Scenario("train")), *_jobs(p, "validation", VALIDATION_SEEDS[:1])]

    def score(p: PolicySet) -> float:
        train, *rest = bench.get(jobs(p))
        return better * (goal.values([train])[0] + goal.values(rest)[0]) / 2

    singles = [reverted(space, policy, g) for g in groups]
    bench.get([job for p in (policy, space.reference, *singles) for job in jobs(p)])
    start, kept = score(policy), score(policy)
    floor = start - max(TOLERANCE_SHARE * (start - score(space.reference)), TOLERANCE_PCT / 100 * abs(start))
    for group, _ in sorted(zip(groups, singles, strict=True), key=lambda pair: -score(pair[1])):
        trial = reverted(space, policy, group)
        kept = score(trial)
        if kept >= floor:
            policy = trial
    return policy


def reverted(space: Space, policy: PolicySet, group: Sequence[Knob]) -> PolicySet:
    """The policy with these knobs at what runs now."""
    now = space.values_of(space.reference)
    return space.moved(policy, {k.name: now[k.name] for k in group})


def _can_revert(space: Space, policy: PolicySet, group: Sequence[Knob]) -> bool:
    now, mine = space.values_of(space.reference), space.values_of(policy)
    return all(k.name in now for k in group) and any(mine[k.name] != now[k.name] for k in group)


def sensitivity(bench: Bench, space: Space, policy: PolicySet, window: str) -> dict[str, dict[str, Any]]:
    """For each knob: how much it moves the objective over its range, the others held, and whether that is told from noise.

    ``identifiable`` False means: on this traffic any value does; do not trust the one that was found.
    """
    scenario, here = Scenario(window), (policy, Scenario(window))
    sweeps = {space.group_name(g): _sweep(space, policy, g) for g in space.groups(policy)}
    bench.get([here, *((p, scenario) for points in sweeps.values() for p in points)])
    base = bench.value([here])
    found = {}
    for name, points in sweeps.items():
        values = [bench.value([(p, scenario)]) for p in points] + [base]
        worst = points[int(np.argmax([abs(v - base) for v in values[:-1]]))]
        d = bench.difference([here], [(worst, scenario)], 0.99)
        found[name] = {
            "effect_pct": (max(values) - min(values)) / max(abs(base), 1e-9) * 100.0,
            "identifiable": bool(d.ci_low_pct > 0 or d.ci_high_pct < 0),
        }
    total = sum(v["effect_pct"] for v in found.values() if v["identifiable"]) or 1.0
    for entry in found.values():
        entry["importance"] = entry["effect_pct"] / total if entry["identifiable"] else 0.0
    return found


def screen(bench: Bench, space: Space, window: str, keep: int, seed: int) -> list[str]:
    """Names of the knobs worth searching: the ``keep`` whose sweeps move the objective most.

    Swept around what runs now and around one random setting, so that a knob that matters only elsewhere is seen too.
    Searches of more than about ten knobs do not converge in a hundred trials; the others stay at what runs now.
    """
    rng = np.random.default_rng([seed, 5])
    effect: dict[str, float] = {}
    members = {space.group_name(g): [k.name for k in g] for g in space.groups(space.reference)}
    for base in (space.reference, space.suggest(Draw(rng))):
        for group in space.groups(base):
            members.setdefault(space.group_name(group), [k.name for k in group])
        for name, row in sensitivity(bench, space, base, window).items():
            effect[name] = max(effect.get(name, 0.0), row["effect_pct"])
    ranked = sorted(effect, key=lambda name: -effect[name])
    kept = [name for name in ranked if effect[name] > 0.0][:keep] or ranked[:1]
    return [knob for name in kept for knob in members[name]]


def _sweep(space: Space, policy: PolicySet, group: Sequence[Knob]) -> list[PolicySet]:
    """Points over the range of a knob; of a simplex, a fifth of all moved to each share in turn."""
    if group[0].simplex:
        now = space.values_of(policy)
        total = sum(now[k.name] for k in group)
        points = []
        for k in group:
            moved = {m.name: now[m.name] * 0.8 + (0.2 * total if m is k else 0.0) for m in group}
            points.append(space.moved(policy, {m.name: m.canonical(v) for m, v in zip(group, moved.values(), strict=True)}))
        return points
    knob = group[0]
    if knob.choices:
        values = [float(i) for i in range(int(knob.low), int(knob.high) + 1)]
    elif knob.log:
        values = [float(v) for v in np.geomspace(knob.low, knob.high, 5)]
    else:
        values = [float(v) for v in np.linspace(knob.low, knob.high, 5)]
    return [space.moved(policy, {knob.name: knob.canonical(v)}) for v in values]


def neighbours(space: Space, policy: PolicySet, names: Sequence[str]) -> dict[str, PolicySet]:
    """The policy with one of these knobs 10 % lower or higher (of its value; of its range where that is 0)."""
    now = space.values_of(policy)
    found = {}
    for k in space.used(policy):
        if k.name not in names or k.choices:
            continue
        step = abs(now[k.name]) * 0.1 or (k.high - k.low) * 0.1
        for sign, word in ((-1, "-10%"), (1, "+10%")):
            value = k.canonical(now[k.name] + sign * max(step, 1.0 if k.integer else 0.0))
            if value != now[k.name]:
                found[f"{k.name} {word}"] = space.moved(policy, {k.name: value})
    return found
