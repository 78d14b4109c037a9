"""What ran when on every instance, rebuilt from a request log: work done in any interval, state at any time.

An engine that batches continuously is busy whenever it has a request, so the time between two moments of a busy
spell equals the cost of the work done in it, whoever it was done for. The timeline gives that work: steps, prefill
tokens and their attention positions, decoded tokens and the KV they read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tfanalyze.trace import F64, I32

LEAST_SPAN_S = 1e-5  # spans are at least this long: two stamps of one clock tick
DECODE_PIECES = 4  # context grows during decode: its reads are spread over this many pieces
WORK = ("steps", "prefill_steps", "decode_steps", "prefill_tokens", "attn_tokens", "seq_steps", "kv_reads")


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Finished requests as columns of shape (n,), seconds on one clock; NaN = not seen.

    `start_s` is when the engine first worked on the request; `cached_tokens` NaN = unknown (counted as 0).
    """

    instance: I32  # index into instances
    arrival_s: F64
    start_s: F64
    first_s: F64
    finish_s: F64
    input_tokens: F64
    cached_tokens: F64
    output_tokens: F64
    instances: tuple[str, ...] = ("0",)
    partial_step: float = 0.0  # share of a step that a request waits for the one under way, inside [start, first]

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> RequestLog:
        """The rows asked for, instances kept."""
        names = ("instance", "arrival_s", "start_s", "first_s", "finish_s", "input_tokens", "cached_tokens")
        return replace(
            self, output_tokens=self.output_tokens[rows], **{name: getattr(self, name)[rows] for name in names}
        )

    @property
    def computed_tokens(self) -> F64:
        """(n,) prompt tokens that had to be computed, at least one."""
        return np.maximum(self.input_tokens - np.nan_to_num(self.cached_tokens), 1.0)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Cumulative work of one instance: `times_s` (m,) break points, `work` (7, m) in the order of WORK."""

    times_s: F64
    work: F64

    def between(self, start_s: F64, end_s: F64) -> F64:
        """(7, k) work done in each interval."""
        out = np.empty((len(WORK), len(start_s)))
        for row, column in enumerate(self.work):
            out[row] = np.interp(end_s, self.times_s, column) - np.interp(start_s, self.times_s, column)
        return out


def with_starts(log: RequestLog) -> RequestLog:
    """Fill unknown starts: first come, first served, so work on a request begins at its arrival or when the one before
    it in line had its first token, whichever is later."""
    if not np.isnan(log.start_s).any():
        return log
    start = log.start_s.copy()
    for code in np.unique(log.instance):
        rows = np.flatnonzero(log.instance == code)
        rows = rows[np.argsort(log.first_s[rows], kind="stable")]
        first = log.first_s[rows]
        place = np.searchsorted(first, first, side="left")  # those strictly before
        before = np.where(place > 0, first[np.maximum(place - 1, 0)], -np.inf)
        guess = np.maximum(log.arrival_s[rows], before)
        start[rows] = np.where(np.isnan(start[rows]), guess, start[rows])
    return replace(log, start_s=np.minimum(start, log.first_s), partial_step=0.5)


def attention_tokens(cached: F64, computed: F64) -> F64:
    """Sum of the positions of the computed prompt tokens (StepTime's A): m n + m (m + 1) / 2."""
    return computed * cached + computed * (computed + 1.0) / 2.0


def build(log: RequestLog, chunk_tokens: int) -> list[Timeline]:
    """One timeline an instance (empty where an instance has no rows). `chunk_tokens`: the engine's token budget a step."""
    return [_build_one(log.take(log.instance == code), chunk_tokens) for code in range(len(log.instances))]


def _build_one(log: RequestLog, chunk_tokens: int) -> Timeline:
    """Two kinds of gaps between break points. While a prompt is computed, every step carries a chunk of it, so the
    chunks give the steps; elsewhere the decoding requests give them, one token a step each."""
    if len(log) == 0:
        return Timeline(np.zeros(1), np.zeros((len(WORK), 1)))
    computed = log.computed_tokens
    cached = log.input_tokens - computed
    decode = np.maximum(log.output_tokens - 1.0, 0.0)
    pieces = [log.first_s + (log.finish_s - log.first_s) * i / DECODE_PIECES for i in range(DECODE_PIECES + 1)]
    times = np.unique(np.concatenate([log.start_s, np.maximum(log.first_s, log.start_s + LEAST_SPAN_S), log.first_s + LEAST_SPAN_S, *pieces]))
    gaps = np.diff(times)
    prefill = (log.start_s, log.first_s)
    prefill_rate = _slopes(times, *prefill, computed)
    prefilling = _counts(times, *prefill, np.ones(len(log)))
    chunk_rate = _slopes(times, *prefill, np.ceil(computed / chunk_tokens) + log.partial_step)
    chunk_rate = np.where(prefilling > 0.5, np.maximum(chunk_rate / np.maximum(prefilling, 1.0), prefill_rate / chunk_tokens), 0.0)
    is_prefill = prefilling > 0.5
    decoding = _counts(times, log.first_s, log.finish_s, decode > 0)
    context = np.zeros(len(gaps))
    for i in range(DECODE_PIECES):
        context += _counts(times, pieces[i], pieces[i + 1], np.where(decode > 0, log.input_tokens + decode * (i + 0.5) / DECODE_PIECES + 1.0, 0.0))
    pace = _pace(log, times, is_prefill, chunk_rate, decode, decoding)
    rate = np.where(is_prefill, chunk_rate, pace)
    work = [
        rate,
        np.where(is_prefill, chunk_rate, 0.0),
        np.where(decoding > 0.5, rate, 0.0),
        prefill_rate,
        _slopes(times, *prefill, attention_tokens(cached, computed)),
        rate * decoding,
        rate * context,
    ]
    return Timeline(times, np.stack([_integral(np.asarray(column, np.float64), gaps) for column in work]))


def _pace(log: RequestLog, times: F64, is_prefill: npt.NDArray[np.bool_], chunk_rate: F64, decode: F64, decoding: F64) -> F64:
    """(m - 1,) decode steps a second outside of prefill: what each request has left to decode there, averaged."""
    gaps = np.diff(times)
    chunks = _integral(chunk_rate, gaps)
    free = _integral(np.asarray(~is_prefill, np.float64), gaps)
    spent = np.interp(log.finish_s, times, chunks) - np.interp(log.first_s, times, chunks)
    open_s = np.interp(log.finish_s, times, free) - np.interp(log.first_s, times, free)
    own = np.where(open_s > LEAST_SPAN_S, np.maximum(decode - spent, 0.1 * decode) / np.maximum(open_s, LEAST_SPAN_S), 0.0)
    total = _counts(times, log.first_s, log.finish_s, own)
    return np.where(decoding > 0.5, total / np.maximum(decoding, 1.0), 0.0)


def _slopes(times: F64, start: F64, end: F64, amount: F64) -> F64:
    """(m - 1,) rate of work in every gap between break points."""
    span = np.maximum(end - start, LEAST_SPAN_S)
    return _counts(times, start, start + span, amount / span)


def _counts(times: F64, start: F64, end: F64, weight: F64 | npt.NDArray[np.bool_]) -> F64:
    delta = np.zeros(len(times) + 1)
    weights = np.asarray(weight, dtype=np.float64)
    np.add.at(delta, np.searchsorted(times, start - 1e-12), weights)
    np.add.at(delta, np.searchsorted(times, end - 1e-12), -weights)
    return np.maximum(np.cumsum(delta)[: len(times) - 1], 0.0)


def _integral(rate: F64, gaps: npt.NDArray[np.floating[Any]]) -> F64:
    return np.concatenate([[0.0], np.cumsum(rate * gaps)])


@dataclass(frozen=True, slots=True)
class State:
    """In-flight state of one instance at `times_s` (k,): requests waiting, in prefill, decoding; KV tokens in use.

    Requests still running at the edges of the log are not in it: `reliable` is False where a request as long as the
    99th percentile could have been cut off at the start or the end.
    """

    times_s: F64
    waiting: F64
    prefilling: F64
    decoding: F64
    kv_tokens: F64
    reliable: npt.NDArray[np.bool_]


def state_at(log: RequestLog, instance: int, times_s: F64) -> State:
    """Rebuild the state of an instance at the times given."""
    rows = with_starts(log.take(log.instance == instance))

    def inside(start: F64, end: F64, weight: F64 | None = None) -> F64:
        weights = np.ones(len(start)) if weight is None else weight
        order_in, order_out = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
        total_in = np.concatenate([[0.0], np.cumsum(weights[order_in])])
        total_out = np.concatenate([[0.0], np.cumsum(weights[order_out])])
        entered = total_in[np.searchsorted(start[order_in], times_s, side="right")]
        return np.asarray(entered - total_out[np.searchsorted(end[order_out], times_s, side="right")])

    if len(rows) == 0:
        zero = np.zeros(len(times_s))
        return State(times_s, zero, zero, zero, zero, np.zeros(len(times_s), dtype=np.bool_))
    span = np.maximum(rows.finish_s - rows.first_s, LEAST_SPAN_S)
    rate = rows.output_tokens / span
    growth = inside(rows.first_s, rows.finish_s, rate) * times_s - inside(rows.first_s, rows.finish_s, rate * rows.first_s)
    edge = float(np.quantile(rows.finish_s - rows.arrival_s, 0.99))
    reliable = (times_s >= rows.arrival_s.min() + edge) & (times_s <= rows.finish_s.max() - edge)
    return State(
        times_s,
        inside(rows.arrival_s, rows.start_s),
        inside(rows.start_s, rows.first_s),
        inside(rows.first_s, rows.finish_s),
        inside(rows.start_s, rows.finish_s, rows.input_tokens) + np.maximum(growth, 0.0),
        reliable,
    )
