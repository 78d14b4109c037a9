"""Judge the staged records of one file by written rules, and move the good ones into `requests`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfanalyze import parts
from tfanalyze.config import IngestOptions
from tfanalyze.errors import FormatError
from tfanalyze.ingest import retries
from tfanalyze.ingest.formats.base import ASSUMED, DERIVED, OBSERVED, Col, Context, Format
from tfanalyze.ingest.times import when_us
from tfanalyze.parts import REQUEST_COLUMNS
from tfanalyze.workspace import Workspace

if TYPE_CHECKING:
    import duckdb

TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "max_tokens")
DURATIONS = (
    "queue_us",
    "ttft_us",
    "e2e_us",
    "deadline_us",
    "delay_us",
    "engine_prompt_us",
    "engine_predicted_us",
)
PSEUDONYMS = {"tenant": "t", "session_id": "s"}
MAX_TOKENS = 100_000_000
MAX_DURATION_US = 30 * 86_400 * 1_000_000
UNIX_RANGE = (946_684_800_000_000, 4_102_444_800_000_000)  # years 2000 to 2100
RELATIVE_RANGE = (-86_400_000_000, 3_155_760_000_000_000)
REASONS: dict[str, str] = {
    "not_a_record": "the line is no JSON object, or no CSV row",
    "torn_last_line": "the file ends inside its last record",
    "wrong_number_of_columns": "the CSV row has more or fewer cells than the header",
    "no_arrival": "no arrival time, and no place in a session that would give one",
    "absurd_arrival": "an arrival outside the years 2000 to 2100, or far outside a relative trace",
    "negative_tokens": "a token count below 0",
    "absurd_tokens": "a token count above 100 million",
    "duplicate": "the same request with the same arrival, length and instance was taken before",
    "not_finished": "the record holds no request that ended",
}
REPAIRS: dict[str, str] = {
    "cached_over_input": "more cached than prompt tokens: cached_tokens set to NULL",
    "ttft_over_e2e": "first token after the end: ttft_us set to NULL",
    "negative_duration": "durations below 0 set to NULL",
    "absurd_duration": "durations above 30 days set to NULL",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a file's records. `filled`: canonical column -> what it rests on."""

    taken: int
    reasons: dict[str, int]
    repaired: dict[str, int]
    filled: dict[str, str]
    clock: str


def columns_of(form: Format, ctx: Context) -> dict[str, Col]:
    """Every canonical column that this file fills, with the options' constants where it does not say."""
    if form.mapping is not None:
        cols = form.mapping(ctx)
    else:
        cols = {
            name: Col(f'"{name}"', form.derived.get(name, OBSERVED))
            for name in REQUEST_COLUMNS
            if name in ctx.present
        }
    if ctx.options.clock_ahead_s and "arrival_us" in cols:
        ahead_us = round(ctx.options.clock_ahead_s * 1e6)
        cols["arrival_us"] = Col(f"(({cols['arrival_us'].sql})::HUGEINT - {ahead_us})", DERIVED)
        ctx.notes.append(f"{ctx.options.clock_ahead_s:g} s taken off all times: the clock was said to be that far ahead")
    if ctx.options.block_size and "blocks" in cols:
        cols["block_size"] = Col(str(ctx.options.block_size), ASSUMED)
    for name in ("instance", "site", "model", "slo_class"):
        value = getattr(ctx.options, name)
        if value is not None:
            text = "'" + str(value).replace("'", "''") + "'"
            old = cols.get(name)
            cols[name] = Col(f"coalesce({old.sql}, {text})" if old else text, old.prov if old else ASSUMED)
    return cols


def _place(ctx: Context, cols: dict[str, Col]) -> str:
    """The time base of a file; relative times become absolute where the user said when the trace began."""
    base = ctx.options.time_base or ctx.time_base
    at = ctx.options.start_at
    if at is None or base == "unix" or "arrival_us" not in cols:
        return base
    start_us = when_us(at, ctx.options.tz, "start_at")
    cols["arrival_us"] = Col(f"(({cols['arrival_us'].sql})::HUGEINT + {start_us})", ASSUMED)
    ctx.clock = f"unix: relative {ctx.units.get('arrival', '')} from {at}"
    return "unix"


