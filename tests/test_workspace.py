"""The workspace: schema, versions, transactions, results, simulated requests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest

from tfanalyze.errors import WorkspaceError
from tfanalyze.parts import REQUEST_COLUMNS, insert_rows
from tfanalyze.workspace import VERSION, Workspace, storage_errors


def test_schema_and_reopen(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    with Workspace.open(path) as workspace:
        names = [row[0] for row in workspace.con.execute("DESCRIBE requests").fetchall()]
        assert names == list(REQUEST_COLUMNS)
        workspace.save_json("profiles", "a", {"x": 1})
    with Workspace.open(path, read_only=True) as workspace:
        assert workspace.load_json("profiles") == {"x": 1}
        with pytest.raises(duckdb.Error):
            workspace.con.execute("DELETE FROM objects")


def test_results_by_name_and_newest(tmp_path: Path) -> None:
    with Workspace.open(":memory:") as workspace:
        for name, value in (("a", 1), ("b", 2), ("a", 3)):
            workspace.save_json("studies", name, {"v": value})
        assert workspace.list_json("studies") == ["b", "a"]
        assert workspace.load_json("studies") == {"v": 3} and workspace.load_json("studies", "b") == {"v": 2}
        with pytest.raises(WorkspaceError, match="it holds: b, a"):
            workspace.load_json("studies", "c")


def test_a_transaction_is_all_or_nothing() -> None:
    with Workspace.open(":memory:") as workspace:
        with pytest.raises(ZeroDivisionError), workspace.transaction():
            workspace.con.execute("INSERT INTO rejects VALUES (1, 'f', 1, 'r', NULL)")
            raise ZeroDivisionError
        assert workspace.count("rejects") == 0
        with workspace.transaction():
            workspace.con.execute("INSERT INTO rejects VALUES (1, 'f', 1, 'r', NULL)")
        assert workspace.count("rejects") == 1


@pytest.mark.parametrize("case", ["missing", "directory", "no folder", "junk", "other database", "read-only empty"])
def test_one_clear_line(tmp_path: Path, case: str) -> None:
    path, read_only = tmp_path / "w.duckdb", False
    if case == "missing":
        read_only = True
    elif case == "directory":
        path.mkdir()
    elif case == "no folder":
        path = tmp_path / "no" / "w.duckdb"
    elif case == "junk":
        path.write_bytes(b"this is no database at all" * 400)
    else:
        with duckdb.connect(str(path)) as con:
            con.execute("CREATE TABLE mine(x INTEGER)" if case == "other database" else "SELECT 1")
        read_only = case == "read-only empty"
    with pytest.raises(WorkspaceError) as caught:
        Workspace.open(path, read_only=read_only)
    line = str(caught.value)
    assert "\n" not in line and str(path) in line and caught.value.mend
    if case == "other database":
        with duckdb.connect(str(path)) as con:
            assert con.execute("SELECT count(*) FROM mine").fetchone() == (0,)


def test_newer_version_is_refused_and_older_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.duckdb"
    Workspace.open(path).close()
    import tfanalyze.workspace as module

    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, "CREATE TABLE extra(x INTEGER)"))
    monkeypatch.setattr(module, "VERSION", VERSION + 1)
    with pytest.raises(WorkspaceError, match="open it once for writing"):
        Workspace.open(path, read_only=True)
    with Workspace.open(path) as workspace:
        assert workspace.count("extra") == 0
    monkeypatch.setattr(module, "VERSION", VERSION)
    with pytest.raises(WorkspaceError, match=f"schema version {VERSION + 1}"):
        Workspace.open(path)


def test_a_workspace_of_one_wide_table_is_migrated(tmp_path: Path) -> None:
    """Version 1: `requests` was a table with all columns."""
    path = tmp_path / "w.duckdb"
    with Workspace.open(path) as workspace:
        workspace.con.execute("DROP VIEW requests; DROP TABLE parts; UPDATE meta SET value = '1' WHERE key = 'schema_version'")
        workspace.con.execute(f"CREATE TABLE requests({', '.join(f'{name} {kind}' for name, kind in REQUEST_COLUMNS.items())})")
        workspace.con.execute("INSERT INTO requests(row_uid, request_id, ttft_us, source_line) VALUES (7, 'a', 1500000, 3)")
    with pytest.raises(WorkspaceError, match="open it once for writing"):
        Workspace.open(path, read_only=True)
    for _ in range(2):
        with Workspace.open(path) as workspace:
            assert workspace.con.execute("SELECT row_uid, request_id, ttft_s, source_line FROM requests JOIN observed USING (request_id, source_line)").fetchall() == [
                (7, "a", 1.5, 3)
            ]
    with Workspace.open(path) as workspace:
        insert_rows(workspace.con, {"request_id": np.array(["b"], object)})
        assert workspace.con.execute("SELECT request_id FROM requests ORDER BY 1").fetchall() == [("a",), ("b",)]


def test_tables_with_the_same_columns_are_shared() -> None:
    with Workspace.open(":memory:") as workspace:
        assert workspace.count("requests") == 0
        for name in ("a", "b"):
            insert_rows(workspace.con, {"request_id": np.array([name], object), "input_tokens": np.array([5])})
        insert_rows(workspace.con, {"request_id": np.array(["c"], object)})
        assert workspace.count("parts") == 2
        assert workspace.con.execute("SELECT request_id, input_tokens, ttft_us FROM requests ORDER BY 1").fetchall() == [
            ("a", 5, None), ("b", 5, None), ("c", None, None),
        ]  # fmt: skip


def test_a_half_made_migration_leaves_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.duckdb"
    Workspace.open(path).close()
    import tfanalyze.workspace as module

    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, "CREATE TABLE extra(x INTEGER); SELECT no_such_column"))
    monkeypatch.setattr(module, "VERSION", VERSION + 1)
    with pytest.raises(duckdb.Error):
        Workspace.open(path)
    monkeypatch.undo()
    with Workspace.open(path) as workspace:
        tables = [row[0] for row in workspace.con.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        assert "extra" not in tables


def test_storage_errors_are_one_line() -> None:
    with pytest.raises(WorkspaceError, match="free disk space"), storage_errors("w.duckdb"):
        raise duckdb.IOException("IO Error: no space left\nmore")


def test_write_outcome_replaces_a_run() -> None:
    from tfanalyze.trace import Trace

    n = 3
    i32 = np.full(n, 10, dtype=np.int32)
    trace = Trace(
        arrival_s=np.array([0.0, 1.0, 2.0]), input_tokens=i32, output_tokens=i32, max_tokens=i32, slo_class=np.zeros(n, np.int8),
        tenant=np.full(n, -1, np.int32), priority=np.zeros(n, np.int32), prev=np.full(n, -1, np.int32), think_s=np.full(n, np.nan),
        deadline_s=np.full(n, np.nan), model=np.full(n, -1, np.int16), site=np.full(n, -1, np.int16), block_off=np.zeros(n + 1, np.int64),
        block_id=np.zeros(0, np.int32), block_size=0, classes=("interactive",), start_us=1_000_000,
    )  # fmt: skip
    outcome = SimpleNamespace(
        arrival_s=trace.arrival_s, start_s=trace.arrival_s + 0.1, first_token_s=np.array([0.5, 1.5, np.nan]),
        finish_s=np.array([1.4, 2.4, np.nan]), status=np.array([0, 0, 4], np.int8), reason=np.array([0, 0, 1], np.int8),
        attempts=np.ones(n, np.int8), instance=np.array([0, 1, -1], np.int32), hit_tokens=np.zeros(n, np.int32),
        delivered_tokens=np.array([10, 10, 0], np.int32), preemptions=np.zeros(n, np.int16), instance_names=("i0", "i1"),
    )  # fmt: skip
    with Workspace.open(":memory:") as workspace:
        for _ in range(2):
            workspace.con.execute("SELECT 1 UNION ALL SELECT 2").fetchone()  # a half-read result must not be in the way
            workspace.write_outcome("run", trace, outcome)
        found = workspace.con.execute(
            "SELECT request_id, arrival_us, instance, status, reason, round(ttft_s, 6), round(tpot_s, 6), attained FROM simulated ORDER BY 1"
        ).fetchall()
    assert found[0] == ("r0", 1_000_000, "i0", "ok", None, 0.5, 0.1, True)
    assert found[2][2:6] == (None, "rejected", "shed", None) and found[2][7] is False and len(found) == 3
