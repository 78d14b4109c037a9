"""The holdout and everything around it: loads, model ensemble, a lost instance, rivals, plateau."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfanalyze.models.profile import Profile
from tfanalyze.replay.policies import PolicySet
from tfanalyze.tune.compare import Bench, Difference
from tfanalyze.tune.measure import Job, Scenario
from tfanalyze.tune.objective import Metric
from tfanalyze.tune.select import neighbours
from tfanalyze.tune.space import Space
from tfanalyze.tune.study import Goal

LOADS = (0.8, 1.0, 1.2)
HOLDOUT_SEEDS = (11, 12, 13)
MEMBERS = 4
DEFAULT_ERROR = 0.15  # of step times, where nothing is known: about what peers reach on a GPU they never saw
UNTUNED = ("round_robin", "least_requests", "power_of_two", "prefix_affinity", "bounded_affinity", "session_affinity", "lmetric")


def holdout(policy: PolicySet, seeds: Sequence[int] = HOLDOUT_SEEDS, **where: Any) -> list[Job]:
    """The jobs that measure a policy on the holdout."""
    return [(policy, Scenario("holdout", seed=s, **where)) for s in seeds]


def by_load(bench: Bench, present: PolicySet, tuned: PolicySet, loads: Sequence[float] = LOADS) -> dict[float, Difference]:
    """The paired difference at several loads; whole sessions are added or dropped."""
    bench.get([job for load in loads for p in (present, tuned) for job in holdout(p, load=load)])
    return {load: bench.difference(holdout(present, load=load), holdout(tuned, load=load)) for load in loads}


def against(bench: Bench, rivals: Mapping[str, PolicySet], tuned: PolicySet) -> dict[str, dict[str, Any]]:
    """The tuned policy against each rival on the holdout; ``goodput`` is the rival's."""
    bench.get([job for p in (*rivals.values(), tuned) for job in holdout(p)])
    found = {}
    for name, rival in rivals.items():
        d = bench.difference(holdout(rival), holdout(tuned))
        runs = bench.get(holdout(rival))
        found[name] = d.to_json() | {
            "goodput": float(np.mean([Metric("goodput").value(run) for run in runs])),
            "attainment": float(np.mean([Metric("attainment").value(run) for run in runs])),
            "shed_share": float(np.mean([Metric("shed").value(run) for run in runs])),
        }
    return found


def over_models(bench: Bench, present: PolicySet, tuned: PolicySet, members: int) -> list[Difference]:
    """The difference under each member of the profile ensemble."""
    seeds = HOLDOUT_SEEDS[:1]
    numbers = range(1, members + 1)
    bench.get([job for m in numbers for p in (present, tuned) for job in holdout(p, seeds, profile=m)])
    return [
        bench.difference(holdout(present, seeds, profile=m), holdout(tuned, seeds, profile=m)) for m in numbers
    ]


def one_less(bench: Bench, present: PolicySet, tuned: PolicySet) -> Difference:
    """The difference on a fleet that has lost one instance."""
    return bench.difference(holdout(present, less=1), holdout(tuned, less=1))


def demand_band(bench: Bench, present: PolicySet, tuned: PolicySet) -> dict[str, dict[str, Any]]:
    """The difference if the requests the log cut were as short as it says, or long."""
    return {
        how: bench.difference(holdout(present, demand=how), holdout(tuned, demand=how)).to_json()
        for how in ("low", "high")
    }


def plateau(bench: Bench, space: Space, present: PolicySet, tuned: PolicySet, changed: Sequence[str]) -> dict[str, Any]:
    """Whether the gain stands on a plateau: the share of it kept when one changed knob is 10 % off."""
    seeds = HOLDOUT_SEEDS[:1]
    near = neighbours(space, tuned, changed)
    bench.get([job for p in (present, tuned, *near.values()) for job in holdout(p, seeds)])
    full = bench.difference(holdout(present, seeds), holdout(tuned, seeds)).gain_pct
    gains = {name: bench.difference(holdout(present, seeds), holdout(p, seeds)).gain_pct for name, p in near.items()}
    worst = min(gains, key=lambda name: gains[name], default="")
    kept = gains[worst] / full if worst and full > 0 else float(full > 0)
    return {"kept_share": kept, "worst": worst, "holds": bool(kept >= 0.5), "gains_pct": gains}


