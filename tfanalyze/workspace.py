"""The workspace: one DuckDB file that holds everything ingested and computed. Schema, migrations, transactions.

View `requests`, over the tables of parts.py, has one row a request attempt as one vantage (client, gateway, router,
engine) saw it. In it `arrival_us` is an absolute time (UTC epoch, or microseconds from the trace's start where `time_base` is
'relative' or 'monotonic'); every other `*_us` column is a duration (`deadline_us` and `ttft_us` count from the
arrival, `delay_us` from the end of the session's previous turn). Unknown is NULL. `provenance` is a JSON object:
column -> observed | derived | assumed; a column that it does not name is NULL.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tfanalyze.errors import WorkspaceError
from tfanalyze.parts import REQUEST_COLUMNS, create_requests
from tfanalyze.views import create_views

if TYPE_CHECKING:
    import duckdb

    from tfanalyze.config import SloClass
    from tfanalyze.trace import Trace

SCHEMA = f"""
CREATE TABLE meta(key VARCHAR PRIMARY KEY, value VARCHAR);
CREATE TABLE sources(source_id BIGINT PRIMARY KEY, path VARCHAR, format VARCHAR, kind VARCHAR, sha256 VARCHAR,
  bytes BIGINT, rows BIGINT, taken BIGINT, rejected BIGINT, torn BIGINT, first_us BIGINT, last_us BIGINT,
  clock VARCHAR, units VARCHAR, repaired VARCHAR, notes VARCHAR);
CREATE TABLE parts(seq BIGINT PRIMARY KEY, name VARCHAR, columns VARCHAR);
CREATE TABLE rejects(source_id BIGINT, file VARCHAR, line BIGINT, reason VARCHAR, field VARCHAR);
CREATE TABLE metrics(ts_us BIGINT, instance VARCHAR, name VARCHAR, labels MAP(VARCHAR, VARCHAR), value DOUBLE,
  raw_name VARCHAR, kind VARCHAR, source_id BIGINT);
