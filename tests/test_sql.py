"""SQL over a workspace: what the log saw and what was simulated, side by side, read only."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tfanalyze.config import DEFAULT_CLASSES
from tfanalyze.errors import InputError, WorkspaceError
from tfanalyze.sql import run_sql
from tfanalyze.views import VIEWS
from tfanalyze.workspace import Workspace

ROWS = 40


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a small log of two classes and one simulated run of it."""
    from tfanalyze.ingest import ingest_logs
    from tfanalyze.replay.outcome import Outcome
    from tfanalyze.trace import load_trace

    home = tmp_path_factory.mktemp("sql")
    log = home / "requests.jsonl"
    with log.open("w") as out:
        for k in range(ROWS):
            body = {"request_id": f"q{k}", "arrival_us": 1_700_000_000_000_000 + k * 3_000_000, "slo_class": ("interactive", "offline")[k % 2],
                    "instance": f"i{k % 2}", "input_tokens": 100 + k, "output_tokens": 11, "ttft_us": 500_000, "e2e_us": 1_500_000, "status": "ok"}  # fmt: skip
            out.write(json.dumps(body) + "\n")
    path = home / "w.duckdb"
    found = ingest_logs([log], db=path)
    assert found["totals"]["taken"] == ROWS
    with Workspace.open(path) as workspace:
        trace = load_trace(workspace)
        n = len(trace)
        never = np.where(np.arange(n) % 10 == 9, np.nan, 1.0)  # every tenth is shed
        zero = np.zeros(n, np.int8)
        outcome = Outcome(
            arrival_s=trace.arrival_s, admit_s=trace.arrival_s * never, start_s=trace.arrival_s * never, first_token_s=(trace.arrival_s + 0.25) * never,
            finish_s=(trace.arrival_s + 1.0) * never, status=np.where(np.isnan(never), 4, 0).astype(np.int8), reason=np.isnan(never).astype(np.int8),
            attempts=zero + 1, instance=np.zeros(n, np.int32), hit_tokens=np.zeros(n, np.int32), delivered_tokens=np.where(np.isnan(never), 0, 11).astype(np.int32),
            preemptions=np.zeros(n, np.int16), waste_tokens={}, instance_names=("i0",), instance_busy_s=np.ones(1), seed=1, trace_hash="t", profile_hash="p",
            policy={}, kernel_s=0.0,
        )  # fmt: skip
        workspace.write_outcome("made", trace, outcome, DEFAULT_CLASSES)
    return path


@pytest.mark.parametrize("view", sorted(VIEWS))
def test_every_view_answers(db: Path, view: str) -> None:
    assert run_sql(db, f"SELECT * FROM {view}").columns


def test_pairs_hold_both_sides(db: Path) -> None:
    frame = run_sql(db, "SELECT * FROM request_pairs ORDER BY arrival")
    assert len(frame) == ROWS
    served = frame.filter(frame["status"] == "ok")
    assert len(served) == ROWS * 9 // 10
    assert served["observed_ttft_s"].to_list() == pytest.approx([0.5] * len(served))
    assert served["ttft_change_s"].to_list() == pytest.approx([-0.25] * len(served))
    assert frame.filter(frame["reason"] == "shed")["ttft_s"].null_count() == ROWS // 10


def test_summary_is_what_slo_says(db: Path) -> None:
    frame = run_sql(db, "SELECT * FROM run_summary ORDER BY slo_class")
    assert frame["requests"].to_list() == [20, 20]
    by_class = dict(zip(frame["slo_class"], zip(frame["attainment"], frame["effective_tokens"], frame["shed_share"], strict=True), strict=True))
    assert by_class["interactive"] == pytest.approx((1.0, 220, 0.0))  # rows 9, 19, 29, 39 are offline
    assert by_class["offline"] == pytest.approx((0.8, 16 * 11, 0.2))


def test_minutes_add_up(db: Path) -> None:
    frame = run_sql(db, "SELECT sum(requests) AS n, sum(offered_tok_s) * 60 AS tokens FROM run_minutes")
    assert frame.row(0) == pytest.approx((ROWS, ROWS * 11))


def test_views_are_in_the_file_for_any_client(db: Path) -> None:
    import duckdb

    with duckdb.connect(str(db), read_only=True) as con:
        assert con.execute("SELECT count(*) FROM request_pairs").fetchone() == (ROWS,)
        assert con.execute("SELECT round(tpot_s, 6) FROM observed LIMIT 1").fetchone() == (0.1,)


@pytest.mark.parametrize("query", ["DELETE FROM sources", "INSERT INTO meta VALUES ('a', 'b')", "CREATE TABLE x(a INT)", "DROP TABLE requests"])
def test_nothing_can_be_changed(db: Path, query: str) -> None:
    before = db.read_bytes()
    with pytest.raises(InputError, match="read-only"):
        run_sql(db, query)
    assert db.read_bytes() == before


@pytest.mark.parametrize(("query", "said"), [
    ("SELECT ttft FROM observed", "ttft_s"), ("SELECT * FROM runs", "run_summary|run_minutes|does not exist"), ("SELEKT 1", "syntax error"), (" ; ", "empty"),
])  # fmt: skip
def test_bad_sql_is_one_line(db: Path, query: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        run_sql(db, query)
    assert "\n" not in str(caught.value)


def test_missing_workspace(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="no such workspace"):
        run_sql(tmp_path / "none.duckdb", "SELECT 1")


def test_same_name_twice(db: Path) -> None:
    assert run_sql(db, "SELECT 1 AS a, 2 AS a").columns == ["a", "a_2"]


DOC = (Path(__file__).resolve().parents[1] / "docs" / "sql.md").read_text()


def test_every_view_and_column_is_documented(db: Path) -> None:
    for view in VIEWS:
        part = DOC.split(f"### `{view}`")[1].split("\n#")[0]
        for column in run_sql(db, f"SELECT * FROM {view} LIMIT 0").columns:
            assert re.search(rf"\b{column}\b", part), f"{view}.{column}"


@pytest.mark.parametrize("query", re.findall(r"```sql\n(.*?)```", DOC, re.S))
def test_queries_of_the_docs_run(db: Path, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_sql(db, query)
