"""Ingest request logs: find, sniff, stage, judge, insert; one transaction a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfanalyze.config import IngestOptions
from tfanalyze.errors import ConfigError, FormatError, InputError, TfanalyzeError
from tfanalyze.ingest import blocks, direct, files, judge, mapping
from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats import by_name, sniff
from tfanalyze.ingest.formats.base import Context, Format
from tfanalyze.ingest.stage import stage
from tfanalyze.ingest.times import when_us
from tfanalyze.settings import ingest_options
from tfanalyze.workspace import Workspace, storage_errors

Progress = Callable[[float, str], None]
MEMORY = "1200MB"

@dataclass(slots=True)
class FileResult:
    """What became of one file; the JSON contract of `tfanalyze ingest logs --json`."""

    path: str
    format: str
    rows: int = 0
    taken: int = 0
    rejected: int = 0
    reasons: dict[str, int] | None = None
    repaired: dict[str, int] | None = None
    units: dict[str, str] | None = None
    clock: str = ""
    columns: dict[str, str] | None = None
    notes: list[str] | None = None
    already: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path, "format": self.format, "rows": self.rows, "taken": self.taken, "rejected": self.rejected,
            "reasons": self.reasons or {}, "repaired": self.repaired or {}, "units": self.units or {}, "clock": self.clock,
            "columns": self.columns or {}, "notes": self.notes or [], "already": self.already,
        }  # fmt: skip


def options_from(given: dict[str, Any]) -> IngestOptions:
    """Options by name. Errors: ConfigError that names the option, what was found and what is allowed."""
    options = IngestOptions(**ingest_options(given))
    mapping.check_names(options.mapping or {})
    if options.start_at is not None:
        when_us(options.start_at, options.tz, "start_at")
    return options


def ingest_logs(
    paths: Sequence[str | Path],
    *,
    db: str | Path | Workspace = "tfanalyze.duckdb",
    format: str = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Read request logs into a workspace; ingesting a file again changes nothing.

    Returns {"files": [{path, format, rows, taken, rejected, reasons, repaired, units, clock, ...}], "skipped":
    [{path, why}], "totals": {...}}; taken + rejected = rows, the records present.
    Errors: InputError, FormatError when nothing could be read; ConfigError for a bad option; WorkspaceError.
    """
    chosen = options_from(options)
    form = None if format == "auto" else by_name(format)
    mapped = bool(chosen.mapping) and format in ("auto", "mapping")
    if format == "mapping" and not chosen.mapping:
        raise ConfigError("format mapping needs [ingest.mapping]", mend="say column = expression in tfanalyze.toml")
    found = files.find(paths)
    results: list[FileResult] = []
    skipped: list[dict[str, str]] = []
    errors: list[TfanalyzeError] = []
    with opened(db, chosen.wait_s) as workspace:
        for number, path in enumerate(found):
            report = share(progress, number, len(found))
            try:
                with storage_errors(workspace.path):
                    results.append(_ingest_file(workspace, path, form, chosen, mapped, report))
            except (InputError, FormatError) as error:
                errors.append(error)
                skipped.append({"path": path, "why": str(error)})
    if not results and errors:
        raise errors[0] if len(errors) == 1 else nothing_read(errors)
    return summary(results, skipped)


def nothing_read(errors: list[TfanalyzeError]) -> TfanalyzeError:
    first = errors[0]
    return FormatError(f"none of {len(errors)} files could be read; the first: {first}", mend=first.mend)


class opened:
    """A workspace given open stays open; one given by path is closed again."""

    def __init__(self, db: str | Path | Workspace, wait_s: float) -> None:
        self.db, self.wait_s = db, wait_s

    def __enter__(self) -> Workspace:
        self.owned = not isinstance(self.db, Workspace)
        self.workspace = self.db if isinstance(self.db, Workspace) else Workspace.open(self.db, wait_s=self.wait_s)
        return self.workspace

    def __exit__(self, *_: object) -> None:
        if self.owned:
            self.workspace.close()


