"""Stage one file: get its records, typed but unjudged, into the temporary table `staged`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tfanalyze.errors import FormatError, InputError
from tfanalyze.ingest import files
from tfanalyze.ingest.files import BLANK, Source
from tfanalyze.ingest.formats.base import Context, Format, Row
from tfanalyze.parts import REQUEST_COLUMNS
from tfanalyze.workspace import insert_columns

if TYPE_CHECKING:
    import duckdb

LINES = (
    "read_csv('{path}', columns={{line: 'VARCHAR'}}, delim='\x01', quote='', escape='', header=false, "
    "auto_detect=false, max_line_size=67108864, strict_mode=false, nullstr='\x03')"
)
CHUNK_ROWS = 20_000
SAMPLE_ROWS = 2_000
PYTHON_FIELDS = {**REQUEST_COLUMNS, "reject": "VARCHAR", "field": "VARCHAR", "line": "BIGINT"}


def stage(form: Format, ctx: Context) -> str:
    """Fill `staged`; gives back the SQL of a row's line number."""
    columns = PYTHON_FIELDS if form.kind == "python" else form.fields
    _create(ctx.con, columns)
    if form.kind == "jsonl":
        line = _stage_json(form, ctx)
    elif form.kind == "csv":
        line = _stage_csv(form, ctx)
    elif form.kind == "parquet":
        line = _stage_parquet(form, ctx)
    else:
        line = _stage_python(form, ctx)
    ctx.present = _present(ctx.con, columns)
    return line


def _create(con: duckdb.DuckDBPyConnection, columns: Mapping[str, str]) -> None:
    listed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    con.execute(f"CREATE OR REPLACE TEMP TABLE staged(bad VARCHAR, {listed})")


def _present(con: duckdb.DuckDBPyConnection, columns: Mapping[str, str]) -> frozenset[str]:
    counts = con.execute("SELECT " + ", ".join(f'count("{name}")' for name in columns) + " FROM staged").fetchone()
    assert counts is not None
    return frozenset(name for name, count in zip(columns, counts, strict=True) if count)


def _quoted(path: str) -> str:
    return path.replace("'", "''")


# JSON lines -------------------------------------------------------------------------------------------------------


def _stage_json(form: Format, ctx: Context) -> str:
    schema = json.dumps(dict(form.fields)).replace("'", "''")
    is_object = "json_valid(line) AND ltrim(line)[1] = '{'"
    for path in files.feed(ctx.source, lambda text: True):
        ctx.con.execute(
            f"INSERT INTO staged SELECT CASE WHEN line = '{BLANK}' THEN 'blank' WHEN NOT fine THEN 'not_a_record' END, "
            f"unnest(json_transform(CASE WHEN fine THEN line ELSE '{{}}' END, '{schema}')) "
            f"FROM (SELECT line, coalesce({is_object}, false) AS fine FROM {LINES.format(path=_quoted(path))})"
        )
    if ctx.source.torn:
        ctx.con.execute(
            "UPDATE staged SET bad = 'torn_last_line' WHERE bad = 'not_a_record' "
            "AND rowid = (SELECT max(rowid) FROM staged)"
        )
    return "rowid + 1"


# CSV --------------------------------------------------------------------------------------------------------------


def _stage_csv(form: Format, ctx: Context) -> str:
    import duckdb

    header, delimiter, quoted_eol = _csv_shape(ctx.source)
    if ctx.source.clean and not quoted_eol:
        try:
            _fast_csv(form, ctx, header, delimiter)
        except duckdb.Error:
            ctx.con.execute("DELETE FROM staged")
        else:
            if ctx.one("SELECT count(*) FROM staged") == ctx.source.lines - 1:
                return "rowid + 2"
            ctx.con.execute("DELETE FROM staged")
    rows = _csv_rows(ctx.source, header, delimiter)
    _fill(ctx, form.fields, rows)
    return "line_no"


def _csv_shape(source: Source) -> tuple[list[str], str, bool]:
    text = source.text_head()
    first = text.lstrip("\n").split("\n", 1)[0].strip("\r")
    delimiter = max(",;\t", key=first.count)
    try:
        header = [name.strip() for name in next(csv.reader([first], delimiter=delimiter))]
    except (csv.Error, StopIteration) as error:
        raise FormatError("has no CSV header", source.name, "say what it is with --format") from error
    return header, delimiter, source.head.count(b'"') % 2 == 1


def _fast_csv(form: Format, ctx: Context, header: Sequence[str], delimiter: str) -> None:
    listed = ", ".join(f'"{name}"' for name in form.fields if name in header)
    ctx.con.execute(f"INSERT INTO staged({listed}) SELECT {listed} FROM {_csv_reader(form, ctx.source, header, delimiter)}")


def _csv_reader(form: Format, source: Source, header: Sequence[str], delimiter: str) -> str:
    kinds = {name: form.fields.get(name, "VARCHAR") for name in header}
    columns = ", ".join(f"'{_quoted(name)}': '{kind}'" for name, kind in kinds.items())
    return (
        f"read_csv('{_quoted(source.path)}', columns={{{columns}}}, header=true, delim='{delimiter}', quote='\"', escape='\"', "
        "auto_detect=false)"
    )


