"""The written rules: what is rejected, repaired, linked and converted, each with its line and count."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tfanalyze.errors import ConfigError, TfanalyzeError
from tfanalyze.ingest import ingest_logs, lint
from tfanalyze.workspace import Workspace

T0 = 1764576000


@pytest.fixture
def db() -> Any:
    with Workspace.open(":memory:") as workspace:
        yield workspace


def log(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def row(i: int = 0, **more: Any) -> dict[str, Any]:
    return {"request_id": f"r{i}", "arrival": T0 + i, "prompt_tokens": 10, "completion_tokens": 5, **more}


def test_rejects_have_line_and_reason_and_add_up(db: Workspace, tmp_path: Path) -> None:
    path = log(
        tmp_path / "a.jsonl", row(0), "", "not json", row(1, prompt_tokens=-4), row(2, arrival=None), "[1, 2]", row(0),
        row(3, prompt_tokens=10**12), row(4, arrival=9e9), row(5),
    )  # fmt: skip
    result = ingest_logs([path], db=db)["files"][0]
    assert result["reasons"] == {
        "not_a_record": 2, "negative_tokens": 1, "no_arrival": 1, "duplicate": 1, "absurd_tokens": 1, "absurd_arrival": 1,
    }  # fmt: skip
    assert (result["rows"], result["taken"], result["rejected"]) == (9, 2, 7)
    found = db.con.execute("SELECT line, reason FROM rejects ORDER BY line").fetchall()
    assert found == [
        (3, "not_a_record"), (4, "negative_tokens"), (5, "no_arrival"), (6, "not_a_record"), (7, "duplicate"), (8, "absurd_tokens"),
        (9, "absurd_arrival"),
    ]  # fmt: skip
    assert db.con.execute("SELECT source_line FROM requests ORDER BY 1").fetchall() == [(1,), (10,)]


def test_repairs_null_the_field_and_are_counted(db: Workspace, tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", row(0, cached_tokens=11), row(1, ttft_ms=90, e2e_ms=80), row(2, queue_ms=-1), row(3, e2e_ms=1e12))
    result = ingest_logs([path], db=db)["files"][0]
    assert result["repaired"] == {"cached_over_input": 1, "ttft_over_e2e": 1, "negative_duration": 1, "absurd_duration": 1}
    assert db.con.execute("SELECT cached_tokens, ttft_us, queue_us, e2e_us FROM requests ORDER BY request_id").fetchall() == [
        (None, None, None, None), (None, None, None, 80_000), (None, None, None, None), (None, None, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_units_are_seen_from_the_epoch(db: Workspace, tmp_path: Path, unit: str, scale: int) -> None:
    path = log(tmp_path / "a.jsonl", *(row(i, arrival=(T0 + i) * scale) for i in range(3)))
    result = ingest_logs([path], db=db)["files"][0]
    assert result["units"]["arrival"] == unit and "unix" in result["clock"]
    assert db.con.execute("SELECT arrival_us FROM requests ORDER BY 1").fetchall() == [((T0 + i) * 10**6,) for i in range(3)]


def test_one_absurd_time_does_not_change_the_unit(db: Workspace, tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", *(row(i) for i in range(9)), row(9, arrival=T0 * 1000))
    result = ingest_logs([path], db=db)["files"][0]
    assert result["units"]["arrival"] == "s" and result["reasons"] == {"absurd_arrival": 1}


def test_a_trace_with_relative_times_can_be_placed(db: Workspace, tmp_path: Path) -> None:
    path = log(tmp_path / "t.jsonl", {"timestamp": 1500, "input_length": 5, "output_length": 2})
    result = ingest_logs([path], db=db, start_at="2025-12-01T08:00:00Z")["files"][0]
    assert result["columns"]["arrival_us"] == "assumed"
    assert db.con.execute("SELECT arrival_us, time_base FROM requests").fetchone() == (T0 * 10**6 + 1_500_000, "unix")


def test_zones(db: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2025-12-01 09:00:00,5,1\n2025-12-01 08:00:00+00:00,5,1\n")
    ingest_logs([path], db=db, tz="Europe/Berlin")
    assert db.con.execute("SELECT DISTINCT arrival_us FROM requests").fetchall() == [(T0 * 10**6,)]


def test_attempts_are_linked_to_the_first(db: Workspace, tmp_path: Path) -> None:
    path = log(
        tmp_path / "a.jsonl", row(0, request_id="a", corr_id="x", status="error"), row(1, request_id="b", corr_id="x", status="timeout"),
        row(2, request_id="c", corr_id="x", status="ok"), row(3, request_id="d", corr_id="y", status="ok"), row(4, request_id="e", corr_id="y"),
    )  # fmt: skip
    ingest_logs([path], db=db)
    found = db.con.execute("SELECT request_id, retry_of, attempt_no FROM requests ORDER BY 1").fetchall()
    assert found == [("a", None, None), ("b", "a", 1), ("c", "a", 2), ("d", None, None), ("e", None, None)]
    checks = {finding["check"]: finding["count"] for finding in lint(db)["findings"]}
    assert checks["attempts"] == 2 and checks["shared_ids"] >= 1


def test_rotated_overlap_is_not_taken_twice(db: Workspace, tmp_path: Path) -> None:
    ingest_logs([log(tmp_path / "a.jsonl", row(0), row(1))], db=db)
    result = ingest_logs([log(tmp_path / "b.jsonl", row(1), row(2))], db=db)["files"][0]
    assert result["reasons"] == {"duplicate": 1} and db.count("requests") == 3


def test_csv_with_quotes_short_rows_and_a_torn_end(db: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_bytes(b'TIMESTAMP,ContextTokens,GeneratedTokens\r\n"2025-12-01 08:00:00",5,1\r\n2025-12-01 08:00:01,5\r\n2025-12-01 08:00:02,x,1\r\n2025-12-01 08:0')
    result = ingest_logs([path], db=db)["files"][0]
    assert result["reasons"] == {"wrong_number_of_columns": 1, "torn_last_line": 1} and result["taken"] == 2
    assert db.con.execute("SELECT line FROM rejects ORDER BY 1").fetchall() == [(3,), (5,)]
    assert db.con.execute("SELECT input_tokens FROM requests ORDER BY arrival_us").fetchall() == [(5,), (None,)]


def test_directory_glob_and_stdin(db: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    log(tmp_path / "logs" / "a.jsonl", row(0))
    log(tmp_path / "logs" / "b.jsonl", row(1))
    (tmp_path / "logs" / "README.md").write_text("not a log")
    assert ingest_logs([tmp_path / "logs"], db=db)["totals"]["taken"] == 2
    log(tmp_path / "c.jsonl", row(2))
    assert ingest_logs([str(tmp_path / "*.jsonl")], db=db)["totals"]["taken"] == 1

    class Stdin:
        buffer = io.BytesIO(json.dumps(row(3)).encode() + b"\n")

    monkeypatch.setattr("sys.stdin", Stdin())
    assert ingest_logs(["-"], db=db)["totals"]["taken"] == 1
    assert db.count("requests") == 4


def test_mapping_of_json_csv_and_partitioned_parquet(db: Workspace, tmp_path: Path) -> None:
    mapping = {"arrival": "t", "input_tokens": "u.p", "e2e_s": "lat", "status": "code", "request_id": "'q' || n"}
    path = log(tmp_path / "a.jsonl", *({"t": f"2025-12-01T08:00:0{n}Z", "u": {"p": n}, "lat": 1.5, "code": 429, "n": n, "prompt": "x"} for n in range(3)))
    assert ingest_logs([path], db=db, mapping=mapping)["totals"]["taken"] == 3
    assert db.con.execute("SELECT arrival_us, input_tokens, e2e_us, status FROM requests WHERE request_id = 'q2'").fetchone() == (
        T0 * 10**6 + 2_000_000, 2, 1_500_000, "rejected",
    )  # fmt: skip
    parts = tmp_path / "parts"
    duckdb.sql(f"COPY (SELECT i % 2 AS day, {T0}000 + i AS ms, i AS p FROM range(10) t(i)) TO '{parts}' (FORMAT parquet, PARTITION_BY (day))")
    result = ingest_logs([parts], db=db, mapping={"arrival": "ms", "input_tokens": "p"})
    assert (result["totals"]["files"], result["totals"]["taken"]) == (2, 10)
    csv = tmp_path / "a.csv"
    csv.write_text(f"when,p\n{T0},7\n")
    assert ingest_logs([csv], db=db, mapping={"arrival": "when", "input_tokens": "p"})["totals"]["taken"] == 1


def test_mapping_errors_name_the_column(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", {"t": T0, "p": 5})
    with pytest.raises(ConfigError, match="did you mean 'arrival'"):
        ingest_logs([path], db=":memory:", mapping={"arival": "t"})
    with pytest.raises(ConfigError, match="input_tokens"):
        ingest_logs([path], db=":memory:", mapping={"arrival": "t", "input_tokens": "p + nope"})
    with pytest.raises(TfanalyzeError, match="no request log format"):
        ingest_logs([path], db=":memory:", mapping={"arrival": "other"})


def test_a_mapping_leaves_known_formats_alone(db: Workspace, tmp_path: Path) -> None:
    result = ingest_logs([log(tmp_path / "a.jsonl", row(0))], db=db, mapping={"arrival": "ts", "input_tokens": "usage"})
    assert result["files"][0]["format"] == "gateway"


def test_seed_of_a_drawn_load(tmp_path: Path) -> None:
    (tmp_path / "chunk-3-trace.csv").write_text("0,2.0,1.0,Gamma,1,0.5\n600,3.0,2.0,Weibull,1,1\n")
    (tmp_path / "chunk-3-dataset.json").write_text(json.dumps({"0": {"input_tokens": "{50: 0.5, 90: 0.5}", "output_tokens": "{7: 1.0}"}}))

    def drawn(seed: int) -> list[Any]:
        with Workspace.open(":memory:") as db:
            ingest_logs([tmp_path / "chunk-3-trace.csv"], db=db, seed=seed)
            return db.con.execute("SELECT arrival_us, input_tokens FROM requests ORDER BY source_line").fetchall()

    first = drawn(1)
    assert first == drawn(1) != drawn(2)
    assert sum(at < 600_000_000 for at, _ in first) == pytest.approx(1200, rel=0.15)
    assert sum(at >= 600_000_000 for at, _ in first) == pytest.approx(1800, rel=0.25)


def test_lint_of_a_quantised_trace_and_mixed_clocks(db: Workspace, tmp_path: Path) -> None:
    ingest_logs([log(tmp_path / "t.jsonl", *({"timestamp": 3000 * (i // 3), "input_length": 5 + i, "output_length": 2} for i in range(60)))], db=db)
    ingest_logs([log(tmp_path / "a.jsonl", row(0, status="rejected"), row(1, status="ok", completion_tokens=0))], db=db)
    checks = {finding["check"]: finding for finding in lint(db)["findings"]}
    assert {"quantised", "mixed_clocks", "hidden_demand_rejected", "empty_answers"} <= set(checks)
    assert "grid of 3 s, up to 3" in checks["quantised"]["what"]
