"""After the change: what a study promised against what new logs show, with the right odds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tune.synthetic import PRESENT, SPAN_S, N, Planted
from tests.tune.test_verdict import CLASSES, FLEET, PROFILE, seen, traffic
from tfanalyze.errors import ExportError, InputError
from tfanalyze.replay.policies import load_policy
from tfanalyze.trace import Trace
from tfanalyze.tune import check, tune
from tfanalyze.tune.check import regime
from tfanalyze.tune.measure import Measured, Scenario
from tfanalyze.tune.objective import Metric, parse_objective
from tfanalyze.tune.promise import judge, judged_metric, promise_of, spread

GOAL = parse_objective("attainment")[0]


def run_of(share: float, luck: int, noise: float = 0.0) -> Measured:
    """A window in which about ``share`` of the requests attain; the backlog, so what is missed, comes in stretches."""
    base = Planted(0.0, noise=noise, luck=luck).measure(PRESENT, Scenario("holdout"))
    rng = np.random.default_rng(luck)
    level = rng.uniform(0.0, 1.0, N)
    drift = np.repeat(rng.normal(0.0, noise, 60), N // 60)
    ok = level < np.clip(share + drift, 0.0, 1.0)
    return replace(base, attained=ok, good_tokens=np.where(ok, base.offered_tokens, 0.0))


def promised(before: float = 0.60, after: float = 0.72, luck: int = 1, members: Any = (), observed: Measured | None = None) -> dict[str, Any]:
    present, tuned = run_of(before, luck, 0.05), run_of(after, luck, 0.05)
    return promise_of(GOAL, [present], [tuned], members, observed)


@pytest.mark.parametrize(
    ("real", "outcome"),
    [(0.72, "as_predicted"), (0.80, "as_predicted"), (0.66, "smaller"), (0.60, "gone"), (0.51, "gone")],
)
def test_outcomes(real: float, outcome: str) -> None:
    """60 % now, 72 % promised: 66 % is a smaller gain, 60 % none, and 51 % is certainly not 'still good'."""
    assert judge(promised(), True, real, 0.008)["outcome"] == outcome


def test_the_order_of_outcomes_follows_the_value() -> None:
    """From low to high: gone, (cannot tell,) smaller, as predicted: never back again."""
    rank = {"gone": 0, "cannot_tell": 1, "smaller": 1, "as_predicted": 2}
    for noise in (0.005, 0.02, 0.05, 0.1):
        words = [judge(promised(), True, real, noise)["outcome"] for real in np.linspace(0.3, 1.0, 141)]
        ranks = [rank[w] for w in words]
        assert ranks == sorted(ranks)
        assert ("cannot_tell" in words) != ("smaller" in words)


def test_few_requests_cannot_tell() -> None:
    found = judge(promised(), True, 0.66, 0.08)
    assert found["outcome"] == "cannot_tell"
    assert found["bound"] < found["before"] < found["expected"] < found["gain_above"]


def test_less_is_better_of_a_tail() -> None:
    promise = {
        "better": -1, "present": 2.0, "tuned": 1.5, "present_sd": 0.05, "tuned_sd": 0.05, "gain_sd": 0.05, "present_model_sd": 0.0,
        "tuned_model_sd": 0.0, "gain_model_sd": 0.0, "observed": None, "observed_sd": None,
    }  # fmt: skip
    words = [judge(promise, True, real, 0.02)["outcome"] for real in (1.0, 1.5, 1.75, 2.0, 2.5)]
    assert words == ["as_predicted", "as_predicted", "smaller", "gone", "gone"]


def test_a_bias_that_both_configs_share_is_no_broken_promise() -> None:
    """The model says 60 -> 72 %, the log of the holdout shows 50 % for the present config: 62 % is what was promised."""
    log = run_of(0.50, 3, 0.05)
    assert judge(promised(observed=log), True, 0.62, 0.01)["outcome"] == "as_predicted"
    assert judge(promised(), True, 0.62, 0.01)["outcome"] != "as_predicted"
    assert judge(promised(observed=log), True, 0.51, 0.01)["outcome"] == "gone"


def test_a_model_that_is_unsure_promises_less_surely() -> None:
    sure = judge(promised(), True, 0.72, 0.01)
    off = [(run_of(0.60 + d, 1, 0.05), run_of(0.72 + d, 1, 0.05)) for d in (-0.1, 0.1)]
    unsure = judge(promised(members=off), True, 0.72, 0.01)
    assert unsure["expected"] - unsure["bound"] > 2 * (sure["expected"] - sure["bound"])


def test_a_promise_that_is_kept_is_seldom_called_broken() -> None:
    """200 weeks of the same truth: the holdout saw one of them, the log another. One in twenty by chance, and no more than one in ten."""
    broken = gone = 0
    for luck in range(200):
        promise = promised(luck=1000 + luck)
        week = run_of(0.72, 5000 + luck, 0.05)
        word = judge(promise, True, Metric("attainment").value(week), spread(Metric("attainment"), [week]))["outcome"]
        broken += word in ("smaller", "gone")
        gone += word == "gone"
    assert broken <= 20
    assert gone <= 2


def test_no_gain_is_seldom_called_as_predicted() -> None:
    kept = 0
    for luck in range(200):
        week = run_of(0.60, 7000 + luck, 0.05)
        word = judge(promised(luck=1000 + luck), True, Metric("attainment").value(week), spread(Metric("attainment"), [week]))["outcome"]
        kept += word == "as_predicted"
    assert kept <= 10


def test_spread_is_that_of_windows() -> None:
    """The standard error from one window against the spread over many windows of the same truth."""
    weeks = [run_of(0.7, luck, 0.1) for luck in range(300)]
    true = float(np.std([Metric("attainment").value(w) for w in weeks]))
    told = float(np.mean([spread(Metric("attainment"), [w]) for w in weeks[:40]]))
    assert 0.8 * true < told < 1.5 * true
    assert weeks[0].span_s == pytest.approx(SPAN_S, rel=0.01)


def test_what_is_judged_is_the_objectives_own_where_logs_show_it() -> None:
    def label(text: str) -> str:
        return judged_metric(parse_objective(text)[0]).label

    assert label("goodput") == "token_attainment"
    assert label("attainment:interactive") == "attainment:interactive"
    assert label("p95_ttft:interactive") == "p95_ttft:interactive"
    assert label("cost:0.95") == label("fairness") == label("goodput+attainment") == "attainment"


def study(trace: Trace, **promise: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "metric": "attainment", "better": 1, "present": 0.9, "tuned": 0.99, "present_sd": 0.01, "tuned_sd": 0.005, "gain_sd": 0.01,
        "present_model_sd": 0.01, "tuned_model_sd": 0.005, "gain_model_sd": 0.01, "observed": None, "observed_sd": None,
    }  # fmt: skip
    told = {"attainment": 0.99}
    return {"verdict": "gain", "predicted": told, "predicted_present": {"attainment": 0.9}, "promise": usual | promise, "regime": regime(trace)}


def test_check_says_keep_recalibrate_roll_back_or_tune_again() -> None:
    trace = traffic(1200)
    now = study(trace)
    fine = check(seen(trace, np.zeros(1200)), now, classes=CLASSES)
    assert (fine["advice"], fine["outcome"], fine["inside"]) == ("keep", "as_predicted", True)
    late = np.where(np.arange(1200) % 20 == 0, 3.0, 0.2)  # 95 % attain
    found = check(seen(trace, np.zeros(1200), ttft_s=late), now, classes=CLASSES)
    assert (found["advice"], found["outcome"], found["inside"]) == ("recalibrate", "smaller", False)
    assert "95.0%" in found["why"] and "99.0%" in found["why"] and "90.0%" in found["why"]
    found = check(seen(trace, np.zeros(1200), ttft_s=3.0), now, classes=CLASSES)
    assert (found["advice"], found["outcome"], found["drifted"]) == ("roll_back", "gone", [])
    heavier = check(seen(traffic(1200, 20.0), np.zeros(1200)), now, classes=CLASSES)
    assert heavier["advice"] == "tune_again" and "rate_req_s" in heavier["drifted"]
    longer = seen(traffic(1200, input_tokens=np.full(1200, 6000)), np.zeros(1200))
    assert "input_tokens" in check(longer, now, classes=CLASSES)["drifted"]
    with pytest.raises(InputError, match="older version"):
        check(seen(trace, np.zeros(1200)), {"predicted": {}, "regime": {}}, classes=CLASSES)


def test_a_study_keeps_what_an_export_asks_for(tmp_path: Path) -> None:
    """Round trip: what tune returned goes to export as it is, and export's own refusals work on it."""
    from tfanalyze.config import Gateway
    from tfanalyze.export import export

    told = replace(PROFILE, held_out={"ttft_s_p95": 0.3, "goodput_tok_s": 0.05}, trusted={"input_tokens": (200.0, 900.0)})
    fleet = replace(FLEET, gateway=Gateway(replicas=2))
    found = tune(
        traffic(600, 9.0), fleet, told, CLASSES, policy="sglang", baseline="round_robin", trials=3, rivals=(), control=False,
        accept_model_error=True,
    )  # fmt: skip
    assert (found["instances"], found["gateway_replicas"], found["max_model_error"]) == (3, 2, 0.25)
    assert found["model_error"]["ttft_s_p95"] == 0.3
    assert "fitted on 200..900" in found["outside_regime"][0]

    def go(fleet: Any, **more: Any) -> Any:
        chosen = load_policy(found["tuned"]["policy"], found["tuned"]["settings"])
        return export("sglang", chosen if chosen.name == "sglang" else load_policy("sglang"), out=tmp_path, evidence=found, fleet=fleet, classes=CLASSES, **more)

    with pytest.raises(ExportError, match="30% is above|error is 30%"):
        go(fleet)
    doubts = go(fleet, accept_model_error=True)["doubts"]
    assert len(doubts) == 2 and "outside of what the profile was fitted on" in doubts[1]
    with pytest.raises(ExportError, match="tuned with 2"):
        go(replace(FLEET, gateway=Gateway(replicas=3)), accept_model_error=True)


