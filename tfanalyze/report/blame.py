"""Why requests missed their SLO: the largest part of the time that broke the limit, or what ended the request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfanalyze.report.columns import REASON, STATUS, Run
from tfanalyze.trace import F64

GATEWAY, QUEUE, PREFILL, DECODE, PREEMPTED, BEFORE = 1, 2, 3, 4, 5, 6
CAUSES = (
    "", "waited at the gateway", "waited in the engine's queue", "prefill", "decode", "preempted", "before the first token",
)  # fmt: skip
_FAILED = len(CAUSES)  # causes from here on: one for each status that is not ok, then for each reason
ALL_CAUSES = (*CAUSES, *(name.replace("timeout", "timed out") for name in STATUS[1:]), *REASON[1:], "unknown")
UNKNOWN = len(ALL_CAUSES) - 1


@dataclass(frozen=True, slots=True)
class Blame:
    """Shape (n,) each. cause indexes ALL_CAUSES, 0 = attained; over = the worst of value / limit, NaN unknown."""

    cause: npt.NDArray[np.int8]
    over: F64


def blame(run: Run) -> Blame:
    """The cause of each miss.

    A request that was not served is blamed on what ended it. One that was late is blamed on the largest part of the time
    to the first token if that limit broke, on decode (or preemption) if the token gap did, on the largest part of
    all if the whole took too long.
    """
    ttft, tpot, e2e = (_over(run, name) for name in ("ttft_s", "tpot_s", "e2e_s"))
    over = np.fmax(np.fmax(ttft, tpot), e2e)
    parts = np.nan_to_num(np.stack([run.gateway_s, run.queue_s, run.prefill_s, run.decode_s]), nan=-1.0)
    first = np.where(parts[:3].max(axis=0) > 0, parts[:3].argmax(axis=0) + GATEWAY, BEFORE)  # a log may not tell which
    whole = np.where(parts.max(axis=0) > 0, parts.argmax(axis=0) + GATEWAY, UNKNOWN)
    slow = np.where(run.preemptions > 0, PREEMPTED, DECODE)
    late = np.where(ttft > 1, first, np.where(tpot > 1, slow, np.where(e2e > 1, whole, UNKNOWN)))
    failed = np.where(run.reason > 0, _FAILED + len(STATUS) - 2 + run.reason, _FAILED + run.status - 1)
    cause = np.where(run.status > 0, failed, late)
    return Blame(np.where(run.attained, 0, cause).astype(np.int8), over)


def worst(run: Run, verdict: Blame, most: int = 10) -> list[int]:
    """Rows of the worst misses: the latest by value / limit, and up to half of them the largest unserved."""
    missed = np.flatnonzero(~run.attained)
    unserved = missed[(run.status[missed] != 0) & ~(verdict.over[missed] > 1)]
    late = missed[verdict.over[missed] > 1]
    late = late[np.argsort(-verdict.over[late], kind="stable")]
    size = run.input_tokens.astype(np.int64) + run.output_tokens
    unserved = unserved[np.argsort(-size[unserved], kind="stable")]
    room = max(most // 2, most - len(late))
    picked = [int(row) for row in unserved[:room]]
    return [int(row) for row in late[: most - len(picked)]] + picked


def by_cause(run: Run, verdict: Blame) -> dict[str, dict[str, int]]:
    """Missed requests and the output tokens they offered, by cause; the most tokens first."""
    requests = np.bincount(verdict.cause, minlength=len(ALL_CAUSES))
    tokens = np.bincount(verdict.cause, np.maximum(run.output_tokens, 0), minlength=len(ALL_CAUSES))
    order = np.argsort(-tokens, kind="stable")
    return {
        ALL_CAUSES[k]: {"requests": int(requests[k]), "tokens": int(tokens[k])}
        for k in order
        if k > 0 and requests[k]
    }


def _over(run: Run, name: str) -> F64:
    """Value / limit of one measure, shape (n,); NaN without a limit or a value."""
    limit = np.array([getattr(one, name) for one in run.classes] + [np.inf])[run.slo_class]
    values: F64 = getattr(run, name)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(limit), values / limit, np.nan)
