"""The three policies in whole replays: what the hand-made records promise must come out of the loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfanalyze.config import EngineLimits, Fleet, FleetEvent, Gateway, Pool, Site, SloClass
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay import Options, Simulator, replay
from tfanalyze.replay.policies import PolicySet, load_policy
from tfanalyze.replay.policies.tokenpilot import TokenPilot
from tfanalyze.slo import summarise
from tfanalyze.trace import Trace, from_columns

PROFILE = Profile("test", StepTime(c0_s=0.006, c_prefill_s=5e-5, c_attn_s=1e-9, c_seq_s=5e-5, c_kv_s=2.5e-8))
CLASSES = (
    SloClass("interactive", ttft_s=1.0, tpot_s=0.1, timeout_s=30.0, max_retries=1),
    SloClass("long_context", ttft_s=15.0, tpot_s=0.2),
    SloClass("offline", e2e_s=600.0),
)


def chat(n: int = 400, rate: float = 20.0, seed: int = 1, sessions: int = 0, **columns: Any) -> Trace:
    """Interactive requests; with ``sessions`` each extends the blocks of its session's last one."""
    draw = np.random.default_rng(seed)
    length = draw.integers(200, 3000, n)
    blocks: list[list[int]] = [[] for _ in range(n)]
    if sessions:
        kept: dict[int, list[int]] = {}
        fresh = 0
        for row in range(n):
            session = int(draw.integers(0, sessions))
            grown = [*kept.get(session, []), *range(fresh, fresh + 4)]
            fresh += 4
            kept[session] = grown if len(grown) < 120 else []
            blocks[row], length[row] = grown, len(grown) * 64 + 10
    return from_columns(
        arrival_s=np.cumsum(draw.exponential(1 / rate, n)), input_tokens=length, output_tokens=draw.integers(20, 300, n),
        max_tokens=np.full(n, 1024), blocks=blocks if sessions else None, block_size=64 if sessions else 0,
        **{"slo_class": ["interactive"] * n, "classes": [c.name for c in CLASSES], **columns},
    )  # fmt: skip


def sites(*, near: dict[str, Any] | None = None, far: dict[str, Any] | None = None, **fleet: Any) -> Fleet:
    pools = (Pool("near", site="a", count=2, **(near or {})), Pool("far", site="b", count=2, **(far or {})))
    return Fleet(pools, (Site("a", rtt_s=0.01), Site("b", rtt_s=0.08)), **fleet)


def share_far(
    trace: Trace, fleet: Fleet, policy: str = "fleetmind+tokenpilot", since_s: float = 0.0, **options: Any
) -> float:
    outcome = replay(trace, fleet, policy, PROFILE, classes=CLASSES, options=Options(**options))
    late = trace.arrival_s >= since_s
    return float((outcome.instance[late] >= 2).mean())


def test_home_serves_while_it_can() -> None:
    assert share_far(chat(rate=5.0), sites()) == 0.0


def test_idle_site_without_the_model_gets_nothing() -> None:
    trace = chat(rate=12.0, model=["llama"] * 400)
    assert share_far(trace, sites(near={"model": "llama"}, far={"model": "qwen"})) == 0.0
    assert share_far(trace, sites(near={"model": "qwen"}, far={"model": "llama"})) == 1.0


def test_version_mismatch_is_not_capacity() -> None:
    trace = chat(rate=12.0, model=["llama@2"] * 400)
    near, far = {"model": "llama", "version": "1"}, {"model": "llama", "version": "2"}
    assert share_far(trace, sites(near=near, far=far)) == 1.0


def test_residency_pin_is_kept_under_load() -> None:
    trace = chat(rate=60.0, site=["a"] * 400)
    assert share_far(trace, sites()) == 0.0


def test_losing_half_a_site_spills_and_coming_back_returns() -> None:
    trace = chat(n=1200, rate=14.0)
    whole = share_far(trace, sites())
    events = (FleetEvent(20.0, "drain", "near-1"),)
    lost = share_far(trace, sites(events=events), since_s=25.0)
    back = (*events, FleetEvent(50.0, "start", "near-1"))
    returned = share_far(trace, sites(events=back), since_s=70.0)
    assert whole < 0.05
    assert lost > 0.2
    assert returned < lost / 2


