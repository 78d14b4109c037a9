"""What a log format is: how it is recognised, and what each canonical column comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfanalyze.config import IngestOptions
from tfanalyze.errors import FormatError
from tfanalyze.ingest import files
from tfanalyze.ingest.files import Source

if TYPE_CHECKING:
    import duckdb

OBSERVED, DERIVED, ASSUMED = "observed", "derived", "assumed"
Row = dict[str, Any]  # canonical columns, and `line`, `prov`; or `line`, `reject`


@dataclass(frozen=True, slots=True)
class Col:
    """A canonical column: a DuckDB expression over the format's own fields, and what it rests on."""

    sql: str
    prov: str = OBSERVED


class BeyondSample(Exception):
    """A mapping asked what only the whole file can say, while no more than its start is staged."""


@dataclass(slots=True)
class Context:
    """What a mapping may look at: the connection, the staged rows, the file, the user's options.

    While `sample` is set, only the start of the file is staged. What is concluded from it has to be checkable on all
    rows afterwards: `never` is SQL over the fields that holds for no row of the file, `times` are the numeric times.
    """

    con: duckdb.DuckDBPyConnection
    source: Source
    options: IngestOptions
    key: bytes
    present: frozenset[str] = frozenset()  # fields that the file has
    staged: str = "staged"
    units: dict[str, str] = field(default_factory=dict)
    clock: str = ""
    time_base: str = "unix"
    notes: list[str] = field(default_factory=list)
    ignored: int = 0  # records that are no requests (other event types)
    sample: bool = False
    never: list[str] = field(default_factory=list)
    times: list[tuple[str, str | None]] = field(default_factory=list)  # column, default unit

    def one(self, sql: str) -> Any:
        """The single value of a query over the staged rows, all of them. Errors: BeyondSample."""
        if self.sample:
            raise BeyondSample
        return self.glance(sql)

    def glance(self, sql: str) -> Any:
        """The same, for questions that the start of a file answers."""
        row = self.con.execute(sql).fetchone()
        return None if row is None else row[0]

    @property
    def scope(self) -> int:
        """A 63-bit number that keeps this file's numbered block ids apart from those of other files."""
        if self.sample:
            raise BeyondSample
        return 0 if self.options.block_scope == "shared" else int(self.source.sha256[:16], 16) >> 1

    def numbered_blocks(self, column: str) -> str:
        """SQL: ids that only mean something inside this file, as 64-bit hashes."""
        return f"list_transform({column}, lambda b: xor(b::UBIGINT, {self.scope}::UBIGINT))"

    def numeric_time(self, column: str, default: str | None = None) -> str:
        """SQL: a numeric time in microseconds; the unit is seen from its size, and stated in `units` and `clock`."""
        unit, base = self.options.time_unit, self.options.time_base
        self.times.append((column, default))
        if unit is None or base is None:
            some = f"SELECT abs(try_cast({column} AS DOUBLE)) AS t FROM {self.staged} WHERE {column} IS NOT NULL LIMIT 100000"
            top = self.glance(f"SELECT median(t) FROM ({some}) WHERE NOT isnan(t)") or 0.0  # one absurd row must not decide
            seen_unit, seen_base = epoch_unit(float(top), default)
            unit, base = unit or seen_unit, base or seen_base
        self.units["arrival"], self.time_base = unit, base
        return to_us(column, unit)

    def text_time(self, column: str) -> str:
        """SQL: an ISO time, with zone or in the zone of the options, in microseconds since the epoch."""
        self.units["arrival"] = f"ISO 8601, times without zone read as {self.options.tz}"
        tail = f"substr({column}, 12)"
        with_zone = f"contains({tail}, '+') OR contains({tail}, '-') OR contains({tail}, ' ')"
        zoned = self.glance(f"SELECT 1 FROM {self.staged} WHERE {with_zone} LIMIT 1")
        if self.options.tz == "UTC" and not zoned:  # the plain cast is ten times faster, and ignores offsets
            strict = self._strict_time(column) if self.sample else None
            if strict is not None:
                return strict
            self.never.append(with_zone)
            return f"epoch_us(try_cast({column} AS TIMESTAMP))"
        return f"epoch_us(try_cast({column} AS TIMESTAMPTZ))"

    def _strict_time(self, column: str) -> str | None:
        """SQL that reads the times of the sample like a cast, and any of another form, or with a zone, as NULL."""
        for form in STRICT_TIMES:
            sql = f"epoch_us(try_strptime({column}, '{form}'))"
            if self.glance(f"SELECT count({column}) > 0 AND count({column}) = count({sql}) FROM {self.staged}"):
                return sql
        return None


