"""The gateways' own policies against their published algorithms, on records made by hand."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from tfanalyze.replay.policies import load_policy
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, HOLD, PASS, SHED
from tfanalyze.testing import Decider, make_gate, make_request, make_sites, make_view


def instance(spec: str, **settings: float | str) -> Decider:
    return Decider(
        load_policy(spec, {f"{spec}.{key}": value for key, value in settings.items()}).instance, n_instances=4
    )


def admit(spec: str, **settings: float | str) -> Decider:
    return Decider(load_policy(spec, {f"{spec}.{key}": value for key, value in settings.items()}).admit)


def test_dynamos_cost_is_what_its_selector_logged() -> None:
    """4 blocks, scale 1.4, credit 0.85, 0.5 a request: 9.6 cold, 10.94 warm with one active (seen with 1.6.1)."""
    decider = instance(
        "dynamo", prefill_load_scale=1.4, overlap_score_credit=0.85, decode_active_request_weight=0.5
    )
    view = make_view(
        2, inflight=[0, 1], inflight_prefill_tokens=[0, 64], active_blocks=[0, 4], active_hit_blocks=[0, 4], hit_tokens=[0, 64]
    )
    assert decider.choose(view, make_request(input_tokens=64)) == 0
    assert decider.scores == pytest.approx([9.6, 10.94])


def test_dynamos_two_tiers() -> None:
    decider = instance(
        "dynamo",
        selection="dynamo-two-tier-cost-fn",
        cache_threshold=0.5,
        balance_abs_threshold=10,
        balance_rel_threshold=1.1,
    )
    request = make_request(input_tokens=100)
    assert (
        decider.choose(make_view(3, inflight=[9, 0, 5], hit_tokens=[60, 0, 60]), request) == 2
    )  # the less loaded of the best
    assert decider.choose(make_view(3, inflight=[11, 0, 5], hit_tokens=[60, 0, 60]), request) == 1  # uneven
    assert (
        decider.choose(make_view(3, inflight=[9, 0, 5], hit_tokens=[50, 0, 50]), request) == 1
    )  # not above the threshold


def test_llmd_normalises_queues_over_the_candidates() -> None:
    """A queue of one against none costs the whole weight; KV use is absolute."""
    decider = instance("llmd", queue_weight=2, kv_weight=2, prefix_weight=3)
    view = make_view(2, waiting=[1, 0], kv_used_share=[0.0, 0.9])
    assert decider.choose(view, make_request()) == 1
    assert decider.scores == pytest.approx([-(0 + 2 * 1.0), -(2 + 2 * 0.1)])
    view = make_view(2, waiting=[7, 7], hit_tokens=[1024, 0])
    decider.choose(view, make_request(input_tokens=2048))
    assert decider.scores == pytest.approx([-(2 + 2 + 3 * 0.5), -(2 + 2)])  # all equal scores one


def test_llmds_squared_length_term_and_block_floor() -> None:
    decider = instance(
        "llmd",
        queue_weight=0,
        kv_weight=0,
        prefix_weight=1,
        match_length_weight=0.5,
        match_length_scale_tokens=8192,
    )
    decider.choose(make_view(1, hit_tokens=4096 + 63), make_request(input_tokens=8192))
    assert decider.scores == pytest.approx([-(0.5 * 0.5 + 0.5 * 0.25)])
    decider.choose(make_view(1, hit_tokens=60), make_request(input_tokens=60))
    assert decider.scores == pytest.approx([0.0])


def test_llmds_load_aware_score_is_never_above_one_half() -> None:
    decider = instance(
        "llmd", queue_weight=0, kv_weight=0, prefix_weight=0, load_aware_weight=1, load_threshold=128
    )
    decider.choose(make_view(3, waiting=[0, 64, 500]), make_request())
    assert decider.scores == pytest.approx([-0.5, -0.25, 0.0])


def test_llmds_weighted_random_picker_follows_the_totals() -> None:
    decider = instance("llmd", queue_weight=0, kv_weight=1, prefix_weight=0, picker="weighted-random-picker")
    view = make_view(2, kv_used_share=[0.25, 0.75])
    landed = collections.Counter(decider.choose(view, make_request()) for _ in range(4000))
    assert landed[0] / 4000 == pytest.approx(0.75, abs=0.03)


def test_llmds_bands_hold_when_saturated_and_shed_by_cap_and_age() -> None:
    decider = admit(
        "llmd_flow",
        queue_depth_threshold=5,
        kv_cache_util_threshold=0.8,
        default_request_ttl_s=60,
        band0_max_requests=10,
    )
    gate = make_gate(3, queued=[1, 1, 0], saturation_queue=4.0)
    assert decider.admit(ADMIT_NEXT, gate, make_request()) == 0
    assert decider.admit(ADMIT_HEAD, gate, make_request(slo_class=0)) == PASS
    full = make_gate(3, queued=[1, 1, 0], kv_used_share=0.8)
    assert decider.admit(ADMIT_HEAD, full, make_request(slo_class=0)) == HOLD
    assert decider.admit(ADMIT_HEAD, full, make_request(slo_class=0, queued_s=60)) == SHED
    assert (
        decider.admit(
            ADMIT_HEAD, make_gate(3, queued=[11, 0, 0], kv_used_share=0.9), make_request(slo_class=0)
        )
        == SHED
    )


def test_llmds_holdback_stops_lower_bands_earlier() -> None:
    decider = admit("llmd_flow", queue_depth_threshold=10, min_ceiling=0.5)
    gate = make_gate(3, queued=1, saturation_queue=6.0)
    assert [decider.admit(ADMIT_HEAD, gate, make_request(slo_class=c)) for c in range(3)] == [
        PASS,
        PASS,
        HOLD,
    ]


def test_sglang_needs_both_thresholds_to_leave_the_cache() -> None:
    decider = instance("sglang", cache_threshold=0.3, balance_abs_threshold=64, balance_rel_threshold=1.5)
    request, hits = make_request(input_tokens=100), [31, 0]
    assert decider.choose(make_view(2, inflight=[65, 0], hit_tokens=hits), request) == 1
    assert decider.choose(make_view(2, inflight=[64, 0], hit_tokens=hits), request) == 0  # not above abs
    assert decider.choose(make_view(2, inflight=[300, 201], hit_tokens=hits), request) == 0  # 300 < 1.5 * 201
    assert decider.choose(make_view(2, inflight=[5, 0], hit_tokens=[30, 0]), request) == 1  # strictly above


def test_the_routers_queue_is_fifo_with_a_cap_and_a_time_out() -> None:
    decider = admit("router_queue", max_concurrent_requests=8, queue_size=2, queue_timeout_secs=5)
    assert decider.admit(ADMIT_HEAD, make_gate(1, inflight=7, queued=1), make_request()) == PASS
    assert decider.admit(ADMIT_HEAD, make_gate(1, inflight=8, queued=2), make_request()) == HOLD
    assert decider.admit(ADMIT_HEAD, make_gate(1, inflight=8, queued=3), make_request()) == SHED
    assert decider.admit(ADMIT_HEAD, make_gate(1, inflight=8, queued=1), make_request(queued_s=5)) == SHED


def test_smgs_least_load_counts_what_it_sent_since_the_poll() -> None:
    """As the real program did: KV 0.75 at weight 5 is 15 s, 1024 tokens at 500 tok/s 2.05 s: eight each at the others first."""
    decider = instance("smg", least_load_kv_pressure_weight=5, least_load_default_throughput=500)
    view = make_view(3, kv_used_share=[0.75, 0.0, 0.0], age_s=1.0)
    landed = []
    for k in range(20):  # the report stays the same one: it grows old
        view["age_s"] = 1.0 + 0.01 * k
        landed.append(decider.choose(view, make_request(now_s=10 + 0.01 * k, input_tokens=5)))
    assert 0 not in landed[:16]
    assert collections.Counter(landed)[0] in (1, 2)


@pytest.mark.parametrize(
    ("inflight", "stays"),
    [([12, 1, 7, 7], True), ([9, 1, 3, 4], True), ([8, 2, 2, 4], True), ([14, 4, 8, 3], False), ([6, 1, 0, 0], False)],
)
def test_smgs_spill_gate_is_what_the_program_did(inflight: list[int], stays: bool) -> None:
    """Above the mean by more than the larger of 4 and ceil(2 sqrt(mean)): seen with 1.13.0 at its default of 64."""
    decider = instance("smg", policy="cache_aware", cache_threshold=0.5, balance_rel_threshold=1.1)
    view = make_view(4, inflight=inflight, running=inflight, hit_tokens=[800, 0, 0, 0])
    assert (decider.choose(view, make_request(input_tokens=1000, now_s=1)) == 0) == stays


def test_smgs_load_is_what_was_reported_and_what_was_sent_since() -> None:
    """As the real program did: in flight at the router counts for nothing until the worker reports it."""
    decider = instance("smg", policy="power_of_two")
    view = make_view(2, inflight=[9, 0], running=[1, 2], waiting=[0, 1], age_s=1.0)
    landed = []
    for k in range(4):  # 1 against 3, and each request sent counts one
        view["age_s"] = 1.0 + 0.01 * k
        landed.append(decider.choose(view, make_request(now_s=10 + 0.01 * k)))
    assert landed[:2] == [0, 0] and sorted(landed[2:]) == [0, 1]
    view["age_s"], view["running"] = 0.0, [5, 2]  # a new report: what was sent is in it
    assert decider.choose(view, make_request(now_s=11)) == 1


def test_smgs_prefix_hash_spills_by_both_thresholds() -> None:
    """One key: 14 in flight of 14 spill (14 - 15 / 4 > 10), 13 do not; at a threshold of 3, five do (1.13.0)."""
    for threshold, stay in ((10, 13), (3, 4)):
        decider = instance("smg", policy="prefix_hash", prefix_hash_balance_abs_threshold=threshold)
        request = make_request(prefix=7, now_s=1)
        home = decider.choose(make_view(4), request)
        load = [0] * 4
        load[home] = stay
        assert decider.choose(make_view(4, inflight=load), request) == home
        load[home] = stay + 1
        assert decider.choose(make_view(4, inflight=load), request) != home


def test_vllm_routers_equal_matches_go_to_the_less_loaded() -> None:
    decider = instance("vllm_router", cache_threshold=0.5)
    view = make_view(3, inflight=[2, 1, 0], hit_tokens=[60, 60, 0])
    assert decider.choose(view, make_request(input_tokens=100)) == 1


def test_smg_leaves_out_the_overloaded_unless_all_are() -> None:
    decider = instance("smg", worker_overload_waiting_requests=8)
    assert (
        decider.choose(make_view(2, waiting=[8, 7], queued_prefill_tokens=[0, 9000]), make_request(now_s=1))
        == 1
    )
    assert (
        decider.choose(make_view(2, waiting=[8, 9], queued_prefill_tokens=[0, 9000]), make_request(now_s=2))
        == 0
    )


def test_smgs_reserved_slots_are_lent_only_beyond_what_higher_classes_keep() -> None:
    decider = admit(
        "smg_priority", interactive_reserved_per_slot=0.5, default_reserved_per_slot=0.0, bulk_queue_size=3
    )
    bulk = make_request(slo_class=2)
    assert (
        decider.admit(ADMIT_HEAD, make_gate(3, slots=64, inflight=[0, 0, 31], queued=[0, 0, 1]), bulk) == PASS
    )
    assert (
        decider.admit(ADMIT_HEAD, make_gate(3, slots=64, inflight=[0, 0, 32], queued=[0, 0, 3]), bulk) == HOLD
    )
    assert (
        decider.admit(ADMIT_HEAD, make_gate(3, slots=64, inflight=[0, 0, 32], queued=[0, 0, 4]), bulk) == SHED
    )
    assert (
        decider.admit(ADMIT_HEAD, make_gate(3, slots=64, inflight=[20, 0, 43], queued=[0, 0, 1]), bulk)
        == HOLD
    )
    assert (
        decider.admit(
            ADMIT_HEAD, make_gate(3, slots=64, inflight=[31, 0, 32], queued=1), make_request(slo_class=0)
        )
        == PASS
    )


def served(decider: Decider, lengths: list[float], turns: int) -> collections.Counter[int]:
    """Prompt tokens passed by class while every class has a backlog."""
    tokens: collections.Counter[int] = collections.Counter()
    gate = make_gate(3, queued=5)
    for _ in range(turns):
        q = decider.admit(ADMIT_NEXT, gate, make_request())
        assert decider.admit(ADMIT_HEAD, gate, make_request(slo_class=q, input_tokens=lengths[q])) == PASS
        tokens[q] += int(lengths[q])
    return tokens


def test_dynamos_quanta_share_prompt_tokens_not_requests() -> None:
    decider = admit("dynamo_queues", quantum_0=4000, quantum_1=2000, quantum_2=1000)
    tokens = served(decider, [1000, 250, 4000], 6000)
    total = sum(tokens.values())
    assert [tokens[q] / total for q in range(3)] == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.02)


def test_dynamos_class_queues_only_while_every_worker_is_busy() -> None:
    decider = admit("dynamo_queues", prefill_busy_threshold_0=10000, request_queue_limit_per_worker_0=2)
    request = make_request(slo_class=0)
    busy: dict[str, Any] = {"instances": 4, "prefill_tok_s": 80_000}  # 20,000 tok/s each
    assert decider.admit(ADMIT_HEAD, make_gate(3, min_wait_s=0.49, queued=1, **busy), request) == PASS
    assert decider.admit(ADMIT_HEAD, make_gate(3, min_wait_s=0.51, queued=8, **busy), request) == HOLD
    assert decider.admit(ADMIT_HEAD, make_gate(3, min_wait_s=0.51, queued=9, **busy), request) == SHED


def test_aibrix_alone_and_in_a_list() -> None:
    request = make_request(input_tokens=100)
    alone = instance("aibrix", imbalance_abs_count=8, standard_deviation_factor=1)
    assert alone.choose(make_view(3, inflight=[9, 0, 0], hit_tokens=[90, 0, 0]), request) in (1, 2)  # uneven
    assert (
        alone.choose(make_view(3, inflight=[8, 7, 0], hit_tokens=[90, 50, 0]), request) == 0
    )  # 8 <= 5 + 3.6
    assert (
        alone.choose(make_view(4, inflight=[8, 0, 0, 0], hit_tokens=[90, 20, 0, 0]), request) == 1
    )  # 8 > 2 + 3.5
    weighted = instance(
        "aibrix", algorithm="weighted", prefix_cache_weight=3, least_request_weight=2, least_kv_cache_weight=0
    )
    weighted.choose(make_view(2, inflight=[4, 0], hit_tokens=[80, 40]), request)
    assert weighted.scores == pytest.approx([-3.0, -2.0])


def test_ray_takes_the_smallest_tree_below_the_match_rate() -> None:
    decider = instance("ray_serve", imbalanced_threshold=10, match_rate_threshold=0.1)
    request = make_request(input_tokens=100)
    trees = {"index_tokens": [50, 10, 30]}
    assert decider.choose(make_view(3, hit_tokens=[9, 0, 0], **trees), request) == 1
    assert decider.choose(make_view(3, hit_tokens=[10, 0, 0], **trees), request) == 0
    seen = {decider.choose(make_view(2, hit_tokens=[100, 0], inflight=[11, 0]), request) for _ in range(50)}
    assert seen == {1}  # uneven: the shorter of two


def test_production_stack_has_no_load_term() -> None:
    decider = instance("production_stack", routing_logic="prefixaware")
    assert decider.choose(make_view(3, hit_tokens=[0, 640, 320], inflight=[0, 500, 0]), make_request()) == 1
    kv = instance("production_stack", routing_logic="kvaware", kv_aware_threshold=100)
    assert kv.choose(make_view(3, hit_tokens=[0, 1900, 0]), make_request(input_tokens=2000)) == 1
    homes = {
        kv.choose(make_view(3, hit_tokens=[0, 1899, 0]), make_request(input_tokens=2000, session=s))
        for s in range(30)
    }
    assert homes == {0, 1, 2}  # by session


def test_vllm_router_sticks_to_a_session_until_its_worker_is_gone() -> None:
    decider = instance("vllm_router", policy="sticky_least_loaded")
    request = make_request(last_instance=2)
    assert decider.choose(make_view(3, inflight=[0, 1, 9]), request) == 2
    assert decider.choose(make_view(3, inflight=[0, 1, 9], ready=[1, 1, 0]), request) == 0


def test_litellm_draws_by_weight_within_the_lowest_order_with_room() -> None:
    decider = instance("litellm", weight_0=3, weight_1=1, order_2=2, max_parallel_requests=4)
    view = make_view(3, site=[0, 1, 2])
    landed = collections.Counter(decider.choose(view, make_request()) for _ in range(4000))
    assert landed[0] / 4000 == pytest.approx(0.75, abs=0.03) and landed[2] == 0
    assert decider.choose(make_view(3, site=[0, 1, 2], inflight=[4, 4, 0]), make_request()) == 2


def shares(decider: Decider, sites: Any) -> list[float]:
    landed = collections.Counter(decider.choose(sites, make_request()) for _ in range(6000))
    return [landed[s] / 6000 for s in range(len(sites))]


def test_envoy_spills_by_health_and_overprovisioning() -> None:
    """One of two hosts down at factor 120: 60 % stay, 40 % spill; as Envoy 1.40 did (39 and 21 of 60)."""
    policy = load_policy("envoy", {"envoy.priority_1": 1, "envoy.overprovisioning_factor": 120})
    decider = Decider(policy.site, n_sites=2)
    assert shares(decider, make_sites(2, instances=[1, 2], configured=2)) == pytest.approx(
        [0.6, 0.4], abs=0.03
    )
    assert shares(decider, make_sites(2, instances=[2, 2], configured=2)) == pytest.approx([1.0, 0.0])
    weighted = Decider(load_policy("envoy", {"envoy.weight_0": 3}).site, n_sites=2)
    assert shares(weighted, make_sites(2)) == pytest.approx([0.75, 0.25], abs=0.03)


def test_envoys_breakers_answer_at_once() -> None:
    decider = admit("envoy_breakers", high_max_requests=2, default_max_requests=3)
    gate = make_gate(3, inflight=[1, 2, 1], queued=1)
    assert decider.admit(ADMIT_HEAD, gate, make_request(slo_class=0)) == PASS
    assert decider.admit(ADMIT_HEAD, gate, make_request(slo_class=2)) == SHED
