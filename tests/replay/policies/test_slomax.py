"""SLOMax on hand-made gates: who enters, who waits, who is shed; and its controller against a plant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfanalyze.replay.policies.slomax import FINISHED, LOW, QUOTA, RATIO, SloMax, at
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, ADMIT_TICK, HOLD, PASS, SHED
from tfanalyze.testing import Decider, make_gate, make_request

CHAT: dict[str, Any] = {"slo_class": 0, "ttft_slo_s": 2.0, "tpot_slo_s": 0.1}
LONG: dict[str, Any] = {"slo_class": 1, "ttft_slo_s": 15.0, "tpot_slo_s": 0.2, "input_tokens": 20_000}
BATCH: dict[str, Any] = {"slo_class": 2, "e2e_slo_s": 600.0}


def gatekeeper(gate: Any = None, **values: float) -> Decider:
    """SLOMax that has seen one request of each class."""
    decider = Decider(SloMax(**values))
    quiet = make_gate(3) if gate is None else gate
    for kind in (CHAT, LONG, BATCH):
        decider.admit(ADMIT_HEAD, quiet, make_request(**kind))
    return decider


def head(decider: Decider, gate: Any, kind: dict[str, Any], **more: Any) -> int:
    return decider.admit(ADMIT_HEAD, gate, make_request(**{**kind, **more}))


def quotas(decider: Decider) -> np.ndarray:
    raw = np.array([decider.memory[at(q, QUOTA)] for q in range(3)])
    return raw / raw.sum()


def test_idle_fleet_takes_everything() -> None:
    decider, gate = gatekeeper(), make_gate(3, now_s=1.0)
    assert [head(decider, gate, kind, now_s=1.0, arrival_s=1.0) for kind in (CHAT, LONG, BATCH)] == [
        PASS,
        PASS,
        PASS,
    ]


def test_classes_are_told_apart_by_their_slos() -> None:
    decider = gatekeeper(interactive_share=0.6, long_context_share=0.3, offline_share=0.1)
    assert np.allclose(quotas(decider), [0.6, 0.3, 0.1])


def test_offline_waits_where_interactive_enters() -> None:
    gate = make_gate(3, min_wait_s=0.5, inflight=[10, 0, 10])
    decider = gatekeeper()
    assert head(decider, gate, CHAT) == PASS
    assert head(decider, gate, BATCH) == HOLD


def test_releases_of_one_instant_are_counted_before_any_report_shows_them() -> None:
    decider, gate = gatekeeper(), make_gate(3, now_s=5.0, inflight=[1, 0, 0])
    answers = [head(decider, gate, CHAT, now_s=5.0, arrival_s=5.0, input_tokens=8000) for _ in range(20)]
    # 8,000 tokens at 80,000 a second are 0.1 s each; up to 0.4 * 2 s may wait
    assert answers[:8] == [PASS] * 8
    assert HOLD in answers[8:] or SHED in answers[8:]


def test_quota_binds_when_the_others_want_theirs() -> None:
    # window 4 instances * 10 = 40 requests: offline's quarter is 10
    decider = gatekeeper(batch_limit=10)
    busy = make_gate(3, inflight=[20, 10, 10], queued=[5, 5, 5])
    assert head(decider, busy, BATCH) == HOLD
    assert head(decider, make_gate(3, inflight=[20, 10, 9], queued=[5, 5, 5]), BATCH) == PASS


def test_unused_quota_is_lent_but_for_a_reserve() -> None:
    decider = gatekeeper(batch_limit=10)
    lent = make_gate(3, inflight=[0, 0, 15])  # 10 own, the others' 30 are idle, half of that stays free
    assert head(decider, lent, BATCH) == PASS
    assert head(decider, make_gate(3, inflight=[0, 0, 25]), BATCH) == HOLD
    # an interactive class borrows all that offline leaves: nothing is kept back for a looser class
    assert head(decider, make_gate(3, inflight=[34, 0, 0]), CHAT) == PASS


def test_other_gateways_requests_count_against_the_window() -> None:
    decider = gatekeeper(batch_limit=10)  # 40 in all
    alone = make_gate(3, inflight=[15, 0, 0], running=15.0)
    shared = make_gate(3, inflight=[15, 0, 0], running=45.0)  # 30 are another gateway's
    assert head(decider, alone, CHAT) == PASS
    assert head(decider, shared, CHAT) == HOLD
    assert head(decider, make_gate(3, running=80.0), CHAT) == PASS  # never crowded out altogether


def test_token_quota_binds_too() -> None:
    decider = gatekeeper()
    tokens = make_gate(3, inflight=[3, 3, 3], inflight_tokens=[800_000, 400_000, 400_000], queued=1)
    assert head(decider, tokens, LONG) == HOLD


def test_hopeless_requests_are_shed_at_once_and_others_are_not() -> None:
    decider, gate = gatekeeper(), make_gate(3, min_wait_s=0.1, now_s=100.0, inflight=1)
    assert head(decider, gate, CHAT, now_s=100.0, arrival_s=97.9, queued_s=2.1) == SHED
    assert head(decider, gate, CHAT, now_s=100.0, arrival_s=99.9, queued_s=0.1) == PASS
    assert head(decider, gate, LONG, now_s=100.0, arrival_s=97.9, queued_s=2.1) == PASS
    slow = make_gate(3, tpot_ewma_s=0.5, now_s=100.0, inflight=1)  # 1,000 tokens at 0.5 s take 500 s
    assert (
        head(
            decider, slow, BATCH, now_s=100.0, arrival_s=100.0, expected_output_tokens=1000, deadline_s=400.0
        )
        == SHED
    )
    assert (
        head(decider, slow, BATCH, now_s=100.0, arrival_s=100.0, expected_output_tokens=100, deadline_s=400.0)
        == PASS
    )


def trusting(decider: Decider) -> Decider:
    """Predictions were borne out: what was seen is what was predicted."""
    for q in range(3):
        decider.memory[at(q, RATIO)] = 1.0
    return decider


def test_a_prediction_counts_once_it_was_put_to_the_test() -> None:
    """40,000 tokens take 2 s of a limit of 2 s: hopeless as the profile has it, unless such prompts come back sooner."""
    gate = make_gate(3, min_wait_s=0.1, now_s=1.0, inflight=[1, 0, 0])
    prompt: dict[str, Any] = {"now_s": 1.0, "arrival_s": 1.0, "input_tokens": 40_000}
    assert head(gatekeeper(), gate, CHAT, **prompt) == PASS
    decider = gatekeeper()
    seen = make_gate(3, finished=[20, 0, 0], ttft_ewma_s=[2.1, 0, 0], now_s=1.0)
    for t in range(200):  # released at a prediction of 2.1 s, and 2.1 s it took
        head(decider, make_gate(3, min_wait_s=0.1, now_s=t), CHAT, **{**prompt, "now_s": t, "arrival_s": t})
        decider.admit(ADMIT_TICK, seen, make_request())
    assert decider.memory[at(0, RATIO)] == pytest.approx(1.0, abs=0.05)
    assert head(decider, gate, CHAT, **prompt) == SHED
    for _ in range(200):  # now they take a tenth of it: the prefix is cached
        seen["ttft_ewma_s"] = [0.21, 0, 0]
        decider.admit(ADMIT_TICK, seen, make_request())
    assert head(decider, gate, CHAT, **prompt) == PASS


def test_a_class_with_nothing_in_flight_may_try_one() -> None:
    decider = trusting(gatekeeper())
    prompt: dict[str, Any] = {"now_s": 1.0, "arrival_s": 1.0, "input_tokens": 40_000}
    assert head(decider, make_gate(3, now_s=1.0), CHAT, **prompt) == PASS
    assert head(decider, make_gate(3, now_s=1.0, inflight=[1, 0, 0]), CHAT, **prompt) == SHED


def test_nothing_is_lent_over_the_head_of_a_tighter_class_that_waits() -> None:
    """Interactive misses its target; long context may borrow only while none of interactive waits at the gateway."""
    decider = gatekeeper(batch_limit=10)
    for _ in range(3):
        failing = make_gate(3, inflight=[1, 1, 1], finished=[50, 0, 0], queued=[1, 0, 0])
        failing["finished"] += decider.memory[at(0, FINISHED)]
        decider.admit(ADMIT_TICK, failing, make_request())
    assert decider.memory[at(0, LOW)] > 0
    assert head(decider, make_gate(3, inflight=[0, 12, 0], queued=[0, 1, 0]), LONG) == PASS
    assert head(decider, make_gate(3, inflight=[0, 12, 0], queued=[1, 1, 0]), LONG) == HOLD


def test_window_does_not_shrink_below_what_an_idle_engine_needs() -> None:
    """Token gaps of 90 ms in a batch of one, limit 100 ms: no batch has smaller ones, so a small one only costs others."""
    decider = gatekeeper()
    start = decider.memory[0]
    for _ in range(50):
        decider.admit(ADMIT_TICK, make_gate(3, inflight=1, tpot_ewma_s=0.09), make_request())
    assert decider.memory[0] == start


def test_retry_after_is_when_the_backlog_leaves_room() -> None:
    decider = gatekeeper()
    gate = make_gate(3, min_wait_s=7.3, now_s=100.0)
    assert head(decider, gate, CHAT, now_s=100.0, arrival_s=97.9, queued_s=2.1) == SHED
    assert decider.memory[SloMax.retry_after_at] == 7.0  # 7.3 - 0.4 * 2 s, rounded up


def test_tighter_class_goes_first_and_aging_turns_that_over() -> None:
    decider = gatekeeper(aging_s=30)
    request = make_request(**CHAT)
    assert decider.admit(ADMIT_NEXT, make_gate(3, queued=1), request) == 0
    assert decider.admit(ADMIT_NEXT, make_gate(3, queued=[0, 1, 1]), request) == 1
    assert decider.admit(ADMIT_NEXT, make_gate(3, queued=[1, 1, 1], oldest_s=[0.1, 1.0, 90.0]), request) == 2
    assert decider.admit(ADMIT_NEXT, make_gate(3), request) == -1


def test_no_class_starves_behind_a_backlog_that_never_ends() -> None:
    decider, gate = gatekeeper(aging_s=20), make_gate(3, min_wait_s=0.6, inflight=[20, 0, 0], now_s=1.0)
    waits = (w for w in range(200) if head(decider, gate, BATCH, queued_s=float(w), now_s=float(w)) == PASS)
    assert next(waits) == 20  # 0.3 s of backlog doubled after 20 s


def test_edf_is_asked_for_offline() -> None:
    assert SloMax.edf == ("offline",)
    assert SloMax.queue_by == "class"


# --- the feedback loop against a plant -----------------------------------------------------------------------------


class Plant:
    """Three classes share one capacity by quota: a class attains the share of its demand that its quota carries."""

    def __init__(self, demand: list[float], capacity: float = 100.0) -> None:
        self.demand, self.capacity = np.array(demand), capacity
        self.gate = make_gate(3)

    def period(self, decider: Decider) -> np.ndarray:
        served = np.minimum(self.demand, quotas(decider) * self.capacity)
        rate = served / np.maximum(self.demand, 1e-9)
        self.gate["finished"] += self.demand
        self.gate["attained"] += served
        self.gate["queued"] = np.where(rate < 1.0, 10, 0)
        self.gate["inflight"] = served
        decider.admit(ADMIT_TICK, self.gate, make_request())
        return rate


def run(decider: Decider, plant: Plant, periods: int) -> tuple[np.ndarray, np.ndarray]:
    history = [(plant.period(decider), quotas(decider)) for _ in range(periods)]
    return np.array([r for r, _ in history]), np.array([q for _, q in history])


@pytest.mark.parametrize("gain", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("demand", [[70.0, 10.0, 5.0], [20.0, 55.0, 10.0], [10.0, 10.0, 60.0]])
def test_step_response_settles_and_does_not_oscillate(demand: list[float], gain: float) -> None:
    """A load step on one class: its attainment rises to the target, quotas come to rest, direction changes stay few."""
    decider = gatekeeper(gain=gain)
    calm = Plant([20.0, 10.0, 10.0])
    run(decider, calm, 50)
    before = quotas(decider)
    rates, quota = run(decider, Plant(demand), 400)
    loaded = int(np.argmax(demand))
    assert rates[0, loaded] < 0.9
    assert rates[-50:, loaded].min() > 0.85
    assert quota[-1, loaded] > before[loaded] + 0.1
    tail = quota[-100:]
    assert np.ptp(tail, axis=0).max() < 0.06
    moves = np.diff(quota[:, loaded])
    reversals = int((np.sign(moves[moves != 0][1:]) != np.sign(moves[moves != 0][:-1])).sum())
    big = np.abs(np.diff(quota[100:, loaded])).max()
    assert big < 0.02, f"still moves by {big:.3f} a period after {reversals} reversals"
    # and given back when it is not needed any more
    run(decider, calm, 600)
    assert np.abs(quotas(decider) - before).max() < 0.05


def test_nobody_gains_when_all_are_short() -> None:
    decider = gatekeeper()
    before = quotas(decider)
    run(decider, Plant([200.0, 200.0, 200.0]), 200)
    assert np.abs(quotas(decider) - before).max() < 0.02


def test_quota_stays_in_bounds() -> None:
    decider = gatekeeper(gain=1.0, floor=0.1, ceiling=0.6)
    for demand in ([500.0, 1.0, 1.0], [1.0, 500.0, 1.0], [1.0, 1.0, 500.0]):
        run(decider, Plant(demand), 300)
        raw = np.array([decider.memory[at(q, QUOTA)] for q in range(3)])
        assert raw.min() >= 0.1
        assert raw.max() <= 0.6


def test_one_bad_period_moves_nothing() -> None:
    decider = gatekeeper(patience=3)
    plant = Plant([80.0, 5.0, 5.0])
    before = quotas(decider)
    run(decider, plant, 2)
    assert np.allclose(quotas(decider), before)
    assert decider.memory[at(0, LOW)] <= 2


def test_window_shrinks_when_token_gaps_near_their_slo_and_grows_back() -> None:
    decider = gatekeeper()
    start = decider.memory[0]
    decider.admit(ADMIT_TICK, make_gate(3, inflight=10, tpot_ewma_s=0.02), make_request())
    slow = make_gate(3, inflight=10, tpot_ewma_s=[0.12, 0.1, 0.1])
    for _ in range(10):
        decider.admit(ADMIT_TICK, slow, make_request())
    low = decider.memory[0]
    assert low < 0.2 * start
    for _ in range(100):
        decider.admit(ADMIT_TICK, make_gate(3, inflight=10, tpot_ewma_s=0.02), make_request())
    assert decider.memory[0] == start


def test_what_is_shed_is_told_when_to_come_back() -> None:
    import numpy as np

    from tfanalyze.config import DEFAULT_CLASSES, Fleet, Pool
    from tfanalyze.models.profile import Profile, StepTime
    from tfanalyze.replay import replay
    from tfanalyze.trace import from_columns

    trace = from_columns(
        arrival_s=np.arange(200) * 0.01, input_tokens=np.full(200, 6000), output_tokens=np.full(200, 50)
    )
    profile = Profile("slow", StepTime(c0_s=0.01, c_prefill_s=1e-4, c_seq_s=1e-4))
    out = replay(trace, Fleet((Pool("p"),)), "least_requests+slomax", profile, classes=DEFAULT_CLASSES)
    shed = out.reason == 1
    assert out.retry_after_s is not None and shed.any() and not shed.all()
    assert (out.retry_after_s[shed] >= 1.0).all() and np.isnan(out.retry_after_s[out.status == 0]).all()


def goodput(trace: Any, fleet: Any, profile: Any, policy: str, classes: Any) -> float:
    from tfanalyze.replay import replay
    from tfanalyze.slo import summarise

    return float(
        summarise(trace, replay(trace, fleet, policy, profile, classes=classes), classes)["goodput_tok_s"]
    )


def test_prompts_that_are_cached_are_not_shed_for_their_length() -> None:
    """Turns of a chat on one slow engine: as the profile has it each prompt takes 2.7 s of a limit of 2 s, cached it takes 0.3 s."""
    from tfanalyze.config import DEFAULT_CLASSES, EngineLimits, Fleet, Pool
    from tfanalyze.models.profile import Profile, StepTime
    from tfanalyze.trace import from_columns

    turns = 300
    blocks = [[*range(16), 16 + i, 316 + i] for i in range(turns)]  # 16 of 18 blocks shared
    trace = from_columns(
        arrival_s=np.arange(turns) * 4.0,
        input_tokens=np.full(turns, 300),
        output_tokens=np.full(turns, 20),
        blocks=blocks,
        block_size=16,
    )
    profile = Profile("slow", StepTime(c0_s=0.004, c_prefill_s=0.009, c_seq_s=0.017))
    fleet = Fleet((Pool("p", engine=EngineLimits(kv_tokens=100_000)),))
    without = goodput(trace, fleet, profile, "lmetric", DEFAULT_CLASSES)
    assert without > 4.0
    assert goodput(trace, fleet, profile, "lmetric+slomax", DEFAULT_CLASSES) > 0.95 * without


@pytest.mark.parametrize("instances", [1, 2, 8])
@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_untuned_it_is_never_much_worse_than_no_admission(instances: int, slower: float) -> None:
    """Fleets of several sizes and speeds, from idle to more than they can serve, and SLOs that some of them barely reach."""
    from dataclasses import replace

    from tfanalyze.config import DEFAULT_CLASSES, EngineLimits, Fleet, Pool
    from tfanalyze.models import load_profile
    from tfanalyze.synth import synth
    from tfanalyze.trace import scale_load

    usual = load_profile("h100-llama3.1-70b-tp4")
    times = {
        name: slower * value
        for name in usual.step.__slots__
        if isinstance(value := getattr(usual.step, name), float) and name.startswith("c")
    }
    profile = replace(usual, step=replace(usual.step, **times))
    for kv_tokens in (60_000, 600_000):
        fleet = Fleet(
            (
                Pool(
                    "p",
                    count=instances,
                    engine=EngineLimits(kv_tokens=kv_tokens, max_num_batched_tokens=8192),
                ),
            )
        )
        for load in (0.15, 0.8, 1.2):
            trace = scale_load(synth(None, seconds=900.0, rate=9.0, seed=5), load * instances / 8, 1)
            without = goodput(trace, fleet, profile, "tokenpilot", DEFAULT_CLASSES)
            mine = goodput(trace, fleet, profile, "tokenpilot+slomax", DEFAULT_CLASSES)
            assert mine > 0.88 * without, (
                f"{kv_tokens} tokens of KV, load {load}: {mine:.1f} against {without:.1f} tok/s"
            )