def test_the_command_exits_with_what_is_to_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from tfanalyze.cli import run
    from tfanalyze.config import load_config
    from tfanalyze.ingest import ingest_logs
    from tfanalyze.trace import load_trace

    samples = Path(__file__).resolve().parents[2] / "sample_traces"
    db, file, config = tmp_path / "new.duckdb", tmp_path / "study.json", samples / "tfanalyze.toml"
    ingest_logs([samples / "rr-mid" / "requests.jsonl.zst"], db=db)
    trace = load_trace(db, classes=load_config(config).classes)

    def exits(**promise: float) -> tuple[int, dict[str, Any]]:
        file.write_text(json.dumps(study(trace, **promise)))
        code = run(["check", "--db", str(db), "--study", str(file), "--config", str(config), "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, found = exits(present=0.9, tuned=0.99)
    assert (code, found["advice"]) == (4, "roll_back")
    real, error = found["value"], found["value_sd"]
    assert 0.2 < real < 0.9
    code, found = exits(present=real - 4 * error - 0.1, tuned=real)
    assert (code, found["advice"]) == (0, "keep")
    code, found = exits(present=real - 4 * error - 0.1, tuned=real + 4 * error + 0.1)
    assert (code, found["advice"]) == (3, "recalibrate")
    code, found = exits(present=real - error, tuned=real + error)
    assert (code, found["advice"]) == (0, "wait")
