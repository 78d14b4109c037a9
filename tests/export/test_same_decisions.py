"""What is exported and read back replays to the identical outcome: every gateway's policy, through the real loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.test_export import MULTI_SITE, OWN, fleet_of, run, said
from tfanalyze.config import DEFAULT_CLASSES
from tfanalyze.export import from_gateway
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay import Simulator
from tfanalyze.replay.policies import load_policy
from tfanalyze.synth import synth
from tfanalyze.trace import Trace

STEP = StepTime(c0_s=0.006, c_prefill_s=9e-5, c_attn_s=2e-9, c_seq_s=1e-4, c_kv_s=2e-8)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synth(seconds=60, rate=8, seed=3, sites=1)


@pytest.mark.parametrize("target", OWN)
def test_the_policy_read_back_decides_the_same(target: str, trace: Trace, tmp_path: Path) -> None:
    policy = load_policy(OWN[target])
    again = from_gateway(tmp_path / run(target, policy, tmp_path)["files"][0], target)[1]
    assert again == said(target, policy)
    simulator = Simulator(trace, fleet_of(target), Profile("test", STEP), DEFAULT_CLASSES)
    one, two = simulator.run(policy), simulator.run(again)
    assert one.outcome_hash == two.outcome_hash
    assert (one.status == 0).sum() > 0.5 * len(trace)
    used = set(one.instance[one.instance >= 0])
    assert len(used) > 1, f"{target} used {used} of {fleet_of(target).n_instances}"
    assert target in MULTI_SITE or fleet_of(target).n_instances == 3
