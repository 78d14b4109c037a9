"""How a result looks in a terminal: the tables of report/terminal.py, or plain ones for what has none."""

from __future__ import annotations

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
    from tfanalyze.report import terminal

    make = getattr(terminal, f"render_{command}", None)
    return make(result) if make is not None else plain(command, result)


def demo(result: Mapping[str, Any]) -> Any:
    """The comparison on the held-out window, the verdict, and where things are."""
    from rich.console import Group

    table = _table("policy", ">goodput", ">attained", ">TTFT P50", ">P95", ">TPOT P95", ">shed")
    for label, m in result["holdout"].items():
        ttft, tpot = m["ttft_s"], m["tpot_s"]
        table.add_row(label, f"{m['goodput_tok_s']:.2f} tok/s", f"{m['attainment']:.1%}", _seconds(ttft["p50"]), _seconds(ttft["p95"]),
                      _seconds(tpot["p95"]), f"{m['shed_share']:.1%}")  # fmt: skip
    requests = next(iter(result["holdout"].values()))["requests"]
    error = "unknown" if result["model_error"] is None else f"{result['model_error']:.0%}"
    return Group(
        "",
        f"6. compare: the held-out window, {requests} requests that neither fit nor tuning saw",
        table,
        f"Verdict of the tuning: {result['verdict']}. Model error (held-out P95 TTFT): {error}.",
        f"workspace: {result['db']}",
        f"config:    {result['config']}",
        f"report:    {result['report']}",
    )


def synth(result: Mapping[str, Any]) -> Any:
    """What was made."""
    classes = ", ".join(f"{n} {name}" for name, n in result["classes"].items())
    return f"{result['path']}: {result['requests']} requests over {result['span_s']:.0f} s ({classes}), trace {result['trace_hash']}"


OWN = {"demo": demo, "synth": synth}


def _table(*heads: str) -> Any:
    """A plain table; a head that begins with > is right-aligned."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head.lstrip(">"), justify="right" if head.startswith(">") else "left", overflow="fold")
    return table


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
