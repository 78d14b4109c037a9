"""What each canonical column of a file would come from, before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tfanalyze.errors import InputError
from tfanalyze.ingest import files, mapping
from tfanalyze.ingest.formats import by_name, sniff
from tfanalyze.ingest.formats.base import Col, Context, Format
from tfanalyze.ingest.judge import DURATIONS, TOKENS, columns_of
from tfanalyze.ingest.logs import context, options_from
from tfanalyze.ingest.stage import stage
from tfanalyze.parts import REQUEST_COLUMNS
from tfanalyze.workspace import Workspace


def explain_file(path: str | Path, *, format: str = "auto", **options: Any) -> dict[str, Any]:
    """How a log would be read, from its first 64 KiB; nothing is written.

    Returns {"path", "format", "title", "vantage", "records", "units", "clock", "notes", "columns": [{"column", "from",
    "rests_on", "filled", "low", "high"}], "empty": [...]}; `filled` is a share of the records looked at.
    Errors: InputError, FormatError, ConfigError as ingest_logs.
    """
    chosen = replace(options_from(options), key_file=None)  # a key that is not there yet is not made
    source = files.peek(str(path))
    if not source.head.strip():
        raise InputError("is empty", source.name, "give a log with at least one record")
    is_mapped = bool(chosen.mapping) and format in ("auto", "mapping") and mapping.fits(source, chosen)
    form = mapping.format_of(source, chosen) if is_mapped else (by_name(format) if format != "auto" else None) or sniff(source)
    sample = source if form.kind == "parquet" or _is_document(source) else _sample(source)
    files.scan(sample)
    with Workspace.open(":memory:") as workspace:
        ctx = context(workspace, sample, chosen)
        stage(form, ctx)
        cols = columns_of(form, ctx)
        return _explained(form, ctx, cols, source.name)


def _is_document(source: files.Source) -> bool:
    from tfanalyze.ingest.formats.base import head_of

    return head_of(source).is_document


def _sample(source: files.Source) -> files.Source:
    """The head of a file as a source of its own, whole lines only."""
    return replace(source, data=source.text_head().encode(), codec="plain", notes=[])


def _explained(form: Format, ctx: Context, cols: dict[str, Col], name: str) -> dict[str, Any]:
    picked = {column: col for column, col in cols.items() if column in REQUEST_COLUMNS and column != "provenance"}
    rows = [_column(form, ctx, column, col) for column, col in picked.items()]
    filled = [row for row in rows if row["filled"]]
    good = "bad IS NULL"
    return {
        "path": name,
        "format": form.name,
        "title": form.title,
        "vantage": ctx.options.vantage or form.vantage,
        "records": ctx.one(f"SELECT count(*) FROM staged WHERE {good}"),
        "units": ctx.units,
        "clock": ctx.clock or ctx.time_base,
        "notes": ctx.notes,
        "columns": sorted(filled, key=lambda row: list(REQUEST_COLUMNS).index(row["column"])),
        "empty": [column for column in REQUEST_COLUMNS if column not in {row["column"] for row in filled}],
    }


def _column(form: Format, ctx: Context, column: str, col: Col) -> dict[str, Any]:
    numeric = column in (*TOKENS, *DURATIONS, "arrival_us")
    low_high = f", min({col.sql}), max({col.sql})" if numeric else ", NULL, NULL"
    row = ctx.con.execute(f"SELECT count({col.sql}) / greatest(count(*), 1){low_high} FROM staged WHERE bad IS NULL").fetchone()
    assert row is not None
    origin = f"reader of format {form.name}" if form.kind == "python" else col.sql
    return {
        "column": column, "from": origin, "rests_on": col.prov, "filled": round(float(row[0]), 4), "low": row[1], "high": row[2],
    }  # fmt: skip
