"""An outcome as a table: a polars frame, or a Parquet file that is the same bytes for the same outcome."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfanalyze.config import SloClass
from tfanalyze.errors import InputError

if TYPE_CHECKING:
    import polars as pl

    from tfanalyze.replay import Outcome
    from tfanalyze.trace import Trace


def outcome_frame(trace: Trace, outcome: Outcome, classes: Sequence[SloClass] | None = None, *, run: str = "") -> pl.DataFrame:
    """One row a request: the columns of table ``simulated`` (docs/sql.md); seconds, tokens; null where it did not happen."""
    import numpy as np
    import polars as pl

    columns = _columns(run, trace, outcome, classes)
    floats = [name for name, column in columns.items() if np.asarray(column).dtype.kind == "f"]
    return pl.DataFrame(columns).with_columns(pl.col(floats).fill_nan(None))


def write_parquet(
    path: str | Path, trace: Trace, outcome: Outcome, classes: Sequence[SloClass] | None = None, *, run: str = ""
) -> Path:
    """Write the same table to ``path``; a file appears whole or not at all.

    Errors: InputError for a name that does not end in .parquet or a place that cannot be written.
    """
    import duckdb

    out = check_parquet(path)
    part = out.with_name(out.name + ".part")
    columns = _columns(run, trace, outcome, classes)
    floats = {name for name, column in columns.items() if column.dtype.kind == "f"}
    picked = ", ".join(f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {name}" if name in floats else name for name in columns)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with duckdb.connect() as con:
            con.execute("SET threads = 1")
            con.register("columns", columns)
            target = str(part).replace("'", "''")
            con.execute(f"COPY (SELECT {picked} FROM columns) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
        part.replace(out)
    except (OSError, duckdb.IOException) as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {str(error).splitlines()[0]}", str(out), "give another --out") from error
    return out


def check_parquet(path: str | Path) -> Path:
    """The path, if a Parquet file may have that name.  Errors: InputError."""
    out = Path(path)
    if out.suffix != ".parquet":
        raise InputError(f"ends in {out.suffix or 'nothing'!r}", str(out), "give a name that ends in .parquet")
    return out


def _columns(run: str, trace: Trace, outcome: Outcome, classes: Sequence[SloClass] | None) -> dict[str, Any]:
    from tfanalyze.workspace import outcome_columns

    return outcome_columns(run or outcome_name(outcome), trace, outcome, classes)


def outcome_name(outcome: Outcome) -> str:
    """Names of its policies, "instance+site+admit", the trivial ones included."""
    return "+".join(str(outcome.policy[kind]["name"]) for kind in ("instance", "site", "admit") if kind in outcome.policy)
