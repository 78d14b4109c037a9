"""Metrics: every shape, the canonical names, times, torn lines, resets and renames."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tfanalyze.errors import TfanalyzeError
from tfanalyze.ingest import ingest_logs, ingest_metrics, lint
from tfanalyze.ingest.names import canonical
from tfanalyze.ingest.shapes import SHAPES
from tfanalyze.ingest.statlines import stats
from tfanalyze.ingest.times import Clock, clock_for, duration_us, iso_us, number_us
from tfanalyze.workspace import Workspace

T0 = 1764576000
SCRAPE = """# HELP vllm:prompt_tokens_total Prompt tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m-8b"} 81200.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m-8b"} 0.412
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="1",model_name="m-8b"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m-8b"} 5.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m-8b"} 1.9
vllm:time_to_first_token_seconds_count{engine="0",model_name="m-8b"} 5.0
"""
AIPERF = json.dumps({"endpoint_url": "http://a:1/metrics", "timestamp_ns": T0 * 10**9, "metrics": {
    "vllm:num_requests_running": [{"labels": {"engine": "0"}, "value": 3}],
    "vllm:e2e_request_latency_seconds": [{"labels": {}, "buckets": {"1.0": 2, "+Inf": 3}, "sum": 4.0, "count": 3}]}}) + "\n"  # fmt: skip
OTLP = json.dumps({"resourceMetrics": [{"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "e0"}}]},
    "scopeMetrics": [{"metrics": [
        {"name": "vllm:num_requests_waiting", "gauge": {"dataPoints": [{"timeUnixNano": f"{T0}000000000", "asInt": "4"}]}},
        {"name": "vllm:request_queue_time_seconds", "histogram": {"aggregationTemporality": 2, "dataPoints": [
            {"timeUnixNano": f"{T0}000000000", "explicitBounds": [0.5], "bucketCounts": ["2", "1"], "sum": 1.5, "count": "3"}]}}]}]}]}) + "\n"  # fmt: skip
LOG = (
    "\x1b[36m(APIServer pid=7)\x1b[0m INFO 12-01 08:00:00 [loggers.py:271] Engine 001: Avg prompt throughput: 162.4 tokens/s, Avg generation "
    "throughput: 311.0 tokens/s, Running: 12 reqs, Waiting: 3 reqs, Deferred: 1 reqs, Preemptions: 2, GPU KV cache usage: 41.2%, "
    "Prefix cache hit rate: 55.1%, External prefix cache hit rate: 10.0%\n"
    "[2025-12-01 08:00:05 DP0 TP0] Prefill batch, #new-seq: 2, #new-token: 512, #cached-token: 1024, full token usage: 0.41, #running-req: 12, #queue-req: 3,\n"
)
SHAPED: dict[str, tuple[str, str, int, dict[str, float]]] = {
    "prometheus": ("a.prom", SCRAPE, 6, {"prompt_tokens_total": 81200, "kv_usage": 0.412, "ttft_s_sum": 1.9}),
    "scrapes": ("a.jsonl", json.dumps({"ts": T0, "instance": "i0", "text": SCRAPE}) + "\n" + json.dumps({"ts": T0 + 2, "instance": "i0", "error": "no"})
                + "\n", 6, {"kv_usage": 0.412}),
    "query_range": ("q.json", json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [
        {"metric": {"__name__": "sglang:num_queue_reqs", "instance": "b:1"}, "values": [[T0, "3"], [T0 + 15, "NaN"]]}]}}) + "\n", 1, {"waiting": 3}),
    "victoriametrics": ("v.jsonl", json.dumps({"metric": {"__name__": "vllm:num_requests_waiting", "instance": "a:1"}, "values": [3, None, 4],
        "timestamps": [T0 * 1000, T0 * 1000 + 1, T0 * 1000 + 15000]}) + "\n", 2, {"waiting": 3}),
    "aiperf_server": ("s.jsonl", AIPERF, 5, {"running": 3, "e2e_s_sum": 4.0}),
    "otlp_metrics": ("o.json", OTLP, 5, {"waiting": 4, "queue_s_sum": 1.5, "queue_s_count": 3}),
    "metrics_csv": ("g.csv", '"Time","vllm:num_requests_waiting","kv_cache_usage_pct"\n"2025-12-01 08:00:00","3","41.2"\n', 2,
        {"waiting": 3, "kv_usage": 0.412}),
    "stat_lines": ("e.log", LOG, 15, {"prompt_tok_s": 162.4, "kv_usage": 0.412, "prefill_batch_cached_tokens": 1024}),
}  # fmt: skip


@pytest.fixture
def db() -> Any:
    with Workspace.open(":memory:") as workspace:
        yield workspace


def value(db: Workspace, name: str) -> float:
    row = db.con.execute("SELECT value FROM metrics WHERE name = ? ORDER BY ts_us LIMIT 1", [name]).fetchone()
    assert row is not None, name
    return float(row[0])


def test_every_shape_has_a_sample() -> None:
    assert set(SHAPED) == set(SHAPES)


@pytest.mark.parametrize("name", list(SHAPED))
def test_shape(name: str, db: Workspace, tmp_path: Path) -> None:
    file, text, taken, values = SHAPED[name]
    path = tmp_path / file
    path.write_text(text)
    result = ingest_metrics([path], db=db, at=T0, year=2025)["files"][0]
    assert (result["format"], result["taken"]) == (name, taken)
    assert result["taken"] + result["rejected"] == result["rows"]
    assert {key: pytest.approx(value(db, key)) for key in values} == values
    first = db.con.execute("SELECT min(ts_us) FROM metrics").fetchone()
    assert first == (T0 * 10**6,)


@pytest.mark.parametrize("name", list(SHAPED))
def test_torn_and_packed_copies(name: str, tmp_path: Path) -> None:
    file, text, taken, _ = SHAPED[name]
    data = text.encode()
    with Workspace.open(":memory:") as db:
        packed = tmp_path / (file + ".gz")
        packed.write_bytes(gzip.compress(data[:50]) + gzip.compress(data[50:]))
        assert ingest_metrics([packed], db=db, at=T0, year=2025)["totals"]["taken"] == taken
        for cut in range(1, min(150, len(data) - 1), 11):
            path = tmp_path / f"{cut}-{file}"
            path.write_bytes(data[:-cut])
            try:
                result = ingest_metrics([path], db=db, at=T0, year=2025, format=name)["totals"]
            except TfanalyzeError:
                continue
            assert result["taken"] <= taken and result["taken"] + result["rejected"] == result["rows"]


def test_a_torn_last_number_is_not_taken(db: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    path.write_text("# TYPE a counter\na_total 5\nb_total 12345")
    result = ingest_metrics([path], db=db, at=T0)["files"][0]
    assert result["reasons"] == {"torn_last_line": 1} and result["taken"] == 1


@pytest.mark.parametrize(
    ("raw", "name", "factor"),
    [
        ("vllm:gpu_cache_usage_perc", "kv_usage", 1.0), ("vllm:kv_cache_usage_perc", "kv_usage", 1.0),
        ("sglang:token_usage", "kv_usage", 1.0), ("llamacpp:kv_cache_usage_ratio", "kv_usage", 1.0),
        ("vllm:time_per_output_token_seconds_bucket", "itl_s_bucket", 1.0), ("vllm:inter_token_latency_seconds_bucket", "itl_s_bucket", 1.0),
        ("vllm:request_time_per_output_token_seconds_sum", "tpot_s_sum", 1.0), ("sglang:queue_time_s_sum", "queue_s_sum", 1.0),
        ("vllm:iteration_tokens_total_bucket", "step_tokens_bucket", 1.0), ("vllm:model_execute_time_milliseconds_sum", "model_execute_s_sum", 1e-3),
        ("vllm:prefix_cache_hits_total", "prefix_hit_tokens_total", 1.0), ("sglang:cached_tokens_total", "prefix_hit_tokens_total", 1.0),
        ("ray_vllm_num_requests_running", "running", 1.0), ("tgi_batch_current_size", "running", 1.0), ("trtllm_num_requests_running", "running", 1.0),
        ("dynamo_frontend_inflight_requests", "gateway_running", 1.0), ("inference_objective_request_total", "gateway_requests_total", 1.0),
        ("llm_d_epp_request_ttft_seconds_sum", "gateway_ttft_s_sum", 1.0), ("DCGM_FI_DEV_GPU_UTIL", "gpu_busy_share", 0.01),
        ("nv_inference_queue_duration_us", "queue_seconds_total", 1e-6), ("my_own_total", "my_own_total", 1.0),
    ],
)  # fmt: skip
def test_canonical_names(raw: str, name: str, factor: float) -> None:
    named = canonical(raw, {})
    assert (named.name, named.factor) == (name, factor)


def test_router_gauges_do_not_pass_for_engines() -> None:
    assert canonical("vllm:num_requests_running", {"server": "http://a"}).name == "router_num_requests_running"


def test_two_names_of_one_quantity_are_not_added(db: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    path.write_text('# TYPE x gauge\nvllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n')
    result = ingest_metrics([path], db=db, at=T0)["files"][0]
    assert result["reasons"] == {"duplicate_sample": 1}
    assert db.con.execute("SELECT count(*), sum(value) FROM metrics WHERE name = 'kv_usage'").fetchone() == (1, 0.5)


def test_bucket_bounds_are_numbers(db: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    path.write_text(SCRAPE)
    ingest_metrics([path], db=db, at=T0)
    assert db.con.execute("SELECT DISTINCT labels['le'] FROM metrics WHERE name = 'ttft_s_bucket' ORDER BY 1").fetchall() == [("+Inf",), ("1.0",)]


def test_open_metrics_counts_seconds(db: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"# TYPE foo gauge\nfoo 3 {T0}.5\n# EOF\n")
    ingest_metrics([path], db=db)
    assert db.con.execute("SELECT ts_us FROM metrics").fetchone() == (T0 * 10**6 + 500_000,)


def test_repeated_scrapes_in_one_file(db: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    path.write_text(f"# scraped at {T0}\nfoo 1\n# scraped at {T0 + 15}\nfoo 2\n")
    ingest_metrics([path], db=db)
    assert db.con.execute("SELECT ts_us, value FROM metrics ORDER BY 1").fetchall() == [(T0 * 10**6, 1.0), ((T0 + 15) * 10**6, 2.0)]


def test_parser_agrees_with_prometheus_client(db: Workspace, tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    odd = SCRAPE + 'z{a="q\\"u } {",b="x y"} 1e+011\nw NaN\nv +Inf\n'
    path = tmp_path / "a.prom"
    path.write_text(odd)
    ingest_metrics([path], db=db, at=T0)
    expected = sorted((s.name, s.value) for f in text_string_to_metric_families(odd) for s in f.samples if s.value == s.value)
    assert sorted(db.con.execute("SELECT raw_name, value FROM metrics").fetchall()) == expected


def test_several_stat_records_on_one_line() -> None:
    line = LOG.split("\n")[0]
    clock = Clock("UTC", 2025)
    found = list(stats(line + " " + line, clock))
    assert len(found) == 2 and {stat.time_us for stat in found} == {T0 * 10**6} and found[0].rank == "1"


def test_times() -> None:
    assert iso_us("2025-12-01T08:00:00.25Z") == iso_us("2025-12-01T10:00:00.25+02:00") == iso_us("2025-12-01 09:00:00,25", "Europe/Berlin")
    assert [number_us(v) for v in (T0, T0 * 10**3, T0 * 10**6, T0 * 10**9)] == [T0 * 10**6] * 4
    assert (duration_us("1m2.5s"), duration_us("900.2ms"), duration_us("310µs"), duration_us("x")) == (62_500_000, 900_200, 310, None)
    clock = Clock("UTC", 2025)
    assert clock.time_us("INFO 12-31 23:59:59 [a.py:1] x") == iso_us("2025-12-31 23:59:59")
    assert clock.time_us("INFO 01-01 00:00:01 [a.py:1] x") == iso_us("2026-01-01 00:00:01")
    assert clock_for("run-20240203.log", "", "UTC", None).time_us("I0203 08:00:00.000001 1 a.go:1] x") == iso_us("2024-02-03 08:00:00.000001")


def test_lint_sees_outages_resets_and_coverage(db: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    stamps = [*range(20), *range(80, 100)]
    path.write_text("timestamp,instance,request_success_total\n" + "".join(f"{T0 + s},i0,{(s if s < 90 else s - 90) * 2}\n" for s in stamps))
    ingest_metrics([path], db=db)
    log = tmp_path / "l.jsonl"
    log.write_text("".join(json.dumps({"request_id": f"r{i}", "arrival": T0 + i, "instance": "i0", "prompt_tokens": 5}) + "\n" for i in range(90)))
    ingest_logs([log], db=db)
    checks = {finding["check"]: finding for finding in lint(db)["findings"]}
    assert {"scrape_outage", "counter_resets", "coverage"} <= set(checks)
    assert "another client" in checks["coverage"]["mend"]