@dataclass(frozen=True, slots=True)
class Reading:
    """The records of one file as canonical columns, not judged yet."""

    form: Format
    ctx: Context
    cols: dict[str, Col]
    base: str  # time base
    rows: str  # SQL: every record with its line `ln`, its canonical columns, and the `reason` it is rejected for, if any
    hidden: bool = False  # tenants, sessions and ids are pseudonyms already

    @property
    def vantage(self) -> str:
        return self.ctx.options.vantage or self.form.vantage


def read_staged(form: Format, ctx: Context, line: str) -> Reading:
    cols = columns_of(form, ctx)
    base = _place(ctx, cols)
    return Reading(form, ctx, cols, base, judged(form, cols, line, base))


def take(workspace: Workspace, reading: Reading, own: str | None = None) -> Verdict:
    """Move the records that pass into `requests`, list the others in `rejects`; one transaction.

    `own`: a table that holds the reading as it is; if nothing is wrong with any record it becomes a part of `requests`.
    """
    con, ctx, rows = workspace.con, reading.ctx, reading.rows
    clean = _survey(con, reading)
    if clean is None:
        _find_duplicates(con, reading)
        rows = _with_duplicates(con, rows)
    reasons, taken, whole = ({}, clean.rows, True) if clean is not None else _counts(con, rows)
    if not taken and not reasons:
        raise FormatError(
            "holds no requests",
            ctx.source.name,
            f"it was read as {reading.form.name}; say with --format if it is not",
        )
    if not taken and set(reasons) == {"no_arrival"}:
        raise FormatError(
            "has no timestamps: no record says when it arrived",
            ctx.source.name,
            "give a log with arrival times",
        )
    good = rows if whole else f"SELECT * FROM ({rows}) WHERE reason IS NULL"
    repaired = clean.repaired if clean is not None else _repairs(con, reading.cols, good) if taken else {}
    retried = retries.maybe(con, good, set(reading.cols)) if clean is None or clean.failed else False
    clock = _clock(ctx, reading.base)
    with workspace.transaction():
        source_id = _add_source(con, reading.form, ctx, reasons, taken, repaired, clock)
        if reasons:
            con.execute(
                f"INSERT INTO rejects SELECT {source_id}, ?, ln, reason, field FROM ({rows}) "
                "WHERE reason IS NOT NULL AND reason <> 'blank'",
                [ctx.source.name],
            )
        if own and not reasons and not repaired and not retried:
            _adopt(con, reading, own, source_id)
            span = (clean.low_us, clean.high_us) if clean is not None else _span(con, own)
        else:
            span = _insert(con, reading, good, source_id, retried) if taken else (None, None)
            if own:
                con.execute(f"DROP TABLE {own}")
        con.execute("UPDATE sources SET first_us = ?, last_us = ? WHERE source_id = ?", [*span, source_id])
    filled = {name: col.prov for name, col in reading.cols.items() if name != "provenance"}
    return Verdict(taken, reasons, repaired, filled, clock)


def judged(form: Format, cols: dict[str, Col], line: str, base: str, staged: str = "staged") -> str:
    """SQL: the staged rows as canonical columns, each with its line and the reason it is rejected for, if any."""
    picked = "".join(f', ({col.sql}) AS "{name}"' for name, col in cols.items() if name != "provenance")
    prov = f", ({cols['provenance'].sql}) AS provenance" if "provenance" in cols else ""
    format_rejects = "".join(f"WHEN {sql} THEN '{reason}' " for reason, sql in form.rejects)
    extra = "reject" if form.kind == "python" else "NULL"
    field = "field" if form.kind == "python" else "NULL::VARCHAR"
    inner = (
        f"SELECT {line} AS ln, bad, {field} AS field, CASE {format_rejects}WHEN false THEN '' ELSE {extra} END AS own{picked}{prov}, "
        f"NOT coalesce(({form.record}), false) AS is_other FROM {staged}"
    )
    return f"SELECT *, {_reason(cols, base)} AS reason FROM ({inner})"


