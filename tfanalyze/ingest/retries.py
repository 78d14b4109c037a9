"""Attempts that share an id with an earlier failed one of the same file are its retries, where the log does not say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

FAILED = "('error', 'timeout', 'rejected', 'cancelled')"
KEYS = ("corr_id", "request_id")


def maybe(con: duckdb.DuckDBPyConnection, rows: str, names: set[str]) -> bool:
    """Whether rows (SQL) with these columns hold a failed attempt and an id twice."""
    keys = [key for key in KEYS if key in names]
    if "status" not in names or not keys:
        return False
    if not con.execute(f"SELECT 1 FROM ({rows}) WHERE status IN {FAILED} LIMIT 1").fetchall():
        return False
    counts = con.execute(
        f"SELECT {', '.join(f'count({key}) > count(DISTINCT {key})' for key in keys)} FROM ({rows})"
    ).fetchall()[0]
    return any(counts)


def link(con: duckdb.DuckDBPyConnection, table: str, source_id: int, names: set[str]) -> None:
    """Fill retry_of and attempt_no of a source's rows in a table with these columns."""
    order = "arrival_us, source_line" if "arrival_us" in names else "source_line"
    first = ", ".join(name for name in ("request_id",) if name in names)
    for key in (key for key in KEYS if key in names):
        con.execute(
            f"UPDATE {table} SET retry_of = coalesce(retry_of, first_id), attempt_no = coalesce(attempt_no, k), "
            'provenance = json_merge_patch(provenance, \'{"retry_of":"derived","attempt_no":"derived"}\') '
            f"FROM (SELECT source_line AS line, first_value(coalesce({first + ', ' if first else ''}{key})) OVER w AS first_id, "
            "row_number() OVER w - 1 AS k, lag(status) OVER w AS before "
            f"FROM {table} WHERE source_id = {source_id} AND {key} IS NOT NULL WINDOW w AS (PARTITION BY {key} ORDER BY {order})) a "
            f"WHERE {table}.source_id = {source_id} AND {table}.source_line = a.line AND a.k > 0 AND a.before IN {FAILED}"
        )
