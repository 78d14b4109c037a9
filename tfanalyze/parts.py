"""The tables behind `requests`: each has only the columns that its rows need, and the view fills in the rest.

A canonical request has over forty columns, a log a dozen of them. Table `parts` says for each table which SQL gives a
canonical column from its rows (a column, a constant, its row number); what it does not name is NULL. A large file has
a table of its own, small files with the same columns share one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

REQUEST_COLUMNS: dict[str, str] = {
    "row_uid": "UBIGINT",  # unique in the workspace: source and line
    "request_id": "VARCHAR",
    "arrival_us": "BIGINT",
    "model": "VARCHAR",
    "model_version": "VARCHAR",
    "site": "VARCHAR",
    "instance": "VARCHAR",
    "tenant": "VARCHAR",  # pseudonym unless tenants were kept
    "slo_class": "VARCHAR",
    "priority": "INTEGER",  # lower runs earlier
    "session_id": "VARCHAR",
    "turn": "INTEGER",  # 0 = first
    "retry_of": "VARCHAR",  # request_id of the logical request that this row tries again
    "input_tokens": "BIGINT",  # whole prompt, cached part included
    "cached_tokens": "BIGINT",
    "output_tokens": "BIGINT",
    "max_tokens": "BIGINT",
    "deadline_us": "BIGINT",
    "queue_us": "BIGINT",
    "ttft_us": "BIGINT",
    "e2e_us": "BIGINT",
    "status": "VARCHAR",  # ok | error | timeout | cancelled | rejected
    "finish_reason": "VARCHAR",
    "block_size": "INTEGER",  # tokens a block
    "blocks": "UBIGINT[]",  # chained prefix hashes, first block first
    "vantage": "VARCHAR",  # client | gateway | router | engine
    "clock_domain": "VARCHAR",  # whose clock wrote arrival_us
    "time_base": "VARCHAR",  # unix | monotonic | relative
    "arrival_unc_us": "BIGINT",  # half-width of what arrival_us may be off by
    "corr_id": "VARCHAR",  # x-request-id: joins vantages
    "trace_id": "VARCHAR",
    "attempt_no": "INTEGER",  # 0 = first
    "delay_us": "BIGINT",  # think time after the session's previous turn ended
    "phase": "VARCHAR",  # warmup | measured
    "http_status": "INTEGER",
    "token_basis": "VARCHAR",  # engine | usage | client_tokenizer | chunks | estimated
    "engine_prompt_us": "BIGINT",  # the engine's own prefill time
    "engine_predicted_us": "BIGINT",  # the engine's own decode time
    "sample_weight": "DOUBLE",
    "source_id": "BIGINT",
    "source_line": "BIGINT",
    "provenance": "VARCHAR",
}
LINES_PER_SOURCE = 1 << 40
# ids hardly repeat: zstd is written twice as fast as a dictionary that does not help, and read as fast
UNIQUE = ("request_id", "corr_id", "trace_id")


def text(value: str) -> str:
    """A string as an SQL constant."""
    return "'" + value.replace("'", "''") + "'"


def uid(source: str, line: str) -> str:
    """SQL of a row's uid from the SQL of its source and line."""
    return f"{source}::UBIGINT * {LINES_PER_SOURCE} + ({line})::UBIGINT"


def create_requests(parts: Mapping[str, Mapping[str, str]]) -> str:
    """SQL of the view `requests` over these tables: table -> canonical column -> SQL over the table."""
    picks = [
        "SELECT "
        + ", ".join(
            f"({columns.get(name, 'NULL')})::{kind} AS {name}" for name, kind in REQUEST_COLUMNS.items()
        )
        + f" FROM {table}"
        for table, columns in parts.items()
    ]
    empty = (
        "SELECT "
        + ", ".join(f"NULL::{kind} AS {name}" for name, kind in REQUEST_COLUMNS.items())
        + " WHERE false"
    )
    return "CREATE OR REPLACE VIEW requests AS " + (" UNION ALL ".join(picks) or empty)


def known(con: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    """The tables of `requests`, oldest first, and what they give."""
    return {
        table: json.loads(columns)
        for table, columns in con.execute("SELECT name, columns FROM parts ORDER BY seq").fetchall()
    }


def unused_name(con: duckdb.DuckDBPyConnection) -> str:
    used = "SELECT try_cast(substr(table_name, 10) AS BIGINT) AS n FROM duckdb_tables() WHERE starts_with(table_name, 'requests_')"
    row = con.execute(f"SELECT coalesce(max(n), 0) + 1 FROM ({used})").fetchone()
    assert row is not None
    return f"requests_{row[0]}"


def create(con: duckdb.DuckDBPyConnection, table: str, stored: Collection[str]) -> None:
    """Make the table of a part, with these canonical columns."""
    packed = dict.fromkeys(UNIQUE, " USING COMPRESSION zstd")
    listed = ", ".join(f"{name} {kind}{packed.get(name, '')}" for name, kind in REQUEST_COLUMNS.items() if name in stored)
    con.execute(f"CREATE TABLE {table}({listed})")


def add(con: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, str]) -> None:
    """Let a table named by `unused_name` be a part of `requests`."""
    con.execute(
        "INSERT INTO parts VALUES (?, ?, ?)", [int(table.rsplit("_", 1)[1]), table, json.dumps(dict(columns))]
    )
    con.execute(create_requests(known(con)))


def shared(con: duckdb.DuckDBPyConnection, stored: Sequence[str], constants: Mapping[str, str]) -> str:
    """The part that stores exactly these columns and has these constants (SQL); made if there is none."""
    wanted = {name: name for name in REQUEST_COLUMNS if name in stored} | dict(constants)
    if {"source_id", "source_line"} <= set(stored) and "row_uid" not in stored:
        wanted["row_uid"] = uid("source_id", "source_line")
    for table, columns in known(con).items():
        if columns == wanted:
            return table
    table = unused_name(con)
    con.execute(
        f"CREATE TABLE {table}({', '.join(f'{n} {k}' for n, k in REQUEST_COLUMNS.items() if n in stored)})"
    )
    add(con, table, wanted)
    return table


def insert_rows(con: duckdb.DuckDBPyConnection, columns: Mapping[str, Any]) -> None:
    """Put rows that no log file holds into `requests`: canonical column -> numpy array, all of one length."""
    from tfanalyze.workspace import insert_columns

    names = ", ".join(columns)
    insert_columns(con, columns, f"INSERT INTO {shared(con, list(columns), {})}({names}) SELECT {names}")