STRICT_TIMES = [f"%Y-%m-%d{gap}%H:%M:%S{rest}{end}" for gap in (" ", "T") for rest in (".%n", "") for end in ("", "Z")]
SCALE = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def epoch_unit(top: float, default: str | None = None) -> tuple[str, str]:
    """(unit, time base) of numeric times that are about `top`: the epoch's size tells s, ms, us and ns apart."""
    for unit, low in (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 8e8)):
        if top >= low:
            return unit, "unix"
    return default or "s", "relative"


def to_us(column: str, unit: str) -> str:
    """SQL: a number in `unit` as whole microseconds."""
    if unit == "ns":
        return f"try_cast(try_cast({column} AS HUGEINT) // 1000 AS BIGINT)"
    if unit == "us":
        return f"try_cast(round({column}) AS BIGINT)"
    return f"try_cast({column} * {SCALE[unit]:.0f} AS BIGINT)"  # the cast rounds


STATUS_SQL = """CASE WHEN {0} IS NULL THEN NULL WHEN {0}::VARCHAR = 'ok' THEN 'ok'
 WHEN lower({0}::VARCHAR) IN ('ok','success','succeeded','true','200','completed','finished') THEN 'ok'
 WHEN lower({0}::VARCHAR) IN ('timeout','timed_out','408','504','deadline_exceeded') THEN 'timeout'
 WHEN lower({0}::VARCHAR) IN ('cancelled','canceled','client_cancel','aborted','abort','499') THEN 'cancelled'
 WHEN lower({0}::VARCHAR) IN ('rejected','shed','429','503','rate_limited','evicted') THEN 'rejected'
 ELSE 'error' END"""


def status_sql(column: str) -> str:
    """SQL: any of the usual words and HTTP codes as a canonical status."""
    return STATUS_SQL.format(column)


def status_of(value: Any) -> str | None:
    """The same in Python."""
    word = str(value).strip().lower() if value is not None else ""
    if word in ("", "-", "none", "null"):
        return None
    if word in ("ok", "success", "succeeded", "true", "completed", "finished") or re.fullmatch(r"2\d\d", word):
        return "ok"
    if word in ("timeout", "timed_out", "408", "504", "deadline_exceeded"):
        return "timeout"
    if word in ("cancelled", "canceled", "client_cancel", "aborted", "abort", "499"):
        return "cancelled"
    if word in ("rejected", "shed", "429", "503", "rate_limited", "evicted"):
        return "rejected"
    return "error"


@dataclass(slots=True)
class Head:
    """The start of a file, looked at in the ways that sniffing needs."""

    source: Source
    text: str
    rows: list[dict[str, Any]]  # JSON objects that the first lines hold, one a line
    is_document: bool  # starts as JSON, but no whole object stands on a line of its own
    header: list[str]  # CSV column names, as written

    @property
    def keys(self) -> frozenset[str]:
        return frozenset().union(*(row.keys() for row in self.rows)) if self.rows else frozenset()

    def has(self, *keys: str) -> bool:
        """Whether the JSON lines, or the start of the document, have all these keys."""
        if self.rows and not self.is_document:
            return all(key in self.keys for key in keys)
        return self.text.lstrip()[:1] in ("{", "[") and all(f'"{key}"' in self.text for key in keys)


