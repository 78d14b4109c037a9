"""Step-time coefficients by constrained robust regression on work and durations.

Every observation is an interval of a busy engine with the work done in it (timeline.py); one engine step is the
smallest such interval. Durations are fitted in relative terms: an error of 10 % weighs the same at 20 ms and at 20 s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tfanalyze.models.profile import StepTime, with_coefficients
from tfanalyze.models.timeline import SPLITS, RequestLog, Timeline, build, with_starts
from tfanalyze.trace import F64, I64

COEFFICIENTS = (
    "c0_s", "c_prefill_step_s", "c_decode_step_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "c_long_s",
    "prefill_least_s", "request_s", "request_token_s",
)  # fmt: skip
N_STEP = len(COEFFICIENTS) - 2  # the last two are no part of a step: once a request, before its first token
WIDTH, LONG, LEAST = len(COEFFICIENTS), COEFFICIENTS.index("c_long_s"), COEFFICIENTS.index("prefill_least_s")
FORMS: dict[str, tuple[str, ...]] = {  # simplest first; chosen by held-out error
    "steps, prefill tokens, sequences": ("c0_s", "c_prefill_s", "c_seq_s", "request_s"),
    "and KV reads": ("c0_s", "c_prefill_s", "c_seq_s", "c_kv_s", "request_s"),
    "and prefill attention": ("c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "request_s"),
    "and a cost a prefill step": (
        "c0_s", "c_prefill_step_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "request_s",
    ),
    "a least time of a prefill step instead": (
        "c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "prefill_least_s", "request_s",
    ),
    "that and the longest context": (
        "c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "c_long_s", "prefill_least_s", "request_s",
    ),
    "that and a cost a prompt token before the queue": (
        "c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "c_long_s", "prefill_least_s", "request_s", "request_token_s",
    ),
}  # fmt: skip
HUBER = 1.345  # residual scale at which a row starts to lose weight (95 % efficiency on Gaussian errors)
# most that attention to one position may cost, as a share of the linear work of a token: 4 layers x width over 2 x parameters
# is 2e-5 for 70 B, 3e-5 for 8 B, 7e-5 for 1 B; measured ratios are up to twice that
ATTN_MOST = 1e-4
PRIOR_COUNTS = 5.0  # requests that each coefficient of a prior counts for
WORST = 0.3  # relative errors count up to this: stalls and guessed starts are nobody's step cost
PARSIMONY = 0.02  # a longer form must lower the held-out error by this share of it
LONG_PARSIMONY = 0.2  # the same where the longest context is added: it reaches far beyond the loads it was seen at
# A batch of one size cannot tell c_seq_s from c0_s: then c_seq_s is about this share of c0_s, a middle of the shipped
# profiles (measured ones up to 0.9 %, predicted ones 0.2 % to 0.5 %), with a factor of e either way
SEQ_SHARE, SEQ_SPREAD = 0.004, 1.0
BELIEF_SHARE = 0.1  # the belief weighs as much as this share of the rows: drains and ramps are few and their errors alike
BATCH_BINS = 6  # a batch size that is rare counts more: equal weight for every sixth of a factor of e of batch sizes,
RARE_MOST = 10.0  # but a row at most as much as this many


@dataclass(frozen=True, slots=True)
class Chunks:
    """Steps that carried prompt chunks: `work` (m, WIDTH), and the column of c_long_s for each of the rows' splits (m, len(splits))."""

    work: F64
    longest: F64


