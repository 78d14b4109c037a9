"""Ingest engine and gateway metrics: any shape, canonical names, one transaction a file."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfanalyze.errors import FormatError, InputError, TfanalyzeError
from tfanalyze.ingest import files
from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import head_of
from tfanalyze.ingest.logs import FileResult, Progress, nothing_read, opened, options_from, share, summary
from tfanalyze.ingest.names import VLLM, bucket_factor, canonical
from tfanalyze.ingest.shapes import SHAPES, Settings, Shape, Sink
from tfanalyze.ingest.times import when_us
from tfanalyze.workspace import Workspace, insert_columns, storage_errors


def ingest_metrics(
    paths: Sequence[str | Path],
    *,
    db: str | Path | Workspace = "tfanalyze.duckdb",
    format: str = "auto",
    progress: Progress | None = None,
    at: str | float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Read metrics files into table `metrics`; the same contract as ingest_logs. One record is one sample.

    `at`: the time of a scrape that names none (ISO or epoch). Options: tz, year, instance, clock_ahead_s, wait_s; what
    only logs need is passed over. Errors: InputError, FormatError when nothing could be read; ConfigError; WorkspaceError.
    """
    chosen = options_from(options)
    ts_us = None if at is None else when_us(at, chosen.tz, "at")
    settings = Settings(chosen.tz, chosen.year, chosen.instance, ts_us, round((chosen.clock_ahead_s or 0.0) * 1e6))
    shape = None if format == "auto" else shape_named(format)
    results: list[FileResult] = []
    skipped: list[dict[str, str]] = []
    errors: list[TfanalyzeError] = []
    found = files.find(paths)
    with opened(db, chosen.wait_s) as workspace:
        for number, path in enumerate(found):
            report = share(progress, number, len(found))
            try:
                with storage_errors(workspace.path):
                    results.append(_ingest_file(workspace, path, shape, settings, report))
            except (InputError, FormatError) as error:
                errors.append(error)
                skipped.append({"path": path, "why": str(error)})
    if not results and errors:
        raise errors[0] if len(errors) == 1 else nothing_read(errors)
    return summary(results, skipped)


def shape_named(name: str) -> Shape:
    """A metrics format by name. Errors: FormatError with the nearest names."""
    if name in SHAPES:
        return SHAPES[name]
    near = difflib.get_close_matches(name, SHAPES, 3, 0.4)
    raise FormatError(f"no metrics format {name!r}", mend=f"did you mean {', '.join(near)}?" if near else "see docs/formats.md")


def sniff_shape(source: Source) -> Shape:
    """The one metrics format of a file. Errors: FormatError when none or several fit."""
    head = head_of(source)
    hits = [shape for shape in SHAPES.values() if shape.sniff(head)]
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise FormatError(f"could be {' and '.join(s.name for s in hits)}", source.name, "say which with --format")
    raise FormatError("is in no metrics format known here", source.name, "give --format NAME; see docs/formats.md")


def _ingest_file(
    workspace: Workspace, path: str, shape: Shape | None, settings: Settings, progress: Progress | None
) -> FileResult:
    source = files.peek(path)
    if not source.head.strip():
        raise InputError("is empty", source.name, "give a file with at least one sample")
    shape = shape or sniff_shape(source)
    files.scan(source, progress)
    known = workspace.con.execute(
        "SELECT path, rows FROM sources WHERE sha256 = ? AND format = ?", [source.sha256, shape.name]
    ).fetchone()
    if known:
        note = f"the same content was ingested before as {known[0]}: nothing was added"
        reasons = {"already_ingested": int(known[1])}
        return FileResult(source.name, shape.name, known[1], 0, known[1], reasons, notes=[note], already=True)
    return _take(workspace, source, shape, settings, progress)


def _take(
    workspace: Workspace, source: Source, shape: Shape, settings: Settings, progress: Progress | None
) -> FileResult:
    con = workspace.con
    con.execute("CREATE OR REPLACE TEMP TABLE points(ts_us BIGINT, series INTEGER, value DOUBLE)")
    sink = Sink(flush=lambda full: _flush(workspace, full), ahead_us=settings.ahead_us)
    if settings.ahead_us:
        sink.notes.append(f"{settings.ahead_us / 1e6:g} s taken off all times: the clock was said to be that far ahead")
    shape.read(source, settings, sink)
    _flush(workspace, sink)
    if not sink.taken and not sink.rejects:
        raise FormatError("holds no samples", source.name, "give a file with metrics")
    if progress:
        progress(0.8, f"storing {source.name}")
    with workspace.transaction():
        source_id = _add_source(workspace, source, shape, sink)
        _series_table(workspace, sink)
        doubled = _insert(workspace, source_id)
        rejects = _reasons(sink)
        if doubled:
            rejects["duplicate_sample"] = doubled
        _add_rejects(workspace, source, source_id, sink)
        taken = sink.taken - doubled
        rejected = sum(rejects.values())
        con.execute(
            "UPDATE sources SET rows = ?, taken = ?, rejected = ?, torn = ?, first_us = span.low, last_us = span.high "
            f"FROM (SELECT min(ts_us) AS low, max(ts_us) AS high FROM metrics WHERE source_id = {source_id}) span "
            f"WHERE source_id = {source_id}",
            [taken + rejected, taken, rejected, rejects.get("torn_last_line", 0)],
        )
    con.execute("DROP TABLE points")
    con.execute("DROP TABLE series")
    notes = list(dict.fromkeys(source.notes + sink.notes))
    clock = f"unix, from {sink.units.get('ts', 'the scrape')}"
    return FileResult(source.name, shape.name, taken + rejected, taken, rejected, rejects, {}, sink.units, clock, {}, notes)