@dataclass(frozen=True, slots=True)
class ModelError:
    """What is known of the model's error: as a share, and by which figure."""

    share: float | None
    by: str

    @property
    def known(self) -> bool:
        return self.share is not None


GATED = ("ttft_s_p95", "e2e_s_p95", "tpot_s_p95", "goodput_tok_s")


def worst_error(profiles: Mapping[str, Profile]) -> ModelError:
    """The largest held-out error of the figures that the gate looks at, over all profiles."""
    found = {
        f"{name} of profile {profile.name}": abs(profile.held_out[name])
        for profile in profiles.values()
        for name in GATED
        if name in profile.held_out and np.isfinite(profile.held_out[name])
    }
    if not found:
        return ModelError(None, "never validated")
    worst = max(found, key=lambda name: found[name])
    return ModelError(found[worst], worst)


def error_facts(profiles: Mapping[str, Profile]) -> dict[str, Any]:
    """What is known of the model's error, as a study keeps it: the worst gated figure, and P95 TTFT's where it was measured.

    ``value`` is what an export goes by where P95 TTFT was not measured.
    """
    worst = worst_error(profiles)
    known = [abs(p.held_out["ttft_s_p95"]) for p in profiles.values() if "ttft_s_p95" in p.held_out]
    found: dict[str, Any] = {"held_out": worst.share, "by": worst.by, "value": worst.share}
    return found | ({"ttft_s_p95": max(known)} if known else {})


def error_of(profiles: Mapping[str, Profile], goal: Goal) -> float | None:
    """Held-out error of the objective's own figure in percent, None where it was never measured."""
    metric = goal.objectives[0].terms[0][1]
    figure = {"goodput": "goodput_tok_s", "output": "output_tok_s", "attainment": "attainment"}.get(metric.name, "")
    if metric.name.startswith("p") and "_" in metric.name:
        quantile, what = metric.name.split("_")
        figure = f"{what}_s_{quantile}"
    known = [abs(p.held_out[figure]) for p in profiles.values() if figure in p.held_out]
    return 100.0 * max(known) if known else None


def ensemble_of(
    profiles: Mapping[str, Profile], seed: int, members: int = MEMBERS
) -> tuple[dict[str, Profile], ...]:
    """Other models that the data allow: all steps slower, all faster, and draws of each coefficient.

    The shift is the profile's largest known held-out error, 15 % where none is known; a draw of a coefficient has
    the spread of its 90 % interval.
    """
    rng = np.random.default_rng([seed, 3])
    made = []
    for m in range(members):
        one = {}
        for key, profile in profiles.items():
            known = [abs(e) for e in profile.held_out.values() if np.isfinite(e)]
            error = float(np.clip(max(known), 0.02, 0.3)) if known else DEFAULT_ERROR
            shift = (error, -error)[m] if m < 2 else 0.0
            one[key] = replace(profile, step=_perturbed(profile, shift, error if m >= 2 else 0.0, rng))
        made.append(one)
    return tuple(made)


def _perturbed(profile: Profile, shift: float, spread: float, rng: np.random.Generator) -> Any:
    """Step coefficients times (1 + shift), and each drawn with its own spread where ``spread`` > 0."""
    changed: dict[str, Any] = {}
    for name in profile.step.__slots__:
        value = getattr(profile.step, name)
        if not name.startswith("c") or not isinstance(value, float) or value == 0.0:
            continue
        factor = 1.0 + shift
        if spread > 0:
            sd = spread
            if name in profile.low and name in profile.high and value > 0:
                sd = (profile.high[name] - profile.low[name]) / (2 * 1.645 * value)
            factor = float(np.clip(1.0 + sd * rng.standard_normal(), 0.3, 3.0))
        changed[name] = value * factor
    return replace(profile.step, **changed)
