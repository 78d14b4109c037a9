"""The whole job on the committed samples."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema

import tfanalyze as tf

ROOT = Path(__file__).resolve().parents[1]


def test_the_demo_does_the_whole_job(tmp_path: Path) -> None:
    told: list[object] = []
    shares: list[float] = []
    result = tf.demo(out=tmp_path, trials=8, tell=told.append, progress=lambda share, what: shares.append(share))
    jsonschema.validate(result, json.loads((ROOT / "tfanalyze" / "schemas" / "demo.json").read_text()))
    assert [name.split(" (")[0] for name in result["holdout"]] == ["measured", "recorded", "round_robin", "tokenpilot+slomax"]
    requests = {metrics["requests"] for metrics in result["holdout"].values()}
    assert requests == {102}  # the third run, which neither fit nor tuning saw
    assert Path(result["report"]).read_text().lstrip().lower().startswith("<!doctype html>")
    assert (Path(result["config"]) / "tokenfleet.yaml").is_file() and (Path(result["config"]) / "evidence.json").is_file()
    assert min(shares) == 0.0 and max(shares) == shares[-1] == 1.0
    assert [line for line in told if isinstance(line, str)][0].startswith("1. ingest")

    kept = tf.run_sql(result["db"], "SELECT run, count(*) AS n FROM simulated GROUP BY run ORDER BY run")
    assert kept["n"].to_list() == [306, 306, 306]
    again = tf.demo(out=tmp_path, trials=8)
    assert again["holdout"] == result["holdout"] and again["trace_hash"] == result["trace_hash"]


def test_measured_and_replayed_agree_on_the_held_out_run(tmp_path: Path) -> None:
    """The model is fitted on two runs and holds on the third: goodput within 15 %, P50 TTFT within 30 %."""
    table = tf.demo(out=tmp_path, trials=1)["holdout"]
    measured, recorded = table["measured (the log)"], table["recorded"]
    assert abs(recorded["goodput_tok_s"] / measured["goodput_tok_s"] - 1) < 0.15
    assert abs(recorded["ttft_s"]["p50"] / measured["ttft_s"]["p50"] - 1) < 0.3