@dataclass(frozen=True, slots=True)
class Rows:
    """Observations: `work` (n, WIDTH) columns as COEFFICIENTS, `seconds` (n,), when each was seen and on which instance.

    `longest` (n, len(splits)) is the column of c_long_s for each batch size in `splits` from which contexts might not be split.
    `span` (n, 2): the steps first <= i < last of `chunks` that lie in each interval; their work is in `work` too.
    """

    work: F64
    seconds: F64
    at_s: F64
    instance: I64
    kind: npt.NDArray[np.int8]  # 0 prefill interval, 1 decode interval, 2 one step, 3 prior
    longest: F64 | None = None
    splits: tuple[float, ...] = ()
    chunks: Chunks | None = None
    span: I64 | None = None
    seq_share: float = SEQ_SHARE  # what c_seq_s is believed to be of c0_s where the rows do not tell; 0 = nothing is believed

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: npt.NDArray[np.bool_] | I64) -> Rows:
        longest = None if self.longest is None else self.longest[rows]
        span = None if self.span is None else self.span[rows]
        columns = {name: getattr(self, name)[rows] for name in ("work", "seconds", "at_s", "instance", "kind")}
        return replace(self, longest=longest, span=span, **columns)

    def at_split(self, split: float) -> Rows:
        """The rows with the column of c_long_s for this batch size; unchanged where it is not known."""
        if self.longest is None or split not in self.splits:
            return self
        work = self.work.copy()
        work[:, LONG] = self.longest[:, self.splits.index(split)]
        chunks = self.chunks
        if chunks is not None:
            steps = chunks.work.copy()
            steps[:, LONG] = chunks.longest[:, self.splits.index(split)]
            chunks = replace(chunks, work=steps)
        return replace(self, work=work, chunks=chunks)

    def within(self, of_chunk: F64) -> F64:
        """(n,) or (n, k) sums of a quantity of the steps with chunks, (m,) or (m, k), over each interval."""
        assert self.span is not None
        total = np.concatenate([np.zeros((1, *of_chunk.shape[1:])), np.cumsum(of_chunk, axis=0)])
        return np.asarray(total[self.span[:, 1]] - total[self.span[:, 0]])


def rows_from_log(
    log: RequestLog, chunk_tokens: int, ahead: bool = False, step: StepTime | None = None, graphs: bool = False, seq_share: float = SEQ_SHARE
) -> Rows:
    """Two observations a request: [start, first token] and [first token, last token], each with all work done in it.

    `ahead`: the engine plans one step ahead (EngineLimits.async_scheduling). `step`: about what a step takes, where known.
    `graphs`: it decodes with CUDA graphs, so that a batch costs what the next larger graph does.
    """
    log = with_starts(log)
    splits = _splits(build(log, chunk_tokens), log)
    parts: list[Rows] = []
    for code, line in enumerate(build(log, chunk_tokens, splits, step)):
        mine = log.take(log.instance == code)
        if len(mine):
            parts += [_prefill_rows(mine, line, chunk_tokens, code, ahead), _decode_rows(mine, line, code, graphs)]
    return replace(_concat(parts), seq_share=seq_share)


def _chunks(line: Timeline) -> Chunks:
    """The work of every step with chunks: the batch as it was just before the step ended."""
    if not len(line.end_s):
        return Chunks(np.zeros((0, WIDTH)), np.zeros((0, len(line.splits))))
    seqs, reads, longest = line.batch(line.end_s - 2.0 * line.apart_s, line.end_s)
    work = np.zeros((len(line.end_s), WIDTH))
    columns = (np.ones(len(seqs)), np.ones(len(seqs)), (seqs > 0.5) * 1.0, np.diff(line.tokens), np.diff(line.attention), seqs, reads)
    for i, column in enumerate(columns):
        work[:, i] = column
    return Chunks(work, longest)


def _splits(lines: list[Timeline], log: RequestLog) -> tuple[float, ...]:
    """Batch sizes tried as the one from which contexts are not split: between the smallest and the largest seen."""
    seen = np.concatenate([line.batch(mine.first_s, mine.finish_s)[0] for mine, line in _by_instance(log, lines)] or [np.zeros(1)])
    seen = seen[seen > 0]
    if not len(seen):
        return (0.0,)
    low, high = max(2.0, float(np.quantile(seen, 0.0005))), float(seen.max())
    return (0.0, *sorted({float(np.round(s)) + 0.5 for s in np.geomspace(low, max(high, low), SPLITS)}))


def _by_instance(log: RequestLog, lines: list[Timeline]) -> list[tuple[RequestLog, Timeline]]:
    return [(log.take(log.instance == code), line) for code, line in enumerate(lines) if (log.instance == code).any()]


