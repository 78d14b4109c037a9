"""One self-contained HTML file: styles, script, plotly (compressed) and data are all inside; it asks the network for nothing."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from tfanalyze.report.figures import Figure, Table
from tfanalyze.report.section import Block, Card, Cards, Heading, Lines, Note, Section

HERE = Path(__file__).parent


def render(title: str, subtitle: str, sections: Sequence[Section], footer: str) -> str:
    """The page as text."""
    figures = [block for one in sections for block in one.blocks if isinstance(block, Figure)]
    keys = {id(one): f"{k}-{one.key}" for k, one in enumerate(figures)}
    shown = {keys[id(one)]: {"data": one.data, "layout": one.layout, "height": one.height, "legend": one.layout.get("showlegend", True)} for one in figures}
    data = json.dumps(shown, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    tabs = "\n".join(_tab(one, k == 0) for k, one in enumerate(sections))
    panels = "\n".join(_panel(one, keys, k == 0) for k, one in enumerate(sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="tfanalyze">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{(HERE / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header><div class="wide"><div><h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p></div>
<button id="theme" type="button">Dark</button></div></header>
<div class="bar"><div class="wide" role="tablist" aria-label="Parts of the report">
{tabs}
</div></div>
<main id="main" class="wide">
<p id="trouble" role="alert"></p>
{panels}
</main>
<footer class="wide">{escape(footer)}</footer>
<noscript><p class="wide">Figures need JavaScript; the data of each is in the table under it.</p></noscript>
<script type="application/json" id="figures">{data}</script>
<script type="text/plain" id="plotly">{_plotly()}</script>
<script>
{(HERE / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _plotly() -> str:
    """plotly.js as the plotly package ships it (MIT licence, its notice inside), gzip, base64."""
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode("utf-8"), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _tab(one: Section, first: bool) -> str:
    return (
        f'<button type="button" role="tab" id="tab-{one.key}" data-key="{one.key}" aria-controls="panel-{one.key}" '
        f'aria-selected="{"true" if first else "false"}" tabindex="{0 if first else -1}">{escape(one.title)}</button>'
    )


def _panel(one: Section, keys: dict[int, str], first: bool) -> str:
    alone = _alone(one.blocks)
    body = "\n".join(_block(block, keys, k in alone) for k, block in enumerate(one.blocks))
    current = ' class="current"' if first else ""
    return (
        f'<section role="tabpanel" id="panel-{one.key}" aria-labelledby="tab-{one.key}" tabindex="0"{current}>\n'
        f'<h2 class="title">{escape(one.title)}</h2>\n<div class="grid">\n{body}\n</div>\n</section>'
    )


def _alone(blocks: Sequence[Block]) -> set[int]:
    """Figures that would stand beside an empty place: the last of an odd number of narrow ones in a row."""
    found, run = set(), 0
    for k in range(len(blocks) + 1):
        block = blocks[k] if k < len(blocks) else None
        if isinstance(block, Figure) and not block.wide:
            run += 1
            continue
        if run % 2:
            found.add(k - 1)
        run = 0
    return found


def _block(block: Block, keys: dict[int, str], alone: bool) -> str:
    match block:
        case Figure():
            return _figure(block, keys[id(block)], alone)
        case Table():
            title = f"<h3>{escape(block.title)}</h3>" if block.title else ""
            what = f'<p class="what">{escape(block.sentence)}</p>' if block.sentence else ""
            return f'<div class="box">{title}{what}{_table(block)}</div>'
        case Cards():
            return f'<div class="cards">{"".join(_card(one) for one in block.cards)}</div>'
        case Card():
            return _card(block)
        case Heading():
            return f"<h2>{escape(block.text)}</h2>"
        case Note():
            return f'<p class="note{" missing" if block.missing else ""}">{escape(block.text)}</p>'
        case Lines(code=True):
            return f'<pre tabindex="0">{escape(chr(10).join(block.lines))}</pre>'
        case Lines():
            title = f"<h3>{escape(block.title)}</h3>" if block.title else ""
            return f'<div class="box">{title}<ul>{"".join(f"<li>{escape(one)}</li>" for one in block.lines)}</ul></div>'


def _figure(one: Figure, key: str, alone: bool) -> str:
    said = escape(f"{one.title}. {one.sentence}", quote=True)
    full = ' class="full"' if one.wide or alone else ""
    return (
        f'<figure{full}><h3>{escape(one.title)}</h3>'
        f'<p class="what">{escape(one.sentence)}</p>'
        f'<div class="plot" data-figure="{escape(key, quote=True)}" role="img" aria-label="{said}" '
        f'style="min-height:{one.height}px"></div>'
        f"<details><summary>The data as a table</summary>{_table(one.table)}</details></figure>"
    )


def _card(one: Card) -> str:
    return (
        f'<div class="card {one.tone}"><div class="label">{escape(one.label)}</div>'
        f'<div class="value">{escape(one.value)}</div><div class="below">{escape(one.below)}</div></div>'
    )


def _table(one: Table) -> str:
    """Columns that hold no number are set left."""
    plain = len(one.head) == 2 and not one.head[1]  # names and values: all set left
    words = [plain or not any(_numeric(row[k]) for row in one.rows if k < len(row)) for k in range(len(one.head))]
    mark = [' class="words"' if left else "" for left in words]
    head = "".join(f'<th scope="col"{mark[k]}>{escape(name)}</th>' for k, name in enumerate(one.head))
    head = f"<thead><tr>{head}</tr></thead>" if any(one.head) else ""
    rows = "".join(
        "<tr>" + "".join(f"<td{mark[k]}>{escape(cell)}</td>" for k, cell in enumerate(row)) + "</tr>" for row in one.rows
    )
    kind = "pairs" if plain else "rows"
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{head}<tbody>{rows}</tbody></table></div>'


def _numeric(cell: str) -> bool:
    return cell[:1].isdigit() or (cell[:1] in "+-" and cell[1:2].isdigit())
