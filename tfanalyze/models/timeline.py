"""What ran when on every instance, rebuilt from a request log: work done in any interval, state at any time.

An engine that batches continuously is busy whenever it has a request, so the time between two moments of a busy
spell equals the cost of the work done in it, whoever it was done for. The timeline gives that work: steps that carried
prompt chunks, their tokens and attention positions, and the batch that decoded meanwhile with the KV it read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tfanalyze.models.profile import StepTime
from tfanalyze.trace import F64, I32, I64

LEAST_SPAN_S = 1e-5  # spans are at least this long: two stamps of one clock tick
SAME_STEP = 0.3  # first tokens closer than this share of a quick decode step come from one step
CELLS = (2_000, 40_000)  # least and most time cells in which the decoding batch is counted
SPLITS = 10  # batch sizes tried as the one from which contexts are no longer split
MOST_CHUNKS = 64  # chunks of one prompt that are placed one by one


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
    guessed: bool = False  # starts are guessed: a request's own overhead lies between its start and its first token

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
    """What one instance did.

    Steps with prompt chunks, in time order: `end_s` (c,), and the prompt tokens and attention positions done up to each,
    `tokens` and `attention` (c + 1,); `own` (n,) is the step that gave each request of the log its first token.
    The decoding batch by time: cell edges `edge_s` (g + 1,), and sums up to each edge of `weight` and, times it, of the number
    of sequences (and of them taken up to the size of a CUDA graph), the tokens they read a step, and the longest context as a kernel sees it that splits contexts below each
    of `splits` sequences (StepTime), shape (g + 1, len(splits)). The weight is time, or steps where their duration is known.
    """

    end_s: F64
    tokens: F64
    attention: F64
    own: I64
    edge_s: F64
    weight: F64
    seqs: F64
    padded: F64
    reads: F64
    longest: F64
    splits: tuple[float, ...]
    apart_s: float  # steps end at least this far apart

    def chunks(self, first: I64, last: I64) -> tuple[F64, F64, F64]:
        """Steps with chunks, their tokens and positions, for steps first <= i < last (k,) each."""
        return (
            (last - first).astype(np.float64),
            self.tokens[last] - self.tokens[first],
            self.attention[last] - self.attention[first],
        )

    def steps_by(self, time_s: F64) -> I64:
        """How many steps with chunks had ended by each time, one that ends at that very time included."""
        return np.searchsorted(self.end_s, time_s + self.apart_s / 2.0, side="right")

    def batch(self, start_s: F64, end_s: F64, graphs: bool = False) -> tuple[F64, F64, F64]:
        """Means over each interval (k,): decoding sequences (`graphs`: as padded to a CUDA graph), tokens read a step, and
        longest contexts (k, len(splits))."""
        def between(total: F64) -> F64:
            return np.asarray(np.interp(end_s, self.edge_s, total) - np.interp(start_s, self.edge_s, total))

        weight = np.maximum(between(self.weight), 1e-12)

        def mean(total: F64) -> F64:
            return between(total) / weight

        longest = [mean(column) for column in self.longest.T]
        return mean(self.padded if graphs else self.seqs), mean(self.reads), np.stack(longest, axis=1) if longest else np.zeros((len(start_s), 0))


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
    return replace(log, start_s=np.minimum(start, log.first_s), guessed=True)


def attention_tokens(cached: F64, computed: F64) -> F64:
    """Sum of the positions of the computed prompt tokens (StepTime's A): m n + m (m + 1) / 2."""
    return computed * cached + computed * (computed + 1.0) / 2.0


def build(log: RequestLog, chunk_tokens: int, splits: tuple[float, ...] = (), step: StepTime | None = None) -> list[Timeline]:
    """One timeline an instance, starts known. `chunk_tokens`: the engine's token budget a step; `splits`: batch sizes from
    which a kernel might not split contexts, 0 = always; `step`: about what a step takes, so that slow times do not count for
    more steps than they had."""
    return [_build_one(log.take(log.instance == code), chunk_tokens, splits, step) for code in range(len(log.instances))]


def _build_one(log: RequestLog, chunk_tokens: int, splits: tuple[float, ...], step: StepTime | None) -> Timeline:
    if len(log) == 0:
        none, one, two = np.zeros(0), np.zeros(1), np.zeros(2)
        return Timeline(none, one, one, np.zeros(0, np.int64), two, two, two, two, two, np.zeros((2, len(splits))), splits, LEAST_SPAN_S)
    apart_s = _apart_s(log)
    end_s, tokens, attention, own = _chunk_steps(log, chunk_tokens, apart_s)
    edge_s, seqs, reads, longest = _batch_cells(log)
    weight = np.diff(edge_s)
    if step is not None:
        weight = weight / np.maximum(
            step.c0_s + step.c_seq_s * seqs + step.c_kv_s * reads + step.c_long_s * _as_read(longest, reads, seqs, step.split_seqs), 1e-4
        )
    seen = [_as_read(longest, reads, seqs, split) * weight for split in splits]
    return Timeline(
        end_s, _sums(tokens), _sums(attention), own, edge_s, _sums(weight), _sums(seqs * weight), _sums(padded(seqs) * weight), _sums(reads * weight),
        np.stack([_sums(column) for column in seen], axis=1) if seen else np.zeros((len(edge_s), 0)), splits, apart_s,
    )  # fmt: skip


def padded(seqs: F64) -> F64:
    """Batch sizes as a decode step computes them with CUDA graphs: 1, 2, 4, then multiples of 8 (vLLM's default
    `cudagraph_capture_sizes`; SGLang's are alike)."""
    few = np.where(seqs <= 1.0, seqs, np.where(seqs <= 2.0, 2.0, 4.0))
    return np.asarray(np.where(seqs <= 4.0, few, 8.0 * np.ceil(seqs / 8.0 - 1e-6)))


def _as_read(longest: F64, reads: F64, seqs: F64, split: float) -> F64:
    """The longest context, or the part of it that a kernel reads in one piece (StepTime)."""
    return np.asarray(np.where(seqs >= split, longest, np.minimum(longest, reads / np.maximum(split - seqs / 2.0, 0.5))))


def _apart_s(log: RequestLog) -> float:
    """First tokens closer than this come from one step."""
    many = log.output_tokens > 1
    if not many.any():
        return LEAST_SPAN_S
    pace = (log.finish_s - log.first_s)[many] / (log.output_tokens[many] - 1.0)
    return max(SAME_STEP * float(np.quantile(pace, 0.1)), LEAST_SPAN_S)


def _chunk_steps(log: RequestLog, chunk_tokens: int, apart_s: float) -> tuple[F64, F64, F64, I64]:
    """Steps that computed prompt tokens: end, tokens, positions, and the one that ended each request's prompt.

    The last chunk of a prompt ends with its first token, earlier ones evenly between start and first token; chunks that
    end together were in one step.
    """
    computed = log.computed_tokens
    cached = log.input_tokens - computed
    count = np.clip(np.ceil(computed / chunk_tokens), 1, MOST_CHUNKS).astype(np.int64)
    row = np.repeat(np.arange(len(log)), count)
    k = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    size = computed / count
    span = log.first_s - log.start_s
    when = log.first_s[row] - span[row] * (count[row] - 1 - k) / count[row]
    order = np.argsort(when, kind="stable")
    when, row, k = when[order], row[order], k[order]
    step = np.concatenate([[0], np.cumsum(np.diff(when) > apart_s)]).astype(np.int64)
    end_s = np.zeros(int(step[-1]) + 1)
    np.maximum.at(end_s, step, when)
    own = np.zeros(len(log), np.int64)
    last = k == count[row] - 1
    own[row[last]] = step[last]
    attention = attention_tokens(cached[row] + k * size[row], size[row])
    return end_s, _count(step, size[row], len(end_s)), _count(step, attention, len(end_s)), own


def _batch_cells(log: RequestLog) -> tuple[F64, F64, F64, F64]:
    """Cell edges (g + 1,) and per cell (g,): decoding sequences, tokens they read a step, the longest context."""
    cells = int(np.clip(8 * len(log), *CELLS))
    edge_s = np.linspace(float(log.start_s.min()), float(log.finish_s.max()) + LEAST_SPAN_S, cells + 1)
    width = edge_s[1] - edge_s[0]
    middle = (edge_s[1:] + edge_s[:-1]) / 2.0
    some = log.output_tokens > 1
    first, finish = log.first_s[some], log.finish_s[some]
    seqs = _shares(edge_s, first, finish) / width
    low, high = np.searchsorted(middle, first), np.searchsorted(middle, finish)
    row = np.repeat(np.arange(len(first)), high - low)
    cell = np.arange(len(row)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[row]
    made = (log.output_tokens[some] - 1.0)[row] * (middle[cell] - first[row]) / np.maximum((finish - first)[row], LEAST_SPAN_S)
    context = log.input_tokens[some][row] + 1.0 + made
    reads, longest = np.bincount(cell, context, cells), np.zeros(cells)
    np.maximum.at(longest, cell, context)
    number = np.bincount(cell, minlength=cells)
    return edge_s, seqs, np.where(number > 0, reads / np.maximum(number, 1) * seqs, 0.0), longest


def _shares(edge_s: F64, start: F64, end: F64) -> F64:
    """(g,) seconds of all intervals that fall into each cell."""
    def before(times: F64) -> F64:  # sum over intervals' ends of max(0, edge - time)
        ordered = np.sort(times)
        total = np.concatenate([[0.0], np.cumsum(ordered)])
        place = np.searchsorted(ordered, edge_s)
        return np.asarray(place * edge_s - total[place])

    return np.maximum(np.diff(before(start) - before(end)), 0.0)


def _count(where: I64, weights: F64, size: int) -> F64:
    return np.asarray(np.bincount(where, weights, size), np.float64)


def _sums(values: F64) -> F64:
    return np.concatenate([[0.0], np.cumsum(values)])


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
