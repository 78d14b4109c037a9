"""Baselines do what their names say."""

from __future__ import annotations

import numpy as np
import pytest

from tfanalyze.replay.policies.loading import policy_class
from tfanalyze.testing import Decider, make_request, make_view


def decider(name: str, seed: int = 1, **values: float) -> Decider:
    return Decider(policy_class(name)(**values), seed=seed)


def test_round_robin_takes_turns_and_skips_who_is_not_ready() -> None:
    view, rr = make_view(4), decider("round_robin")
    assert [rr.choose(view, make_request()) for _ in range(6)] == [0, 1, 2, 3, 0, 1]
    view["ready"][2] = 0
    assert [rr.choose(view, make_request()) for _ in range(4)] == [3, 0, 1, 3]


def test_random_is_uniform() -> None:
    view, draw = make_view(4, ready=[1, 1, 0, 1]), decider("random")
    counts = np.bincount([draw.choose(view, make_request()) for _ in range(3000)], minlength=4)
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3]] - 1000).max() < 120


def test_least_requests_and_least_kv_and_lmetric() -> None:
    view = make_view(3, inflight=[5, 3, 4], kv_used_share=[0.2, 0.9, 0.5], running=[5, 3, 4])
    assert decider("least_requests").choose(view, make_request()) == 1
    assert decider("least_kv").choose(view, make_request()) == 0
    view["hit_tokens"] = [1900, 0, 0]
    assert decider("lmetric").choose(view, make_request()) == 0  # 100 * 6 < 2000 * 4
    view["inflight_prefill_tokens"] = [5000, 0, 0]
    assert decider("lmetric").choose(view, make_request()) == 1


def test_power_of_two_compares_two_different_ones() -> None:
    view = make_view(2, inflight=[9, 1])
    assert {decider("power_of_two", seed).choose(view, make_request()) for seed in range(20)} == {1}
    three = make_view(3, inflight=[9, 1, 5])
    picks = [decider("power_of_two", seed).choose(three, make_request()) for seed in range(600)]
    counts = np.bincount(picks, minlength=3)
    assert counts[0] == 0  # never the busiest: it always meets a less busy one
    assert counts[1] > counts[2] > 100
    assert decider("power_of_two").choose(make_view(3, ready=[0, 1, 0]), make_request()) == 1


def test_session_affinity_moves_only_the_sessions_of_what_left() -> None:
    view, policy = make_view(8), decider("session_affinity")
    sessions = [int(s) for s in np.random.default_rng(0).integers(0, 1 << 62, 400)]
    before = [policy.choose(view, make_request(session=s)) for s in sessions]
    assert np.bincount(before, minlength=8).min() > 25
    view["ready"][3] = 0
    after = [policy.choose(view, make_request(session=s)) for s in sessions]
    assert all(a == b for a, b in zip(before, after, strict=True) if a != 3)
    assert 3 not in after


def test_prefix_affinity_ignores_load_but_for_ties() -> None:
    policy = decider("prefix_affinity")
    assert policy.choose(make_view(3, hit_tokens=[0, 64, 32], inflight=[0, 900, 0]), make_request()) == 1
    assert policy.choose(make_view(3, hit_tokens=[64, 64, 32], inflight=[5, 2, 0]), make_request()) == 1


def test_bounded_affinity_follows_the_prefix_within_the_bound() -> None:
    policy = decider(
        "bounded_affinity"
    )  # 21 in flight with this one over 3: at most ceil(1.25 * 7) = 9 in flight
    assert policy.choose(make_view(3, hit_tokens=[0, 64, 32], inflight=[6, 8, 6]), make_request()) == 1
    assert policy.choose(make_view(3, hit_tokens=[0, 64, 32], inflight=[5, 9, 6]), make_request()) == 2
    assert (
        policy.choose(
            make_view(3, hit_tokens=[0, 64, 0], inflight=[3, 14, 3], ready=[0, 1, 0]), make_request()
        )
        == 1
    )


def test_bounded_affinity_does_not_herd_where_all_prompts_begin_alike() -> None:
    """Twenty requests that none finishes: no instance has more than a quarter above the mean, rounded up."""
    policy, inflight = decider("bounded_affinity"), np.zeros(4)
    herd, sent = decider("prefix_affinity"), np.zeros(4)
    for _ in range(20):
        inflight[
            policy.choose(make_view(4, hit_tokens=[512, 0, 0, 0], inflight=inflight), make_request())
        ] += 1
        sent[herd.choose(make_view(4, hit_tokens=[512, 0, 0, 0], inflight=sent), make_request())] += 1
    assert sent.tolist() == [20, 0, 0, 0]
    assert inflight.max() <= np.ceil(1.25 * 20 / 4)


def test_recorded_follows_the_log_and_falls_back() -> None:
    policy, view = decider("recorded"), make_view(3, inflight=[0, 7, 3])
    assert policy.choose(view, make_request(recorded_instance=1)) == 1
    assert policy.choose(view, make_request(recorded_instance=-1)) == 0
    view["ready"][1] = 0
    assert policy.choose(view, make_request(recorded_instance=1)) == 0


def test_sticky_least_leaves_when_the_gap_is_too_wide() -> None:
    policy = decider("sticky_least", slack_requests=4)
    assert policy.choose(make_view(2, inflight=[4, 0]), make_request(last_instance=0)) == 0
    assert policy.choose(make_view(2, inflight=[5, 0]), make_request(last_instance=0)) == 1


@pytest.mark.parametrize(
    "name",
    ["least_requests", "least_kv", "lmetric", "prefix_affinity", "bounded_affinity", "recorded", "random"],
)
def test_ties_are_seeded(name: str) -> None:
    view = make_view(6)
    picks = [decider(name, seed).choose(view, make_request()) for seed in range(60)]
    assert len(set(picks)) > 3
    assert picks == [decider(name, seed).choose(view, make_request()) for seed in range(60)]