CREATE TABLE objects(kind VARCHAR, name VARCHAR, seq BIGINT, body VARCHAR, PRIMARY KEY(kind, name));
CREATE TABLE simulated(run VARCHAR, request_id VARCHAR, arrival_us BIGINT, slo_class VARCHAR, instance VARCHAR,
  status VARCHAR, reason VARCHAR, start_s DOUBLE, first_token_s DOUBLE, finish_s DOUBLE, ttft_s DOUBLE,
  tpot_s DOUBLE, e2e_s DOUBLE, input_tokens BIGINT, output_tokens BIGINT, delivered_tokens BIGINT,
  hit_tokens BIGINT, preemptions INTEGER, attempts INTEGER, attained BOOLEAN);
{create_requests({})};
{create_views()}
"""
_WIDE = json.dumps({name: name for name in REQUEST_COLUMNS})
FROM_1 = f"""
ALTER TABLE requests RENAME TO requests_1;
CREATE TABLE parts(seq BIGINT PRIMARY KEY, name VARCHAR, columns VARCHAR);
INSERT INTO parts VALUES (1, 'requests_1', '{_WIDE}');
INSERT INTO meta VALUES ('long_pseudonyms', 'as in version 1');
{create_requests({"requests_1": {name: name for name in REQUEST_COLUMNS}})};
{create_views()}
"""  # version 1 had one wide table; names go on getting the pseudonyms that they have in it

MIGRATIONS: tuple[str, ...] = (SCHEMA, FROM_1)  # entry v brings version v to v + 1, but a new file starts at FIRST
FIRST = 2
VERSION = len(MIGRATIONS)

STATUS_NAMES = ("ok", "error", "timeout", "cancelled", "rejected", "lost")
REASON_NAMES = ("", "shed", "never_fits", "no_instance", "crash", "queue_full")


class Workspace:
    """An open workspace. Use it in a `with` statement, or call close().

    Errors: WorkspaceError for a file of a newer version, one that another process holds, or no DuckDB file.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, path: str, read_only: bool) -> None:
        self.con, self.path, self.read_only = con, path, read_only
        self._inside = False

    @classmethod
    def open(cls, path: str | Path, read_only: bool = False, wait_s: float = 0.0) -> Workspace:
        """Open or create the workspace at `path` (":memory:" for one that is never written to disk).

        A workspace that another process holds is tried again for `wait_s` seconds.
        """
        text = str(path)
        if text != ":memory:":
            _check_place(Path(text), read_only)
        con = _connect(text, read_only and text != ":memory:", wait_s)
        try:
            _migrate(con, text, read_only)
        except BaseException:
            con.close()
            raise
        return cls(con, text, read_only)

    def close(self) -> None:
        self.con.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing: what happens inside is committed at the end, or undone by any exception. One inside one joins it."""
        import duckdb

        if self._inside:
            yield
            return
        self.con.execute("BEGIN TRANSACTION")
        self._inside = True
        try:
            yield
        except BaseException:
            self._inside = False
            with suppress(duckdb.Error):  # a fatal error (disk full) has already ended the transaction
                self.con.execute("ROLLBACK")
            raise
        self._inside = False
        try:
            self.con.execute("COMMIT")
        except duckdb.Error:
            with suppress(duckdb.Error):
                self.con.execute("ROLLBACK")
            raise

    # results --------------------------------------------------------------------------------------------------

    def save_json(self, kind: str, name: str, obj: Mapping[str, Any]) -> None:
        """Keep a result under (kind, name), in place of what was there."""
        body = json.dumps(obj, sort_keys=True, separators=(",", ":"))
        with self.transaction():
            self.con.execute("DELETE FROM objects WHERE kind = ? AND name = ?", [kind, name])
            self.con.execute(
                "INSERT INTO objects SELECT ?, ?, coalesce(max(seq), 0) + 1, ? FROM objects", [kind, name, body]
            )

    def load_json(self, kind: str, name: str | None = None) -> dict[str, Any]:
        """The result kept under (kind, name); without a name the one saved last.

        Errors: WorkspaceError if there is none.
        """
        where, args = ("kind = ?", [kind]) if name is None else ("kind = ? AND name = ?", [kind, name])
        row = self.con.execute(
            f"SELECT body FROM objects WHERE {where} ORDER BY seq DESC LIMIT 1", args
        ).fetchone()
        if row is None:
            known = ", ".join(self.list_json(kind)) or "none"
            raise WorkspaceError(
                f"holds no {kind} {name!r}" if name else f"holds no {kind}", self.path, f"it holds: {known}"
            )
        loaded: dict[str, Any] = json.loads(row[0])
        return loaded

    def list_json(self, kind: str) -> list[str]:
        """Names of the results of a kind, oldest first."""
        rows = self.con.execute("SELECT name FROM objects WHERE kind = ? ORDER BY seq", [kind]).fetchall()
        return [row[0] for row in rows]

    def write_outcome(
        self, name: str, trace: Trace, outcome: Any, classes: Sequence[SloClass] | None = None
    ) -> None:
        """Write one simulated run into table `simulated`, in place of an earlier run of that name."""
        columns = outcome_columns(name, trace, outcome, classes)
        names = list(columns)
        with self.transaction():
            self.con.execute("DELETE FROM simulated WHERE run = ?", [name])
            picked = ", ".join(f"nullif({n}, 'nan'::DOUBLE)" if n.endswith("_s") else n for n in names)
            insert_columns(self.con, columns, f"INSERT INTO simulated({', '.join(names)}) SELECT {picked}")

    # reads ----------------------------------------------------------------------------------------------------

    def count(self, table: str) -> int:
        """Rows of one of the workspace's tables."""
        row = self.con.execute(f'SELECT count(*) FROM "{table}"').fetchone()
        assert row is not None
        return int(row[0])


def _check_place(path: Path, read_only: bool) -> None:
    if path.is_dir():
        raise WorkspaceError("is a directory, not a workspace", str(path), "give the path of a file with --db")
    if path.exists():
        return
    if read_only:
        raise WorkspaceError(
            "no such workspace", str(path), "make one with: tfanalyze ingest logs PATH --db " + str(path)
        )
    if not path.parent.is_dir():
        raise WorkspaceError(f"no such directory {path.parent}", str(path), "make it first, or give another --db")


def _connect(text: str, read_only: bool, wait_s: float) -> duckdb.DuckDBPyConnection:
    import duckdb

    waited = 0.0
    while True:
        try:
            return duckdb.connect(text, read_only=read_only)
        except (duckdb.Error, UnicodeDecodeError) as error:
            message = str(error)
            if not _is_lock(message):
                raise _cannot_open(text, message) from error
            if waited >= wait_s:
                raise _locked(text, message) from error
        time.sleep(0.1)
        waited += 0.1


def _is_lock(message: str) -> bool:
    return "lock" in message.lower() or "different configuration" in message


def _locked(text: str, message: str) -> WorkspaceError:
    holder = re.search(r"held in (.+?)\s*\(PID (\d+)\)", message) or re.search(r"()PID (\d+)", message)
    who = "this process" if "different configuration" in message else "another process"
    if holder:
        program = Path(holder.group(1).strip()).name
        who = f"process {holder.group(2)} ({program})" if program else f"process {holder.group(2)}"
    return WorkspaceError(f"the workspace is held by {who}", text, "wait until it ends, or give another --db")