def test_warming_site_gets_nothing_before_it_is_ready() -> None:
    events = (FleetEvent(0.0, "start", "far", warmup_s=20.0),)
    trace = chat(n=800, rate=60.0)
    outcome = replay(trace, sites(events=events), "fleetmind+tokenpilot", PROFILE, classes=CLASSES)
    far = outcome.instance >= 2
    assert far.any()
    assert outcome.admit_s[far].min() >= 20.0


def test_round_trip_beyond_the_slo_attracts_nothing() -> None:
    fleet = replace(sites(), sites=(Site("a", rtt_s=0.01), Site("b", rtt_s=2.0)))
    assert share_far(chat(rate=16.0), fleet) == 0.0


def test_stale_reports_cost_but_do_not_break() -> None:
    trace = chat(n=1500, rate=28.0)

    def attainment(interval_s: float) -> float:
        fleet = sites(gateway=Gateway(report_interval_s=interval_s))
        outcome = replay(trace, fleet, "fleetmind+tokenpilot", PROFILE, classes=CLASSES)
        return float(summarise(trace, outcome, CLASSES)["attainment"])

    live, stale = attainment(0.0), attainment(5.0)
    assert live > 0.9
    assert stale > live - 0.15


def test_sites_are_better_than_none_when_home_is_full() -> None:
    trace = chat(n=1500, rate=45.0)
    alone = Fleet((Pool("near", site="a", count=2),), (Site("a", rtt_s=0.01),))
    one = replay(trace, alone, "tokenpilot", PROFILE, classes=CLASSES)
    two = replay(trace, sites(), "fleetmind+tokenpilot", PROFILE, classes=CLASSES)
    gain = [summarise(trace, o, CLASSES)["goodput_tok_s"] for o in (one, two)]
    assert gain[1] > 1.2 * gain[0]


# --- TokenPilot ----------------------------------------------------------------------------------------------------

FOUR = Fleet((Pool("p", count=4),))


def test_tokenpilot_reuses_prefixes_and_shortens_first_tokens() -> None:
    trace = chat(n=1500, rate=30.0, sessions=40)
    found = {
        name: replay(trace, FOUR, name, PROFILE, classes=CLASSES) for name in ("round_robin", "tokenpilot")
    }
    ttft = {name: np.percentile(o.first_token_s - o.arrival_s, [50, 95]) for name, o in found.items()}
    assert found["tokenpilot"].hit_tokens.sum() > 1.2 * found["round_robin"].hit_tokens.sum()
    assert (ttft["tokenpilot"] < 0.7 * ttft["round_robin"]).all()


def test_tokenpilot_with_zero_weights_keeps_queues_level() -> None:
    trace = chat(n=1500, rate=60.0)
    bare = TokenPilot(cache_weight=0, decode_weight=0, stall_weight=0, kv_weight=0, slo_weight=0)
    usual = load_policy("tokenpilot")
    level = replay(trace, FOUR, PolicySet(usual.admit, usual.site, bare), PROFILE, classes=CLASSES)
    turns = replay(trace, FOUR, "round_robin", PROFILE, classes=CLASSES)
    assert np.nanpercentile(level.first_token_s - level.arrival_s, 95) < np.nanpercentile(
        turns.first_token_s - turns.arrival_s, 95
    )


def test_tokenpilot_with_infinite_cache_weight_follows_every_prefix() -> None:
    trace = chat(n=800, rate=20.0, sessions=30)
    usual = load_policy("tokenpilot")
    mad = PolicySet(usual.admit, usual.site, TokenPilot(cache_weight=1e12, margin_s=0.0))
    follows = replay(trace, FOUR, mad, PROFILE, classes=CLASSES)
    affinity = replay(trace, FOUR, "prefix_affinity", PROFILE, classes=CLASSES)
    assert follows.hit_tokens.sum() == pytest.approx(affinity.hit_tokens.sum(), rel=0.03)


# --- SLOMax ----------------------------------------------------------------------------------------------------------


def mixed(n: int = 2500, rate: float = 60.0, seed: int = 3) -> Trace:
    """Interactive chat with a burst of offline work at 5 s and now and then a long document."""
    draw = np.random.default_rng(seed)
    kind = draw.choice(3, n, p=[0.75, 0.03, 0.22])
    arrival = np.cumsum(draw.exponential(1 / rate, n))
    arrival[kind == 2] = 5.0 + draw.uniform(0, 2, (kind == 2).sum())
    size = np.array([1200, 20_000, 1500])[kind] * draw.lognormal(0, 0.4, n)
    out = np.array([150, 300, 500])[kind] * draw.lognormal(0, 0.4, n)
    return from_columns(
        arrival_s=arrival, input_tokens=size.astype(int), output_tokens=out.astype(int) + 1, max_tokens=np.full(n, 4096),
        slo_class=[CLASSES[k].name for k in kind], classes=[c.name for c in CLASSES], deadline_s=np.where(kind == 2, 500.0, np.nan),
    )  # fmt: skip


