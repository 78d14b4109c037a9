"""Read a large and sound file in one pass, straight into a table of its own, while a thread hashes it.

Which fields the file has, the unit of its times and the like are taken from its start. That they hold for every row is
checked in the same pass, or on the table right after it; where one does not, or a line is no record, nothing is kept
and the file takes the careful way over `staged`. What the table holds is what the careful way would have stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from tfanalyze import parts
from tfanalyze.ingest import files, judge
from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import SCALE, BeyondSample, Col, Context, Format, epoch_unit, to_us
from tfanalyze.ingest.stage import reader, stage
from tfanalyze.parts import REQUEST_COLUMNS
from tfanalyze.workspace import Workspace

if TYPE_CHECKING:
    import duckdb

MIN_BYTES = 16 << 20  # smaller files share tables: the view gets slow over hundreds of them
CONSTANT = re.compile(r"'(?:[^']|'')*'|\d+")


class NotDirect(Exception):
    """This file has to take the careful way."""


@dataclass(frozen=True, slots=True)
class Plan:
    ctx: Context
    cols: dict[str, Col]
    base: str
    fields: str  # SQL of the reader
    never: list[str]  # SQL over the fields: what no row may be


def possible(source: Source, form: Format) -> bool:
    """Whether a file is worth a try: a large plain one of a format that maps rows one by one."""
    by_row = form.mapping is not None and form.kind != "python" and form.record == "true" and not form.rejects
    return by_row and source.codec == "plain" and source.data is None and Path(source.path).stat().st_size >= MIN_BYTES


def take(workspace: Workspace, form: Format, ctx: Context) -> tuple[Context, judge.Verdict] | None:
    """Ingest one file whose content is new; None, and nothing changed, if it has to take the careful way."""
    import duckdb

    serious = duckdb.IOException, duckdb.FatalException, duckdb.OutOfMemoryException, duckdb.TransactionException
    try:
        plan = _plan(form, ctx)
        with workspace.transaction():
            return plan.ctx, judge.take(workspace, *_read(workspace.con, form, plan))
    except (NotDirect, BeyondSample):
        return None
    except serious:
        raise
    except duckdb.Error:
        return None


def _plan(form: Format, ctx: Context) -> Plan:
    """What is concluded from the start of the file."""
    head = replace(ctx.source, data=ctx.source.text_head().encode(), codec="plain", notes=[], sha256="")
    if form.kind != "parquet":
        files.scan(head)
    sample = replace(ctx, source=head, sample=True)
    stage(form, sample)
    cols = {name: col for name, col in judge.columns_of(form, sample).items() if name in REQUEST_COLUMNS}
    found = reader(form, ctx)
    uses_staged = any(re.search(rf"\b{sample.staged}\b", col.sql) for col in cols.values())
    has_arrival = "arrival_us" in cols and not CONSTANT.fullmatch(cols["arrival_us"].sql)
    if found is None or uses_staged or not has_arrival or ctx.options.start_at is not None or len(sample.times) > 1:
        raise NotDirect
    fields, names = found
    absent = [f'"{name}" IS NOT NULL' for name in names if name not in sample.present]
    base = ctx.options.time_base or sample.time_base
    return Plan(replace(sample, source=ctx.source, sample=False), cols, base, fields, absent + sample.never)


def _read(con: duckdb.DuckDBPyConnection, form: Format, plan: Plan) -> tuple[judge.Reading, str]:
    """Make the table. Errors: NotDirect if the file is not all like its start."""
    table, source = parts.unused_name(con), plan.ctx.source
    stored = {name: col for name, col in plan.cols.items() if not CONSTANT.fullmatch(col.sql)}
    if plan.never:  # here, and not in a WHERE: a filter over every row takes three times as long
        col = stored["arrival_us"]
        unlike = " OR ".join(f"({sql})" for sql in plan.never)
        stored["arrival_us"] = replace(col, sql=f"CASE WHEN {unlike} THEN error('unlike its start')::BIGINT ELSE {col.sql} END")
    picked = ", ".join(f'{col.sql} AS "{name}"' for name, col in stored.items())
    values = judge.hidden_values(stored, plan.ctx.options)
    kept = ", ".join(f"try_cast({sql} AS {REQUEST_COLUMNS[name]})" for name, sql in values.items())
    parts.create(con, table, values)
    with _measured(source, form.kind == "csv") as plain:
        con.execute(f"INSERT INTO {table}({', '.join(values)}) SELECT {kept} FROM (SELECT {picked} FROM {plan.fields})")
    cols = {name: Col(f'"{name}"', col.prov) if name in stored else col for name, col in plan.cols.items()}
    first = _one(con, f"SELECT coalesce(min(rowid), 0) FROM {table}")  # far from 0 until the transaction ends
    staged = f"(SELECT NULL::VARCHAR AS bad, {judge.own_line(form, first)} AS line, * FROM {table})"
    rows = judge.judged(form, cols, "line", plan.base, staged)
    if not _whole(con, form, source, table, plain[0]) or not _times_hold(con, plan, table) or _no_arrival(con, plan, rows, table):
        raise NotDirect
    return judge.Reading(form, plan.ctx, cols, plan.base, rows, hidden=True), table


@contextmanager
def _measured(source: Source, text: bool) -> Iterator[list[bool]]:
    """Hash a file in a thread meanwhile; the list then says whether it is plain text."""
    stop, found, errors = Event(), list[bool](), list[BaseException]()

    def run() -> None:
        try:
            found.append(files.measure(source, stop, text))
        except BaseException as error:  # raised again where it is waited for
            errors.append(error)

    thread = Thread(target=run, name="tfanalyze-hash")
    thread.start()
    try:
        yield found
    except BaseException:
        stop.set()
        raise
    finally:
        thread.join()
    if errors:
        raise errors[0]


def _whole(con: duckdb.DuckDBPyConnection, form: Format, source: Source, table: str, plain: bool) -> bool:
    """Whether each line of the file became a row, so that a row's number is its line."""
    if form.kind == "parquet":
        return True
    if form.kind == "csv" and (not plain or source.torn):
        return False
    return bool(_one(con, f"SELECT count(*) FROM {table}") == source.lines + source.torn - (form.kind == "csv"))


