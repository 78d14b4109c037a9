"""The oracle keeps its own laws: nobody lost, time in order, tokens and memory add up, same seed same result."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings

from tests.reference.world import World
from tests.strategies import Case, cases
from tfanalyze.trace import from_columns

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def run(case: Case) -> tuple[World, dict[str, Any]]:
    world = World(case.trace, case.fleet, case.policies(), case.profiles, case.classes, case.seed, case.options)
    with np.errstate(over="ignore"):
        return world, world.run()


@QUICK
@given(cases())
def test_every_request_ends_once_and_in_order(case: Case) -> None:
    world, out = run(case)
    assert (out["status"] >= 0).all(), "a request never ended"
    ok = out["status"] == 0
    assert (out["delivered_tokens"][ok] == np.maximum(case.trace.output_tokens, 1)[ok]).all()
    assert (out["delivered_tokens"][~ok] == 0).all()
    assert np.isnan(out["finish_s"][~ok]).all()
    for early, late in (("arrival_s", "admit_s"), ("admit_s", "start_s"), ("start_s", "first_token_s"), ("first_token_s", "finish_s")):
        assert (out[early][ok] <= out[late][ok] + 1e-9).all(), (early, late)
    limits = {c.name: c.max_retries for c in case.classes}
    most = np.array([limits[case.trace.classes[c]] for c in case.trace.slo_class]) + 1
    assert ((out["attempts"] >= 1) & (out["attempts"] <= most)).all()
    assert (out["hit_tokens"] < np.maximum(case.trace.input_tokens, 1)).all()
    assert all(a.place == "over" for a in world.attempts)


@QUICK
@given(cases())
def test_tokens_computed_are_delivered_or_waste(case: Case) -> None:
    """Prompt tokens computed + tokens made, over all attempts = what served + waste by cause."""
    world, out = run(case)
    computed = sum(a.work + a.made for a in world.attempts)
    served = 0
    for a in world.attempts:
        if out["status"][a.row] == 0 and a.number == out["attempts"][a.row] - 1:
            served += a.work + a.made - a.again
    assert computed == served + sum(out["waste_tokens"].values())


@QUICK
@given(cases())
def test_memory_is_empty_but_for_the_cache_at_the_end(case: Case) -> None:
    world, _ = run(case)
    for engine in world.engines:
        engine.memory.check()
        assert engine.memory.private == 0
        assert not any(engine.memory.locks.values())
        assert not engine.running and not engine.waiting
    for g in world.gateways:
        assert not any(g.sent)
        for record in (*g.view, *g.gate):
            assert record.inflight == 0 and abs(record.inflight_tokens) < 1e-6
        assert all(abs(v.inflight_prefill_tokens) < 1e-6 for v in g.view)


@QUICK
@given(cases())
def test_same_seed_same_result(case: Case) -> None:
    first, second = run(case)[1], run(case)[1]
    for name, column in first.items():
        if isinstance(column, np.ndarray):
            assert np.array_equal(column, second[name], equal_nan=column.dtype == float)
        else:
            assert column == second[name]


@QUICK
@given(cases(instance=("round_robin",), site=("any_site",), admit=("admit_all",), events=False))
def test_busy_time_is_what_the_steps_take(case: Case) -> None:
    world, out = run(case)
    for engine in world.engines:
        assert out["instance_busy_s"][engine.index] <= world.now_s + 1e-9


def test_one_request_alone_takes_what_one_computes_by_hand() -> None:
    from tfanalyze.config import EngineLimits, Fleet, Pool, SloClass
    from tfanalyze.models.profile import Profile, StepTime
    from tfanalyze.replay.options import Options
    from tfanalyze.replay.policies import load_policy

    trace = from_columns(arrival_s=[1.0], input_tokens=[10], output_tokens=[3])
    fleet = Fleet((Pool("p", engine=EngineLimits(max_num_batched_tokens=8, max_num_seqs=8, kv_tokens=64, block_size=4)),))
    step = StepTime(c0_s=0.1, c_prefill_s=0.01, c_attn_s=0.001, c_seq_s=0.02, c_kv_s=0.0001)
    world = World(trace, fleet, load_policy("round_robin"), Profile("x", step), (SloClass("interactive"),), 1, Options())
    out = world.run()
    first = 1.0 + (0.1 + 0.08 + 0.001 * 36) + (0.1 + 0.02 + 0.001 * (9 + 10))  # chunks of 8 and 2 tokens
    last = first + (0.12 + 0.0001 * 11) + (0.12 + 0.0001 * 12)
    assert np.isclose(out["first_token_s"][0], first, rtol=1e-12) and np.isclose(out["finish_s"][0], last, rtol=1e-12)
