"""Times and durations as logs write them: lines without year or date, naive and zoned ISO, Go and Rust durations."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from tfanalyze.errors import ConfigError

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[(?:\d{1,2};)*\d{1,2}m")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_FULL = r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
_FRACTION = r"(?:[.,](?P<f>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?"
_SHORT = r"(?P<month>\d\d)-(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,6}))?"
_KLOG = r"[IWEF](?P<month>\d\d)(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)\.(?P<f>\d{6})"
_CLOCK = r"\[(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,6}))?[ \]]"
HEADER = re.compile(rf"(?<![\d-])(?:{_FULL}{_FRACTION})(?!\d)")
LEVEL_HEADER = re.compile(rf"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) {_SHORT}(?!\d)")
KLOG_HEADER = re.compile(rf"(?:^|\s){_KLOG}(?!\d)")
CLOCK_HEADER = re.compile(_CLOCK)


@dataclass(slots=True)
class Clock:
    """Turns the headers of one file's lines into UTC microseconds. State: the year, and the last time seen."""

    tz: str
    year: int | None
    mtime: datetime | None = None  # of the file: the last resort for a year
    note: str = ""  # what had to be assumed, for the summary
    resolution_us: int = 1_000_000
    _zone: ZoneInfo = field(init=False)
    _last: datetime | None = None

    def __post_init__(self) -> None:
        self._zone = ZoneInfo(self.tz)

    def time_us(self, text: str) -> int | None:
        """The last header's time in `text`: what stands in front of it (Kubernetes, Ray, journald) has its own."""
        for pattern in (LEVEL_HEADER, HEADER, KLOG_HEADER):
            found = list(pattern.finditer(text))
            if found:
                return self._value(found[-1])
        bare = CLOCK_HEADER.search(text)
        return self._clock_only(bare) if bare else None

    def _value(self, found: re.Match[str]) -> int | None:
        parts = found.groupdict()
        year = int(parts["year"]) if parts.get("year") else self._year(int(parts["month"]))
        if year is None:
            return None
        fraction = (parts.get("f") or "").ljust(6, "0")[:6]
        self.resolution_us = 10 ** max(0, 6 - len(parts["f"])) if parts.get("f") else 1_000_000
        try:
            naive = datetime(
                year, int(parts["month"]), int(parts["day"]), int(parts["h"]), int(parts["m"]), int(parts["s"]),
                int(fraction or 0),
            )  # fmt: skip
        except ValueError:
            return None
        self._last = naive
        return utc_us(naive, parts.get("zone"), self._zone)

    def _clock_only(self, found: re.Match[str]) -> int | None:
        if self._last is None:
            return None
        fraction = (found["f"] or "").ljust(6, "0")[:6]
        try:
            naive = self._last.replace(
                hour=int(found["h"]), minute=int(found["m"]), second=int(found["s"]), microsecond=int(fraction or 0)
            )
        except ValueError:
            return None
        if naive < self._last - timedelta(hours=12):
            naive += timedelta(days=1)
        self._last = naive
        return utc_us(naive, None, self._zone)

    def _year(self, month: int) -> int | None:
        if self.year is None and self.mtime is not None:
            self.year = self.mtime.year - (1 if month > self.mtime.month else 0)
            self.note = f"times name no year: {self.year} taken from the file's modification time; --year to say it"
        if self.year is not None and self._last is not None and self._last.month == 12 and month == 1:
            return self._last.year + 1
        if self.year is not None and self._last is not None and self._last.year > self.year and month < 12:
            return self._last.year
        return self.year


def clock_for(path: str, head: str, tz: str, year: int | None) -> Clock:
    """A clock for one file: the year comes from the options, from a full date in the file, from its name, or its mtime."""
    note = ""
    if year is None:
        found = HEADER.search(head) or re.search(r"(?<!\d)(?P<year>20\d\d)-?\d\d-?\d\d(?!\d)", Path(path).name)
        if found:
            year = int(found["year"])
            note = f"times that name no year are read as of {year}, the year of a full date in the file or its name"
    mtime = None
    if Path(path).exists():
        mtime = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
    return Clock(tz, year, mtime, note)


def utc_us(naive: datetime, zone: str | None, default: ZoneInfo) -> int:
    """A naive time with a zone's text, or in the default zone, as UTC microseconds since the epoch."""
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        digits = zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4])) * sign
        aware = naive.replace(tzinfo=UTC) - offset
    elif zone == "Z":
        aware = naive.replace(tzinfo=UTC)
    else:
        aware = naive.replace(tzinfo=default).astimezone(UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def iso_us(text: object, tz: str = "UTC") -> int | None:
    """An ISO time as UTC microseconds; None for anything else."""
    if not isinstance(text, str):
        return None
    found = HEADER.match(text.strip())
    return Clock(tz, None)._value(found) if found else None


def number_us(value: object) -> int | None:
    """A numeric epoch time in s, ms, us or ns, told apart by its size, as microseconds."""
    if isinstance(value, str):
        try:
            value = int(value) if value.isdigit() else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e20:
        return None
    if abs(value) >= 1e17:
        return int(value) // 1000
    if abs(value) >= 1e14:
        return int(value)
    if abs(value) >= 1e11:
        return round(value * 1e3)
    return round(value * 1e6)


def when_us(value: str | float, tz: str, name: str) -> int:
    """A time that the user gave, ISO or epoch, as UTC microseconds. Errors: ConfigError for anything else."""
    found = number_us(value) if not isinstance(value, str) else iso_us(value, tz) or number_us(value)
    if found is None and isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value.strip()):
        found = iso_us(value.strip() + " 00:00:00", tz)
    if found is None:
        raise ConfigError(f"is {value!r}", f"ingest.{name}", "give an ISO time such as 2026-11-03T08:15:00Z, or seconds since 1970")
    return found


_UNITS = {"h": 3.6e9, "m": 6e7, "s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ns": 1e-3}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|μs|ns|h|m|s)")


def duration_us(text: object) -> int | None:
    """A Go or Rust duration (1m2.5s, 900.2ms, 310µs) as microseconds; None for anything else."""
    if not isinstance(text, str):
        return None
    stripped = text.strip().strip('"')
    parts = _DURATION.findall(stripped)
    if not parts or "".join(number + unit for number, unit in parts) != stripped.lstrip("-"):
        return None
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return round(-total if stripped.startswith("-") else total)
