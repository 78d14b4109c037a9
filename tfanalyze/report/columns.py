"""One run as the report sees it: the columns of an outcome, or of what the log observed, under the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from tfanalyze.config import DEFAULT_CLASSES, SloClass
from tfanalyze.trace import F64, Trace

STATUS = ("ok", "error", "timeout", "cancelled", "rejected", "lost")
REASON = ("", "shed", "never fits", "no instance", "crash", "queue full")
OBSERVED = "observed"


@dataclass(frozen=True, slots=True)
class Run:
    """Columns of shape (n,), in the trace's order. NaN = did not happen or not known, -1 = unknown."""

    label: str
    simulated: bool
    arrival_s: F64
    ttft_s: F64
    tpot_s: F64
    e2e_s: F64
    gateway_s: F64  # arrival until admitted, earlier attempts included
    queue_s: F64  # admitted until first scheduled by the engine
    prefill_s: F64  # scheduled until the first token
    decode_s: F64  # first token until the last
    status: npt.NDArray[np.integer[Any]]  # index into STATUS, -1 unknown
    reason: npt.NDArray[np.integer[Any]]  # index into REASON
    instance: npt.NDArray[np.integer[Any]]  # index into instances, -1 unknown
    slo_class: npt.NDArray[np.integer[Any]]  # index into classes
    input_tokens: npt.NDArray[np.integer[Any]]
    output_tokens: npt.NDArray[np.integer[Any]]  # offered: what the trace asks for
    delivered_tokens: npt.NDArray[np.integer[Any]]
    hit_tokens: npt.NDArray[np.integer[Any]]  # -1 unknown
    preemptions: npt.NDArray[np.integer[Any]]
    attempts: npt.NDArray[np.integer[Any]]
    attained: npt.NDArray[np.bool_]
    classes: tuple[SloClass, ...]
    instances: tuple[str, ...]
    request_ids: tuple[str, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    waste_tokens: Mapping[str, int] = field(default_factory=dict)
    busy_s: F64 | None = None  # (N,) seconds in which each instance ran steps
    series: Mapping[str, F64] | None = None  # engine state over time, as recorded by the replay

    def __len__(self) -> int:
        return len(self.arrival_s)

    def name_of(self, row: int) -> str:
        return self.request_ids[row] if self.request_ids else f"r{row}"


def classes_of(trace: Trace, classes: Sequence[SloClass] | None) -> tuple[SloClass, ...]:
    """The SLO class of each of the trace's class names; one without limits where none is known."""
    known = {one.name: one for one in (classes or DEFAULT_CLASSES)}
    return tuple(known.get(name, SloClass(name)) for name in trace.classes)


def simulated_run(
    label: str, trace: Trace, outcome: Any, summary: Mapping[str, Any], classes: Sequence[SloClass] | None
) -> Run:
    """The columns of a replay's outcome."""
    from tfanalyze.slo import attained

    arrival_s = np.asarray(outcome.arrival_s if hasattr(outcome, "arrival_s") else trace.arrival_s, np.float64)
    mine = classes_of(trace, classes)
    ttft_s = outcome.first_token_s - arrival_s
    e2e_s = outcome.finish_s - arrival_s
    return Run(
        label=label,
        simulated=True,
        arrival_s=arrival_s,
        ttft_s=ttft_s,
        tpot_s=_tpot(ttft_s, e2e_s, outcome.delivered_tokens),
        e2e_s=e2e_s,
        gateway_s=outcome.admit_s - arrival_s,
        queue_s=outcome.start_s - outcome.admit_s,
        prefill_s=outcome.first_token_s - outcome.start_s,
        decode_s=outcome.finish_s - outcome.first_token_s,
        status=outcome.status,
        reason=outcome.reason,
        instance=outcome.instance,
        slo_class=trace.slo_class,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        delivered_tokens=outcome.delivered_tokens,
        hit_tokens=outcome.hit_tokens,
        preemptions=outcome.preemptions,
        attempts=outcome.attempts,
        attained=np.asarray(attained(trace, outcome, mine), np.bool_),
        classes=mine,
        instances=tuple(outcome.instance_names),
        request_ids=trace.request_ids,
        summary=summary,
        waste_tokens=dict(outcome.waste_tokens),
        busy_s=np.asarray(outcome.instance_busy_s, np.float64),
        series=outcome.series,
    )


def observed_run(trace: Trace, classes: Sequence[SloClass] | None, label: str = OBSERVED) -> Run | None:
    """The columns of what the log saw; None where it saw no times at all."""
    from tfanalyze.slo import attained

    seen = trace.observed
    if seen is None or not (np.isfinite(seen.ttft_s).any() or np.isfinite(seen.e2e_s).any()):
        return None
    mine = classes_of(trace, classes)
    n = len(trace)
    delivered = np.where(seen.status == 0, trace.output_tokens, 0)
    zeros, nothing = np.zeros(n, np.int8), np.full(n, np.nan)
    as_outcome = SimpleNamespace(
        arrival_s=trace.arrival_s, admit_s=nothing, start_s=trace.arrival_s + seen.queue_s,
        first_token_s=trace.arrival_s + seen.ttft_s, finish_s=trace.arrival_s + seen.e2e_s,
        status=seen.status, reason=zeros, attempts=zeros + 1, instance=seen.instance,
        hit_tokens=seen.cached_tokens, delivered_tokens=delivered, preemptions=zeros,
    )  # fmt: skip
    return Run(
        label=label,
        simulated=False,
        arrival_s=trace.arrival_s,
        ttft_s=seen.ttft_s,
        tpot_s=_tpot(seen.ttft_s, seen.e2e_s, delivered),
        e2e_s=seen.e2e_s,
        gateway_s=nothing,
        queue_s=seen.queue_s,
        prefill_s=seen.ttft_s - seen.queue_s,
        decode_s=seen.e2e_s - seen.ttft_s,
        status=seen.status,
        reason=zeros,
        instance=seen.instance,
        slo_class=trace.slo_class,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        delivered_tokens=delivered,
        hit_tokens=seen.cached_tokens,
        preemptions=zeros,
        attempts=zeros + 1,
        attained=np.asarray(attained(trace, as_outcome, mine), np.bool_),
        classes=mine,
        instances=trace.instances,
        request_ids=trace.request_ids,
    )


def _tpot(ttft_s: F64, e2e_s: F64, tokens: npt.NDArray[np.integer[Any]]) -> F64:
    gaps = np.where(tokens > 1, tokens - 1, 1)
    return np.asarray(np.where(tokens > 1, (e2e_s - ttft_s) / gaps, np.nan), np.float64)