def test_slomax_keeps_interactive_inside_its_slo_and_serves_offline_too() -> None:
    trace, fleet = mixed(), Fleet((Pool("p", count=4, engine=EngineLimits(kv_tokens=200_000)),))
    found = {}
    for name in ("least_requests", "least_requests+slomax"):
        outcome = replay(trace, fleet, name, PROFILE, classes=CLASSES)
        found[name] = summarise(trace, outcome, CLASSES)
    before, after = found["least_requests"], found["least_requests+slomax"]
    assert after["goodput_tok_s"] > 1.1 * before["goodput_tok_s"]
    assert (
        after["by_class"]["interactive"]["attainment"] > before["by_class"]["interactive"]["attainment"] + 0.1
    )
    assert after["by_class"]["offline"]["served"] > 0.98 * after["by_class"]["offline"]["requests"]
    assert after["output_tok_s"] > 0.97 * before["output_tok_s"]


def test_offline_goes_earliest_deadline_first() -> None:
    n = 300
    deadline = np.random.default_rng(0).permutation(np.linspace(200.0, 599.0, n))
    trace = chat(n, slo_class=["offline"] * n, deadline_s=deadline)
    trace = replace(trace, arrival_s=np.sort(np.random.default_rng(1).uniform(0, 0.1, n)))
    outcome = replay(
        trace,
        Fleet((Pool("p", count=1),)),
        load_policy("slomax", {"batch_limit": 8}),
        PROFILE,
        classes=CLASSES,
    )
    waited = outcome.admit_s > trace.arrival_s + 1.0
    order = np.argsort(outcome.admit_s[waited], kind="stable")
    ranks = np.argsort(np.argsort((trace.arrival_s + trace.deadline_s)[waited]))[order]
    assert waited.sum() > 200
    assert np.corrcoef(ranks, np.arange(len(ranks)))[0, 1] > 0.999


def test_slomax_sheds_only_what_is_late_anyway() -> None:
    trace = chat(n=3000, rate=150.0)
    outcome = replay(trace, Fleet((Pool("p", count=2),)), "slomax", PROFILE, classes=CLASSES)
    shed = outcome.reason == 1
    usual = replay(trace, Fleet((Pool("p", count=2),)), "round_robin", PROFILE, classes=CLASSES)
    assert shed.any()
    assert (
        summarise(trace, outcome, CLASSES)["goodput_tok_s"]
        > 1.5 * summarise(trace, usual, CLASSES)["goodput_tok_s"]
    )


def test_same_seed_same_outcome() -> None:
    trace = mixed(n=800)
    simulator = Simulator(trace, sites(gateway=Gateway(replicas=2, report_interval_s=0.5)), PROFILE, CLASSES)
    runs = [simulator.run("tokenpilot+fleetmind+slomax", seed).outcome_hash for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_slomax_holds_on_several_gateways_with_old_reports() -> None:
    trace = mixed()
    pool = Pool("p", count=4, engine=EngineLimits(kv_tokens=200_000))
    found = []
    for gateway in (Gateway(), Gateway(replicas=4, report_interval_s=0.5)):
        outcome = replay(
            trace, Fleet((pool,), gateway=gateway), "tokenpilot+slomax", PROFILE, classes=CLASSES
        )
        found.append(summarise(trace, outcome, CLASSES)["token_attainment"])
    usual = replay(trace, Fleet((pool,)), "least_requests", PROFILE, classes=CLASSES)
    before = summarise(trace, usual, CLASSES)["token_attainment"]  # 60 % above capacity
    assert found[0] > before + 0.2
    assert found[0] > found[1] > before + 0.05


def test_adaptive_concurrency_does_not_strangle_the_fleet() -> None:
    trace = chat(n=1500, rate=25.0)
    outcome = replay(trace, FOUR, "least_requests+adaptive_concurrency", PROFILE, classes=CLASSES)
    assert summarise(trace, outcome, CLASSES)["attainment"] > 0.9