def _decode_rows(log: RequestLog, line: Timeline, code: int, graphs: bool) -> Rows:
    """First to last token: a step a token, known exactly; steps with chunks and the batch as the timeline has them."""
    keep = (log.output_tokens > 1) & (log.finish_s - log.first_s > 1e-3)
    log, own = log.take(keep), line.own[keep]
    steps = log.output_tokens - 1.0
    first = own + 1
    count, tokens, attention = line.chunks(first, np.maximum(line.steps_by(log.finish_s), first))
    seqs, reads, longest = line.batch(log.first_s, log.finish_s, graphs)
    zero = np.zeros(len(log))
    work = [steps, np.minimum(count, steps), steps, tokens, attention, steps * np.maximum(seqs, 1.0), steps * reads, zero, np.minimum(count, steps), zero, zero]
    span = np.stack([first, np.maximum(line.steps_by(log.finish_s), first)], axis=1)
    return _rows(work, steps[:, None] * longest, line, log.finish_s - log.first_s, log.first_s, code, 1, span)


def _prefill_rows(log: RequestLog, line: Timeline, chunk_tokens: int, code: int, ahead: bool) -> Rows:
    """Start to first token: steps with chunks that ended in between, and what it waits for the steps under way."""
    keep = log.first_s - log.start_s > 1e-3
    log, own = log.take(keep), line.own[keep]
    begun = np.minimum(line.steps_by(log.start_s), own)
    count, tokens, attention = line.chunks(begun, own + 1)
    seqs, reads, longest = line.batch(log.start_s, log.first_s)
    others = np.maximum(count - np.ceil(log.computed_tokens / chunk_tokens), 0.0)
    under_way = (0.5 if log.guessed else 0.0) + (1.0 if ahead else 0.0)
    steps = count + np.where(seqs > 0.5, np.maximum(under_way - others, 0.0), 0.0)
    once = np.full(len(log), 1.0 if log.guessed else 0.0)
    work = [
        steps, count, np.where(seqs > 0.5, steps, 0.0), tokens, attention, steps * seqs, steps * reads, np.zeros(len(log)), count, once,
        once * log.input_tokens,
    ]  # fmt: skip
    return _rows(work, steps[:, None] * longest, line, log.first_s - log.start_s, log.start_s, code, 0, np.stack([begun, own + 1], axis=1))


def _rows(work: list[F64], longest: F64, line: Timeline, seconds: F64, at_s: F64, code: int, kind: int, span: I64) -> Rows:
    n = len(seconds)
    stacked = np.ascontiguousarray(np.stack(work, axis=1))
    return Rows(stacked, seconds, at_s, np.full(n, code, dtype=np.int64), np.full(n, kind, dtype=np.int8), longest, line.splits, _chunks(line), span)


def rows_from_prior(prior: StepTime, request_s: float, names: tuple[str, ...]) -> Rows:
    """One observation a coefficient that says what the prior says; weigh it with how many requests it shall count for."""
    values = {name: request_s if name == "request_s" else getattr(prior, name, 0.0) for name in names}
    known = [name for name in names if values[name] > 0]
    work = np.zeros((len(known), len(COEFFICIENTS)))
    for row, name in enumerate(known):
        work[row, COEFFICIENTS.index(name)] = 1.0 / values[name]
    n = len(known)
    return Rows(work, np.ones(n), np.zeros(n), np.full(n, -1, dtype=np.int64), np.full(n, 3, dtype=np.int8))


def rows_from_steps(prefill_tokens: F64, attn_tokens: F64, seqs: F64, kv_tokens: F64, seconds: F64, at_s: F64) -> Rows:
    """One observation a step (shape (n,) each): what a step sampler or a scheduler log gives."""
    n = len(seconds)
    zero = np.zeros(n)
    columns = [np.ones(n), (prefill_tokens > 0) * 1.0, (seqs > 0) * 1.0, prefill_tokens, attn_tokens, seqs, kv_tokens, zero, (prefill_tokens > 0) * 1.0, zero, zero]
    work = np.stack(columns, axis=1)
    own = np.cumsum(prefill_tokens > 0)
    span = np.stack([own - (prefill_tokens > 0), own], axis=1).astype(np.int64)
    chunks = Chunks(work[prefill_tokens > 0], np.zeros((int(own[-1]) if n else 0, 0)))
    return Rows(work, seconds, at_s, np.zeros(n, dtype=np.int64), np.full(n, 2, dtype=np.int8), chunks=chunks, span=span)


