"""The evidence file beside an exported config: what changed, expected gain, what it rests on, how to roll back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tfanalyze.errors import ExportError

HASHES = ("trace_hash", "profile_hash", "study", "seed", "version")
COPIED = (
    "verdict", "verdict_reason", "objective", "unit", "direction", "baseline", "holdout", "by_load", "baselines", "predicted",
    "predicted_present", "shed_share", "changed_params", "best_params", "model_error", "max_model_error", "canary", "trials",
)  # fmt: skip


def doubts(evidence: Mapping[str, Any]) -> list[str]:
    """Reasons why the numbers should not be passed on without a person's yes."""
    found: list[str] = []
    error, limit = _error(evidence), float(evidence.get("max_model_error") or 0.2)
    if error is not None and not error <= limit:
        found.append(f"the model's held-out P95 TTFT error is {error:.0%}, above the limit of {limit:.0%}")
    outside = evidence.get("outside_regime")
    if isinstance(outside, str):
        found.append(outside)
    elif outside:
        found.extend(str(item) for item in outside) if isinstance(outside, list | tuple) else found.append(
            "the replay left the regime that the profile was calibrated in"
        )
    return found


def _error(evidence: Mapping[str, Any]) -> float | None:
    value = evidence.get("model_error")
    if isinstance(value, Mapping):
        value = value.get("ttft_s_p95", value.get("value"))
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else abs(float(value))


def refuse_outside_regime(evidence: Mapping[str, Any], accept: bool, where: str) -> list[str]:
    """The doubts, when accepted; else an ExportError that names the first."""
    found = doubts(evidence)
    if found and not accept:
        raise ExportError(
            found[0], where, "calibrate better, or pass --accept-model-error; the evidence file will say so"
        )
    return found


def build(
    target: str,
    version: str,
    evidence: Mapping[str, Any],
    policy: Mapping[str, Any],
    result: Mapping[str, Any],
) -> dict[str, Any]:
    """The evidence as one JSON-ready dict."""
    doc: dict[str, Any] = {"schema": "tfanalyze.export-evidence/1", "target": target, "tfanalyze": version}
    doc["policy"] = dict(policy)
    doc["changed"] = result["changed"]
    doc["tuned"] = bool(evidence.get("holdout"))
    doc.update({key: clean(evidence[key]) for key in (*HASHES, *COPIED) if key in evidence})
    if evidence.get("holdout"):
        doc["study_notes"] = clean(list(evidence.get("notes") or ()))
    doc["accepted_doubts"] = list(result["doubts"])
    for key in ("notes", "dropped", "proof", "commands", "rollback", "files"):
        doc[key] = clean(result[key])
    return doc


def clean(value: Any) -> Any:
    """JSON-ready: NaN and infinity become null, numpy scalars become numbers."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(doc: Mapping[str, Any]) -> str:
    return json.dumps(doc, indent=2, allow_nan=False) + "\n"


def as_markdown(doc: Mapping[str, Any]) -> str:
    """The same for a change review."""
    from tfanalyze.export.evidence_text import as_markdown

    return as_markdown(doc, HASHES)