def _cannot_open(text: str, message: str) -> WorkspaceError:
    if "newer" in message or "version number" in message:
        return WorkspaceError("written by a newer DuckDB than this one", text, "upgrade: pip install -U duckdb")
    if "not a valid DuckDB" in message:
        return WorkspaceError("is not a workspace (no DuckDB file)", text, "give another --db")
    first = message.splitlines()[0] if message else "unknown error"
    return WorkspaceError(f"cannot be opened: {first}", text, "check its permissions, or give another --db")


def _migrate(con: duckdb.DuckDBPyConnection, text: str, read_only: bool) -> None:
    tables = {row[0] for row in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "meta" not in tables:
        if tables:
            raise WorkspaceError("is a DuckDB file, but no workspace of tfanalyze", text, "give another --db")
        if read_only and text != ":memory:":
            raise WorkspaceError("the workspace is empty", text, "ingest something first")
    version = _version(con, text) if "meta" in tables else 0
    if version > VERSION:
        raise WorkspaceError(
            f"has schema version {version}, this tfanalyze knows up to {VERSION}", text, "upgrade tfanalyze"
        )
    if version == VERSION:
        return
    if read_only and text != ":memory:":
        raise WorkspaceError(
            f"has schema version {version}, this tfanalyze needs {VERSION}", text, "open it once for writing"
        )
    con.execute("BEGIN TRANSACTION")
    for step in MIGRATIONS[version:] if version else (MIGRATIONS[0], *MIGRATIONS[FIRST:]):
        con.execute(step)
    con.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", [str(VERSION)])
    con.execute("COMMIT")


def _version(con: duckdb.DuckDBPyConnection, text: str) -> int:
    row = con.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not str(row[0]).isdigit():
        raise WorkspaceError("its schema version is unreadable", text, "restore it from a copy, or ingest again")
    return int(row[0])


def outcome_columns(
    name: str, trace: Trace, outcome: Any, classes: Sequence[SloClass] | None
) -> dict[str, Any]:
    import numpy as np

    from tfanalyze.config import DEFAULT_CLASSES
    from tfanalyze.slo import attained

    n = len(trace)
    ids = trace.request_ids or tuple(f"r{row}" for row in range(n))
    arrival_s = np.asarray(getattr(outcome, "arrival_s", trace.arrival_s), dtype=np.float64)
    ttft_s = outcome.first_token_s - arrival_s
    e2e_s = outcome.finish_s - arrival_s
    gaps = np.where(outcome.delivered_tokens > 1, outcome.delivered_tokens - 1, 1)
    tpot_s = np.where(outcome.delivered_tokens > 1, (e2e_s - ttft_s) / gaps, np.nan)
    instances = (*outcome.instance_names, None)
    columns: dict[str, Any] = {
        "run": _texts([name] * n),
        "request_id": _texts(ids),
        "arrival_us": trace.start_us + np.rint(arrival_s * 1e6).astype(np.int64),
        "slo_class": _texts([trace.classes[c] if c >= 0 else None for c in trace.slo_class]),
        "instance": _texts([instances[i] if i >= 0 else None for i in outcome.instance]),
        "status": _texts([STATUS_NAMES[code] if code >= 0 else None for code in outcome.status]),
        "reason": _texts([REASON_NAMES[code] if code > 0 else None for code in outcome.reason]),
        "start_s": outcome.start_s,
        "first_token_s": outcome.first_token_s,
        "finish_s": outcome.finish_s,
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
        "e2e_s": e2e_s,
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
        "delivered_tokens": outcome.delivered_tokens,
        "hit_tokens": outcome.hit_tokens,
        "preemptions": outcome.preemptions,
        "attempts": outcome.attempts,
        "attained": np.asarray(attained(trace, outcome, tuple(classes or DEFAULT_CLASSES)), dtype=np.bool_),
    }
    return columns


def _texts(values: Sequence[str | None]) -> Any:
    import numpy as np

    return np.array(values, dtype=object)


def insert_columns(con: duckdb.DuckDBPyConnection, columns: Mapping[str, Any], select: str) -> None:
    """Run `select` (INSERT ... SELECT ..., without FROM) over numpy columns of equal length."""
    con.execute("SELECT 1").fetchall()  # a result that somebody left half read would forbid to register
    con.register("given_columns", dict(columns))
    try:
        con.execute(select + " FROM given_columns")
        con.execute("SELECT 1").fetchall()
    finally:
        con.unregister("given_columns")


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn what DuckDB raises on a full or failing disk into one line; what was committed before stays."""
    import duckdb

    try:
        yield
    except (duckdb.IOException, duckdb.FatalException, duckdb.OutOfMemoryException, duckdb.TransactionException) as error:
        first = str(error).splitlines()[0]
        raise WorkspaceError(
            f"cannot be written ({first})", path, "free disk space or memory and run it again: it goes on where it stopped"
        ) from error
