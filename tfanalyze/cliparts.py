"""What the commands share: options, settings from the command line, progress bars, and how results are shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tfanalyze.errors import ConfigError

WAIT_S = 0.7  # work that ends sooner shows no bar

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines (shapes: docs/json.md).")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Db = Annotated[Path, typer.Option("--db", metavar="FILE", help="The workspace, one DuckDB file.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="SLO classes, fleet, policies. [default: ./tfanalyze.toml if it is there]")]
Source = Annotated[str | None, typer.Argument(metavar="[TRACE]", help="A log file to replay without a workspace; else the requests of --db.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME.PARAM=VALUE", help="Set a parameter of a policy; may be given several times.")]
Seed = Annotated[int, typer.Option("--seed", help="Same inputs and seed, same result.")]
Profile = Annotated[str | None, typer.Option("--profile", metavar="NAME|FILE", help="Step times: a shipped profile or a file that fit wrote. [default: what fit found, else a shipped one]")]
Instances = Annotated[int | None, typer.Option("--instances", metavar="N", help="Instances in all. [default: as configured, fitted, or named in the log]")]
Load = Annotated[float, typer.Option("--load", metavar="X", help="Scale the load by adding or dropping whole sessions.")]
Gateways = Annotated[int | None, typer.Option("--gateways", metavar="N", help="Gateway replicas, each with its own view.")]
ReportInterval = Annotated[float | None, typer.Option("--report-interval", metavar="S", help="Seconds between engine state reports, 0 = live.")]
OpenLoop = Annotated[bool, typer.Option("--open-loop", help="Later turns arrive when the log says, not think time after the previous answer.")]
InfiniteCache = Annotated[bool, typer.Option("--infinite-cache", help="Ceiling, no real system: whatever was computed is a hit everywhere.")]
PerfectSignals = Annotated[bool, typer.Option("--perfect-signals", help="Ceiling, no real system: live reports, exact index, one gateway.")]
KnownLengths = Annotated[bool, typer.Option("--known-lengths", help="Ceiling, no real system: policies are told the output length.")]
AcceptError = Annotated[bool, typer.Option("--accept-model-error", help="Go on although the model's held-out error is above the limit.")]

Zone = Annotated[str | None, typer.Option("--tz", help="Time zone of times that name none. [default: UTC]")]
Year = Annotated[int | None, typer.Option("--year", help="Year of times that name none. [default: from the file, its name or its date]")]
ClockAhead = Annotated[float | None, typer.Option("--clock-ahead", metavar="S", help="The clock of these files is so far ahead of the others: taken off their times.")]
Wait = Annotated[float | None, typer.Option("--wait", metavar="S", help="Wait so long for a workspace that another process holds. [default: 10]")]


def parse_settings(pairs: list[str] | None) -> dict[str, float | str]:
    """NAME.PARAM=VALUE pairs.  Errors: ConfigError for a pair that is none, or one name twice."""
    settings: dict[str, float | str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or "." not in name or not value:
            raise ConfigError(f"is {pair!r}", "--set", "write NAME.PARAM=VALUE, such as tokenpilot.cache_weight=1.2")
        if name in settings:
            raise ConfigError("is given twice", f"--set {name}", "give it once")
        settings[name] = _number(value)
    return settings


def parse_endpoints(pairs: list[str] | None) -> dict[str, str]:
    """NAME=URL pairs.  Errors: ConfigError for a pair that is none, or one name twice."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, url = (part.strip() for part in pair.partition("="))
        if not equals or not name or not url:
            raise ConfigError(f"is {pair!r}", "--endpoint", "write NAME=URL, such as a100-0=http://10.0.0.5:8000")
        if name in found:
            raise ConfigError("is given twice", f"--endpoint {name}", "give it once")
        found[name] = url
    return found


def parse_bounds(pairs: list[str] | None) -> dict[str, tuple[float, float]]:
    """NAME.PARAM=LOW:HIGH pairs."""
    bounds: dict[str, tuple[float, float]] = {}
    for pair in pairs or []:
        name, _, span = pair.partition("=")
        low, colon, high = span.partition(":")
        ends = (_number(low), _number(high))
        if not colon or isinstance(ends[0], str) or isinstance(ends[1], str) or not ends[0] < ends[1]:
            raise ConfigError(f"is {pair!r}", "--bound", "write NAME.PARAM=LOW:HIGH with LOW < HIGH")
        bounds[name.strip()] = (ends[0], ends[1])
    return bounds


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def show(command: str, result: Any, as_json: bool, quiet: bool) -> None:
    """Print a result: one JSON object, or tables for people."""
    if as_json:
        import json

        sys.stdout.write(json.dumps(result, indent=2, default=str, allow_nan=False) + "\n")
    elif not quiet:
        from tfanalyze.render import console, render

        console().print(render(command, result))


def say(line: str, as_json: bool, quiet: bool) -> None:
    """A line for people on stdout."""
    if not as_json and not quiet:
        sys.stdout.write(line + "\n")


class _Bar:
    """A progress bar on stderr that appears only if the work takes longer than a moment."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.share = 0.0
        self.bar: Any = None
        self.task: Any = None
        self.announced: set[str] = set()

    def __call__(self, share: float, what: str) -> None:
        self.share = max(self.share, share)  # a bar never goes back
        if what.startswith("compiling") and not sys.stderr.isatty() and what not in self.announced:
            self.announced.add(what)
            sys.stderr.write(what + "\n")
        if not sys.stderr.isatty():
            return
        if self.bar is None and (what.startswith("compiling") or time.monotonic() - self.began > WAIT_S):
            self._open(what)
        if self.bar is not None:
            self.bar.update(self.task, completed=self.share, description=what)

    def _open(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task(what, total=1.0)
        self.bar.start()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def teller() -> Any:
    """Prints renderables as they come."""
    from tfanalyze.render import console

    return console().print


@contextmanager
def progress(as_json: bool = False, quiet: bool = False) -> Iterator[Any]:
    """``with progress() as report: work(progress=report)``; report(share, what)."""
    bar = _Bar()
    try:
        yield None if quiet else bar
    finally:
        bar.close()


def options_of(**given: Any) -> Mapping[str, Any]:
    """The options that were given: neither None nor False."""
    return {key: value for key, value in given.items() if value is not None and value is not False}
