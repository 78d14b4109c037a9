"""Every verdict, the demand that a log hides, the check after the change, and the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tune.synthetic import PRESENT, Planted
from tfanalyze.config import EngineLimits, Fleet, Pool, SloClass
from tfanalyze.errors import ConfigError, ProfileError, ReplayError
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.plan import fleet_of, plan
from tfanalyze.trace import Observed, Trace, from_columns
from tfanalyze.tune import tune
from tfanalyze.tune.compare import Difference
from tfanalyze.tune.demand import censored, reconstruct
from tfanalyze.tune.evidence import ensemble_of
from tfanalyze.tune.measure import Scenario, resized
from tfanalyze.tune.verdict import Case, canary_plan, verdict

CLASSES = (SloClass("interactive", ttft_s=0.5, tpot_s=0.1),)
PROFILE = Profile("p", StepTime(c0_s=0.005, c_prefill_s=5e-5, c_seq_s=5e-5, c_kv_s=1e-8))
FLEET = Fleet((Pool("a", count=3, engine=EngineLimits(kv_tokens=50_000)),))


def d(gain: float, low: float, high: float) -> Difference:
    return Difference(100.0, 100.0 + gain, gain, low, high, 20.0, 3)


def case(**changed: object) -> Case:
    usual: dict[str, object] = {
        "moved": True, "loads": {0.8: d(3, 1, 5), 1.0: d(5, 3, 7), 1.2: d(6, 2, 9)}, "models": [d(4, 2, 6), d(6, 3, 8)],
        "error_pct": None, "broken": [],
    }  # fmt: skip
    return Case(**(usual | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, "gain"),
        ({"moved": False}, "keep_current"),
        ({"broken": ["shed <= 0.05 (is 0.2)"]}, "keep_current"),
        ({"loads": {1.0: d(5, -1, 11)}}, "keep_current"),
        ({"loads": {1.0: d(0.3, 0.1, 0.5)}}, "keep_current"),
        ({"loads": {1.0: d(5, 3, 7), 1.2: d(-8, -12, -4)}}, "worse_under_overload"),
        ({"error_pct": 6.0}, "within_model_error"),
        ({"models": [d(20, 1, 30), d(-1, -3, 1)]}, "within_model_error"),
        ({"models": [d(9, 1, 30), d(-0.5, -3, 1)]}, "within_model_error"),
    ],
)
def test_verdicts(changed: dict[str, object], word: str) -> None:
    said, why = verdict(case(**changed))
    assert said == word
    assert why.endswith(".")


def test_a_canary_is_longer_for_a_smaller_effect() -> None:
    base = Planted(0.0, noise=0.05).measure(PRESENT, Scenario("holdout"))
    small = replace(base, attained=base.attained | (np.arange(len(base)) % 50 == 0))
    large = replace(base, attained=base.attained | (np.arange(len(base)) % 3 == 0))
    short, long = canary_plan([base], [large], 4, 1), canary_plan([base], [small], 4, 1)
    assert long["hours"] > short["hours"]
    assert canary_plan([base], [large], 4, 2)["how"] == "one site first"
    assert 0 < short["roll_back_when"]["attainment_below"] < 1


def traffic(n: int = 1500, rate: float = 6.0, seed: int = 1, **changed: object) -> Trace:
    rng = np.random.default_rng(seed)
    start = np.cumsum(rng.exponential(1 / rate, n))
    prompt = rng.integers(200, 4000, n)
    usual = {"arrival_s": start, "input_tokens": prompt, "output_tokens": rng.integers(20, 300, n), "slo_class": ["interactive"] * n}
    return from_columns(**(usual | changed))  # type: ignore[arg-type]


def seen(trace: Trace, status: np.ndarray, ttft_s: float = 0.2) -> Trace:
    n = len(trace)
    return replace(
        trace,
        instances=("a-0",),
        observed=Observed(
            np.full(n, ttft_s), np.full(n, 2.0), np.full(n, 0.0), np.full(n, -1, np.int32), np.zeros(n, np.int32), status.astype(np.int8)
        ),
    )


def test_cut_requests_are_demand() -> None:
    trace = traffic(400)
    status = np.where(np.arange(400) % 5 == 0, 4, 0)
    trace = seen(replace(trace, output_tokens=np.where(status > 0, 0, trace.output_tokens).astype(np.int32)), status)
    assert censored(trace).sum() == 80
    low, drawn, high = (reconstruct(trace, how, 1) for how in ("low", "", "high"))
    assert (low.output_tokens[status > 0] == 1).all()
    assert 1 < drawn.output_tokens[status > 0].mean() < high.output_tokens[status > 0].mean()
    assert (drawn.output_tokens[status == 0] == trace.output_tokens[status == 0]).all()
    assert "80 requests" in drawn.notes[-1]
    assert reconstruct(traffic(50)) .notes == traffic(50).notes


def test_a_bad_model_is_refused_unless_accepted() -> None:
    bad = replace(PROFILE, held_out={"ttft_s_p95": 0.6})
    with pytest.raises(ProfileError, match="held-out error 60% is above 25%"):
        tune(traffic(), FLEET, bad, CLASSES, policy="tokenpilot", baseline="round_robin", trials=2)


def test_too_little_traffic_is_refused() -> None:
    with pytest.raises(ReplayError, match="too few"):
        tune(traffic(90), FLEET, PROFILE, CLASSES, policy="tokenpilot", baseline="round_robin", trials=2)


def test_a_tuning_end_to_end_is_json_and_deterministic() -> None:
    import json

    trace = traffic(1500, 9.0)
    runs = [
        tune(trace, FLEET, PROFILE, CLASSES, policy="tokenpilot", baseline="round_robin", trials=10, workers=w, rivals=("lmetric",), control=False)
        for w in (1, 2)
    ]  # fmt: skip
    timed = {"wall_s", "search_s", "optuna_share"}
    plain = [{k: v for k, v in r.items() if k not in timed} for r in runs]
    assert json.dumps(plain[0], sort_keys=True) == json.dumps(plain[1], sort_keys=True)
    wanted = {
        "trials", "wall_s", "optuna_share", "best_params", "changed_params", "holdout", "by_load", "baselines", "shed_share", "verdict",
    }  # fmt: skip
    assert wanted <= set(runs[0])
    assert set(runs[0]["by_load"]) == {"0.8", "1.0", "1.2"}
    assert runs[0]["verdict"] in ("gain", "keep_current", "within_model_error", "worse_under_overload")


def test_other_models_differ_and_are_the_same_each_time() -> None:
    once, again = ensemble_of({"p": PROFILE}, 1), ensemble_of({"p": PROFILE}, 1)
    assert once == again
    assert once[0]["p"].step.c0_s > PROFILE.step.c0_s > once[1]["p"].step.c0_s
    assert len({m["p"].step for m in once}) == len(once)


def test_a_fleet_loses_an_instance_from_its_largest_pool() -> None:
    fleet = Fleet((Pool("a", count=3), Pool("b", count=1)))
    assert [p.count for p in resized(fleet, 1).pools] == [2, 1]
    assert resized(fleet, -2).n_instances == 6
    with pytest.raises(ReplayError):
        resized(Fleet((Pool("a", count=1),)), 1)


def regime_of(trace: Trace) -> dict[str, object]:
    from tfanalyze.tune.check import regime

    return regime(trace)


def test_plan_finds_the_fewest_instances() -> None:
    trace = traffic(800, 12.0)
    found = plan(trace, FLEET, PROFILE, CLASSES, policy="least_requests", baseline="round_robin", target=0.95)
    for one in found["cases"]:
        curve = {p["instances"]: p for p in one["curve"]}
        assert curve[one["needed"]]["attainment"] >= 0.95
        assert one["needed"] == 1 or curve[one["needed"] - 1]["attainment"] < 0.95
    saved = found["savings"][0]
    assert saved["gpus_saved"] == saved["baseline_needs"] - saved["policy_needs"]


def test_plan_says_when_no_fleet_is_enough() -> None:
    never = (SloClass("interactive", ttft_s=0.001),)
    found = plan(traffic(200), FLEET, PROFILE, never, policy="least_requests", target=0.95)
    assert all(one["needed"] == 0 and "not reached" in one["limit"] for one in found["cases"])


def test_plan_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="no profile for GPU 'b300'"):
        plan(traffic(100), FLEET, PROFILE, CLASSES, gpus=("b300",))
    with pytest.raises(ConfigError, match="no class 'batch'"):
        plan(traffic(100), FLEET, PROFILE, CLASSES, target={"batch": 0.9})
    with pytest.raises(ConfigError, match="no pool"):
        fleet_of(FLEET, 4, pool="z")
    assert fleet_of(Fleet((Pool("a", count=2), Pool("b", count=1))), 6).pools[0].count == 4
