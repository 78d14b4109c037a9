"""A tuning must find what is there and must not find what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tune.synthetic import PRESENT, Planted, toy_space
from tfanalyze.config import Fleet, Pool
from tfanalyze.tune.compare import Bench
from tfanalyze.tune.measure import Runner, Scenario
from tfanalyze.tune.objective import parse_objective
from tfanalyze.tune.run import Setup, tune_with
from tfanalyze.tune.select import Power, power_check
from tfanalyze.tune.study import Goal, SearchPlan, search


def tuned(evaluator: Planted, trials: int = 25, seed: int = 1, sampler: str = "tpe", **options: Any) -> dict[str, Any]:
    goals = parse_objective("goodput")
    with Runner(evaluator, 1) as runner:
        bench = Bench(runner, goals[0], seed=seed)
        base = bench.get([(PRESENT, Scenario("train"))])
        goal = Goal(goals, present=tuple(base), penalty=goals[0].value(base))
        setup = Setup(toy_space(), PRESENT, goal, bench, runner, SearchPlan(trials, sampler, seed), seed, None)
        return tune_with(setup, profiles={}, members=2, fleet=Fleet((Pool("p", count=4),)), **options)


def test_a_planted_optimum_is_found() -> None:
    result = tuned(Planted(0.35, noise=0.02), trials=40, control=False)
    assert result["verdict"] == "gain"
    assert abs(result["best_params"]["toy.a"] - 0.7) < 0.15
    assert abs(result["best_params"]["toy.b"] - 0.3) < 0.15
    assert result["holdout"]["ci_low_pct"] > 10
    assert result["recommend"]["settings"]["toy.a"] == result["best_params"]["toy.a"]


def test_a_knob_without_effect_stays_where_it_is() -> None:
    result = tuned(Planted(0.35), trials=40, control=False)
    assert "toy.idle" not in result["changed_params"]
    assert not result["knobs"]["toy.idle"]["identifiable"]
    assert result["knobs"]["toy.a"]["identifiable"]
    assert result["knobs"]["toy.a"]["importance"] > result["knobs"]["toy.idle"]["importance"]


@pytest.mark.parametrize("forced", [False, True])
def test_no_effect_means_no_gain_in_95_of_100(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole pipeline, with luck that differs by policy and lasts in time; ``forced``: even past the power check."""
    if forced:
        monkeypatch.setattr("tfanalyze.tune.run.power_check", lambda *_: Power(True, 0.0, 0))
    gains = searched = 0
    for seed in range(100):
        evaluator = Planted(0.0, noise=0.15, luck=seed)
        result = tuned(evaluator, trials=12, seed=seed + 1, control=False)
        gains += result["verdict"] == "gain"
        searched += result["trials"] > 0
    assert searched == 100 or not forced
    assert gains <= 5, f"{gains} of 100 no-effect spaces were called a gain"


def test_the_interval_covers() -> None:
    """With no effect at all, the 95 % interval of the paired difference holds zero about as often as it says."""
    missed = 0
    other = toy_space().moved(PRESENT, {"toy.idle": 0.9})
    for luck in range(200):
        with Runner(Planted(0.0, noise=0.15, luck=luck), 1) as runner:
            bench = Bench(runner, parse_objective("goodput")[0])
            d = bench.difference([(PRESENT, Scenario("holdout"))], [(other, Scenario("holdout"))])
            missed += not d.ci_low_pct <= 0 <= d.ci_high_pct
    assert missed <= 24, f"{missed} of 200 intervals miss the truth"


def test_power_check_says_when_nothing_matters() -> None:
    with Runner(Planted(0.0), 1) as runner:
        bench = Bench(runner, parse_objective("goodput")[0])
        assert not power_check(bench, toy_space(), PRESENT, 1).enough
    result = tuned(Planted(0.0))
    assert (result["verdict"], result["trials"]) == ("keep_current", 0)
    assert "no search can help" in result["verdict_reason"]


def test_present_config_and_defaults_come_first_and_duplicates_are_not_run() -> None:
    evaluator = Planted(0.3)
    space = toy_space(toy_space().moved(PRESENT, {"toy.a": 0.4}))
    goal = Goal(parse_objective("goodput"))
    with Runner(evaluator, 2) as runner:
        found = search(space, goal, runner, SearchPlan(20))
    assert found.tried[0].policy == space.reference
    assert found.tried[1].policy == PRESENT
    assert len(found.tried) == 20
    assert evaluator.calls == 20 - found.duplicates


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
def test_the_number_of_workers_changes_nothing(sampler: str) -> None:
    if sampler == "cmaes":
        pytest.importorskip("cmaes", reason="the CMA-ES sampler needs package cmaes")
    goal = Goal(parse_objective("goodput"))
    runs = []
    for workers in (1, 3):
        with Runner(Planted(0.3, noise=0.05, sleep_s=0.001), workers) as runner:
            found = search(toy_space(), goal, runner, SearchPlan(30, sampler))
        runs.append([(t.number, t.policy, t.values) for t in found.tried])
    assert runs[0] == runs[1]


def test_of_many_trials_the_best_and_the_latest_are_modelled() -> None:
    import optuna

    from tfanalyze.tune.sampler import HISTORY, _PastStudy

    study = optuna.create_study(direction="maximize")
    values = np.random.default_rng(1).permutation(300).astype(float)
    for value in values:
        trial = study.ask()
        study.tell(trial, value)
    past = _PastStudy(study, 249, HISTORY).trials
    assert len(past) == HISTORY and [t.number for t in past] == sorted({t.number for t in past})
    assert max(t.number for t in past) == 249
    best = sorted(range(200), key=lambda k: -values[k])[: HISTORY // 2]
    assert {t.number for t in past} == {*best, *range(200, 250)}
    assert len(_PastStudy(study, 80, HISTORY).trials) == 81


def test_a_short_look_ends_bad_trials() -> None:
    goal = Goal(parse_objective("goodput"))
    with Runner(Planted(0.35), 1) as runner:
        found = search(toy_space(), goal, runner, SearchPlan(60, "random", short=True))
    assert 10 < len(found.full) < 50
    best = max(found.full, key=lambda t: t.values[0])
    assert abs(best.policy.instance.a - 0.7) < 0.3


def test_two_objectives_give_a_front() -> None:
    goals = parse_objective("goodput, p95_ttft")
    goal = Goal(goals)
    with Runner(Planted(0.3), 1) as runner:
        found = search(toy_space(), goal, runner, SearchPlan(20))
    assert all(len(t.values) == 2 for t in found.full)


def test_timeout_ends_the_search() -> None:
    goal = Goal(parse_objective("goodput"))
    with Runner(Planted(0.3, sleep_s=0.05), 1) as runner:
        found = search(toy_space(), goal, runner, SearchPlan(500, timeout_s=0.5))
    assert found.timed_out
    assert 0 < len(found.tried) < 500