def _concat(parts: list[Rows]) -> Rows:
    if not parts:
        return Rows(np.zeros((0, WIDTH)), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int8))
    work, seconds, at_s, instance, kind = (
        np.concatenate([getattr(p, f) for p in parts]) for f in ("work", "seconds", "at_s", "instance", "kind")
    )
    base = Rows(work, seconds, at_s, instance, kind, seq_share=parts[0].seq_share)
    told = [p for p in parts if p.chunks is not None and p.span is not None]
    if not told:
        return base
    offset = np.cumsum([0] + [0 if p.chunks is None else len(p.chunks.work) for p in parts])
    spans = [np.zeros((len(p), 2), np.int64) if p.span is None else p.span + offset[i] for i, p in enumerate(parts)]
    width = len(told[0].splits)
    chunks = Chunks(np.concatenate([p.chunks.work for p in told if p.chunks]), np.concatenate([p.chunks.longest for p in told if p.chunks]))
    longest = np.concatenate([np.repeat(p.work[:, LONG : LONG + 1], width, axis=1) if p.longest is None else p.longest for p in parts])
    return replace(base, longest=longest if width else None, splits=told[0].splits, chunks=chunks, span=np.concatenate(spans))


@dataclass(frozen=True, slots=True)
class Regression:
    """Fitted coefficients by name (seconds per unit of work), relative residuals (n,), the form's name, and the batch size
    from which the longest context is read whole."""

    coefficients: dict[str, float]
    residuals: F64
    form: str
    split_seqs: float = 0.0

    def step(self) -> StepTime:
        names = [name for name in COEFFICIENTS[:N_STEP] if name in self.coefficients]
        return with_coefficients(StepTime(c0_s=0.0, split_seqs=self.split_seqs), {name: self.coefficients[name] for name in names})


def balance(rows: Rows) -> F64:
    """(n,) weights that let rare batch sizes be heard: a ramp or a drain of a steady load tells what the rest cannot."""
    seqs = np.maximum(rows.work[:, 5] / np.maximum(rows.work[:, 0], 1e-9), 0.5)
    own = rows.kind != 3
    if not own.any():
        return np.ones(len(rows))
    bins = np.round(np.log(seqs) * BATCH_BINS).astype(np.int64)
    bins -= bins.min()
    count = np.bincount(bins[own], minlength=int(bins.max()) + 1)
    weight = np.minimum(count.max() / np.maximum(count[bins], 1), RARE_MOST)
    return np.where(own, weight, 1.0)


