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
    from tfanalyze.workspace import Workspace

DECILES = tuple(np.linspace(0.1, 0.9, 9))
DRIFT_PSI = 0.25  # population stability index above which practice calls a distribution shifted
DRIFT_SHARE = 0.2  # relative change of a rate or share that is called a drift
TOLERANCE = 0.05  # of attainment, added to the model's error


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


def realised(trace: Trace, classes: tuple[SloClass, ...]) -> dict[str, float]:
    """What the log shows, by the same definitions as a prediction: attainment, goodput, shed, TTFT."""
    from tfanalyze.slo import attained
    from tfanalyze.tune.objective import Metric

    seen = trace.observed
    if seen is None or not np.isfinite(seen.e2e_s).any():
        raise ReplayError("the log has no times of finished requests", trace.name or "trace", "ingest logs with TTFT or E2E")
    run = _observed_run(trace, classes, attained)
    names = ("attainment", "goodput", "shed", "p50_ttft", "p95_ttft")
    return {name: Metric(name).value(run) for name in names}


def _observed_run(trace: Trace, classes: tuple[SloClass, ...], attained: Any) -> Any:
    """The log as if it were an outcome, so that one definition measures both."""
    from tfanalyze.replay.outcome import Outcome
    from tfanalyze.replay.state import OK, REASON_NONE, REASON_SHED, REJECTED
    from tfanalyze.tune.measure import measured

    seen, n = trace.observed, len(trace)
    assert seen is not None
    ended = (seen.status == 0) | ((seen.status < 0) & np.isfinite(seen.e2e_s))
    status = np.where(ended, OK, np.where(seen.status == 4, REJECTED, 1)).astype(np.int8)
    first = trace.arrival_s + np.where(np.isfinite(seen.ttft_s), seen.ttft_s, seen.e2e_s)
    nothing = np.zeros(n, np.int32)
    outcome = Outcome(
        arrival_s=trace.arrival_s, admit_s=trace.arrival_s, start_s=trace.arrival_s,
        first_token_s=first, finish_s=trace.arrival_s + seen.e2e_s, status=status,
        reason=np.where(seen.status == 4, REASON_SHED, REASON_NONE).astype(np.int8),
        attempts=np.ones(n, np.int8), instance=seen.instance, hit_tokens=nothing,
        delivered_tokens=np.where(ended, trace.output_tokens, 0).astype(np.int32),
        preemptions=np.zeros(n, np.int16), waste_tokens={}, instance_names=trace.instances,
        instance_busy_s=np.zeros(0), seed=0, trace_hash="", profile_hash="", policy={}, kernel_s=0.0,
    )  # fmt: skip
    return measured(trace, outcome, classes, 0.0, 1.0)


def check(
    db: str | Path | Workspace | Trace,
    study: Mapping[str, Any] | str | None = None,
    *,
    classes: tuple[SloClass, ...] | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
) -> dict[str, Any]:
    """Compare what a study predicted with what new logs show.

    ``study``: the dict that ``tune`` gave, or the name it was saved under in the workspace (None = the newest).
    -> {predicted, realised, inside, tolerance, drift, drifted, advice: keep | roll_back | tune_again | wait, why}.
    """
    from tfanalyze.config import DEFAULT_CLASSES
    from tfanalyze.trace import load_trace

    trace = db if isinstance(db, Trace) else load_trace(db, since_s=since_s, until_s=until_s)
    told = dict(study) if isinstance(study, Mapping) else _saved(db, study)
    if "predicted" not in told or "regime" not in told:
        raise InputError("is no result of tune", "study", "give the dict or JSON that tfanalyze tune wrote")
    real = realised(trace, classes or DEFAULT_CLASSES)
    predicted = told["predicted"] if told.get("verdict") == "gain" else told.get("predicted_present", told["predicted"])
    error = (told.get("model_error") or {}).get("held_out")
    tolerance = TOLERANCE + min(error if error is not None else 0.15, 0.3) * (1 - predicted["attainment"]) + _noise(trace, real)
    moved = drift(told["regime"], trace)
    drifted = sorted(name for name, row in moved.items() if row["drifted"])
    inside = real["attainment"] >= predicted["attainment"] - tolerance
    advice, why = _advice(inside, drifted, real, predicted, told)
    return {
        "predicted": predicted, "realised": real, "inside": bool(inside), "tolerance": tolerance,
        "requests": len(trace), "drift": moved, "drifted": drifted, "advice": advice, "why": why,
    }  # fmt: skip


def _noise(trace: Trace, real: Mapping[str, float]) -> float:
    """Two standard errors of the attainment over hundredths of the log's span."""
    bins = int(np.clip(len(trace) // 20, 2, 100))
    share = real["attainment"]
    return 2.0 * float(np.sqrt(max(share * (1 - share), 1e-4) / bins))


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


def _advice(
    inside: bool, drifted: list[str], real: Mapping[str, float], predicted: Mapping[str, float], told: Mapping[str, Any]
) -> tuple[str, str]:
    at = f"attainment is {real['attainment']:.1%}, predicted {predicted['attainment']:.1%}"
    if inside and not drifted:
        return "keep", f"{at}: as predicted, and the traffic is what was tuned on."
    if inside:
        return "tune_again", f"{at}: still good, but the traffic has moved ({', '.join(drifted)})."
    if drifted:
        return "tune_again", f"{at}: worse, and the traffic has moved ({', '.join(drifted)}), so the prediction no longer applies."
    return "roll_back", f"{at}: worse than the model's error explains, on the same traffic."
