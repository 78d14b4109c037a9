"""How a result looks in a terminal: the tables of report/terminal.py, or plain ones for what has none."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

WIDTH = 80


def console() -> Any:
    """A rich console on stdout: no colour with NO_COLOR or outside a terminal, 80 columns where the width is unknown."""
    import sys

    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False, highlight=False)


def render(command: str, result: Any) -> Any:
    """Renderables of a command's result."""
    if command in OWN:
        return OWN[command](result)
    try:
        terminal = importlib.import_module("tfanalyze.report.terminal")
    except ImportError:
        return plain(command, result)
    make = getattr(terminal, f"render_{command}", None)
    return make(result) if make is not None else plain(command, result)


def ingest(result: Mapping[str, Any]) -> Any:
    """One line a file, then what was rejected or mended, by reason."""
    from rich.console import Group
    from rich.table import Table

    table = _table("file", "format", ">rows", ">taken", ">rejected", "times")
    for one in result["files"]:
        note = "read before: nothing to do" if one.get("already") else str(one.get("clock", ""))
        table.add_row(_short(str(one["path"]), 30), str(one["format"]), f"{one['rows']:,}", f"{one['taken']:,}", f"{one['rejected']:,}", note)
    parts: list[Any] = [table]
    for key, title in (("reasons", "rejected"), ("repaired", "mended")):
        found: dict[str, int] = {}
        for one in result["files"]:
            for name, n in (one.get(key) or {}).items():
                found[name] = found.get(name, 0) + n
        parts += [f"{title}: {n:,} {name}" for name, n in sorted(found.items(), key=lambda item: -item[1])]
    parts += [f"not read: {_short(str(one['path']), 40)}: {one['why']}" for one in result.get("skipped", [])]
    parts.append(f"workspace: {result['db']}")
    assert isinstance(table, Table)
    return Group(*parts)


def demo(result: Mapping[str, Any]) -> Any:
    """The comparison on the held-out window, the verdict, and where things are."""
    from rich.console import Group

    table = _table("on the held-out window", ">goodput tok/s", ">attained", ">P50 TTFT", ">P95 TTFT", ">P95 TPOT", ">shed")
    for label, m in result["holdout"].items():
        ttft, tpot = m["ttft_s"], m["tpot_s"]
        table.add_row(label, f"{m['goodput_tok_s']:.2f}", f"{m['attainment']:.1%}", _seconds(ttft["p50"]), _seconds(ttft["p95"]),
                      _seconds(tpot["p95"]), f"{m['shed_share']:.1%}")  # fmt: skip
    requests = next(iter(result["holdout"].values()))["requests"]
    error = "unknown" if result["model_error"] is None else f"{result['model_error']:.0%}"
    return Group(
        f"6. compare: {requests} requests that neither fit nor tuning saw",
        table,
        f"Simulated with a model whose held-out P95 TTFT error is {error}. Verdict of the tuning: {result['verdict']}.",
        f"workspace: {result['db']}   (try: tfanalyze sql --db {result['db']} \"SELECT * FROM simulated LIMIT 5\")",
        f"config:    {result['config']}",
        f"report:    {result['report']}",
    )


def sql(result: Mapping[str, Any]) -> Any:
    """Rows as a table."""
    table = _table(*result["columns"])
    for row in result["rows"]:
        table.add_row(*(_text(value) for value in row))
    return table


def report(result: Mapping[str, Any]) -> Any:
    """Where the page is."""
    return f"{result['path']} ({result['bytes'] / 1e6:.1f} MB): {', '.join(result['runs'])}"


def synth(result: Mapping[str, Any]) -> Any:
    """What was made."""
    classes = ", ".join(f"{n} {name}" for name, n in result["classes"].items())
    return f"{result['path']}: {result['requests']} requests over {result['span_s']:.0f} s ({classes}), trace {result['trace_hash']}"


OWN = {"ingest": ingest, "demo": demo, "sql": sql, "report": report, "synth": synth}


def _table(*heads: str) -> Any:
    """A plain table; a head that begins with > is right-aligned."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head.lstrip(">"), justify="right" if head.startswith(">") else "left", overflow="fold")
    return table


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[3 - width :]


def _seconds(value: float | None) -> str:
    return "-" if value is None else (f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.2f} s")


def plain(title: str, result: Mapping[str, Any]) -> Any:
    """Any result as tables: its plain values, then each part that is a table itself."""
    from rich.console import Group
    from rich.table import Table

    flat = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    parts: list[Any] = [flat]
    for key, value in result.items():
        if key == "schema":
            continue
        if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            parts.append(_records(key, value))
        elif isinstance(value, Mapping) and value and all(isinstance(one, Mapping) for one in value.values()):
            parts.append(_records(key, [{"": name, **one} for name, one in value.items()]))
        elif isinstance(value, Mapping):
            flat.add_row(key, ", ".join(f"{k} {_text(v)}" for k, v in value.items()) or "-")
        else:
            flat.add_row(key, _text(value))
    return Group(*parts)


def _records(title: str, records: list[Any]) -> Any:
    from rich.table import Table

    names = list(dict.fromkeys(name for one in records for name in one))[:7]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for one in records[:40]:
        table.add_row(*(_text(one.get(name)) for name in names))
    return table


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "\n".join(_text(one) for one in value) or "-"
    return str(value)