def solve(rows: Rows, names: tuple[str, ...], weights: F64 | None = None, rounds: int = 15, share: float = 1.0) -> Regression:
    """Non-negative least squares on relative errors with Huber weights (iteratively re-weighted).

    A residual is relative to the larger of observed and predicted: an interval whose start was guessed too late
    would otherwise pull every coefficient to zero (over-prediction has no bound, under-prediction ends at -1).
    What is believed of c_seq_s (Rows.seq_share, times `share`) weighs as little as their scatter allows.
    """
    from scipy.optimize import nnls

    names = tuple(name for name in names if rows.work[:, COEFFICIENTS.index(name)].any())
    floored = _Floor(rows, names) if "prefill_least_s" in names and rows.chunks is not None else None
    bound = "c_attn_s" in names and "c_prefill_s" in names
    base = balance(rows) if weights is None else weights * balance(rows)
    robust = np.ones(len(rows))
    divisor = rows.seconds + float(np.median(rows.seconds))
    values, spread = dict.fromkeys(names, 0.0), np.full(len(rows), 0.1)
    plain = rows.work[:, [COEFFICIENTS.index(name) for name in names]]
    for _ in range(rounds):
        work = plain if floored is None else floored.columns(plain)
        if bound:  # the attention column carries its share of linear work, so that c_attn_s <= ATTN_MOST c_prefill_s
            attn, linear = names.index("c_attn_s"), names.index("c_prefill_s")
            work = work.copy()
            work[:, attn] = ATTN_MOST * work[:, attn] + work[:, linear]
        scale = np.maximum(np.abs(work).max(axis=0), 1e-30)  # unit columns: coefficients differ by eight orders of magnitude
        root = np.sqrt(base * robust) / divisor * (spread.min(initial=1.0) / spread)
        told = np.append(work / scale * root[:, None], _seq_belief(rows, names, share * rows.seq_share, values.get("c_seq_s", 0.0))[None, :] / scale * spread.min(initial=1.0), axis=0)
        beta, _ = nnls(told, np.append(rows.seconds * root, 0.0), maxiter=60 * len(names))
        values = {name: float(value) for name, value in zip(names, beta / scale, strict=True)}
        if bound:
            values["c_prefill_s"] += values["c_attn_s"]
            values["c_attn_s"] *= ATTN_MOST
        if floored is not None:
            floored.update(values)
        predicted = predict(rows, values)
        divisor = np.maximum(rows.seconds, predicted)
        residual = (predicted - rows.seconds) / divisor
        spread = _scatter(rows, residual)
        robust = np.minimum(1.0, HUBER * spread / np.maximum(np.abs(residual), 1e-12))
    return Regression(values, residual, "")


def _scatter(rows: Rows, residual: F64) -> F64:
    """(n,) robust standard deviation of the residuals of each row's kind: what scatters more says less."""
    out = np.ones(len(rows))
    for kind in np.unique(rows.kind[rows.kind != 3]):
        mine = rows.kind == kind
        out[mine] = max(1.4826 * float(np.median(np.abs(residual[mine]))), 1e-6)
    own = rows.kind != 3
    if own.any():
        out[~own] = out[own].min()
    return out


class _Floor:
    """Which steps with chunks lasted prefill_least_s, as the coefficients so far have it: their own work then does not count.

    The largest chunks always count as work, so that c_prefill_s cannot vanish.
    """

    def __init__(self, rows: Rows, names: tuple[str, ...]) -> None:
        assert rows.chunks is not None
        self.rows, self.names, self.chunks = rows, names, rows.chunks
        self.columns_of = [COEFFICIENTS.index(name) for name in names]
        tokens = self.chunks.work[:, COEFFICIENTS.index("c_prefill_s")]
        self.large = tokens > np.quantile(tokens, 0.98) if len(tokens) else np.zeros(0, np.bool_)
        self.held = tokens <= np.quantile(tokens, 0.75) if len(tokens) else np.zeros(0, np.bool_)

    def columns(self, plain: F64) -> F64:
        """(n, len(names)) work with the held steps' own taken out, and how many they are as the column of prefill_least_s."""
        held = self.held.astype(np.float64)[:, None]
        out = np.maximum(plain - self.rows.within(self.chunks.work[:, self.columns_of] * held), 0.0)
        out[:, self.names.index("prefill_least_s")] = self.rows.within(held)[:, 0]
        return np.asarray(out)

    def update(self, values: dict[str, float]) -> None:
        self.held = (_gpu_s(self.chunks, values) < values["prefill_least_s"]) & ~self.large


def _gpu_s(chunks: Chunks, coefficients: dict[str, float]) -> F64:
    """(m,) seconds of the steps with chunks but for the least that they take."""
    theta = np.array([0.0 if name == "prefill_least_s" else coefficients.get(name, 0.0) for name in COEFFICIENTS])
    return np.asarray(chunks.work @ theta)