def _reason(cols: dict[str, Col], base: str) -> str:
    tests = ["WHEN bad IS NOT NULL THEN bad", "WHEN is_other THEN 'blank'", "WHEN own IS NOT NULL THEN own"]
    if "arrival_us" in cols:
        closed = (
            "(session_id IS NOT NULL AND delay_us IS NOT NULL)"
            if {"session_id", "delay_us"} <= set(cols)
            else "false"
        )
        low, high = UNIX_RANGE if base == "unix" else RELATIVE_RANGE
        tests.append(f"WHEN arrival_us IS NULL AND NOT {closed} THEN 'no_arrival'")
        tests.append(f"WHEN arrival_us NOT BETWEEN {low} AND {high} THEN 'absurd_arrival'")
    else:
        tests.append("WHEN true THEN 'no_arrival'")
    tokens = [name for name in TOKENS if name in cols]
    if tokens:
        tests.append(f"WHEN least({', '.join(tokens)}) < 0 THEN 'negative_tokens'")
        tests.append(f"WHEN greatest({', '.join(tokens)}) > {MAX_TOKENS} THEN 'absurd_tokens'")
    return "CASE " + " ".join(tests) + " END"


@dataclass(frozen=True, slots=True)
class Clean:
    """What one pass saw of records that can all be taken; `failed`: how many did not end well."""

    rows: int
    low_us: int | None
    high_us: int | None
    failed: int
    repaired: dict[str, int]


def _survey(con: duckdb.DuckDBPyConnection, reading: Reading) -> Clean | None:
    """One pass over a file: what is in it if every record can be taken and none can be a duplicate, else None."""
    cols = reading.cols
    tests = _repair_tests(cols)
    span = ["min(arrival_us)", "max(arrival_us)"] if "arrival_us" in cols else ["NULL", "NULL"]
    failed = f"count_if(status IN {retries.FAILED})" if "status" in cols else "0"
    ids = _identity(cols)
    listed = [
        *span,
        failed,
        "count(request_id)" if ids else "0",
        *(f"count_if({sql})" for sql in tests.values()),
    ]
    row = con.execute(
        f"SELECT count(*), count(reason), {', '.join(listed)} FROM ({reading.rows})"
    ).fetchall()[0]
    if (
        not row[0]
        or row[1]
        or (
            row[5] and (_seen_before(con, reading, row[2], row[3]) or not _all_differ(con, reading.rows, ids))
        )
    ):
        return None
    return Clean(
        int(row[0]),
        row[2],
        row[3],
        int(row[4] or 0),
        {name: n for name, n in zip(tests, row[6:], strict=True) if n},
    )


def _seen_before(con: duckdb.DuckDBPyConnection, reading: Reading, low_us: int, high_us: int) -> bool:
    """Whether requests with ids from the same time were taken before."""
    if reading.base != "unix":
        return False
    return bool(
        con.execute(
            "SELECT 1 FROM requests WHERE request_id IS NOT NULL AND arrival_us BETWEEN ? AND ? LIMIT 1",
            [low_us, high_us],
        ).fetchall()
    )


def _all_differ(con: duckdb.DuckDBPyConnection, rows: str, ids: list[str]) -> bool:
    """Whether no request is there twice, by sorted hashes: a tenth of the memory of a DISTINCT."""
    hashes = con.execute(
        f"SELECT hash({', '.join(ids)}) AS h FROM ({rows}) WHERE request_id IS NOT NULL"
    ).fetchnumpy()["h"]
    hashes.sort()
    return not bool((hashes[1:] == hashes[:-1]).any())


def _identity(cols: dict[str, Col]) -> list[str]:
    """The columns that make a row the same request again; none without ids."""
    if not {"request_id", "arrival_us"} <= set(cols):
        return []
    return [
        n
        for n in ("request_id", "arrival_us", "output_tokens", "e2e_us", "instance", "attempt_no")
        if n in cols
    ]


def _find_duplicates(con: duckdb.DuckDBPyConnection, reading: Reading) -> None:
    """Table `duplicates`: lines whose request was taken before, in this file or an earlier one."""
    con.execute("CREATE OR REPLACE TEMP TABLE duplicates(ln BIGINT)")
    names, judged = _identity(reading.cols), reading.rows
    if not names:
        return
    listed = ", ".join(names)
    row = con.execute(
        f"SELECT count(*), count(DISTINCT hash({listed})) FROM ({judged}) WHERE reason IS NULL AND request_id IS NOT NULL"
    ).fetchone()
    if row is not None and row[0] != row[1]:
        con.execute(
            f"INSERT INTO duplicates SELECT ln FROM (SELECT ln, row_number() OVER (PARTITION BY {listed} ORDER BY ln) AS k "
            f"FROM ({judged}) WHERE reason IS NULL AND request_id IS NOT NULL) WHERE k > 1"
        )
    same = " AND ".join(f"j.{name} IS NOT DISTINCT FROM r.{name}" for name in names if name not in PSEUDONYMS)
    if (
        reading.base == "unix"
        and con.execute("SELECT 1 FROM requests WHERE request_id IS NOT NULL LIMIT 1").fetchone()
    ):
        con.execute(
            f"INSERT INTO duplicates SELECT DISTINCT j.ln FROM ({judged}) j JOIN requests r ON {same} "
            f"WHERE j.reason IS NULL AND j.request_id IS NOT NULL AND r.vantage = '{reading.vantage}' AND r.time_base = 'unix' "
            "AND j.ln NOT IN (SELECT ln FROM duplicates)"
        )