def head_of(source: Source) -> Head:
    """Look at the start of a file. Never raises on content."""
    text = source.text_head()
    stripped = text.lstrip()
    rows: list[dict[str, Any]] = []
    is_document = False
    if stripped[:1] in ("{", "["):
        full = stripped.split("\n")
        for line in full[:40]:
            row = load_object(line)
            if row is not None:
                rows.append(row)
        is_document = not rows
    first = stripped.split("\n", 1)[0].strip().removeprefix("sep=,").strip()
    header = [] if rows or stripped[:1] in ("{", "[", "#") else _header(first)
    return Head(source, text, rows, is_document, header)


def _header(line: str) -> list[str]:
    if "," not in line and "\t" not in line:
        return []
    import csv

    try:
        return [name.strip() for name in next(csv.reader([line]))]
    except (csv.Error, StopIteration):
        return []


def load_object(line: str) -> dict[str, Any] | None:
    """A JSON object from a line, or None. NaN and Infinity become None."""
    try:
        row = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


@dataclass(frozen=True, slots=True)
class Format:
    """One log format. `kind` says how it is read: jsonl, csv and parquet in SQL, python by `read`."""

    name: str
    title: str
    kind: str
    vantage: str
    sniff: Callable[[Head], bool]
    fields: Mapping[str, str] = field(default_factory=dict)
    mapping: Callable[[Context], dict[str, Col]] | None = None
    rejects: tuple[tuple[str, str], ...] = ()  # (reason, SQL over the fields)
    record: str = "true"  # SQL over the fields: which lines are requests at all
    read: Callable[[Source, Context], Iterator[Row]] | None = None
    derived: Mapping[str, str] = field(default_factory=dict)  # python: columns that are not observed -> what they rest on
    token_basis: str | None = None


def stem(path: str) -> str:
    """The name of a file without folders and endings, as an instance's name."""
    name = Path(path).name
    for ending in (".gz", ".zst", ".xz", ".log", ".jsonl", ".json", ".txt", ".out", ".prom", ".csv", ".parquet"):
        name = name.removesuffix(ending)
    return name


def whole(value: object) -> int | None:
    """A count from JSON: an int, a float without fraction, or digits; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(str(value))
    except ValueError:
        return None
    return round(number) if abs(number) < 2**53 else None


def us(value: object, unit: str = "s") -> int | None:
    """A number of `unit` as whole microseconds; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if unit == "ns" and isinstance(value, (int, str)) and str(value).lstrip("-").isdigit():
        return int(value) // 1000
    try:
        number = float(str(value))
    except ValueError:
        return None
    return round(number * SCALE[unit]) if abs(number) < 1e300 and number == number else None


def sub(row: object, *path: str) -> Any:
    """A value deep in nested dicts, or None."""
    for key in path:
        if not isinstance(row, dict):
            return None
        row = row.get(key)
    return row


def text_of(value: object) -> str | None:
    """A short name or id; None for empty values, "-" and anything that is no plain value."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value).strip()
    return text if text and text not in ("-", "None", "null") and len(text) <= 512 else None


def minus(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier


def json_rows(source: Source) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(line, object or None) of a file of JSON lines, for Python readers."""
    for number, text in files.lines(source):
        yield number, load_object(text)


def documents(source: Source) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file: one a line, or one document, or several one after the other."""
    text = files.whole_text(source)
    decoder = json.JSONDecoder(parse_constant=lambda _: None)
    at, found = 0, False
    while at < len(text):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if found:
                source.notes.append("the file ends inside a JSON document: what stood before it was read")
                return
            raise FormatError("is no sound JSON", source.name, "export it again") from error
        found = True
        if isinstance(value, dict):
            yield value
        elif isinstance(value, list):
            yield from dicts(value)


def dicts(value: object) -> list[dict[str, Any]]:
    """The objects of a JSON list; empty for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def bad_line(source: Source, line: int) -> Row:
    """A line that is no record, or the torn last one."""
    torn = source.torn and line > source.lines
    return {"line": line, "bad": "torn_last_line" if torn else "not_a_record"}


def safe(line: int, make: Callable[..., Row], *args: Any) -> Row:
    """A record's row, or its rejection when a field is of a kind that nobody expects there."""
    try:
        return make(*args)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError, RecursionError):
        return {"line": line, "bad": "malformed_record"}
