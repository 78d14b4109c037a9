"""Demand that the log does not show whole: rejected, cut and timed-out requests, put back with a band."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tfanalyze.trace import Trace

DEFAULT_OUTPUT = 256  # where a class has no finished request at all


def censored(trace: Trace) -> npt.NDArray[np.bool_]:
    """(n,) requests whose answer the recorded policy cut off or never gave: error, timeout, cancelled, rejected."""
    if trace.observed is None:
        return np.zeros(len(trace), np.bool_)
    return np.asarray(trace.observed.status > 0, np.bool_)


def reconstruct(trace: Trace, how: str = "", seed: int = 1) -> Trace:
    """The demand as clients meant it: each censored request gets the output it would have had.

    ``how``: "low" = what the log says (at least one token); "" = drawn from the finished requests of its class that
    were longer than what it got; "high" = the 90th percentile of those.  Never above its max_tokens.
    """
    cut = censored(trace)
    if not cut.any():
        return trace
    rng = np.random.default_rng(seed)
    output = np.maximum(trace.output_tokens, 1).astype(np.int64)
    if how != "low":
        for name in range(len(trace.classes)):
            rows = np.flatnonzero(cut & (trace.slo_class == name))
            whole = np.sort(output[~cut & (trace.slo_class == name)])
            output[rows] = _longer(output[rows], whole, how, rng)
    limited = cut & (trace.max_tokens > 0)
    output[limited] = np.maximum(np.minimum(output[limited], trace.max_tokens[limited]), 1)
    note = f"{int(cut.sum())} requests the log shows cut or rejected were put back as demand ({how or 'drawn'})"
    return replace(trace, output_tokens=output.astype(np.int32), notes=(*trace.notes, note))


def _longer(
    seen: npt.NDArray[np.int64], whole: npt.NDArray[np.int64], how: str, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """A length above each ``seen`` one, from the sorted lengths of finished requests."""
    if len(whole) == 0:
        return np.maximum(seen, DEFAULT_OUTPUT)
    first = np.minimum(np.searchsorted(whole, seen, side="right"), len(whole) - 1)
    share = np.full(len(seen), 0.9) if how == "high" else rng.random(len(seen))
    at = first + (share * (len(whole) - first)).astype(np.int64)
    return np.asarray(np.maximum(whole[np.minimum(at, len(whole) - 1)], seen), np.int64)
