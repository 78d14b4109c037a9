"""The compiled loop against the plain step-by-step oracle: every time, hit and preemption, to 1e-9 relative."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings

from tests.reference.world import simulate
from tests.strategies import Case, cases
from tfanalyze.replay import Simulator

# 2,000 cases in CI all in all; TFANALYZE_CASES=100000 for a long night
SHARE = int(os.environ.get("TFANALYZE_CASES", "2000"))
TIMES = ("arrival_s", "admit_s", "start_s", "first_token_s", "finish_s")
COUNTS = ("status", "reason", "attempts", "instance", "hit_tokens", "delivered_tokens", "preemptions")


def cases_share(share: float) -> Any:
    """Settings for a share of all cases."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=max(1, int(SHARE * share)), deadline=None, suppress_health_check=quiet)


def assert_same(case: Case) -> None:
    outcome = Simulator(case.trace, case.fleet, case.profiles, case.classes, case.options).run(case.policies(), case.seed)
    with np.errstate(over="ignore"):
        plain = simulate(
            case.trace, case.fleet, case.policies(), case.profiles, classes=case.classes, seed=case.seed, options=case.options
        )
    for name in COUNTS:
        assert getattr(outcome, name).tolist() == plain[name].tolist(), name
    for name in TIMES:
        np.testing.assert_allclose(getattr(outcome, name), plain[name], rtol=1e-9, atol=1e-9, err_msg=name)
    assert outcome.waste_tokens == {k: v for k, v in plain["waste_tokens"].items() if v > 0}
    np.testing.assert_allclose(outcome.instance_busy_s, plain["instance_busy_s"], rtol=1e-9, atol=1e-9)


@cases_share(0.2)
@given(cases(schedulers=("vllm",), events=False, split=False, instance=("round_robin", "least_requests"), site=("any_site",), admit=("admit_all",)))
def test_vllm_engine(case: Case) -> None:
    assert_same(case)


@cases_share(0.1)
@given(cases(schedulers=("sglang",), events=False, split=False, instance=("round_robin",), site=("any_site",), admit=("admit_all",)))
def test_sglang_engine(case: Case) -> None:
    assert_same(case)


@cases_share(0.1)
@given(cases(schedulers=("llamacpp",), events=False, split=False, instance=("round_robin",), site=("any_site",), admit=("admit_all",)))
def test_llamacpp_engine(case: Case) -> None:
    assert_same(case)


@cases_share(0.1)
@given(cases(schedulers=("vllm",), events=False, host=False, split=True, site=("any_site",), admit=("admit_all",)))
def test_prefill_decode_split(case: Case) -> None:
    assert_same(case)


@cases_share(0.1)
@given(cases(schedulers=("vllm",), host=False, split=False, events=False))
def test_policies_see_the_same(case: Case) -> None:
    assert_same(case)


@cases_share(0.4)
@given(cases())
def test_everything_mixed(case: Case) -> None:
    assert_same(case)