def share(progress: Progress | None, number: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda share, what: progress((number + share) / total, what)


def summary(results: list[FileResult], skipped: list[dict[str, str]]) -> dict[str, Any]:
    reasons: dict[str, int] = {}
    for result in results:
        for reason, count in (result.reasons or {}).items():
            reasons[reason] = reasons.get(reason, 0) + count
    totals = {
        "files": len(results),
        "already": sum(result.already for result in results),
        "rows": sum(result.rows for result in results),
        "taken": sum(result.taken for result in results),
        "rejected": sum(result.rejected for result in results),
        "reasons": reasons,
        "skipped": len(skipped),
    }
    return {"files": [result.as_dict() for result in results], "skipped": skipped, "totals": totals}


def _ingest_file(
    workspace: Workspace,
    path: str,
    form: Format | None,
    options: IngestOptions,
    mapped: bool,
    progress: Progress | None,
) -> FileResult:
    source = files.peek(path)
    if not source.head.strip():
        raise InputError("is empty", source.name, "give a log with at least one record")
    form = mapping.format_of(source, options) if mapped and mapping.fits(source, options) else form or sniff(source)
    if direct.possible(source, form):
        if _size_known(workspace, source):
            files.measure(source)
            known = _already(workspace, source, form)
            if known:
                return known
        taken = direct.take(workspace, form, context(workspace, source, options))
        _clear(workspace)
        if taken:
            return _done(form, *taken, progress)
    files.scan(source, progress)
    known = _already(workspace, source, form)
    if known:
        return known
    ctx = context(workspace, source, options)
    line = stage(form, ctx)
    if progress:
        progress(0.6, f"checking {source.name}")
    verdict = judge.take(workspace, judge.read_staged(form, ctx, line))
    _clear(workspace)
    return _done(form, ctx, verdict, progress)


def _size_known(workspace: Workspace, source: Source) -> bool:
    """Whether a file of this size was ingested: only then it may be the same one."""
    size = Path(source.path).stat().st_size
    return bool(workspace.con.execute("SELECT 1 FROM sources WHERE bytes = ? LIMIT 1", [size]).fetchall())


def _clear(workspace: Workspace) -> None:
    workspace.con.execute("DROP TABLE IF EXISTS staged")
    workspace.con.execute("DROP TABLE IF EXISTS duplicates")


def _done(form: Format, ctx: Context, verdict: judge.Verdict, progress: Progress | None) -> FileResult:
    if progress:
        progress(1.0, f"ingested {ctx.source.name}")
    return _result(form, ctx, verdict)


def context(workspace: Workspace, source: Source, options: IngestOptions) -> Context:
    """What the stages of one file share; sets the connection's zone and the pseudonym macro."""
    key = blocks.workspace_key(workspace.path, options.key_file)
    workspace.con.execute(f"SET TimeZone = '{options.tz}'")
    if workspace.path != ":memory:":
        workspace.con.execute(f"SET memory_limit = '{MEMORY}'")  # larger files spill to a folder next to the workspace
    old = workspace.con.execute("SELECT 1 FROM meta WHERE key = 'long_pseudonyms'").fetchall()
    secret = blocks.derived(key, "pseudonym") if old else blocks.pseudonym_secret(key)
    workspace.con.execute(
        f"CREATE OR REPLACE TEMP MACRO pseudonym(kind, x) AS kind || '-' || left(sha256('{secret}' || x), 12)"
    )
    return Context(workspace.con, source, options, key)


def _already(workspace: Workspace, source: Source, form: Format) -> FileResult | None:
    row = workspace.con.execute(
        "SELECT path, rows, taken, rejected, clock FROM sources WHERE sha256 = ? AND format = ?",
        [source.sha256, form.name],
    ).fetchone()
    if row is None:
        return None
    note = f"the same content was ingested before as {row[0]}: nothing was added"
    reasons = {"already_ingested": int(row[1])}
    return FileResult(source.name, form.name, row[1], 0, row[1], reasons, clock=row[4], notes=[note], already=True)



def _result(form: Format, ctx: Context, verdict: judge.Verdict) -> FileResult:
    notes = ctx.source.notes + ctx.notes
    if ctx.ignored:
        notes.append(f"{ctx.ignored} lines or events that are no requests were passed over")
    if ctx.options.time_unit and ctx.options.time_unit != ctx.units.get("arrival"):
        notes.append(f"time_unit {ctx.options.time_unit} was not used: format {form.name} says itself in which unit its times are")
    rejected = sum(verdict.reasons.values())
    return FileResult(
        ctx.source.name, form.name, verdict.taken + rejected, verdict.taken, rejected, verdict.reasons, verdict.repaired,
        ctx.units, verdict.clock, verdict.filled, notes,
    )  # fmt: skip
