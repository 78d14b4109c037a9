"""TokenPilot on hand-made records, and its limits: least loaded, prefix affinity."""

from __future__ import annotations

import numpy as np
import pytest

from tfanalyze.models.profile import StepTime
from tfanalyze.replay.policies.tokenpilot import TokenPilot
from tfanalyze.testing import STEP, Decider, make_request, make_view

LOAD_ONLY = {
    "cache_weight": 0,
    "decode_weight": 0,
    "stall_weight": 0,
    "kv_weight": 0,
    "slo_weight": 0,
    "tie_s": 0,
}


def pilot(**values: float) -> Decider:
    return Decider(TokenPilot(**values))


def waiting_view(tokens: list[float], hits: list[float] | None = None, **columns: object) -> np.ndarray:
    """Instances with prompt tokens queued, as both the report and the gateway's own count say."""
    requests = np.minimum(np.array(tokens), 1.0)
    return make_view(
        len(tokens), queued_prefill_tokens=tokens, inflight_prefill_tokens=tokens, waiting=requests, inflight=requests,
        hit_tokens=hits or 0, **columns,
    )  # fmt: skip


def test_follows_the_cache_when_it_saves_more_than_the_queue_costs() -> None:
    # 8,000 cached tokens save about 0.4 s; 1,000 queued tokens cost about 0.05 s
    assert pilot().choose(waiting_view([1000, 0], [8000, 0]), make_request(input_tokens=9000)) == 0


def test_leaves_the_cache_when_the_queue_costs_more() -> None:
    assert pilot().choose(waiting_view([20_000, 0], [8000, 0]), make_request(input_tokens=9000)) == 1


def test_margin_decides_close_calls() -> None:
    # 200 cached tokens save about 0.01 s, half a step is 2.5 ms
    view, request = (
        make_view(2, hit_tokens=[200, 0], running=[1, 0], inflight=[1, 0]),
        make_request(input_tokens=9000),
    )
    assert pilot(**{**LOAD_ONLY, "cache_weight": 1, "margin_s": 0.0}).choose(view, request) == 0
    assert pilot(**{**LOAD_ONLY, "cache_weight": 1, "margin_s": 0.5}).choose(view, request) == 1


@pytest.mark.parametrize("seed", range(20))
def test_zero_weights_are_least_loaded(seed: int) -> None:
    draw = np.random.default_rng(seed)
    tokens = draw.permutation(16) * 1500.0
    view = waiting_view(
        tokens.tolist(), (draw.integers(0, 8000, 16)).tolist(), kv_used_share=draw.uniform(0, 1, 16) * 0.5
    )
    assert pilot(**LOAD_ONLY).choose(view, make_request(input_tokens=9000)) == int(np.argmin(tokens))


@pytest.mark.parametrize("seed", range(20))
def test_infinite_cache_weight_is_prefix_affinity(seed: int) -> None:
    draw = np.random.default_rng(seed)
    hits = draw.permutation(16) * 500.0
    view = waiting_view((draw.integers(0, 60_000, 16)).tolist(), hits.tolist())
    assert pilot(cache_weight=1e12, margin_s=0).choose(view, make_request(input_tokens=9000)) == int(
        np.argmax(hits)
    )


def test_kv_pressure_turns_a_request_away() -> None:
    view = make_view(2, kv_used_share=[0.97, 0.2])
    assert pilot(**{**LOAD_ONLY, "kv_weight": 1}).choose(view, make_request(input_tokens=2000)) == 1


def test_running_decodes_are_spared_a_long_prefill() -> None:
    view = make_view(2, decoding=[64, 2], running=[64, 2], inflight=[64, 2])
    assert pilot(**{**LOAD_ONLY, "stall_weight": 0.1}).choose(view, make_request(input_tokens=20_000)) == 1


def test_predicted_miss_of_the_token_gap_counts() -> None:
    slow = StepTime(c0_s=0.09, c_prefill_s=1e-5)
    view = make_view(2)
    for name in ("c0_s", "c_prefill_s"):
        view[name][0] = getattr(slow, name)
    request = make_request(tpot_slo_s=0.05, input_tokens=4000)
    assert pilot(**{**LOAD_ONLY, "slo_weight": 0}).choose(view, request) == 0  # the faster prefill
    assert pilot(**{**LOAD_ONLY, "slo_weight": 1}).choose(view, request) == 1  # 0.09 s a token misses the SLO


def test_full_batch_is_a_wait() -> None:
    view = make_view(2, running=[256, 200], inflight=[256, 200], decoding=[256, 200])
    assert pilot(**LOAD_ONLY).choose(view, make_request()) == 1


