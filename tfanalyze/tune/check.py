"""After the change: predicted against realised, and whether the traffic is still what was tuned on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.errors import InputError, ReplayError
from tfanalyze.trace import Trace

if TYPE_CHECKING:
    from tfanalyze.config import SloClass
    from tfanalyze.tune.measure import Measured
    from tfanalyze.workspace import Workspace

DECILES = tuple(np.linspace(0.1, 0.9, 9))
DRIFT_PSI = 0.25  # population stability index above which practice calls a distribution shifted
DRIFT_SHARE = 0.2  # relative change of a rate or share that is called a drift


def regime(trace: Trace) -> dict[str, Any]:
    """The traffic in a few numbers: rate, deciles of lengths and gaps, class mix, prefix reuse."""
    n = max(len(trace), 1)
    gaps = np.diff(trace.arrival_s) if len(trace) > 1 else np.zeros(1)
    return {
        "rate_req_s": len(trace) / max(trace.span_s, 1e-9),
        "input_tok_s": float(trace.input_tokens.sum(dtype=np.int64)) / max(trace.span_s, 1e-9),
        "output_tok_s": float(trace.output_tokens.sum(dtype=np.int64)) / max(trace.span_s, 1e-9),
        "input_tokens": _deciles(trace.input_tokens),
        "output_tokens": _deciles(trace.output_tokens),
        "gap_cv": float(np.std(gaps) / max(float(np.mean(gaps)), 1e-12)),
        "class_share": {name: float(np.sum(trace.slo_class == i)) / n for i, name in enumerate(trace.classes)},
        "reuse_share": _reuse(trace),
    }


def _deciles(values: Any) -> list[float]:
    return [float(v) for v in np.quantile(values, DECILES)] if len(values) else []


def _reuse(trace: Trace) -> float:
    """Share of prefix blocks that an earlier request had: what an endless cache would hit."""
    ids = trace.block_id
    return 1.0 - len(np.unique(ids)) / len(ids) if len(ids) else 0.0


def drift(then: Mapping[str, Any], now: Trace) -> dict[str, dict[str, Any]]:
    """By feature: what it was, what it is, the size of the shift and whether that is a drift.

    Lengths: population stability index over the deciles of then. Rates, shares: relative or absolute change.
    """
    is_now = regime(now)
    found: dict[str, dict[str, Any]] = {}
    for name in ("input_tokens", "output_tokens"):
        psi = _psi(then[name], getattr(now, name))
        found[name] = _row(then[name], is_now[name], psi, psi > DRIFT_PSI)
    for name in ("rate_req_s", "input_tok_s", "output_tok_s", "gap_cv"):
        shift = is_now[name] / max(then[name], 1e-12) - 1.0
        limit = 2 * DRIFT_SHARE if name == "gap_cv" else DRIFT_SHARE
        found[name] = _row(then[name], is_now[name], shift, abs(shift) > limit)
    shift = is_now["reuse_share"] - then["reuse_share"]
    found["reuse_share"] = _row(then["reuse_share"], is_now["reuse_share"], shift, abs(shift) > 0.1)
    names = set(then["class_share"]) | set(is_now["class_share"])
    shift = max(
        (abs(then["class_share"].get(n, 0.0) - is_now["class_share"].get(n, 0.0)) for n in names), default=0.0
    )
    found["class_share"] = _row(then["class_share"], is_now["class_share"], shift, shift > 0.1)
    return found


def _row(was: Any, now: Any, shift: float, drifted: bool) -> dict[str, Any]:
    return {"was": was, "is": now, "shift": float(shift), "drifted": bool(drifted)}


def _psi(edges: list[float], values: Any) -> float:
    """Population stability index of ``values`` against ten equal parts with these inner edges (ties merged)."""
    inner, counts = np.unique(np.asarray(edges, float), return_counts=True)
    if len(inner) == 0 or len(values) == 0:
        return 0.0
    expected = np.concatenate((counts, [1.0])) / (len(edges) + 1)
    seen = np.bincount(np.searchsorted(inner, values, side="left"), minlength=len(inner) + 1) / len(values)
    seen, expected = np.maximum(seen, 1e-3), np.maximum(expected, 1e-3)
    return float(np.sum((seen - expected) * np.log(seen / expected)))


def realised(trace: Trace, classes: tuple[SloClass, ...]) -> tuple[dict[str, float], Measured]:
    """What the log shows, by the same definitions as a prediction: attainment, goodput, shed, TTFT; and its columns."""
    from tfanalyze.tune.measure import observed_run
    from tfanalyze.tune.objective import Metric

    run = observed_run(trace, classes)
    if run is None:
        raise ReplayError("the log has no times of finished requests", trace.name or "trace", "ingest logs with TTFT or E2E")
    names = ("attainment", "goodput", "shed", "p50_ttft", "p95_ttft")
    return {name: Metric(name).value(run) for name in names}, run


def check(
    db: str | Path | Workspace | Trace,
    study: Mapping[str, Any] | str | None = None,
    *,
    classes: tuple[SloClass, ...] | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
) -> dict[str, Any]:
    """Compare what a study promised with what new logs show.

    ``study``: the dict that ``tune`` gave, or the name it was saved under in the workspace (None = the newest).
    -> {predicted, realised, outcome, metric, expected, before, bound, gain_above, value, ..., inside, tolerance, drift, drifted,
    advice: keep | recalibrate | roll_back | tune_again | wait, why}; see ``promise.judge`` and docs/tuning.md.
    """
    from tfanalyze.config import DEFAULT_CLASSES
    from tfanalyze.trace import load_trace
    from tfanalyze.tune.objective import parse_metric
    from tfanalyze.tune.promise import judge, spread

    trace = db if isinstance(db, Trace) else load_trace(db, since_s=since_s, until_s=until_s)
    told = dict(study) if isinstance(study, Mapping) else _saved(db, study)
    if "promise" not in told or "regime" not in told:
        raise InputError("is no result of tune, or of an older version", "study", "give the dict or JSON that tfanalyze tune wrote")
    real, run = realised(trace, classes or DEFAULT_CLASSES)
    changed = told.get("verdict") == "gain"
    promise, metric = told["promise"], parse_metric(told["promise"]["metric"])
    found = judge(promise, changed, metric.value(run), spread(metric, [run]))
    moved = drift(told["regime"], trace)
    drifted = sorted(name for name, row in moved.items() if row["drifted"])
    advice, why = _advice(found, metric.label, metric.unit, drifted)
    return {
        "predicted": told["predicted"] if changed else told["predicted_present"], "realised": real, "metric": metric.label, **found,
        "inside": found["outcome"] in ("as_predicted", "cannot_tell", "unchanged"),
        "tolerance": abs(found["expected"] - found["bound"]),
        "requests": len(trace), "drift": moved, "drifted": drifted, "advice": advice, "why": why,
    }  # fmt: skip


def _saved(db: Any, name: str | None) -> dict[str, Any]:
    from tfanalyze.workspace import Workspace

    if isinstance(db, Trace):
        raise InputError("no study given", "check", "pass the dict that tune returned")
    if isinstance(db, Workspace):
        found = db.load_json("study", name)
    else:
        with Workspace.open(db, read_only=True) as workspace:
            found = workspace.load_json("study", name)
    if found is None:
        raise InputError(f"no study '{name or 'newest'}' in it", str(db), "run tfanalyze tune first")
    return dict(found)


ADVICE = {"as_predicted": "keep", "unchanged": "keep", "cannot_tell": "wait", "smaller": "recalibrate", "gone": "roll_back", "below": "recalibrate"}


def _advice(found: Mapping[str, Any], name: str, unit: str, drifted: list[str]) -> tuple[str, str]:
    """What to do, and the reason in one or two sentences."""

    def show(value: float) -> str:
        return f"{value:.1%}" if unit == "share" else f"{value:.3g} {unit}"

    outcome = found["outcome"]
    at = f"{name} is {show(found['value'])}, predicted {show(found['expected'])}, before the change {show(found['before'])}"
    if outcome in ("unchanged", "below"):
        at = f"{name} is {show(found['value'])}, predicted {show(found['expected'])} for the config that was kept"
    bound, above = show(found["bound"]), show(found["gain_above"])
    text = {
        "as_predicted": f"{at}: as predicted.",
        "unchanged": f"{at}: as predicted.",
        "cannot_tell": f"{at}: neither the promise (down to {bound}) nor no gain at all (up to {above}) can be excluded with so few requests.",
        "smaller": f"{at}: a gain (sure from {above} on), but smaller than promised (down to {bound}): the model is off, fit and validate it again.",
        "gone": f"{at}: the promise (down to {bound}) is not kept, and no gain is seen (it would be sure from {above} on).",
        "below": f"{at}: less than the model says (down to {bound}): fit and validate it again.",
    }[outcome]
    if drifted:
        return "tune_again", f"{text} But the traffic has moved ({', '.join(drifted)}), so that neither number was made for it."
    return ADVICE[outcome], text
