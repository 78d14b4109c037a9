"""fit and validate on logs of a known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.models import truth
from tfanalyze.config import DEFAULT_CLASSES, Fleet, Pool
from tfanalyze.errors import ProfileError, WorkspaceError
from tfanalyze.models import fit, validate
from tfanalyze.models.calibrate import Replayer, calibrate, observed, simulated
from tfanalyze.replay import replay
from tfanalyze.trace import load_trace
from tfanalyze.workspace import Workspace


@pytest.fixture(scope="module")
def log() -> Workspace:
    return truth.made()


def test_the_truth_is_recovered_within_its_intervals(log: Workspace) -> None:
    profile = fit(log, fleet=truth.fleet(), draws=60).profiles["pool"]
    assert profile.step.c0_s == pytest.approx(truth.TRUE.c0_s, rel=0.15)
    assert profile.step.c_prefill_s == pytest.approx(truth.TRUE.c_prefill_s, rel=0.2)
    inside = [
        profile.low[name] * 0.95 <= getattr(truth.TRUE, name) <= profile.high[name] * 1.05
        for name in ("c0_s", "c_prefill_s", "c_seq_s", "c_kv_s")
        if name in profile.low
    ]
    assert sum(inside) >= 3
    assert abs(profile.held_out["ttft_s_p50"]) < 0.05
    assert abs(profile.held_out["e2e_s_p95"]) < 0.05


def test_a_fit_predicts_a_load_that_it_never_saw(log: Workspace) -> None:
    result = fit(log, fleet=truth.fleet(), draws=10)
    busy = truth.made(rate=4.5, seed=9)
    got = validate(busy, result.profiles, fleet=truth.fleet(), max_error=0.15)
    assert got["held_out"]
    assert got["ok"], got["errors"]
    assert set(got["errors"]) >= {"ttft_s", "tpot_s", "e2e_s", "output_tok_s", "goodput_tok_s", "prefix_hit_share"}
    assert set(got["observed"]["ttft_s"]) == {"p50", "p95", "p99"}


def test_the_true_profile_has_no_error_on_a_noiseless_log() -> None:
    clean = truth.made(n=200, noise=0.0)
    got = validate(clean, truth.PROFILE, fleet=truth.fleet())
    assert got["worst_error"]["value"] < 1e-3


def test_a_wrong_profile_fails_the_gate(log: Workspace) -> None:
    got = validate(log, truth.slower(truth.PROFILE, 1.5), fleet=truth.fleet(), max_error=0.1)
    assert not got["ok"]
    assert got["errors"]["tpot_s"]["p50"] > 0.3


def test_calibration_undoes_a_wrong_start_and_repeats_exactly(log: Workspace) -> None:
    trace = load_trace(log, classes=DEFAULT_CLASSES)
    wrong = {"pool": truth.slower(truth.PROFILE, 1.4)}
    runs = []
    for _ in range(2):
        replayer = Replayer(trace, truth.fleet(), wrong, DEFAULT_CLASSES)
        runs.append(calibrate(replayer, wrong, observed(trace), np.arange(len(trace)), draws=5))
    assert runs[0].loss_after < 0.2 * runs[0].loss_before
    assert runs[0].profiles == runs[1].profiles
    assert (runs[0].draws == runs[1].draws).all()
    tpot = simulated(trace, Replayer(trace, truth.fleet(), wrong, DEFAULT_CLASSES)(runs[0].profiles)).tpot_s
    assert np.nanmedian(tpot) == pytest.approx(np.nanmedian(observed(trace).tpot_s), rel=0.03)


def test_a_fit_without_a_fleet_says_what_it_assumed(log: Workspace) -> None:
    result = fit(log, calibrate=False, draws=5)
    text = " ".join(result.report["assumed"])
    assert "kv_tokens" in text
    assert "max_num_seqs" in text
    assert result.fleet.n_instances == 1


def test_instances_of_an_inferred_fleet_are_those_of_the_log() -> None:
    two = truth.made(n=200, rate=6.0, instances=2)
    result = fit(two, draws=5)
    assert result.fleet.n_instances == 2
    assert list(result.profiles) == ["pool"]


def test_a_profile_outside_its_regime_is_not_trusted(log: Workspace) -> None:
    result = fit(log, fleet=truth.fleet(), draws=5, calibrate=False)
    narrow = replace(result.profiles["pool"], trusted={"input_tokens": (10.0, 200.0)})
    got = validate(log, narrow, fleet=truth.fleet())
    assert not got["trusted_regime"]
    assert "input_tokens" in got["regime"]["text"]


def test_too_little_to_fit_is_said_in_one_line() -> None:
    with pytest.raises(WorkspaceError, match="no requests"):
        fit(Workspace.open(":memory:"))
    with pytest.raises(ProfileError, match="needs 20"):
        fit(truth.made(n=10))
    with pytest.raises(WorkspaceError, match="time to first token"):
        fit(truth.made(n=30, timed=False))


def test_limits_that_nobody_told_are_read_off_a_crowded_log() -> None:
    """64 seats, far more load: the log alone says so; a profile hands them on to validate."""
    crowded = truth.made(n=900, rate=30.0, seed=4)
    result = fit(crowded, draws=5)
    assert result.fleet.pools[0].engine.max_num_seqs == truth.LIMITS.max_num_seqs
    again = validate(truth.made(n=300, rate=20.0, seed=5), result.profiles)
    assert again["worst_error"]["value"] < 0.15
    assert result.profiles["pool"].facts["engine"]["max_num_seqs"] == 64


def test_memory_as_the_limit_is_read_off_too() -> None:
    small = Fleet((Pool("pool", engine=replace(truth.LIMITS, kv_tokens=40_000)),))
    what = truth.trace(n=500, rate=30.0, seed=6)
    outcome = replay(what, small, "recorded", truth.PROFILE, classes=DEFAULT_CLASSES)
    workspace = Workspace.open(":memory:")
    truth.write(workspace, what, outcome)
    engine = fit(workspace, draws=5).fleet.pools[0].engine
    assert engine.kv_tokens == pytest.approx(40_000, rel=0.08)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """90 % intervals over five logs; 25 coefficients, so a few misses are luck and most of them would be a fault."""
    inside = total = 0
    for seed in range(20, 25):
        profile = fit(truth.made(n=400, rate=2.0 + seed % 3, seed=seed, noise=0.03), fleet=truth.fleet(), draws=50).profiles["pool"]
        for name in ("c0_s", "c_prefill_s", "c_seq_s", "c_kv_s"):
            if name in profile.low and getattr(profile.step, name) > 0:
                inside += profile.low[name] <= getattr(truth.TRUE, name) <= profile.high[name]
                total += 1
    assert total >= 12
    assert inside / total >= 0.75


def test_few_requests_stay_near_the_prior_and_many_leave_it() -> None:
    believed = truth.slower(truth.PROFILE, 2.0)
    few = fit(truth.made(n=15, rate=0.5, seed=3), fleet=truth.fleet(), prior=believed, calibrate=False, draws=5)
    many = fit(truth.made(n=400, rate=3.0, seed=3), fleet=truth.fleet(), prior=believed, calibrate=False, draws=5)
    distance = [abs(r.profiles["pool"].step.c_kv_s / truth.TRUE.c_kv_s - 1) for r in (few, many)]
    assert distance[1] < 0.3
    assert distance[1] < distance[0]
    assert few.profiles["pool"].facts["prior"] == "pool"
    assert fit(truth.made(n=15), prior="h100-llama3.1-8b", calibrate=False, draws=5).profiles["pool"].step.c0_s > 0


def test_metrics_on_another_clock_give_no_capacity_by_time() -> None:
    """A log in seconds since its start, metrics in unix time, memory full: levels are compared, nothing is divided by nothing."""
    from tfanalyze.models.kv import capacity_from_use
    from tfanalyze.models.observe import observe

    workspace = truth.made(n=300, rate=8.0)
    log = observe(workspace).log
    rows = ", ".join(f"({1_900_000_000_000_000 + i * 1_000_000}, 'pool', 'kv_usage', {0.6 + 0.001 * (i % 300)})" for i in range(600))
    workspace.con.execute(f"INSERT INTO metrics(ts_us, instance, name, value) VALUES {rows}")
    found = capacity_from_use(workspace, log, 0, 0)
    assert found is not None
    assert found["by"] == "level"
    assert found["kv_tokens"] > 1_000


def test_more_seats_than_the_profile_knows_are_seen_in_the_log(log: Workspace) -> None:
    from tfanalyze.config import EngineLimits
    from tfanalyze.models.observe import observe

    seen = observe(log, known=EngineLimits(max_num_seqs=2))
    assert seen.limits.max_num_seqs > 2
    assert any("decoded at once" in text for text in seen.assumed)