def _seq_belief(rows: Rows, names: tuple[str, ...], seq_share: float, found: float) -> F64:
    """(len(names),) a row that vanishes where c_seq_s is `seq_share` of c0_s; zero where the rows have no step or sequence cost, or a prior.

    The distance is (c - b) / sqrt(c b) with what was `found` so far: about the logarithm of the ratio.
    """
    out = np.zeros(len(names))
    steps = rows.work[:, 0] > 0
    if "c0_s" in names and "c_seq_s" in names and seq_share > 0 and steps.any() and not (rows.kind == 3).any():
        pace = float(np.median(rows.seconds[steps] / rows.work[steps, 0]))
        believed = seq_share * pace
        unit = float(np.sqrt(BELIEF_SHARE * len(rows) / (believed * max(found, 0.05 * believed)))) / SEQ_SPREAD
        out[names.index("c_seq_s")], out[names.index("c0_s")] = unit, -seq_share * unit
    return out


def predict(rows: Rows, coefficients: dict[str, float]) -> F64:
    """(n,) seconds by the form "sum"; coefficients that are not named are 0."""
    least = coefficients.get("prefill_least_s", 0.0)
    theta = np.array([0.0 if name == "prefill_least_s" else coefficients.get(name, 0.0) for name in COEFFICIENTS])
    total = rows.work @ theta
    if least > 0 and rows.chunks is not None:
        total = total + rows.within(np.maximum(least - _gpu_s(rows.chunks, coefficients), 0.0))
    return np.asarray(total)


def blocks_of(rows: Rows, count: int) -> I64:
    """(n,) time block of every row: `count` blocks of equal numbers of rows, in time order."""
    order = np.argsort(rows.at_s, kind="stable")
    block = np.empty(len(rows), dtype=np.int64)
    block[order] = np.arange(len(rows)) * count // max(len(rows), 1)
    return block


def choose_form(rows: Rows, form: str = "", count: int = 6) -> tuple[Regression, list[dict[str, Any]]]:
    """The form with the least held-out error over time blocks; a longer one must earn it (PARSIMONY). `form`: that one instead."""
    split = choose_split(rows)
    rows = rows.at_split(split)
    block, weight = blocks_of(rows, count), balance(rows)
    table: list[dict[str, Any]] = []
    best = ""
    for name, names in FORMS.items():
        if table and not rows.work[:, [COEFFICIENTS.index(n) for n in names if n not in table[-1]["coefficients"]]].any():
            continue  # nothing in these rows to tell it from the last one
        errors = np.zeros(len(rows))
        for held in range(count):
            fitted = solve(rows.take(block != held), names, rounds=8)
            test = rows.take(block == held)
            guess = predict(test, fitted.coefficients)
            errors[block == held] = np.minimum(np.abs(guess - test.seconds) / np.maximum(guess, test.seconds), WORST)
        kinds = [np.average(errors[rows.kind == kind], weights=weight[rows.kind == kind]) for kind in np.unique(rows.kind)]
        error = float(np.exp(np.mean(np.log(np.maximum(kinds, 1e-9)))))  # each kind of interval counts alike, whatever its scatter
        table.append({"form": name, "coefficients": list(names), "held_out_relative_error": error})
        kept = next((row for row in table if row["form"] == best), None)
        least = LONG_PARSIMONY if kept and "c_long_s" in names and "c_long_s" not in kept["coefficients"] else PARSIMONY
        if kept is None or error < kept["held_out_relative_error"] * (1.0 - least) - 1e-4:
            best = name
    best = form or best
    chosen = solve(rows, FORMS[best])
    return replace(chosen, form=best, split_seqs=split if "c_long_s" in FORMS[best] else 0.0), table


MOST_TRIED = 6_000  # rows looked at for the batch size of choose_split


def choose_split(rows: Rows) -> float:
    """The batch size from which the longest context is read whole (StepTime.split_seqs) that explains the rows best."""
    if rows.longest is None or len(rows) == 0:
        return 0.0
    some = rows.take(rows.kind != 0)  # first tokens scatter by what the client adds
    if len(some) > MOST_TRIED:  # thinned, but all rows of rare batch sizes
        rare = np.flatnonzero(balance(some) > RARE_MOST / 3.0)
        some = some.take(np.unique(np.concatenate([np.linspace(0, len(some) - 1, MOST_TRIED).astype(np.int64), rare])))
    if len(some) == 0:
        return 0.0
    weight = balance(some)
    loss = []
    for split in rows.splits:
        residuals = solve(some.at_split(split), FORMS["that and the longest context"], rounds=6).residuals
        loss.append(float(np.average(np.minimum(np.abs(residuals), WORST), weights=weight)))
    return rows.splits[int(np.argmin(loss))]


