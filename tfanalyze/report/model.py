"""How far the model can be believed: fitted coefficients, and predicted against observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfanalyze.report import numbers
from tfanalyze.report.figures import Figure, Spec, Table, bar, figure, log_axis
from tfanalyze.report.figures import axis as plain_axis
from tfanalyze.report.section import Block, Heading, Lines, Note

MEASURES = ("ttft_s", "tpot_s", "e2e_s")
RATES = ("capacity_tok_s", "output_tok_s", "goodput_tok_s", "prefix_hit_share", "attainment")


def model(fit: Mapping[str, Any] | None, validate: Mapping[str, Any] | None) -> list[Block | None]:
    blocks: list[Block | None] = [Heading("Predicted against observed")]
    blocks += validation(validate)
    blocks.append(Heading("The fitted model"))
    blocks += fitted(fit)
    return blocks


def validation(found: Mapping[str, Any] | None) -> list[Block | None]:
    if not found:
        return [Note("Not validated yet: tfanalyze validate replays the recorded routing and compares with what was observed.", missing=True)]
    observed, predicted, errors = (found.get(key) or {} for key in ("observed", "predicted", "errors"))
    return [fidelity(observed, predicted), error_bars(errors), error_table(observed, predicted, errors), *_more(found)]


def fidelity(observed: Mapping[str, Any], predicted: Mapping[str, Any]) -> Figure | None:
    """P50, P95 and P99 of each measure, observed on one axis and predicted on the other."""
    data: list[Spec] = []
    rows, span = [], []
    for k, measure in enumerate(MEASURES):
        pairs = [(q, seen, said) for q in ("p50", "p95", "p99")
                 if (seen := _at(observed, measure, q)) and (said := _at(predicted, measure, q))]  # fmt: skip
        if not pairs:
            continue
        name = numbers.words(measure)
        span += [value for _, seen, said in pairs for value in (seen, said)]
        data.append({
            "type": "scatter", "mode": "markers+text", "name": name, "x": [seen for _, seen, _ in pairs], "y": [said for *_, said in pairs],
            "text": [q.upper() for q, *_ in pairs], "textposition": "top center", "textfont": {"size": 10}, "cliponaxis": False,
            "marker": {"size": 10, "color": f"@{k}", "symbol": ("circle", "diamond", "square")[k]},
            "hovertemplate": f"{name} %{{text}}: observed %{{x:.3g}} s, predicted %{{y:.3g}} s<extra></extra>",
        })  # fmt: skip
        rows += [(f"{name} {q.upper()}", numbers.seconds(seen), numbers.seconds(said)) for q, seen, said in pairs]
    if not data:
        return None
    low, high = min(span) / 1.6, max(span) * 1.6
    data.append({"type": "scatter", "mode": "lines", "name": "equal", "x": [low, high], "y": [low, high], "hoverinfo": "skip",
                 "line": {"color": "@muted", "dash": "dash", "width": 1.5}})  # fmt: skip
    sentence = "Each mark is one quantile of one measure. On the dashed line the replay agrees with the log; above it the model is too slow, below too fast."
    layout: Spec = {"xaxis": log_axis("observed, seconds"), "yaxis": log_axis("predicted, seconds")}
    return figure("fidelity", "Fidelity: predicted and observed quantiles", sentence, data, layout, Table(("quantile", "observed", "predicted"), tuple(rows)), height=360)


def error_bars(errors: Mapping[str, Any]) -> Figure | None:
    """Signed relative error of each quantile."""
    data, rows = [], []
    worst = ("", 0.0)
    for k, q in enumerate(("p50", "p95", "p99")):
        found = [(numbers.words(measure), _at(errors, measure, q)) for measure in MEASURES]
        known = [(name, 100 * value) for name, value in found if value is not None]
        if known:
            data.append(bar(q.upper(), [name for name, _ in known], [value for _, value in known], f"@{k}", pattern=("", "/", ".")[k],
                            text=[f"{value:+.0f} %" for _, value in known]))  # fmt: skip
            rows += [(f"{name} {q.upper()}", numbers.signed_pct(value)) for name, value in known]
            top = max(known, key=lambda item: abs(item[1]))
            worst = (f"{top[0]} {q.upper()}", top[1]) if abs(top[1]) > abs(worst[1]) else worst
    if not data:
        return None
    sentence = f"Prediction minus observation, relative: above zero the model is too slow. The largest is {worst[0]} with {numbers.signed_pct(worst[1])}; differences between policies below this are not proven."
    layout: Spec = {"barmode": "group", "yaxis": plain_axis("% error", zeroline=True)}
    return figure("errors", "Error by quantile", sentence, data, layout, Table(("quantile", "error"), tuple(rows)), height=360)


def error_table(observed: Mapping[str, Any], predicted: Mapping[str, Any], errors: Mapping[str, Any]) -> Table | None:
    rows = []
    for key in RATES:
        if observed.get(key) is not None or predicted.get(key) is not None:
            error = errors.get(key)
            shown = numbers.NONE if error is None else numbers.signed_pct(100 * float(error))
            if key in ("prefix_hit_share", "attainment"):
                shown = shown.replace("%", "points")
            rows.append((numbers.words(key), numbers.pretty(key, observed.get(key)), numbers.pretty(key, predicted.get(key)), shown))
    return Table(("whole run", "observed", "predicted", "error"), tuple(rows), "Throughput and hits") if rows else None


def _more(found: Mapping[str, Any]) -> list[Block | None]:
    blocks: list[Block | None] = []
    for key in ("by_class", "worst_windows", "windows"):
        if found.get(key):
            blocks.append(table_of(key, found[key]))
    for key in ("warnings", "notes", "trusted_notes"):
        if found.get(key):
            blocks.append(Lines(tuple(str(one) for one in found[key])))
    return blocks


def fitted(fit: Mapping[str, Any] | None) -> list[Block | None]:
    if not fit:
        return [Note("No profile fitted yet: tfanalyze fit does it.", missing=True)]
    profiles = fit.get("profiles")
    reports = profiles if isinstance(profiles, Mapping) and profiles else {"": fit}
    blocks: list[Block | None] = []
    for name, one in reports.items():
        if isinstance(one, Mapping):
            blocks.append(coefficients(str(name), one.get("coefficients")))
            if one.get("held_out"):
                blocks.append(_held_out(one["held_out"]))
    for key in ("identifiability", "health", "warnings", "notes", "statements"):
        found = fit.get(key)
        if isinstance(found, Mapping):
            blocks.append(table_of(key, found))
        elif found:
            blocks.append(Lines(tuple(numbers.sentence(one) for one in ([found] if isinstance(found, str) else found))))
    return [block for block in blocks if block is not None] or [table_of("fit", fit)]


def _held_out(found: Mapping[str, Any]) -> Table:
    rows = tuple((numbers.words(str(key)), numbers.signed_pct(100 * float(value))) for key, value in found.items() if isinstance(value, (int, float)))
    return Table(("", ""), rows, "Error on data held out of the fit", "Relative: what to expect of predictions on traffic like this.")


def coefficients(name: str, found: Any) -> Table | None:
    """Coefficients with unit and interval."""
    if not found:
        return None
    items = found.items() if isinstance(found, Mapping) else ((str(one.get("name", k)), one) for k, one in enumerate(found))
    rows = []
    for key, one in items:
        if isinstance(one, Mapping):
            value, low, high = (one.get(part) for part in ("value", "low", "high"))
            rows.append((str(key), _science(value), str(one.get("unit", "")), _science(low), _science(high)))
        else:
            rows.append((str(key), _science(one), "", "", ""))
    title = f"Step-time coefficients{': ' + name if name else ''}"
    return Table(("coefficient", "value", "unit", "low", "high"), tuple(rows), title, "With their 90 % intervals; where low and high lie far apart the log could not tell.")


def table_of(key: str, found: Any, title: str = "") -> Table | None:
    """Any result as a table: a mapping of mappings or a list of mappings by column, a mapping by line."""
    heading = title or numbers.words(key).capitalize()
    if isinstance(found, Mapping):
        if found and all(isinstance(one, Mapping) for one in found.values()):
            return _rows_table(heading, [{numbers.words(key): name, **one} for name, one in found.items()])
        rows = tuple((numbers.words(str(name)), numbers.pretty(f"{key}.{name}", value)) for name, value in found.items())
        return Table(("", ""), rows, heading) if rows else None
    if isinstance(found, (list, tuple)) and found and all(isinstance(one, Mapping) for one in found):
        return _rows_table(heading, [dict(one) for one in found])
    return None


def _rows_table(title: str, records: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for one in records for name, value in one.items() if not isinstance(value, (list, dict)) or len(value) <= 4))[:9]
    rows = tuple(tuple(numbers.pretty(name, one.get(name)) for name in names) for one in records[:60])
    return Table(tuple(numbers.words(name) for name in names), rows, title)


def _science(value: Any) -> str:
    return numbers.NONE if value is None else f"{float(value):.4g}"


def _at(found: Mapping[str, Any], measure: str, q: str) -> float | None:
    one = found.get(measure)
    value = one.get(q) if isinstance(one, Mapping) else None
    return float(value) if value is not None and value == value else None
