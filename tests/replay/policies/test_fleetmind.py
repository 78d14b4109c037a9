"""FleetMind on hand-made site records: a free GPU is not "can serve now"."""

from __future__ import annotations

import numpy as np

from tfanalyze.replay.policies.fleetmind import FleetMind
from tfanalyze.testing import Decider, make_request, make_sites


def mind(n: int = 2, **values: float) -> Decider:
    return Decider(FleetMind(**values), n_sites=n)


REQUEST = make_request(ttft_slo_s=1.0, input_tokens=4000)


def test_home_is_the_nearest_site_while_it_can_serve() -> None:
    sites = make_sites(2, rtt_s=[0.01, 0.08], min_wait_s=[0.3, 0.0])
    assert {mind().choose(sites, REQUEST) for _ in range(20)} == {0}


def test_idle_site_without_the_model_is_never_chosen() -> None:
    # the loop reports ready = 0 where model, version or pin do not match, however idle the GPUs are
    sites = make_sites(
        2, ready=[1, 0], instances=[4, 0], configured=[4, 0], min_wait_s=[30.0, np.inf], waiting=[200, 0]
    )
    decider = mind()
    assert {decider.choose(sites, REQUEST) for _ in range(20)} == {0}
    sites["ready"] = 0
    assert decider.choose(sites, REQUEST) == -1


def test_site_that_lost_half_its_instances_spills() -> None:
    whole = make_sites(2, rtt_s=[0.01, 0.08], queued_prefill_tokens=[50_000, 0], inflight_prefill_tokens=[50_000, 0],
                       min_wait_s=[0.5, 0.0])  # fmt: skip
    assert mind().choose(whole, REQUEST) == 0
    half = whole.copy()
    half["instances"][0], half["slots"][0], half["prefill_tok_s"][0], half["min_wait_s"][0] = (
        2,
        512,
        40_000,
        1.1,
    )
    assert mind().choose(half, REQUEST) == 1


def test_stale_report_makes_a_close_call_unsafe() -> None:
    sites = make_sites(2, rtt_s=[0.01, 0.08], min_wait_s=[0.6, 0.0])
    assert mind().choose(sites, REQUEST) == 0
    sites["age_s"] = [10.0, 0.1]
    assert mind().choose(sites, REQUEST) == 1


def test_round_trip_beyond_the_slo_is_no_capacity() -> None:
    sites = make_sites(2, rtt_s=[0.01, 2.5], min_wait_s=[0.9, 0.0], waiting=[30, 0])
    assert mind().choose(sites, REQUEST) == 0  # late at home is still better than surely late far away


def test_load_swing_counts() -> None:
    calm = make_sites(
        2, rtt_s=[0.01, 0.08], min_wait_s=[0.5, 0.0], ttft_mean_s=[0.7, 0.2], attained=[1.0, 1.0]
    )
    assert mind().choose(calm, REQUEST) == 0
    calm["ttft_var_s2"] = [1.0, 0.0]
    assert mind().choose(calm, REQUEST) == 1


def test_full_slots_and_full_kv_are_no_capacity() -> None:
    for full in ({"running": [1024, 10]}, {"kv_used_share": [0.95, 0.1]}):
        sites = make_sites(2, rtt_s=[0.01, 0.08], **full)
        assert mind().choose(sites, REQUEST) == 1


def test_returns_only_with_hysteresis() -> None:
    """Success at home is 0.5 s of slack over spread; walk the wait down and up: two different thresholds."""
    decider = mind(spill_below=0.6, hysteresis=0.3)

    def at(wait: float) -> int:
        return decider.choose(
            make_sites(2, rtt_s=[0.01, 0.08], min_wait_s=[wait, 0.0], ttft_var_s2=0.04), REQUEST
        )

    ups = [w for w in np.arange(0.0, 1.5, 0.02) if at(w) == 0]
    downs = [w for w in np.arange(1.5, 0.0, -0.02) if at(w) == 0]
    assert max(downs) < max(ups) - 0.1  # came back later than it left
    assert min(downs) <= 0.02


def test_classes_spill_apart() -> None:
    sites = make_sites(2, rtt_s=[0.01, 0.08], min_wait_s=[3.0, 0.0])
    decider = mind()
    assert decider.choose(sites, make_request(ttft_slo_s=1.0, slo_class=0)) == 1
    assert decider.choose(sites, make_request(ttft_slo_s=15.0, slo_class=1)) == 0
    assert decider.choose(sites, make_request(slo_class=2)) == 0


def test_sites_equally_near_share_the_load() -> None:
    decider = mind(3)
    picks = [decider.choose(make_sites(3, rtt_s=0.01), REQUEST) for _ in range(300)]
    assert np.bincount(picks, minlength=3).min() > 60
    assert {
        decider.choose(make_sites(3, rtt_s=0.01, min_wait_s=[0.5, 0.5, 0.0]), REQUEST) for _ in range(20)
    } == {2}