def _csv_rows(source: Source, header: Sequence[str], delimiter: str) -> Iterator[Row]:
    """The careful path: every record with its line, and why it is none if it is none."""
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, text in files.lines(source):
            numbers.append(number)
            yield text + "\n"

    csv.field_size_limit(files.MAX_LINE_BYTES)
    reader = csv.reader(texts(), delimiter=delimiter)
    seen_header = False
    used = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield {"line_no": numbers[-1], "bad": "not_a_record"}
            continue
        line, used = numbers[used] if used < len(numbers) else numbers[-1], len(numbers)
        if not seen_header:
            seen_header = True
            continue
        torn = source.torn and line == source.lines + 1
        if len(cells) != len(header):
            yield {"line_no": line, "bad": "torn_last_line" if torn else "wrong_number_of_columns"}
            continue
        yield {"line_no": line, **{name: cell.strip() or None for name, cell in zip(header, cells, strict=True)}}


# A sound file where it lies ---------------------------------------------------------------------------------------


def reader(form: Format, ctx: Context) -> tuple[str, list[str]] | None:
    """SQL that reads the fields of a format from a plain file, strictly, and which of them the file may have.

    None if the file's shape forbids it. What is read without an error is what `stage` would have read.
    """
    path = _quoted(ctx.source.path)
    if form.kind == "jsonl":
        columns = ", ".join(f"'{_quoted(name)}': '{_quoted(kind)}'" for name, kind in form.fields.items())
        return f"read_json('{path}', columns={{{columns}}}, format='newline_delimited', compression='none')", list(form.fields)
    if form.kind == "csv":
        header, delimiter, quoted_eol = _csv_shape(ctx.source)
        if quoted_eol or len(set(header)) < len(header):
            return None
        return _csv_reader(form, ctx.source, header, delimiter), [name for name in form.fields if name in header]
    kinds = {row[0]: row[1] for row in ctx.con.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()}
    names = [name for name in form.fields if name in kinds]
    listed = ", ".join(f'try_cast("{name}" AS {form.fields[name]}) AS "{name}"' for name in names)
    return f"(SELECT {listed} FROM read_parquet('{path}'))", names


# Parquet and Python readers ---------------------------------------------------------------------------------------


def _stage_parquet(form: Format, ctx: Context) -> str:
    import duckdb

    path = _quoted(ctx.source.path)
    try:
        described = ctx.con.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()
        kinds = {row[0] for row in described}
        names = [name for name in form.fields if name in kinds]
        values = ", ".join(f'try_cast("{name}" AS {form.fields[name]})' for name in names)
        listed = ", ".join(f'"{name}"' for name in names)
        some = f" LIMIT {SAMPLE_ROWS}" if ctx.sample else ""
        ctx.con.execute(f"INSERT INTO staged({listed}) SELECT {values} FROM read_parquet('{path}'){some}")
    except duckdb.Error as error:
        raise InputError("is no sound Parquet file", ctx.source.name, "write it again") from error
    return "rowid + 1"


def _stage_python(form: Format, ctx: Context) -> str:
    assert form.read is not None
    _fill(ctx, PYTHON_FIELDS, form.read(ctx.source, ctx))
    return "line"


def _fill(ctx: Context, columns: Mapping[str, str], rows: Iterable[Row]) -> None:
    """Insert rows by chunks of columns; what does not fit its type becomes NULL."""
    import numpy as np

    extra = [] if "line" in columns else ["line_no"]
    if extra:
        ctx.con.execute("ALTER TABLE staged ADD COLUMN line_no BIGINT")
    names = ["bad", *columns, *extra]
    source = iter(rows)
    while chunk := list(islice(source, CHUNK_ROWS)):
        used = [name for name in names if any(row.get(name) is not None for row in chunk)]
        frame: dict[str, Any] = {}
        for name in used:
            values = np.empty(len(chunk), dtype=object)
            kind = "VARCHAR" if name == "bad" else columns.get(name, "BIGINT")
            convert = _converter(kind)
            for i, row in enumerate(chunk):
                values[i] = convert(row.get(name))
            frame[name] = values
        listed = ", ".join(f'"{name}"' for name in used)
        casts = ", ".join(
            f'try_cast("{name}" AS {"VARCHAR" if name == "bad" else columns.get(name, "BIGINT")})' for name in used
        )
        if used:
            insert_columns(ctx.con, frame, f"INSERT INTO staged({listed}) SELECT {casts}")


def _converter(kind: str) -> Callable[[Any], Any]:
    if kind.endswith("[]"):
        return _as_list
    return _as_text


def _as_list(value: Any) -> str | None:
    """A list as text that DuckDB casts back: no type is guessed from the first values."""
    if not isinstance(value, (list, tuple)):
        return None if not isinstance(value, str) else value
    return "[" + ", ".join(str(item) for item in value) + "]"


def _as_text(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e18 else repr(value)
    return str(value)
