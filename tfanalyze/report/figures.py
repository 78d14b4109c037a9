"""Plain plotly figures with theme tokens for colours: "@0".."@6" runs, "@fg", "@muted", "@good", "@bad", "@heat".

The page swaps the tokens for the colours of its light or dark theme. Runs differ by dash as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Spec = dict[str, Any]
DASHES = ("solid", "dash", "dashdot", "longdash", "longdashdot", "dash", "dashdot")  # "dot" is the log's own


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture: what it is called, the sentence that says what to see, and the same facts as a table."""

    key: str
    title: str
    sentence: str
    data: list[Spec]
    layout: Spec
    table: Table
    height: int = 320
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    x: npt.NDArray[Any] | Sequence[Any]
    y: npt.NDArray[Any] | Sequence[Any]
    color: str = "@0"
    dash: str = "solid"
    width: float = 2.0
    step: bool = False
    fill: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


def figure(
    key: str, title: str, sentence: str, data: list[Spec], layout: Spec, table: Table, *, height: int = 320,
    wide: bool = False,
) -> Figure:  # fmt: skip
    return Figure(key, title, sentence, data, layout, table, height, wide)


def line(one: Line, hover: str) -> Spec:
    """A line; `hover` is plotly's template of one point."""
    spec: Spec = {
        "type": "scatter", "mode": "lines", "name": one.label, "x": plain(one.x), "y": plain(one.y),
        "line": {"color": one.color, "dash": one.dash, "width": one.width, "shape": "hv" if one.step else "linear"},
        "hovertemplate": hover + "<extra>%{fullData.name}</extra>", **one.extra,
    }  # fmt: skip
    if one.fill:
        spec |= {"fill": "tozeroy", "opacity": 0.9}
    return spec


def bar(label: str, x: Sequence[Any], y: Sequence[Any], color: str, *, text: Sequence[str] = (), across: bool = False,
        error: Spec | None = None, pattern: str = "") -> Spec:  # fmt: skip
    """Bars, upright or (`across`) lying; `text` is printed at each."""
    where = {"x": plain(y), "y": plain(x), "orientation": "h"} if across else {"x": plain(x), "y": plain(y)}
    value = "%{x}" if across else "%{y}"
    name = "%{y}" if across else "%{x}"
    spec: Spec = {
        "type": "bar", "name": label, **where, "marker": {"color": color, "line": {"width": 0}},
        "hovertemplate": f"{name}: {value}<extra>{label}</extra>",
    }  # fmt: skip
    if pattern:
        spec["marker"]["pattern"] = {"shape": pattern, "fillmode": "overlay", "fgcolor": "@panel", "fgopacity": 0.45, "size": 7, "solidity": 0.25}
    if text:
        spec |= {"text": list(text), "textposition": "outside" if across else "none", "cliponaxis": False}
        spec["hovertemplate"] = f"{name}: %{{text}}<extra>{label}</extra>"
    if error:
        spec["error_x" if across else "error_y"] = error
    return spec


def heat(x: npt.NDArray[Any], y: Sequence[str], z: npt.NDArray[Any], unit: str, hover: str, top: float) -> Spec:
    return {
        "type": "heatmap", "x": plain(x), "y": list(y), "z": [plain(row) for row in z], "zmin": 0, "zmax": top,
        "colorscale": "@heat", "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 12, "len": 1},
        "hovertemplate": hover + "<extra>%{y}</extra>", "hoverongaps": False,
    }  # fmt: skip


def level(value: float, label: str, *, upright: bool = False) -> tuple[Spec, Spec]:
    """A dashed limit line over the whole plot, and its label: (shape, annotation)."""
    across, along = ("x", "y") if upright else ("y", "x")
    shape = {
        "type": "line", f"{across}0": value, f"{across}1": value, f"{along}ref": "paper", f"{along}0": 0,
        f"{along}1": 1, "line": {"color": "@bad", "width": 1.5, "dash": "dash"},
    }  # fmt: skip
    at = math.log10(value) if upright and value > 0 else value
    note: Spec = {"text": label, "showarrow": False, "font": {"color": "@bad", "size": 11}, across: at}
    note |= (
        {"yref": "paper", "y": 0.02, "yanchor": "bottom", "xanchor": "left", "xshift": 4}
        if upright
        else {"xref": "paper", "x": 1, "xanchor": "right", "yanchor": "bottom"}
    )
    return shape, note


def axis(title: str, **more: Any) -> Spec:
    return {"title": {"text": title}, **more}


def amounts(title: str, values: Sequence[float]) -> Spec:
    """An axis from zero that leaves room for what is printed at the ends of lying bars."""
    known = [value for value in values if math.isfinite(value)]
    return {"title": {"text": title}, "range": [0, 1.25 * max(known, default=1.0) or 1.0]}


def log_axis(title: str, **more: Any) -> Spec:
    return {"title": {"text": title}, "type": "log", **more}


def plain(values: npt.NDArray[Any] | Sequence[Any]) -> list[Any]:
    """JSON values with four significant digits; NaN becomes null."""
    found: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return [short(value) for value in found]


def short(value: Any) -> Any:
    if not isinstance(value, float):
        return value.item() if isinstance(value, np.generic) else value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def time_unit(span_s: float) -> tuple[str, float]:
    """The unit for a time axis of this length, and its length in seconds."""
    for limit, unit, size in ((300, "seconds", 1.0), (10_800, "minutes", 60.0), (259_200, "hours", 3600.0)):
        if span_s < limit:
            return unit, size
    return "days", 86_400.0
