"""What the terminal tables are made of: grids, pairs, remarks, tones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfanalyze.report.numbers import NONE, pretty, seconds, sentence, words

Found = Mapping[str, Any]
MOST_LINES = 8


def grid(title: str, head: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1) -> Table:
    """A plain table: the first `left` columns are words, the others numbers."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0), min_width=min(len(title), 78))
    for k, name in enumerate(head):
        table.add_column(name, justify="left" if k < left else "right", overflow="fold", header_style="dim", no_wrap=k >= left)
    for row in rows:
        table.add_row(*row)
    return table


def pairs(title: str, rows: Iterable[tuple[str, str | Text]]) -> Table:
    """A name and a value a line."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def stack(*parts: RenderableType | None) -> Group:
    """Parts under each other with a blank line between."""
    shown = [part for part in parts if part is not None]
    return Group(*(part if k == len(shown) - 1 else Padding(part, (0, 0, 1, 0)) for k, part in enumerate(shown)))


def remarks(title: str, lines: Sequence[Any], most: int = MOST_LINES) -> Group | None:
    """A list of sentences; those past `most` are counted."""
    if not lines:
        return None
    shown = [Text(f"- {pretty('', line)}", overflow="fold") for line in lines[:most]]
    if len(lines) > most:
        shown.append(Text(f"  and {len(lines) - most} more: --json has them all", style="dim"))
    return Group(Text(title, style="bold"), *shown)


def tone(value: float | None, text: str) -> Text:
    """Green above zero, red below."""
    return Text(text, style="" if not value else "green" if value > 0 else "red")


def three(found: Any) -> str:
    """P50 / P95 / P99 of a duration."""
    return " / ".join(seconds(number(found.get(q))) for q in ("p50", "p95", "p99")) if isinstance(found, Mapping) else NONE


def number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def sentences(found: Any) -> list[str]:
    """Whatever a check found, as lines; its empty parts are left out, a part's own sentence stands for the part."""
    if isinstance(found, Mapping):
        return [f"{words(str(key))}: {pretty(str(key), value)}" for key, value in found.items() if value not in (None, [], {}, "")]
    if isinstance(found, str):
        return [found] if found else []
    return [sentence(one) for one in found or ()]


def p95(found: Any) -> str:
    return seconds(number(found.get("p95"))) if isinstance(found, Mapping) else NONE


def was(one: Any) -> Any:
    """The former value of a change, however it is written down."""
    if isinstance(one, Mapping):
        return one.get("from")
    return one[0] if isinstance(one, (list, tuple)) else None


def now(one: Any) -> Any:
    """The new value of a change."""
    if isinstance(one, Mapping):
        return one.get("to")
    return one[-1] if isinstance(one, (list, tuple)) else one
