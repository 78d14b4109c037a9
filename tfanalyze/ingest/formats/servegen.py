"""ServeGen client files: a load is drawn from a client's rates (chunk-N-trace.csv) and lengths (chunk-N-dataset.json).

Nothing here was observed: arrivals are a renewal process (Gamma or Weibull gaps of the window's rate and coefficient of
variation), lengths are drawn independently from the histograms of the nearest earlier window. Seeded by `seed` and file name.
"""

from __future__ import annotations

import ast
import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfanalyze.errors import FormatError
from tfanalyze.ingest.files import Source, lines
from tfanalyze.ingest.formats.base import ASSUMED, Context, Format, Head, Row, bad_line, load_object, stem

if TYPE_CHECKING:
    import numpy as np

    Histogram = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]

NAME = re.compile(r"chunk-\d+-trace\.csv")
WINDOW_S = 600.0


def sniff(head: Head) -> bool:
    return bool(NAME.fullmatch(Path(head.source.name).name)) and bool(re.match(r"[\d.]+,[\d.eE+-]+,[\d.eE+-]+,\w*,", head.text))


def read(source: Source, ctx: Context) -> Iterator[Row]:
    import zlib

    import numpy as np

    rng = np.random.default_rng([ctx.options.seed, zlib.crc32(Path(source.name).name.encode())])
    lengths = _lengths(source)
    ctx.units["arrival"] = "s"
    ctx.time_base = "relative"
    ctx.notes.append(f"requests are drawn from rates and histograms with seed {ctx.options.seed}: none was observed")
    limit = ctx.options.requests if ctx.options.requests is not None else 10_000_000
    client, number = stem(source.name).removesuffix("-trace"), 0
    for line, text in lines(source):
        window = _window(text)
        if window is None:
            yield bad_line(source, line)
            continue
        start_s, rate, cv, family = window
        for arrival_s in _arrivals(rng, start_s, rate, cv, family):
            if number >= limit:
                return
            number += 1
            inputs, outputs = lengths[max((s for s in lengths if s <= start_s), default=min(lengths))]
            yield {
                "line": number,
                "arrival_us": round(arrival_s * 1e6),
                "tenant": client,
                "input_tokens": _draw(rng, inputs),
                "output_tokens": _draw(rng, outputs),
            }


def _window(text: str) -> tuple[float, float, float, str] | None:
    try:
        cells = next(csv.reader([text.replace("\r", " ")]), [])
        start_s, rate, cv = (float(cell) for cell in cells[:3])
    except (ValueError, csv.Error):
        return None
    if len(cells) < 4 or not all(math.isfinite(x) and 0 <= x < 1e9 for x in (start_s, rate, cv)) or rate > 1e5:
        return None
    return start_s, rate, cv, cells[3]


def _arrivals(rng: np.random.Generator, start_s: float, rate: float, cv: float, family: str) -> Iterator[float]:
    """Arrivals of one window. The first gap starts at the window's edge, which is exact for Poisson only."""
    if rate <= 0:
        return
    now, shape = start_s, _weibull_shape(cv) if family == "Weibull" else 1 / max(cv, 0.05) ** 2
    while True:
        if family == "Weibull":
            gap = float(rng.weibull(shape)) / math.gamma(1 + 1 / shape) / rate
        else:
            gap = float(rng.gamma(shape)) / shape / rate
        now += max(gap, 1e-6)
        if now >= start_s + WINDOW_S:
            return
        yield now


def _weibull_shape(cv: float) -> float:
    """The shape whose coefficient of variation is `cv`, by bisection: it falls as the shape grows."""
    low, high = 0.15, 20.0
    for _ in range(40):
        mid = (low + high) / 2
        spread = math.gamma(1 + 2 / mid) / math.gamma(1 + 1 / mid) ** 2 - 1
        low, high = (mid, high) if spread > cv * cv else (low, mid)
    return (low + high) / 2


def _lengths(source: Source) -> dict[float, tuple[Histogram, Histogram]]:
    path = Path(source.path).with_name(Path(source.path).name.replace("-trace.csv", "-dataset.json"))
    found = load_object(path.read_text()) if path.exists() else None
    pairs = {}
    for start, entry in (found or {}).items():
        inputs, outputs = (_histogram(entry.get(name)) for name in ("input_tokens", "output_tokens"))
        if inputs and outputs:
            pairs[float(start)] = (inputs, outputs)
    if not pairs:
        raise FormatError("has no lengths to draw from", source.name, f"put {path.name} next to it")
    return pairs


def _histogram(text: Any) -> Histogram | None:
    import numpy as np

    try:
        table = ast.literal_eval(text) if isinstance(text, str) and len(text) < 8_000_000 else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(table, dict) or not table:
        return None
    values, weights = np.array(list(table), dtype=float), np.array(list(table.values()), dtype=float)
    total = float(weights.sum())
    return (values, np.cumsum(weights) / total) if total > 0 else None


def _draw(rng: np.random.Generator, histogram: Histogram) -> int:
    values, cumulative = histogram
    at = min(int(cumulative.searchsorted(rng.random(), side="right")), len(values) - 1)
    return max(1, round(float(values[at])))


FORMAT = Format(
    "servegen", "ServeGen client rates and lengths (CSV and JSON)", "python", "gateway", sniff, read=read,
    derived=dict.fromkeys(("arrival_us", "tenant", "input_tokens", "output_tokens"), ASSUMED),
)  # fmt: skip