def _flush(workspace: Workspace, sink: Sink) -> None:
    import numpy as np

    if not sink.value:
        return
    frame = {
        "ts_us": np.array(sink.ts_us, dtype=np.int64),
        "series": np.array(sink.index, dtype=np.int32),
        "value": np.array(sink.value, dtype=np.float64),
    }
    insert_columns(workspace.con, frame, "INSERT INTO points SELECT *")
    sink.ts_us, sink.index, sink.value = [], [], []


def _series_table(workspace: Workspace, sink: Sink) -> None:
    con = workspace.con
    con.execute(
        "CREATE OR REPLACE TEMP TABLE series(series INTEGER, instance VARCHAR, name VARCHAR, labels VARCHAR, "
        "raw_name VARCHAR, kind VARCHAR, factor DOUBLE)"
    )
    rows = []
    for number, (instance, raw, labels, mode) in enumerate(sink.meta):
        name, kind, factor = _named(raw, labels, mode)
        if "le" in labels:
            labels = {**labels, "le": _bound(labels["le"], bucket_factor(raw))}
        rows.append([number, instance, name, json.dumps(labels, sort_keys=True), raw, kind, factor])
    if rows:
        con.executemany("INSERT INTO series VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _named(raw: str, labels: dict[str, str], mode: str) -> tuple[str, str, float]:
    if mode == "canon":
        return raw, "counter" if raw.endswith("_total") else "gauge", 1.0
    if mode == "guess":
        canon = VLLM.get(raw) or VLLM.get(raw.removesuffix("_total"))
        if canon is not None and canon.kind != "histogram":
            return canon.name, canon.kind, canon.factor
    named = canonical(raw, labels)
    return named.name, named.kind, named.factor


def _bound(text: str, factor: float) -> str:
    """A bucket bound in the canonical unit, written one way: 1 and 1.0 are the same bound."""
    try:
        value = float(text) * factor
    except ValueError:
        return text
    return "+Inf" if value == float("inf") else repr(round(value, 12))


def _insert(workspace: Workspace, source_id: int) -> int:
    """Insert the samples; of two raw names for one quantity at one time only the first series counts."""
    con = workspace.con
    row = con.execute(
        "SELECT count(*) FROM (SELECT 1 FROM series GROUP BY instance, name, labels HAVING count(DISTINCT series) > 1)"
    ).fetchone()
    select = (
        f"SELECT p.ts_us, s.instance, s.name, s.labels::JSON::MAP(VARCHAR, VARCHAR), p.value * s.factor, s.raw_name, "
        f"s.kind, {source_id} FROM points p JOIN series s USING (series)"
    )
    before = workspace.count("metrics")
    if row and row[0]:
        select += (
            " QUALIFY row_number() OVER (PARTITION BY p.ts_us, s.instance, s.name, s.labels ORDER BY s.series, p.rowid) = 1"
        )
    con.execute(f"INSERT INTO metrics {select}")
    total = con.execute("SELECT count(*) FROM points").fetchone()
    assert total is not None
    return int(total[0]) - (workspace.count("metrics") - before)


def _reasons(sink: Sink) -> dict[str, int]:
    reasons: dict[str, int] = {}
    for _, reason in sink.rejects:
        reasons[reason] = reasons.get(reason, 0) + 1
    return reasons


def _add_rejects(workspace: Workspace, source: Source, source_id: int, sink: Sink) -> None:
    import numpy as np

    if not sink.rejects:
        return
    frame = {
        "line": np.array([line for line, _ in sink.rejects], dtype=np.int64),
        "reason": np.array([reason for _, reason in sink.rejects], dtype=object),
    }
    name = source.name.replace("'", "''")
    insert_columns(workspace.con, frame, f"INSERT INTO rejects SELECT {source_id}, '{name}', line, reason, NULL")


def _add_source(workspace: Workspace, source: Source, shape: Shape, sink: Sink) -> int:
    row = workspace.con.execute("SELECT coalesce(max(source_id), 0) + 1 FROM sources").fetchone()
    assert row is not None
    workspace.con.execute(
        "INSERT INTO sources VALUES (?, ?, ?, 'metrics', ?, ?, 0, 0, 0, 0, NULL, NULL, ?, ?, '{}', ?)",
        [
            row[0], source.name, shape.name, source.sha256, source.size, f"unix, from {sink.units.get('ts', 'the scrape')}",
            json.dumps(sink.units), json.dumps(list(dict.fromkeys(source.notes + sink.notes))),
        ],
    )  # fmt: skip
    return int(row[0])
