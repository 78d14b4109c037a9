"""The one definition of TTFT, TPOT, attainment, goodput and effective tokens; everyone else calls it.

A request *attains* its SLO if it was delivered whole and every limit of its class that is set held, counted from the
client's first attempt: TTFT, TPOT, E2E, and the request's own deadline. Effective tokens are the output tokens of
those requests; goodput is effective tokens per second. Every share is of what clients asked for, so that a policy
that sheds gains nothing by it; every rate is over the span of the trace's arrivals, the same for all policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tfanalyze.config import SloClass
from tfanalyze.trace import F64, I8, I32, Trace

if TYPE_CHECKING:
    Bools = npt.NDArray[np.bool_]

OK, REASON_SHED = 0, 1  # as in replay/state.py
EPS_S = 1e-9
QUANTILES = (50, 95, 99)


class Ends(Protocol):
    """What of an Outcome this module reads; columns (n,), seconds as the client saw them, NaN = did not happen."""

    @property
    def arrival_s(self) -> F64: ...
    @property
    def first_token_s(self) -> F64: ...
    @property
    def finish_s(self) -> F64: ...
    @property
    def status(self) -> I8: ...
    @property
    def reason(self) -> I8: ...
    @property
    def hit_tokens(self) -> I32: ...
    @property
    def delivered_tokens(self) -> I32: ...
    @property
    def waste_tokens(self) -> dict[str, int]: ...


def ttft_s(outcome: Ends) -> F64:
    """(n,) first token - first attempt's arrival."""
    out: F64 = outcome.first_token_s - outcome.arrival_s
    return out


def e2e_s(outcome: Ends) -> F64:
    """(n,) last token - first attempt's arrival."""
    out: F64 = outcome.finish_s - outcome.arrival_s
    return out


def tpot_s(trace: Trace, outcome: Ends) -> F64:
    """(n,) mean gap between a request's tokens: (E2E - TTFT) / (output - 1); NaN below 2 tokens."""
    gaps = trace.output_tokens.astype(np.float64) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gaps > 0, (outcome.finish_s - outcome.first_token_s) / gaps, np.nan)


def limits(trace: Trace, classes: Sequence[SloClass], field: str) -> F64:
    """(n,) a limit of every request's class; inf for a class that is not declared."""
    known = {c.name: float(getattr(c, field)) for c in classes}
    table = np.array([known.get(name, np.inf) for name in trace.classes] or [np.inf], np.float64)
    return table[trace.slo_class]


def attained(trace: Trace, outcome: Ends, classes: Sequence[SloClass]) -> Bools:
    """(n,) delivered whole and inside every limit that is set. A limit on TPOT holds below 2 tokens."""
    met: Bools = outcome.status == OK
    with np.errstate(invalid="ignore"):
        met &= ttft_s(outcome) <= limits(trace, classes, "ttft_s") + EPS_S
        met &= e2e_s(outcome) <= limits(trace, classes, "e2e_s") + EPS_S
        gap = tpot_s(trace, outcome)
        met &= np.isnan(gap) | (gap <= limits(trace, classes, "tpot_s") + EPS_S)
        met &= np.isnan(trace.deadline_s) | (e2e_s(outcome) <= trace.deadline_s + EPS_S)
    return met


def missed(trace: Trace, outcome: Ends, classes: Sequence[SloClass]) -> dict[str, Bools]:
    """Which limit a request broke: masks (n,) by name, not exclusive: not_served, ttft, tpot, e2e, deadline."""
    served = outcome.status == OK
    with np.errstate(invalid="ignore"):
        return {
            "not_served": ~served,
            "ttft": served & (ttft_s(outcome) > limits(trace, classes, "ttft_s") + EPS_S),
            "tpot": served & (tpot_s(trace, outcome) > limits(trace, classes, "tpot_s") + EPS_S),
            "e2e": served & (e2e_s(outcome) > limits(trace, classes, "e2e_s") + EPS_S),
            "deadline": served & (e2e_s(outcome) > trace.deadline_s + EPS_S),
        }


def summarise(trace: Trace, outcome: Ends, classes: Sequence[SloClass]) -> dict[str, Any]:
    """Metrics of one outcome, overall and ``by_class``.

    requests, served, offered_output_tokens, output_tok_s (delivered), goodput_tok_s (effective), attainment (share
    of requests), token_attainment (share of offered output tokens), shed_share, prefix_hit_share (hit tokens / input
    tokens of served requests), and ttft_s, tpot_s, e2e_s as {p50, p95, p99} over served requests (None = none
    served). waste_tokens and waste_gpu_s (computed, served nobody, by cause) are known for the whole only.
    """
    met = attained(trace, outcome, classes)
    window_s = window(trace, outcome)
    everyone = np.ones(len(trace), np.bool_)
    total = _metrics(trace, outcome, met, everyone, window_s)
    total["waste_tokens"] = dict(outcome.waste_tokens)
    total["waste_gpu_s"] = dict(getattr(outcome, "waste_gpu_s", {}))
    total["window_s"] = window_s
    total["by_class"] = {
        name: _metrics(trace, outcome, met, trace.slo_class == index, window_s)
        for index, name in enumerate(trace.classes)
        if (trace.slo_class == index).any()
    }
    return total


def window(trace: Trace, outcome: Ends) -> float:
    """Seconds that rates are over: the span of arrivals; where all arrive at once, until the last finish."""
    if trace.span_s > 0:
        return trace.span_s
    ends = outcome.finish_s[np.isfinite(outcome.finish_s)]
    return float(ends.max() - trace.arrival_s[0]) if len(ends) and ends.max() > trace.arrival_s[0] else 0.0


def _metrics(trace: Trace, outcome: Ends, met: Bools, rows: Bools, window_s: float) -> dict[str, Any]:
    served = rows & (outcome.status == OK)
    offered = int(trace.output_tokens[rows].sum(dtype=np.int64))
    delivered = int(outcome.delivered_tokens[served].sum(dtype=np.int64))
    effective = int(trace.output_tokens[rows & met].sum(dtype=np.int64))
    inputs = int(trace.input_tokens[served].sum(dtype=np.int64))
    return {
        "requests": int(rows.sum()),
        "served": int(served.sum()),
        "offered_output_tokens": offered,
        "output_tok_s": delivered / window_s if window_s else 0.0,
        "goodput_tok_s": effective / window_s if window_s else 0.0,
        "attainment": float(met[rows].mean()) if rows.any() else 0.0,
        "token_attainment": effective / offered if offered else 0.0,
        "ttft_s": quantiles(ttft_s(outcome)[served]),
        "tpot_s": quantiles(tpot_s(trace, outcome)[served]),
        "e2e_s": quantiles(e2e_s(outcome)[served]),
        "prefix_hit_share": int(outcome.hit_tokens[served].sum(dtype=np.int64)) / inputs if inputs else 0.0,
        "shed_share": float((outcome.reason[rows] == REASON_SHED).mean()) if rows.any() else 0.0,
    }


def quantiles(values: F64) -> dict[str, float | None]:
    """{p50, p95, p99} of the known values, linear between neighbours; None where there are none."""
    known = values[np.isfinite(values)]
    if not len(known):
        return {f"p{q}": None for q in QUANTILES}
    return {f"p{q}": float(v) for q, v in zip(QUANTILES, np.percentile(known, QUANTILES), strict=True)}
