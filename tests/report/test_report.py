"""The report: complete, small, valid figures, honest about what is missing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfanalyze.config import DEFAULT_CLASSES
from tfanalyze.errors import InputError
from tfanalyze.report import report, sections
from tfanalyze.report.blame import ALL_CAUSES, blame, by_cause, worst
from tfanalyze.report.columns import observed_run, simulated_run
from tfanalyze.report.figures import Figure, Table
from tfanalyze.report.reduce import bins_of, grouped, occupancy, quantile_points, sums, thinned
from tfanalyze.report.section import Note
from tfanalyze.slo import summarise

from .made import made_bundle, made_outcome, made_trace


def quiet(share: float, what: str) -> None:
    assert 0 <= share <= 1 and what


@pytest.fixture(scope="module")
def bundle() -> dict[str, Any]:
    return made_bundle()


@pytest.fixture(scope="module")
def page(bundle: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    return report(bundle, tmp_path_factory.mktemp("report") / "r.html", progress=quiet).read_text()


def test_page_loads_nothing(page: str) -> None:
    outside = re.sub(r'<script type="text/plain" id="plotly">.*?</script>', "", page, flags=re.S)
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', outside)
    assert "@import" not in outside and "url(" not in outside
    assert len(page) < 6_000_000


def test_every_figure_has_sentence_table_and_alternative(bundle: dict[str, Any], page: str) -> None:
    figures = [block for part in sections(bundle, quiet) for block in part.blocks if isinstance(block, Figure)]
    assert len(figures) > 25
    for one in figures:
        assert one.sentence.endswith(".") and len(one.sentence) > 40, one.key
        assert one.table.rows and all(len(row) == len(one.table.head) for row in one.table.rows), one.key
        assert "nan" not in one.sentence, one.sentence
    assert page.count('role="img" aria-label="') == page.count("<figure") == len(figures)
    assert page.count("<details>") == len(figures)


def test_figures_are_valid_plotly(bundle: dict[str, Any]) -> None:
    import plotly.graph_objects as go

    colors = {"fg": "#111111", "muted": "#cccccc", "good": "#00795a", "bad": "#c0392b", "panel": "#ffffff"}

    def resolved(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("@"):
            return "Blues" if value == "@heat" else colors.get(value[1:].split(":")[0], "#0072B2")
        if isinstance(value, list):
            return [resolved(one) for one in value]
        return {key: resolved(one) for key, one in value.items()} if isinstance(value, dict) else value

    for part in sections(bundle, quiet):
        for block in part.blocks:
            if isinstance(block, Figure):
                go.Figure({"data": resolved(block.data), "layout": resolved(block.layout)})


def test_figures_are_small_whatever_the_run(tmp_path: Path) -> None:
    n = 1_000_000
    trace = made_trace(n, rate=900.0)
    runs = {}
    for label, speed in (("round_robin", 1.0), ("tokenpilot", 1.5)):
        outcome = made_outcome(trace, speed, series=False)
        runs[label] = {"trace": trace, "outcome": outcome, "summary": summarise(trace, outcome, DEFAULT_CLASSES)}
    out = report({"runs": runs, "classes": DEFAULT_CLASSES}, tmp_path / "big.html")
    assert out.stat().st_size < 3_000_000
    data = json.loads(re.search(r'id="figures">(.*?)</script>', out.read_text(), re.S).group(1))  # type: ignore[union-attr]
    longest = max(len(trace.get("x", ())) for one in data.values() for trace in one["data"])
    assert 50 < longest <= 500


def test_missing_parts_say_which_command_fills_them(tmp_path: Path) -> None:
    text = report({}, tmp_path / "empty.html").read_text()
    for command in ("tfanalyze compare", "tfanalyze inspect", "tfanalyze fit", "tfanalyze validate", "tfanalyze tune", "tfanalyze export"):
        assert command in text, command
    empty = [block for part in sections({}, quiet) for block in part.blocks if isinstance(block, Note) and block.missing]
    assert len(empty) >= 8


def test_one_run_of_one_request() -> None:
    trace = made_trace(1)
    outcome = made_outcome(trace, 1.0)
    parts = sections({"runs": {"only": {"trace": trace, "outcome": outcome, "summary": {}}}}, quiet)
    assert any(isinstance(block, Figure) for part in parts for block in part.blocks)


def test_nothing_was_served() -> None:
    trace = replace(made_trace(50), observed=None)
    outcome = made_outcome(trace, 1.0, series=False)
    never = np.full(50, np.nan)
    outcome = replace(
        outcome, first_token_s=never, finish_s=never, start_s=never, status=np.full(50, 4, np.int8), reason=np.ones(50, np.int8),
        instance=np.full(50, -1, np.int32), delivered_tokens=np.zeros(50, np.int32),
    )  # fmt: skip
    run = {"trace": trace, "outcome": outcome, "summary": summarise(trace, outcome, DEFAULT_CLASSES)}
    parts = {part.key: part for part in sections({"runs": {"all shed": run}}, quiet)}
    worst_table = next(block for block in parts["misses"].blocks if isinstance(block, Table))
    assert len(worst_table.rows) == 10 and all(row[2] == "shed" for row in worst_table.rows)


def test_same_bundle_same_bytes(bundle: dict[str, Any], page: str, tmp_path: Path) -> None:
    assert report(bundle, tmp_path / "again.html").read_text() == page


def test_unwritable_place_is_one_error(bundle: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        report({}, tmp_path / "file" / "r.html")


def test_markup_in_names_is_escaped(tmp_path: Path) -> None:
    trace = made_trace(40)
    label = "<script>alert(1)</script>"
    run = {"trace": trace, "outcome": made_outcome(trace, 1.0), "summary": {}}
    text = report({"runs": {label: run}, "title": label}, tmp_path / "r.html").read_text()
    assert label not in text and "&lt;script&gt;alert(1)" in text


# reductions against the obvious ---------------------------------------------------------------------------------


def test_bins_keep_every_request() -> None:
    arrival_s = np.sort(np.random.default_rng(1).random(5000)) * 100
    bins = bins_of(arrival_s)
    values = np.arange(5000.0)
    assert sums(bins, values).sum() == values.sum()
    edge = bins.edge_s
    expected = [values[(arrival_s >= a) & (arrival_s < b)].sum() for a, b in zip(edge, edge[1:], strict=False)]
    expected[-1] += values[arrival_s >= edge[-1]].sum()
    np.testing.assert_allclose(sums(bins, values), expected)


def test_quantile_points_count_the_unserved() -> None:
    x, y = quantile_points(np.array([1.0, 2.0, 3.0, np.nan]), unserved=1)
    assert x[0] == 1.0 and x[-1] == 3.0
    assert y[-1] == pytest.approx(0.75)


def test_occupancy_counts_who_waits() -> None:
    trace = made_trace(300)
    run = simulated_run("a", trace, made_outcome(trace, 1.0), {}, None)
    since_s = run.arrival_s + run.gateway_s
    until_s = since_s + run.queue_s
    at_s = np.linspace(0, float(np.nanmax(until_s)), 17)
    found = occupancy(run, since_s, until_s, at_s)
    for n in range(len(run.instances)):
        for k, t in enumerate(at_s):
            mine = [r for r in range(300) if run.instance[r] == n and since_s[r] <= t < until_s[r]]
            assert found[n, k] == len(mine)


def test_grouping_and_thinning_keep_the_mean() -> None:
    rows = np.random.default_rng(2).random((200, 30))
    shown, names = grouped(rows, tuple(f"i{k}" for k in range(200)), 50)
    assert shown.shape == (50, 30) and names[0] == "i0 .. i3"
    assert shown.mean() == pytest.approx(rows.mean())
    t, thin = thinned(np.arange(1000.0), np.ones((1000, 3)), 100)
    assert len(t) <= 100 and (thin == 1).all() and (np.diff(t) > 0).all()


def test_blame_names_the_largest_part_of_the_broken_limit() -> None:
    trace = made_trace(2000)
    run = simulated_run("a", trace, made_outcome(trace, 0.6), {}, None)
    verdict = blame(run)
    assert (verdict.cause == 0).tolist() == run.attained.tolist()
    for r in np.flatnonzero(~run.attained):
        cause = ALL_CAUSES[verdict.cause[r]]
        limits = run.classes[run.slo_class[r]]
        if run.reason[r] == 1:
            assert cause == "shed"
        elif run.status[r] == 2:
            assert cause == "timed out"
        elif run.ttft_s[r] > limits.ttft_s:
            parts = {"waited at the gateway": run.gateway_s[r], "waited in the engine's queue": run.queue_s[r], "prefill": run.prefill_s[r]}
            assert cause == max(parts, key=lambda name: parts[name])
        elif run.tpot_s[r] > limits.tpot_s:
            assert cause == ("preempted" if run.preemptions[r] else "decode")
    assert sum(one["requests"] for one in by_cause(run, verdict).values()) == (~run.attained).sum()


def test_worst_are_the_latest_and_the_unserved() -> None:
    trace = made_trace(2000)
    run = simulated_run("a", trace, made_outcome(trace, 0.6), {}, None)
    verdict = blame(run)
    rows = worst(run, verdict)
    assert len(rows) == len(set(rows)) == 10
    assert not run.attained[rows].any()
    served = [r for r in rows if run.status[r] == 0]
    assert verdict.over[served[0]] == np.nanmax(np.where((run.status == 0) & ~run.attained, verdict.over, np.nan))


def test_observed_run_has_the_logs_times() -> None:
    trace = made_trace(100)
    run = observed_run(trace, DEFAULT_CLASSES)
    assert run is not None and trace.observed is not None
    np.testing.assert_array_equal(run.ttft_s, trace.observed.ttft_s)
    assert 0 < run.attained.mean() < 1
    assert observed_run(replace(trace, observed=None), None) is None


def test_report_of_a_real_replay(tmp_path: Path) -> None:
    """What the simulator really returns fits the report: sample log, recorded routing, another policy, series."""
    from tfanalyze.replay import Options, Simulator
    from tfanalyze.replay.policies import load_policy
    from tfanalyze.runs import prepare

    log = Path(__file__).resolve().parents[2] / "sample_traces" / "rr-low" / "requests.jsonl.zst"
    ready = prepare(log)
    simulator = Simulator(ready.trace, ready.fleet, ready.profiles, ready.classes, Options(series_bins=60))
    runs = {}
    for name in ("recorded", "tokenpilot+slomax"):
        outcome = simulator.run(load_policy(name), 1)
        runs[name] = {"trace": ready.trace, "outcome": outcome, "summary": summarise(ready.trace, outcome, ready.classes)}
    parts = {part.key: part for part in sections({"runs": runs, "classes": ready.classes, "fleet": ready.fleet}, quiet)}
    goodput = next(block for block in parts["overview"].blocks if isinstance(block, Figure))
    assert [trace["name"] for trace in goodput.data] == ["offered", "observed", "recorded", "tokenpilot+slomax"]
    heat = [block for block in parts["fleet"].blocks if isinstance(block, Figure) and block.data[0]["type"] == "heatmap"]
    assert len(heat) == 4 and all(len(one.data[0]["z"]) == ready.fleet.n_instances for one in heat)
    observed = observed_run(ready.trace, ready.classes)
    assert observed is not None and observed.attained.mean() > 0
    shown = next(block for block in parts["overview"].blocks if isinstance(block, Figure) and block.key == "attainment")
    for row in shown.table.rows[1:]:
        assert row[-1] == f"{100 * runs[row[0]]['summary']['attainment']:.1f} %"