def _times_hold(con: duckdb.DuckDBPyConnection, plan: Plan, table: str) -> bool:
    """Whether all of the file would have shown the same unit of time as its start."""
    ctx, options = plan.ctx, plan.ctx.options
    if not ctx.times or (options.time_unit and options.time_base):
        return True
    (column, default), unit, sql = ctx.times[0], ctx.units["arrival"], plan.cols["arrival_us"].sql
    if sql not in (column, to_us(column, unit)):
        return False
    some = f"SELECT arrival_us FROM {table} WHERE arrival_us IS NOT NULL LIMIT 100000"
    top = float(_one(con, f"SELECT coalesce(median(abs(arrival_us)), 0) FROM ({some})"))
    seen_unit, seen_base = epoch_unit(top / (1.0 if sql == column else SCALE[unit]), default)
    return (options.time_unit or seen_unit, options.time_base or seen_base) == (unit, plan.base)


def _no_arrival(con: duckdb.DuckDBPyConnection, plan: Plan, rows: str, table: str) -> bool:
    """Whether some row has no place in time: it may be no record at all (a line `null`), or a time of another form."""
    if not _one(con, f"SELECT count(*) > count(arrival_us) FROM {table}"):
        return False
    if "try_strptime" in plan.cols["arrival_us"].sql:
        return True
    return bool(_one(con, f"SELECT count(*) FROM ({rows}) WHERE reason = 'no_arrival'"))


def _one(con: duckdb.DuckDBPyConnection, sql: str) -> Any:
    row = con.execute(sql).fetchone()
    return None if row is None else row[0]
