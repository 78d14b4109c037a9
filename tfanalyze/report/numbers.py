"""Numbers as people read them: one place for units, digits and signs, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

NONE = "-"
BARS = "▁▂▃▄▅▆▇█"


def digits(value: float, significant: int = 3) -> str:
    """Plain decimal with about `significant` digits and thousands separators: 0.0123, 1.23, 12,345."""
    if not math.isfinite(value):
        return "inf" if value > 0 else ("-inf" if value < 0 else NONE)
    if value == 0:
        return "0"
    places = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(places, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and abs(value) < 1 else text


def seconds(value: float) -> str:
    """A duration in the unit that suits its size: 850 us, 12 ms, 1.23 s, 12.3 min, 5.4 h, 3.1 d."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "no limit"
    if value == 0:
        return "0 s"
    size = abs(value)
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if size < limit:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value / 3600)} h" if size < 172_800 else f"{digits(value / 86_400)} d"


def count(value: float) -> str:
    """A whole number: 12,345; from ten million on 12.3 M."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NONE
    if abs(value) >= 1e10:
        return f"{value / 1e9:.1f} G"
    return f"{value / 1e6:.1f} M" if abs(value) >= 1e7 else f"{value:,.0f}"


def share(value: float) -> str:
    """A share 0..1 as percent."""
    return NONE if value is None or math.isnan(value) else f"{100 * value:.1f} %"


def signed_pct(value: float) -> str:
    """A value that is percent already, with its sign: +29.4 %; of a base near nothing just that it is huge."""
    if value is None or math.isnan(value):
        return NONE
    if abs(value) >= 10_000:
        return "> +9,999 %" if value > 0 else "< -9,999 %"
    return f"{value:+.1f} %"


def rate(value: float, unit: str = "tok/s") -> str:
    if value is None or math.isnan(value):
        return NONE
    text = count(value) if abs(value) >= 1000 else digits(value)
    return f"{text} {unit}"


def pretty(key: str, value: Any) -> str:
    """A value of a result, shown after what its name's ending says of its unit."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(pretty(key, item) for item in value) or NONE
    if isinstance(value, dict):
        return ", ".join(f"{name} {pretty(f'{key}.{name}', item)}" for name, item in value.items()) or NONE
    if not isinstance(value, Real):
        return str(value)
    return _pretty_number(_unit_key(key), value)


def _unit_key(key: str) -> str:
    """The part of a dotted name that carries the unit: `ttft_s.p95` counts as `ttft_s`."""
    parts = [part for part in key.split(".") if part]
    while len(parts) > 1 and parts[-1].rstrip("0123456789") in {"p", "mean", "min", "max", "low", "high", "median", ""}:
        parts.pop()
    return parts[-1] if parts else ""


def _pretty_number(key: str, value: Real) -> str:
    number = float(value)
    if key.endswith(("tok_s", "tokens_s")):
        return rate(number)
    if key.endswith("req_s"):
        return rate(number, "req/s")
    if key.endswith("_bytes"):
        return f"{number / 2**20:,.1f} MiB"
    if key.endswith("_us"):
        return seconds(number * 1e-6)
    if key.endswith("_ms"):
        return seconds(number * 1e-3)
    if key.endswith("_s"):
        return seconds(number)
    if key == "model_error":
        return share(number)
    if key == "error":
        return signed_pct(100 * number)
    if key.endswith("_pct"):
        return signed_pct(number)
    if key.endswith(("share", "attainment")) or "_share_" in key:
        return share(number)
    if key.endswith("seed"):
        return f"{number:.0f}"
    return count(number) if isinstance(value, Integral) or number.is_integer() else digits(number)


def words(key: str) -> str:
    """A name of a result as a label: `prefix_hit_share` -> `prefix hit`, `ttft_s` -> `TTFT`."""
    for ending in ("_tok_s", "_req_s", "_s", "_us", "_ms", "_share", "_pct", "_bytes"):
        if key.endswith(ending) and len(key) > len(ending):
            key = key[: -len(ending)]
            break
    upper = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "kv": "KV", "slo": "SLO", "gpu": "GPU", "gpus": "GPUs",
             "p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "ci": "CI", "rtt": "RTT"}  # fmt: skip
    parts = [word for word in key.split("_") if word]
    parts = [word for k, word in enumerate(parts) if not (word == "s" and k + 1 < len(parts))]  # ttft_s_p95
    return " ".join(upper.get(word, word) for word in parts)


def sentence(found: Any) -> str:
    """A finding as one line: its own text where it has one, else its parts."""
    if not isinstance(found, dict):
        return pretty("", found)
    if found.get("text"):
        return str(found["text"])
    if found.get("why"):
        needs = f"; it needs {found['needs']}" if found.get("needs") else ""
        return f"{pretty('', found.get('coefficients', ''))}: {found['why']}{needs}"
    return pretty("", found)


def capital(text: str) -> str:
    """The text with its first letter in upper case, the others as they are."""
    return text[:1].upper() + text[1:]


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Values as one line of blocks, at most `width` of them (neighbours are averaged); gaps stay blank."""
    known = [float(value) if value is not None else math.nan for value in values]
    if len(known) > width:
        cuts = [round(k * len(known) / width) for k in range(width + 1)]
        known = [_mean(known[low:high]) for low, high in zip(cuts, cuts[1:], strict=False)]
    top = max((value for value in known if math.isfinite(value)), default=0.0)
    if top <= 0:
        return "".join(" " if math.isnan(value) else BARS[0] for value in known)
    return "".join(" " if not math.isfinite(v) else BARS[min(7, int(max(v, 0.0) / top * 7.999))] for v in known)


def _mean(values: Sequence[float]) -> float:
    real = [value for value in values if math.isfinite(value)]
    return sum(real) / len(real) if real else math.nan