def with_prior(rows: Rows, prior: Rows | None, weight: F64 | None = None) -> tuple[Rows, F64 | None]:
    """Rows and weights with the prior's observations added, each for PRIOR_COUNTS requests."""
    if prior is None:
        return rows, weight
    base = np.ones(len(rows)) if weight is None else weight
    return _concat([rows, prior]), np.concatenate([base, np.full(len(prior), PRIOR_COUNTS)])


def bootstrap(
    rows: Rows, names: tuple[str, ...], *, count: int = 200, blocks: int = 20, seed: int = 1, prior: Rows | None = None
) -> F64:
    """(count, len(names)) coefficients refitted on time blocks drawn with replacement: neighbours share their noise."""
    rng = np.random.default_rng(seed)
    block = blocks_of(rows, min(blocks, max(2, len(rows) // 5)))
    total = int(block.max()) + 1
    out = np.empty((count, len(names)))
    for draw in range(count):
        weight = np.bincount(rng.integers(0, total, total), minlength=total).astype(np.float64)[block]
        kept = weight > 0
        share = float(np.exp(SEQ_SPREAD * rng.standard_normal()))  # what is only believed is drawn too
        fitted = solve(*_named(with_prior(rows.take(kept), prior, weight[kept]), names), rounds=5, share=share)
        out[draw] = [fitted.coefficients.get(name, 0.0) for name in names]
    return out


def _named(weighted: tuple[Rows, F64 | None], names: tuple[str, ...]) -> tuple[Rows, tuple[str, ...], F64 | None]:
    return weighted[0], names, weighted[1]


def identifiability(draws: F64, names: tuple[str, ...], rows: Rows) -> list[dict[str, Any]]:
    """What the log cannot tell apart: coefficients that are often zero, wide, or trade against another one."""
    advice = {
        "c0_s": "steps with few sequences next to steps with many",
        "c_prefill_step_s": "short and long prompts at the same load",
        "c_decode_step_s": "steps with and without decoding requests",
        "c_prefill_s": "prompts of different lengths at low load",
        "c_attn_s": "prompts several times longer than these",
        "c_seq_s": "different numbers of concurrent requests",
        "c_kv_s": "long and short contexts at the same concurrency",
        "c_long_s": "one context much longer than the others, at several concurrencies",
        "prefill_least_s": "prompts from a few tokens to thousands at low load",
        "request_s": "requests at idle, where nothing else adds to the first token",
        "request_token_s": "long cached prompts at idle",
    }
    found: list[dict[str, Any]] = []
    centre = np.median(draws, axis=0)
    spread = draws.std(axis=0)
    share = centre * rows.work[:, [COEFFICIENTS.index(n) for n in names]].sum(axis=0) / max(rows.seconds.sum(), 1e-12)
    for i, name in enumerate(names):
        if np.mean(draws[:, i] <= 0) > 0.1:
            found.append({"coefficients": [name], "why": "not distinguishable from zero", "needs": advice[name], "time_share": float(share[i])})
        elif spread[i] > 0.5 * max(centre[i], 1e-30):
            found.append({"coefficients": [name], "why": "known to no better than a factor of two", "needs": advice[name], "time_share": float(share[i])})
    for i in range(len(names)):
        for j in range(i):
            if spread[i] > 0 and spread[j] > 0:
                corr = float(np.corrcoef(draws[:, i], draws[:, j])[0, 1])
                if corr < -0.95 and max(spread[i] / max(centre[i], 1e-30), spread[j] / max(centre[j], 1e-30)) > 0.1:
                    found.append(
                        {"coefficients": [names[j], names[i]], "why": f"only their sum is known (correlation {corr:.2f})", "needs": advice[names[i]]}
                    )
    return found
