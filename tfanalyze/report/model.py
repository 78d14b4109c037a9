"""How far the model can be believed: fitted coefficients, and predicted against observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfanalyze.report import numbers
from tfanalyze.report.figures import Figure, Line, Spec, Table, bar, figure, line, log_axis, time_unit
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
    regime = found.get("regime") or {}
    return [
        *_states(found.get("state")), class_errors(found.get("by_class")), _windows(found.get("worst_windows")),
        Note(f"Outside of what the profile was fitted on: {regime['text']}.") if regime.get("text") else None,
        Note("The profile was fitted to these very requests: a log of another day tells more.") if found.get("held_out") is False else None,
    ]  # fmt: skip


def class_errors(found: Mapping[str, Any] | None) -> Table | None:
    """Signed errors of the main quantities, one line a class."""
    shown = [(measure, q) for measure in MEASURES for q in ("p50", "p95")]
    rows = []
    for name, one in (found or {}).items():
        errors = [_at(one.get("errors") or {}, measure, q) for measure, q in shown]
        rows.append((str(name), *(numbers.NONE if value is None else numbers.signed_pct(100 * value) for value in errors)))
    head = ("class", *(f"{numbers.words(measure)} {q.upper()}" for measure, q in shown))
    return Table(head, tuple(rows), "Error by class", "Prediction minus observation, relative.") if rows else None


def _windows(found: Any) -> Table | None:
    rows = tuple(
        (f"{numbers.seconds(one['start_s'])} to {numbers.seconds(one['end_s'])}", numbers.words(str(one["metric"])), numbers.pretty("requests", one.get("requests")), numbers.pretty("error", one["error"]))
        for one in found or ()
    )
    return Table(("window", "median of", "requests", "error"), rows, "Worst windows", "Where replay and log differ most; look there for what the model does not know.") if rows else None


def _states(found: Any) -> list[Figure]:
    """Running, waiting and KV use over time, replayed beside what the engines reported."""
    if not isinstance(found, Mapping) or not found.get("predicted"):
        return []
    t_s = np.asarray(found["t_s"], np.float64)
    unit, size = time_unit(float(t_s[-1] - t_s[0]) if len(t_s) > 1 else 1.0)
    figures = []
    for name, values in found["predicted"].items():
        scale, what = (100.0, "% of KV") if name.endswith("share") else (1.0, "requests")
        lines = {"replayed": values, "observed": (found.get("observed") or {}).get(name)}
        known = {label: np.array([np.nan if v is None else v for v in one], np.float64) * scale for label, one in lines.items() if one}
        if not any(np.isfinite(one).any() and np.nanmax(one) > 0 for one in known.values()):
            continue
        data = [line(Line(label, (t_s - t_s[0]) / size, one, "@0" if label == "replayed" else "@fg", "solid" if label == "replayed" else "dot"), f"%{{y:.3g}} {what}")
                for label, one in known.items()]  # fmt: skip
        rows = tuple((label, numbers.digits(float(np.nanmean(one))), numbers.digits(float(np.nanmax(one)))) for label, one in known.items())
        told = ", ".join(f"{label} {mean} on average and {top} at most" for label, mean, top in rows)
        tail = "" if "observed" in known else " The log has no engine metric to hold beside it."
        layout: Spec = {"hovermode": "x unified", "xaxis": plain_axis(f"{unit} since the start"), "yaxis": plain_axis(what, rangemode="tozero")}
        title = {"running": "Requests in the batch", "waiting": "Requests in engine queues"}.get(name, "KV use")
        figures.append(figure(f"state-{name}", f"{title}, whole fleet", f"{title}: {told}.{tail}", data, layout, Table(("", f"mean {what}", "highest"), rows)))
    return figures


def fitted(fit: Mapping[str, Any] | None) -> list[Block | None]:
    if not fit:
        return [Note("No profile fitted yet: tfanalyze fit does it.", missing=True)]
    blocks: list[Block | None] = []
    for name, one in (fit.get("profiles") or {}).items():
        blocks += [coefficients(str(name), one.get("coefficients")), _held_out(one.get("held_out") or {})]
        blocks += [_lines("What the log can tell apart", one.get("identifiability")), _lines("Health", one.get("health"))]
        blocks.append(Note(f"Form: {one.get('form')}. {numbers.capital(str(one['form_reason']))}.") if one.get("form_reason") else None)
    blocks += [_lines("Health of the log", fit.get("health")), _lines("Assumed", fit.get("assumed"))]
    return blocks


def _lines(title: str, found: Any) -> Lines | None:
    said = [found] if isinstance(found, (str, Mapping)) else list(found or ())
    return Lines(tuple(numbers.sentence(one) for one in said), title=title) if said else None


def _held_out(found: Mapping[str, Any]) -> Table | None:
    rows = tuple((numbers.words(str(key)), numbers.signed_pct(100 * float(value))) for key, value in found.items() if isinstance(value, (int, float)))
    return Table(("", ""), rows, "Error on data held out of the fit", "Relative: what to expect of predictions on traffic like this.") if rows else None


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
    heading = title or numbers.capital(numbers.words(key))
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
