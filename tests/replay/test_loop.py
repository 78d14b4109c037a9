"""Laws of the compiled loop: conservation, causality, determinism, ceilings, faults that users can cause."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.strategies import Case, cases
from tfanalyze.config import EngineLimits, Fleet, FleetEvent, Gateway, Pool, SloClass
from tfanalyze.errors import PolicyError, ReplayError
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay import Options, Simulator, replay
from tfanalyze.replay.policies import load_policy
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, REJECTED, SHED
from tfanalyze.trace import Trace, from_columns

PROFILE = Profile("test", StepTime(c0_s=0.005, c_prefill_s=5e-5, c_attn_s=1e-9, c_seq_s=5e-5, c_kv_s=2.5e-8))
CLASSES = (SloClass("interactive", ttft_s=1.0, tpot_s=0.1),)
FLEET = Fleet((Pool("p", count=4),))
QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def sample(n: int = 300, rate: float = 20.0, seed: int = 3) -> Trace:
    draw = np.random.default_rng(seed)
    blocks = [[s * 1000 + j for j in range(8 + row // 30)] for row, s in enumerate(draw.integers(0, 30, n))]
    return from_columns(
        arrival_s=np.cumsum(draw.exponential(1 / rate, n)), input_tokens=[len(b) * 64 + 20 for b in blocks],
        output_tokens=draw.integers(1, 200, n), blocks=blocks, block_size=64,
    )  # fmt: skip


def simulate(case: Case) -> tuple[Simulator, object]:
    simulator = Simulator(case.trace, case.fleet, case.profiles, case.classes, case.options)
    return simulator, simulator.run(case.policies(), case.seed)


@QUICK
@given(cases())
def test_every_request_ends_once_in_order_with_memory_checked(case: Case) -> None:
    out = simulate(case)[1]  # debug is on: memory is counted from scratch at every planning
    assert (out.status >= 0).all()
    ok = out.status == 0
    times = [getattr(out, name)[ok] for name in ("arrival_s", "admit_s", "start_s", "first_token_s", "finish_s")]
    for early, late in zip(times, times[1:], strict=False):
        assert (early <= late + 1e-9).all()
    assert (out.delivered_tokens[ok] == np.maximum(case.trace.output_tokens, 1)[ok]).all()
    assert (out.delivered_tokens[~ok] == 0).all()
    assert (out.hit_tokens < np.maximum(case.trace.input_tokens, 1)).all()


@QUICK
@given(cases(events=False, host=False, split=False, options=False))
def test_no_decision_knows_what_comes_later(case: Case) -> None:
    """Cut the future off: what was decided and what had ended before the cut stays the same."""
    half = len(case.trace) // 2
    if half == 0 or len({c for c in case.trace.prev[half:] if 0 <= c < half}):
        return
    from tfanalyze.traceops import take

    cut_s = float(case.trace.arrival_s[half])
    rows = np.flatnonzero(case.trace.arrival_s < cut_s)
    if len(rows) == 0:
        return
    short = replace(case, trace=take(case.trace, rows))
    whole, first = simulate(case)[1], simulate(short)[1]
    early = whole.admit_s[rows] < cut_s - 1e-6
    assert (whole.instance[rows][early] == first.instance[early]).all()
    ended = whole.finish_s[rows] < cut_s - 1e-6
    np.testing.assert_allclose(whole.finish_s[rows][ended], first.finish_s[ended], rtol=1e-12)


@QUICK
@given(cases(instance=("round_robin", "least_requests"), admit=("admit_all",), site=("any_site",), options=False, events=False, split=False))
def test_output_lengths_are_not_visible_before_anything_has_finished(case: Case) -> None:
    """Longer answers change no decision that was made before the first answer of the shorter run had ended."""
    longer = replace(case.trace, output_tokens=case.trace.output_tokens + 1)
    a = simulate(case)[1]
    b = simulate(replace(case, trace=longer))[1]
    first_end = np.nanmin(np.where(np.isnan(a.first_token_s), np.inf, a.first_token_s))
    early = (a.admit_s < first_end - 1e-6) & (a.attempts == 1) & (b.attempts == 1)
    assert (a.instance[early] == b.instance[early]).all()


def test_time_scales_with_the_step_times() -> None:
    """Twice as slow an engine under half the rate: every time doubles."""
    trace = sample()
    slow = Profile("slow", StepTime(**{f: 2 * getattr(PROFILE.step, f) for f in ("c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s")}))
    a = replay(trace, FLEET, "least_requests", PROFILE, classes=CLASSES)
    b = replay(replace(trace, arrival_s=2 * trace.arrival_s), FLEET, "least_requests", slow, classes=CLASSES)
    np.testing.assert_allclose(b.finish_s, 2 * a.finish_s, rtol=1e-9)
    assert (a.instance == b.instance).all()


def test_threads_change_nothing() -> None:
    simulator = Simulator(sample(), FLEET, PROFILE, CLASSES)
    alone = [simulator.run("tokenpilot", seed).outcome_hash for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: simulator.run("tokenpilot", seed).outcome_hash, range(8)))
    assert alone == together
    assert len(simulator._idle) >= 1


def test_the_same_code_without_the_compiler_gives_the_same_bytes() -> None:
    program = (
        "from tests.replay.test_loop import *\n"
        "print(replay(sample(40), FLEET, 'least_requests', PROFILE, classes=CLASSES, options=Options(debug=True)).outcome_hash)"
    )
    hashes = []
    for off in ("0", "1"):
        env = os.environ | {"NUMBA_DISABLE_JIT": off, "PYTHONPATH": os.getcwd()}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
        hashes.append(done.stdout.strip())
    assert hashes[0] == hashes[1]


def test_pools_that_are_too_small_grow_and_change_nothing() -> None:
    simulator = Simulator(sample(), FLEET, PROFILE, CLASSES)
    want = simulator.run("prefix_affinity").outcome_hash
    small = Simulator(sample(), FLEET, PROFILE, CLASSES)
    small.sizes.flights, small.sizes.entries, small.sizes.timers = 3, 4, 2
    assert small.run("prefix_affinity").outcome_hash == want


def test_ceilings_are_ceilings() -> None:
    trace, fleet = sample(rate=40.0), Fleet((Pool("p", count=4, engine=EngineLimits(kv_tokens=30_000)),), gateway=Gateway(report_interval_s=1.0))
    plain = replay(trace, fleet, "prefix_affinity", PROFILE, classes=CLASSES)
    endless = replay(trace, fleet, "prefix_affinity", PROFILE, classes=CLASSES, options=Options(infinite_cache=True))
    assert endless.hit_tokens.sum() >= plain.hit_tokens.sum()
    assert endless.options["infinite_cache"] is True


def test_requests_that_never_fit_are_named_and_the_run_goes_on() -> None:
    trace = from_columns(arrival_s=[0.0, 0.1, 0.2], input_tokens=[100, 5000, 100], output_tokens=[10, 10, 10])
    out = replay(trace, Fleet((Pool("p", engine=EngineLimits(kv_tokens=1024)),)), "round_robin", PROFILE, classes=CLASSES)
    assert out.status.tolist() == [0, 4, 0] and out.reason.tolist() == [0, 2, 0]


def test_a_crash_loses_what_is_there_and_a_retry_finds_another_instance() -> None:
    classes = (SloClass("interactive", max_retries=2, retry_backoff_s=0.1),)
    trace = from_columns(arrival_s=[0.0, 0.0], input_tokens=[1000, 1000], output_tokens=[200, 200])
    fleet = Fleet((Pool("p", count=2),), events=(FleetEvent(0.3, "crash", "p-0"),))
    out = replay(trace, fleet, "least_requests", PROFILE, classes=classes)
    assert out.status.tolist() == [0, 0] and sorted(out.attempts.tolist()) == [1, 2]
    assert (out.instance == 1).all() and out.waste_tokens["lost"] > 0


@dataclass(frozen=True)
class BusyAtFirst:
    """Refuses everything of the first four seconds and says when to come back."""

    name: ClassVar[str] = "busy_at_first"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "one"
    retry_after_at: ClassVar[int] = 0

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return 1

    @staticmethod
    def admit(op, gate, request, params, memory, rng):  # type: ignore[no-untyped-def]
        if op == ADMIT_NEXT:
            return 0 if gate[0].queued > 0.0 else -1
        if op == ADMIT_HEAD and gate[0].now_s < 4.0:
            memory[0] = 7.0
            return SHED
        return 0


@pytest.mark.parametrize(("longest", "admitted_s"), [(120.0, 7.0), (7.0, 7.0), (6.0, None), (0.0, 4.5)])
def test_a_shed_client_comes_back_when_it_was_told(longest: float, admitted_s: float | None) -> None:
    policies = replace(load_policy("round_robin"), admit=BusyAtFirst())
    who = SloClass("interactive", max_retries=9, retry_backoff_s=1.5, retry_jitter=0.0, retry_after_max_s=longest)
    trace = from_columns(arrival_s=[0.0], input_tokens=[100], output_tokens=[10])
    out = replay(trace, FLEET, policies, PROFILE, classes=(who,))
    assert out.retry_after_s is not None and out.retry_after_s[0] == 7.0
    if admitted_s is None:
        assert out.status[0] == REJECTED and out.attempts[0] == 1  # REJECTED: told to wait longer than it will
    else:
        assert out.status[0] == 0 and out.admit_s[0] == pytest.approx(admitted_s)


def test_series_integrate_to_the_work_that_was_there() -> None:
    trace = sample()
    out = replay(trace, FLEET, "round_robin", PROFILE, classes=CLASSES, options=Options(series_bins=50))
    assert out.series is not None
    present = (out.finish_s - out.start_s).sum()
    assert np.isclose(out.series["running"].sum() * out.series["bin_s"], present, rtol=0.02)


@dataclass(frozen=True)
class Lost:
    """A policy with a bug: an instance that does not exist."""

    name: ClassVar[str] = "lost"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False

    @staticmethod
    def choose(view, request, params, memory, rng, scores):  # type: ignore[no-untyped-def]
        return 99


def test_a_policy_that_answers_nonsense_is_an_error_that_says_so() -> None:
    base = load_policy("round_robin")
    with pytest.raises(PolicyError, match="chose 99"):
        replay(sample(5), FLEET, replace(base, instance=Lost()), PROFILE, classes=CLASSES)


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        (Pool("p", engine=EngineLimits(scheduler="orca")), "scheduler 'orca'"),
        (Pool("p", engine=EngineLimits(max_num_seqs=512, max_num_batched_tokens=256)), "max_num_seqs 512"),
        (Pool("p", site="mars"), "site 'mars'"),
        (Pool("p", role="both-ish"), "role"),
        (Pool("p", engine=EngineLimits(kv_tokens=3)), "kv_tokens 3"),
    ],
)
def test_limits_that_contradict_are_refused_by_name(pool: Pool, says: str) -> None:
    with pytest.raises(ReplayError, match=says.replace("(", "\\(")):
        replay(sample(5), Fleet((pool,)), "round_robin", PROFILE, classes=CLASSES)


@QUICK
@given(cases())
def test_wasted_seconds_are_busy_seconds(case: Case) -> None:
    """By cause, never negative, never more than the fleet was busy; none where no token was wasted."""
    out = simulate(case)[1]
    assert all(seconds >= -1e-9 for seconds in out.waste_gpu_s.values())
    assert sum(out.waste_gpu_s.values()) <= out.instance_busy_s.sum() + 1e-6
    assert {cause for cause, tokens in out.waste_tokens.items() if tokens > 0} >= {c for c, s in out.waste_gpu_s.items() if s > 1e-6}


def test_an_outcome_is_a_polars_frame_for_who_asks() -> None:
    out = replay(sample(20), FLEET, "round_robin", PROFILE, classes=CLASSES)
    frame = out.frame()
    assert frame.height == 20 and frame["finish_s"].to_list() == out.finish_s.tolist()
