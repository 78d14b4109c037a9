"""Metrics against plain loops, and what an objective may say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tune.synthetic import PRESENT, Planted
from tfanalyze.errors import ConfigError
from tfanalyze.tune.compare import difference
from tfanalyze.tune.measure import Measured, Scenario
from tfanalyze.tune.objective import Metric, parse_constraint, parse_metric, parse_objective, sizes_for
from tfanalyze.tune.stats import bin_of, block_length, block_weights, interval, t_quantile


def run(seed: int = 1) -> Measured:
    made = Planted(0.0, noise=0.2, luck=seed).measure(PRESENT, Scenario("train"))
    rng = np.random.default_rng(seed)
    return replace(
        made,
        ttft_s=rng.exponential(1.0, len(made)),
        slo_class=rng.integers(0, 2, len(made)).astype(np.int8),
        classes=("interactive", "offline"),
    )


def test_metrics_are_what_a_loop_says() -> None:
    m = run()
    good = sum(t for t, ok in zip(m.good_tokens, m.attained, strict=True) if ok)
    assert Metric("goodput").value(m) == pytest.approx(good / 3600.0)
    mine = [ok for ok, c in zip(m.attained, m.slo_class, strict=True) if c == 1]
    assert Metric("attainment", "offline").value(m) == pytest.approx(sum(mine) / len(mine))
    assert Metric("token_attainment").value(m) == pytest.approx(good / m.offered_tokens.sum())
    ordered = sorted(m.ttft_s)
    assert Metric("p95_ttft").value(m) == ordered[int(np.ceil(0.95 * len(ordered))) - 1]


def test_fairness_is_jains_index() -> None:
    m = run()
    shares = [m.good_tokens[m.tenant == t].sum() / m.offered_tokens[m.tenant == t].sum() for t in range(3)]
    assert Metric("fairness").value(m) == pytest.approx(sum(shares) ** 2 / (3 * sum(s * s for s in shares)))
    with pytest.raises(ConfigError, match="fewer than two tenants"):
        Metric("fairness").value(replace(m, tenant=np.zeros(len(m), np.int32)))


def test_shedding_cannot_look_like_a_gain() -> None:
    """The same answers, but those that would have missed are shed: no share, no rate, no tail gets better."""
    m = run()
    shed = replace(m, shed=~m.attained, ttft_s=np.where(m.attained, m.ttft_s, 20.0))
    for name in ("goodput", "attainment", "token_attainment", "p95_ttft"):
        metric = Metric(name)
        assert metric.better * metric.value(shed) <= metric.better * metric.value(m)
    assert Metric("shed").value(shed) > 0


def test_cost_reads_between_two_sizes() -> None:
    m = run()
    n = len(m)
    sizes = tuple((k, 4.0 * k, np.arange(n) < share * n) for k, share in ((2, 0.5), (4, 0.9), (6, 1.0)))
    cost = parse_metric("cost:0.95").value(replace(m, sizes=sizes))
    assert cost == pytest.approx((16 + 8 * 0.5) * 1.0)  # half way from 0.9 to 1.0, one hour
    assert parse_metric("cost:0.4").value(replace(m, sizes=sizes)) == pytest.approx(8.0)
    assert sizes_for(8) == (4, 5, 6, 7, 8, 9, 10)


def test_weights_of_one_are_the_metric_itself() -> None:
    m = run()
    group = bin_of(m.arrival_s, m.start_s, m.end_s, 30)
    for name in ("goodput", "attainment", "shed", "fairness", "p99_ttft", "p50_e2e"):
        assert Metric(name).resampled(m, group, np.ones((2, 30))) == pytest.approx([Metric(name).value(m)] * 2)


def test_a_class_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no class 'batch'"):
        Metric("attainment", "batch").value(run())


def test_sums_count_terms_relative_to_what_runs_now() -> None:
    m = run()
    goal = parse_objective("goodput + 0.5*p95_ttft:interactive")[0].scaled([m])
    assert goal.value([m]) == pytest.approx(1.0 - 0.5)
    slower = replace(m, ttft_s=2 * m.ttft_s)
    assert goal.value([slower]) == pytest.approx(1.0 - 1.0)
    assert goal.better == 1


def test_several_goals_are_split_at_commas() -> None:
    assert [g.text for g in parse_objective("goodput, cost:0.9")] == ["goodput", "cost:0.9"]


@pytest.mark.parametrize("text", ["speed", "goodput -", "2*", "cost:1.5", "cost:x", "p42_ttft"])
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use|write|give"):
        parse_objective(text)


def test_constraints() -> None:
    m = run()
    level = Metric("attainment", "offline").value(m)
    assert parse_constraint("attainment:offline >= 10%").violation([m], None) == 0
    broken = parse_constraint(f"attainment:offline >= {level + 0.1:.6f}")
    assert broken.violation([m], None) == pytest.approx(0.1, abs=1e-5)
    worse = replace(m, attained=m.attained & (np.arange(len(m)) % 2 == 0))
    assert parse_constraint("class_loss <= 2%").violation([worse], [m]) > 0.1
    assert parse_constraint("class_loss <= 2%").violation([m], [m]) == 0
    with pytest.raises(ConfigError, match="is no constraint"):
        parse_constraint("attainment above 3")


def test_blocks_keep_the_number_of_bins() -> None:
    weights = block_weights(40, 7, 50, np.random.default_rng(1))
    assert (weights.sum(axis=1) == 40).all()


def test_a_longer_memory_asks_for_longer_blocks() -> None:
    rng = np.random.default_rng(2)
    white = rng.standard_normal(120)
    slow = np.repeat(rng.standard_normal(10), 12)
    assert block_length(slow) > block_length(white)
    assert block_length(np.zeros(50)) >= 1


def test_t_quantiles() -> None:
    for freedom, value in ((5, 2.5706), (10, 2.2281), (30, 2.0423)):
        assert t_quantile(0.975, freedom) == pytest.approx(value, rel=0.01)


def test_few_blocks_make_a_wider_interval() -> None:
    draws = np.random.default_rng(1).standard_normal(4000)
    few, many = interval(0.0, draws, 5), interval(0.0, draws, 100)
    assert few[1] - few[0] > 1.2 * (many[1] - many[0])


def test_a_run_against_itself_differs_by_nothing() -> None:
    m = run()
    d = difference(parse_objective("goodput")[0], [m, m], [m, m])
    assert (d.gain_pct, d.ci_low_pct, d.ci_high_pct) == (0.0, 0.0, 0.0)
    assert not d.sure


def test_less_is_better_of_a_tail() -> None:
    m = run()
    d = difference(parse_objective("p95_ttft")[0], [m], [replace(m, ttft_s=m.ttft_s / 2)])
    assert d.gain_pct == pytest.approx(50.0)
    assert d.sure