def _with_duplicates(con: duckdb.DuckDBPyConnection, judged: str) -> str:
    if not con.execute("SELECT 1 FROM duplicates LIMIT 1").fetchone():
        return judged
    return (
        "SELECT * REPLACE (CASE WHEN reason IS NULL AND ln IN (SELECT ln FROM duplicates) THEN 'duplicate' "
        f"ELSE reason END AS reason) FROM ({judged})"
    )


def _counts(con: duckdb.DuckDBPyConnection, judged: str) -> tuple[dict[str, int], int, bool]:
    """Rejected by reason, taken, and whether every staged row is taken."""
    total = con.execute(f"SELECT count(*), count(reason) FROM ({judged})").fetchone()
    assert total is not None
    if total[1] == 0:
        return {}, int(total[0]), True
    rows = con.execute(f"SELECT reason, count(*) FROM ({judged}) GROUP BY reason ORDER BY reason").fetchall()
    counts: dict[str | None, int] = dict(rows)
    taken = counts.pop(None, 0)
    counts.pop("blank", None)
    return {reason: count for reason, count in counts.items() if reason is not None}, taken, False


def _repair_tests(cols: dict[str, Col]) -> dict[str, str]:
    tests = {}
    if {"cached_tokens", "input_tokens"} <= set(cols):
        tests["cached_over_input"] = "cached_tokens > input_tokens"
    if {"ttft_us", "e2e_us"} <= set(cols):
        tests["ttft_over_e2e"] = "ttft_us > e2e_us AND e2e_us >= 0"
    durations = [name for name in DURATIONS if name in cols]
    if durations:
        tests["negative_duration"] = f"least({', '.join(durations)}) < 0"
        tests["absurd_duration"] = f"greatest({', '.join(durations)}) > {MAX_DURATION_US}"
    return tests


def _repairs(con: duckdb.DuckDBPyConnection, cols: dict[str, Col], good: str) -> dict[str, int]:
    tests = _repair_tests(cols)
    if not tests:
        return {}
    listed = ", ".join(f"count_if({sql})" for sql in tests.values())
    row = con.execute(f"SELECT {listed} FROM ({good})").fetchone()
    assert row is not None
    return {name: count for name, count in zip(tests, row, strict=True) if count}


def _repaired(name: str, cols: dict[str, Col]) -> str:
    """SQL: a judged column after the repairs, with tenants and sessions as pseudonyms."""
    if name in DURATIONS:
        bad = f"{name} NOT BETWEEN 0 AND {MAX_DURATION_US}"
        if name == "ttft_us" and "e2e_us" in cols:
            bad += " OR (ttft_us > e2e_us AND e2e_us >= 0)"
        return f"CASE WHEN {bad} THEN NULL ELSE {name} END"
    if name == "cached_tokens" and "input_tokens" in cols:
        return "CASE WHEN cached_tokens > input_tokens THEN NULL ELSE cached_tokens END"
    return f'"{name}"'


def hidden_values(cols: dict[str, Col], options: IngestOptions) -> dict[str, str]:
    """SQL of what is stored of each canonical column: tenants, sessions and ids that a user may have chosen as pseudonyms."""
    values = {name: f'"{name}"' for name in cols if name in REQUEST_COLUMNS}
    if not options.keep_tenants:
        for name, prefix in PSEUDONYMS.items():
            if name in values:
                values[name] = f"pseudonym('{prefix}', {name}::VARCHAR)"
    for name in ("request_id", "corr_id", "trace_id", "retry_of"):
        if name in values:
            values[name] = _safe_id(name)
    return values


