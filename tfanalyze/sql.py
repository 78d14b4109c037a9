"""SQL over a workspace, read only: its tables and the views of tfanalyze/views.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfanalyze.errors import InputError
from tfanalyze.views import create_views

if TYPE_CHECKING:
    import polars as pl

    from tfanalyze.workspace import Workspace


def run_sql(db: str | Path | Workspace, query: str) -> pl.DataFrame:
    """Rows of a query, as a polars frame; docs/sql.md has the tables and views.

    A workspace that is given by its path is opened read only: nothing a query does can change it.
    Errors: InputError for SQL that DuckDB refuses, with its reason; WorkspaceError for a workspace that cannot be read.
    """
    from tfanalyze.workspace import Workspace

    if not query.strip().rstrip(";"):
        raise InputError("the query is empty", "sql", 'try: tfanalyze sql "SELECT * FROM run_summary"')
    if isinstance(db, Workspace):
        return _run(db, query)
    with Workspace.open(db, read_only=True) as workspace:
        return _run(workspace, query)


def _run(workspace: Workspace, query: str) -> pl.DataFrame:
    import duckdb
    import polars as pl

    workspace.con.execute(create_views(temporary=True))
    try:
        cursor = workspace.con.execute(query)
        rows = cursor.fetchall() if cursor.description else []
    except duckdb.Error as error:
        raise InputError(_first_lines(str(error)), "sql", "see docs/sql.md for tables, views and columns") from error
    names = _unique([str(column[0]) for column in cursor.description or ()])
    columns: dict[str, Any] = {name: [row[k] for row in rows] for k, name in enumerate(names)}
    return pl.DataFrame(columns, strict=False, infer_schema_length=None)


def _first_lines(text: str) -> str:
    """DuckDB's reason and what it suggests, on one line, without the picture of the query."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("LINE ", "^"))]
    return " ".join(kept[:3]) or "the query failed"


def _unique(names: list[str]) -> list[str]:
    """Column names, the second `a` as `a_2`: a frame needs different ones."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found
