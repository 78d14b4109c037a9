"""A format of the user's own: canonical columns as DuckDB expressions over the file's fields ([ingest.mapping]).

    [ingest.mapping]
    arrival = "ts"                  # ISO text or a number; unit and epoch are seen from its size
    input_tokens = "usage.prompt"
    ttft_ms = "first_ms"            # a duration may be given in _s, _ms, _us or _ns
    status = "code"

Only the fields that an expression names are read: prompts and answers in the file are never looked at.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from tfanalyze.config import IngestOptions
from tfanalyze.errors import ConfigError, FormatError
from tfanalyze.ingest.files import Source, memory_file
from tfanalyze.ingest.formats.base import Col, Context, Format, head_of, status_sql, to_us
from tfanalyze.parts import REQUEST_COLUMNS

DURATIONS = ("queue", "ttft", "e2e", "deadline", "delay", "engine_prompt", "engine_predicted")
OWN = {"row_uid", "source_id", "source_line", "provenance", "clock_domain", "time_base"}


def targets() -> dict[str, tuple[str, str]]:
    """What a mapping may name: name -> (canonical column, unit or "")."""
    found = {name: (name, "") for name in REQUEST_COLUMNS if name not in OWN}
    for base in DURATIONS:
        found |= {f"{base}_{unit}": (f"{base}_us", unit) for unit in ("s", "ms", "us", "ns")}
    return found | {"arrival": ("arrival_us", "")}


def check_names(mapping: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What a mapping may name. Errors: ConfigError for a name that is none of these."""
    known = targets()
    for name in mapping:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else "see docs/formats.md for the columns"
            raise ConfigError(f"no canonical column {name!r}", "[ingest.mapping]", hint)
    return known


def fits(source: Source, options: IngestOptions) -> bool:
    """Whether the mapping names a field of this file at all; if not, the file is sniffed as if there were none."""
    try:
        return bool(_fields(source, {name: str(sql) for name, sql in (options.mapping or {}).items()})[1])
    except FormatError:
        return False


def format_of(source: Source, options: IngestOptions) -> Format:
    """The format that a mapping makes of a file: JSON lines, CSV or Parquet, seen from its start.

    Errors: ConfigError for a column that does not exist; FormatError for a file that is none of the three.
    """
    mapping = {str(name): str(sql) for name, sql in (options.mapping or {}).items()}
    known = check_names(mapping)
    kind, fields = _fields(source, mapping)
    digest = hashlib.sha256(json.dumps(mapping, sort_keys=True).encode()).hexdigest()[:6]
    return Format(
        f"mapping-{digest}", "your mapping", kind, options.vantage or "gateway", lambda head: False, fields,
        lambda ctx: _columns(mapping, known, ctx),
    )  # fmt: skip


def _columns(mapping: Mapping[str, str], known: dict[str, tuple[str, str]], ctx: Context) -> dict[str, Col]:
    import duckdb

    cols: dict[str, Col] = {}
    for name, given in mapping.items():
        sql = f'"{given.strip()}"' if given.strip() in ctx.present else given  # a field may be called like an SQL word
        try:
            kind = ctx.con.execute(f"SELECT typeof(any_value(({sql}))) FROM {ctx.staged}").fetchone()
        except duckdb.Error as error:
            raise ConfigError(_first_line(error), f"[ingest.mapping] {name}", "give a DuckDB expression") from error
        column, unit = known[name]
        cols[column] = Col(_expression(name, f"TRY({sql})", unit, str(kind[0]) if kind else "", ctx))
    return cols


def _expression(name: str, sql: str, unit: str, kind: str, ctx: Context) -> str:
    if name == "arrival":
        if kind.startswith("TIMESTAMP"):
            return f"epoch_us({sql}::TIMESTAMPTZ)"
        if kind != "VARCHAR":
            return ctx.numeric_time(sql)
        number = f"try_cast({sql} AS DOUBLE)"
        if ctx.glance(f"SELECT count({number}) FROM {ctx.staged}"):
            return ctx.numeric_time(number)
        ctx.never.append(f"{number} IS NOT NULL")
        return ctx.text_time(sql)
    if name == "arrival_us":
        ctx.numeric_time(sql, "us")
        return f"try_cast({sql} AS BIGINT)"
    if unit:
        return to_us(f"try_cast({sql} AS DOUBLE)", unit) if unit != "ns" else f"try_cast({sql} AS HUGEINT) // 1000"
    if name == "status":
        return status_sql(sql)
    return f"try_cast({sql} AS {REQUEST_COLUMNS[name]})"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _fields(source: Source, mapping: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    import duckdb

    con = duckdb.connect()
    try:
        if source.head.startswith(b"PAR1"):
            rows = con.execute("DESCRIBE SELECT * FROM read_parquet(?)", [source.path]).fetchall()
            return "parquet", _named({row[0]: row[1] for row in rows}, mapping)
        head = head_of(source)
        if head.rows:
            return "jsonl", _named(_json_types(con, head.text), mapping)
        if head.header:
            with memory_file(head.text.encode()) as path:
                rows = con.execute("DESCRIBE SELECT * FROM read_csv(?, header = true)", [path]).fetchall()
            return "csv", _named({row[0]: row[1] for row in rows}, mapping)
    except duckdb.Error as error:
        raise FormatError(f"cannot be mapped: {_first_line(error)}", source.name, "check the file") from error
    finally:
        con.close()
    raise FormatError("is no JSON lines, CSV or Parquet", source.name, "a mapping works on these three")


def _json_types(con: Any, text: str) -> dict[str, str]:
    lines = [line for line in text.split("\n") if line.strip()]
    row = con.execute(
        "SELECT json_group_structure(line::JSON)::VARCHAR FROM (SELECT unnest(?) AS line) WHERE json_valid(line)", [lines]
    ).fetchone()
    found = json.loads(row[0]) if row and row[0] else {}
    return {name: _sql_type(kind) for name, kind in found.items()} if isinstance(found, dict) else {}


def _sql_type(kind: Any) -> str:
    if isinstance(kind, dict):
        return "STRUCT(" + ", ".join(f'"{name}" {_sql_type(inner)}' for name, inner in kind.items()) + ")"
    if isinstance(kind, list):
        return _sql_type(kind[0]) + "[]" if kind else "VARCHAR[]"
    return {"NULL": "VARCHAR", "UBIGINT": "BIGINT"}.get(str(kind), str(kind))


def _named(types: dict[str, str], mapping: Mapping[str, str]) -> dict[str, str]:
    """Only the fields that some expression names."""
    text = " ".join(mapping.values())
    return {name: _wide(kind) for name, kind in types.items() if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)}


def _wide(kind: str) -> str:
    """Decimals as doubles: a product of decimals overflows, and their casts are slow."""
    return "DOUBLE" if re.fullmatch(r"DECIMAL\(\d+,(?!0\))\d+\)", kind) else kind