def _constants(reading: Reading) -> dict[str, str]:
    """Canonical columns that are the same for all rows of a file, as SQL."""
    prov = {name: col.prov for name, col in reading.cols.items() if name != "provenance"}
    found = {
        "vantage": reading.vantage, "clock_domain": reading.vantage, "time_base": reading.base, "token_basis": reading.form.token_basis,
        "provenance": json.dumps(prov, sort_keys=True, separators=(",", ":")),
    }  # fmt: skip
    return {name: parts.text(value) for name, value in found.items() if value is not None}


def own_line(form: Format, first: int = 0) -> str:
    """SQL of a row's line in a table that has one row a record, in the file's order; its first row has the id `first`."""
    return f"rowid - {first} + {2 if form.kind == 'csv' else 1}"


def _adopt(con: duckdb.DuckDBPyConnection, reading: Reading, table: str, source_id: int) -> None:
    """Make a table with one row a record, in the file's order, a part of `requests`."""
    line = own_line(reading.form)
    columns = {name: col.sql for name, col in reading.cols.items()} | _constants(reading)
    columns |= {"source_id": str(source_id), "source_line": line, "row_uid": parts.uid(str(source_id), line)}
    parts.add(con, table, columns)


def _insert(
    con: duckdb.DuckDBPyConnection, reading: Reading, good: str, source_id: int, retried: bool
) -> tuple[int | None, int | None]:
    """Put records into a part that files with the same columns share; gives back their first and last arrival."""
    cols, constants = reading.cols, _constants(reading)
    values = {name: _repaired(name, cols) for name in cols if name in REQUEST_COLUMNS}
    if not reading.hidden:
        values |= {
            name: sql for name, sql in hidden_values(cols, reading.ctx.options).items() if sql != f'"{name}"'
        }
    for name in constants.keys() & values.keys():
        values[name] = f'coalesce("{name}", {constants.pop(name)})'
    if retried:
        values = (
            dict.fromkeys(("retry_of", "attempt_no"), "NULL")
            | {"provenance": constants.pop("provenance", "NULL")}
            | values
        )
    values |= {"source_id": str(source_id), "source_line": "ln"}
    table = parts.shared(con, list(values), constants)
    picked = ", ".join(f"try_cast({sql} AS {REQUEST_COLUMNS[name]})" for name, sql in values.items())
    con.execute(f"INSERT INTO {table}({', '.join(values)}) SELECT {picked} FROM ({good})")
    if retried:
        retries.link(con, table, source_id, set(values))
    return _span(con, f"{table} WHERE source_id = {source_id}") if "arrival_us" in values else (None, None)


def _span(con: duckdb.DuckDBPyConnection, rows: str) -> tuple[int | None, int | None]:
    low, high = con.execute(f"SELECT min(arrival_us), max(arrival_us) FROM {rows}").fetchall()[0]
    return low, high


def _safe_id(name: str) -> str:
    """SQL: an id that a user may have chosen (spaces, an @, a key's prefix, very long) becomes a pseudonym."""
    return (
        f"CASE WHEN strlen({name}) > 128 OR contains({name}, '@') OR contains({name}, ' ') "
        f"OR starts_with({name}, 'sk-') THEN pseudonym('r', {name}) ELSE {name} END"
    )


def _clock(ctx: Context, base: str) -> str:
    if ctx.clock:
        return ctx.clock
    unit = ctx.units.get("arrival", "")
    if base == "relative":
        return f"relative: {unit} since the trace began"
    if base == "monotonic":
        return f"monotonic: {unit} of the process's own clock, no date"
    return f"unix, from {unit}" if unit else "unix"


def _add_source(
    con: duckdb.DuckDBPyConnection,
    form: Format,
    ctx: Context,
    reasons: dict[str, int],
    taken: int,
    repaired: dict[str, int],
    clock: str,
) -> int:
    row = con.execute("SELECT coalesce(max(source_id), 0) + 1 FROM sources").fetchone()
    assert row is not None
    rejected = sum(reasons.values())
    notes = ctx.source.notes + ctx.notes
    con.execute(
        "INSERT INTO sources VALUES (?, ?, ?, 'log', ?, ?, ?, ?, ?, ?, NULL, NULL, ?, ?, ?, ?)",
        [
            row[0], ctx.source.name, form.name, ctx.source.sha256, ctx.source.size, taken + rejected, taken, rejected,
            reasons.get("torn_last_line", 0), clock, json.dumps(ctx.units), json.dumps(repaired), json.dumps(notes),
        ],
    )  # fmt: skip
    return int(row[0])