def test_equal_instances_share_by_seed_and_the_same_seed_repeats() -> None:
    view, request = make_view(8), make_request()
    decider = pilot()
    picks = [decider.choose(view, request) for _ in range(800)]
    counts = np.bincount(picks, minlength=8)
    assert counts.min() > 60
    again = pilot()
    assert picks == [again.choose(view, request) for _ in range(800)]


def test_near_ties_do_not_herd_but_a_session_stays() -> None:
    # 20 tokens of backlog are 1 ms: inside the band of 3 ms
    view = waiting_view([1, 20, 20, 40])
    decider = pilot(tie_s=0.003, decode_weight=0, slo_weight=0)  # without the memory of what it sent
    assert len({decider.choose(view, make_request()) for _ in range(200)}) == 4
    assert {decider.choose(view, make_request(last_instance=3)) for _ in range(50)} == {3}
    assert {pilot(tie_s=0).choose(view, make_request(last_instance=3)) for _ in range(5)} == {0}


def test_old_reports_widen_the_band() -> None:
    fresh, old = waiting_view([0, 400]), waiting_view([0, 400], age_s=5.0)
    assert {pilot().choose(fresh, make_request()) for _ in range(10)} == {0}
    decider = pilot()
    assert {decider.choose(old, make_request()) for _ in range(100)} == {0, 1}


def test_backlog_of_other_gateways_is_seen_in_reports() -> None:
    view = make_view(2, inflight=[1, 1], inflight_prefill_tokens=[1000, 1000], running=[1, 1], waiting=[9, 0],
                     queued_prefill_tokens=[10_000, 1000])  # fmt: skip
    assert pilot().choose(view, make_request()) == 1


def test_prompts_sent_lately_count_as_load_of_the_decode() -> None:
    """Equal views: what was sent to an instance a moment ago slows the decodes there, and is forgotten in time."""
    view, decider = make_view(2), pilot(tie_s=0)
    first = decider.choose(view, make_request(input_tokens=50_000))
    assert decider.choose(view, make_request(input_tokens=50_000, now_s=0.1)) == 1 - first
    assert decider.memory[: 2 * len(view) : 2].min() > 1000
    decider.choose(view, make_request(input_tokens=1, now_s=1000.0))
    assert decider.memory[: 2 * len(view) : 2].min() < 1.0


def test_unready_instances_are_never_chosen_and_none_is_minus_one() -> None:
    view = waiting_view([0, 50_000], [1999, 0], ready=[0, 1])
    assert pilot().choose(view, make_request()) == 1
    view["ready"] = 0
    assert pilot().choose(view, make_request()) == -1


def test_relabelled_instances_give_relabelled_choices() -> None:
    tokens, hits = [3000.0, 500.0, 9000.0, 100.0], [4000.0, 0.0, 8000.0, 100.0]
    request = make_request(input_tokens=9000)
    first = pilot(tie_s=0).choose(waiting_view(tokens, hits), request)
    order = [2, 0, 3, 1]
    moved = pilot(tie_s=0).choose(waiting_view([tokens[i] for i in order], [hits[i] for i in order]), request)
    assert order[moved] == first


def test_terms_add_up_to_the_score() -> None:
    draw = np.random.default_rng(5)
    view = waiting_view(draw.integers(0, 9000, 6).tolist(), draw.integers(0, 8000, 6).tolist(), decoding=draw.integers(0, 64, 6),
                        kv_used_share=draw.uniform(0.5, 1, 6))  # fmt: skip
    request = make_request(input_tokens=9000, ttft_slo_s=0.2, tpot_slo_s=0.001)
    decider = pilot()
    decider.choose(view, request)
    rows = TokenPilot.terms(view, request[0], decider.params, decider.scores)
    assert np.allclose([sum(row.values()) for row in rows], decider.scores, rtol=1e-9)


def test_prediction_is_the_step_formula() -> None:
    from tfanalyze.replay.policies.helpers import decode_step_s, prefill_time_s

    view = make_view(1).view(np.ndarray)[0]
    expected = STEP.c0_s + STEP.c_prefill_s * 1000 + STEP.c_attn_s * (1000 * 500 + 1000 * 1001 / 2)
    assert prefill_time_s(view, 1000.0, 500.0) == pytest.approx(expected, rel=1e-12)
    assert decode_step_s(view, 10.0, 5000.0) == pytest.approx(
        STEP.c0_s + 10 * STEP.c_seq_s + 5000 * STEP.c_kv_s, rel=1e-12
    )
