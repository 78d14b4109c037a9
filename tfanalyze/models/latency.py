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
from tfanalyze.models.timeline import RequestLog, build, with_starts
from tfanalyze.trace import F64, I64

COEFFICIENTS = (
    "c0_s", "c_prefill_step_s", "c_decode_step_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "request_s",
)  # fmt: skip
N_STEP = len(COEFFICIENTS) - 1  # the last one is no part of a step: once a request, before its first token
FORMS: dict[str, tuple[str, ...]] = {  # simplest first; chosen by held-out error
    "steps, prefill tokens, sequences": ("c0_s", "c_prefill_s", "c_seq_s", "request_s"),
    "and KV reads": ("c0_s", "c_prefill_s", "c_seq_s", "c_kv_s", "request_s"),
    "and prefill attention": ("c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "request_s"),
    "and a cost a prefill step": (
        "c0_s", "c_prefill_step_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s", "request_s",
    ),  # fmt: skip
}
HUBER = 1.345  # residual scale at which a row starts to lose weight (95 % efficiency on Gaussian errors)
# most that attention to one position may cost, as a share of the linear work of a token: 4 layers x width over 2 x parameters
# is 2e-5 for 70 B, 3e-5 for 8 B, 7e-5 for 1 B; measured ratios are up to twice that
ATTN_MOST = 1e-4
PRIOR_COUNTS = 5.0  # requests that each coefficient of a prior counts for
PARSIMONY = 0.02  # a longer form must lower the held-out error by this share of it


@dataclass(frozen=True, slots=True)
class Rows:
    """Observations: `work` (n, 8) columns as COEFFICIENTS, `seconds` (n,), when each was seen and on which instance."""

    work: F64
    seconds: F64
    at_s: F64
    instance: I64
    kind: npt.NDArray[np.int8]  # 0 prefill interval, 1 decode interval, 2 one step, 3 prior

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: npt.NDArray[np.bool_] | I64) -> Rows:
        return Rows(self.work[rows], self.seconds[rows], self.at_s[rows], self.instance[rows], self.kind[rows])


def rows_from_log(log: RequestLog, chunk_tokens: int) -> Rows:
    """Two observations a request: [start, first token] and [first token, last token], each with all work done in it."""
    log = with_starts(log)
    lines = build(log, chunk_tokens)
    parts: list[Rows] = []
    for code, line in enumerate(lines):
        mine = log.take(log.instance == code)
        if len(mine) == 0:
            continue
        for kind, start, end in ((0, mine.start_s, mine.first_s), (1, mine.first_s, mine.finish_s)):
            work = line.between(start, end)
            if kind == 1:  # a decode step a token: known exactly
                work[0] = work[2] = np.maximum(mine.output_tokens - 1.0, 0.0)
                work[1] = np.minimum(work[1], work[0])
            once = np.full(len(mine), 1.0 if kind == 0 and log.partial_step > 0 else 0.0)
            work = np.concatenate([work, once[None, :]])
            keep = (end - start > 1e-3) & ((kind == 0) | (mine.output_tokens > 1))
            seconds = end - start
            n = int(keep.sum())
            parts.append(
                Rows(
                    np.ascontiguousarray(work.T[keep]),
                    seconds[keep],
                    start[keep],
                    np.full(n, code, dtype=np.int64),
                    np.full(n, kind, dtype=np.int8),
                )
            )
    return _concat(parts)


def rows_from_prior(prior: StepTime, request_s: float, names: tuple[str, ...]) -> Rows:
    """One observation a coefficient that says what the prior says; weigh it with how many requests it shall count for."""
    values = {name: request_s if name == "request_s" else getattr(prior, name) for name in names}
    known = [name for name in names if values[name] > 0]
    work = np.zeros((len(known), len(COEFFICIENTS)))
    for row, name in enumerate(known):
        work[row, COEFFICIENTS.index(name)] = 1.0 / values[name]
    n = len(known)
    return Rows(work, np.ones(n), np.zeros(n), np.full(n, -1, dtype=np.int64), np.full(n, 3, dtype=np.int8))


def rows_from_steps(prefill_tokens: F64, attn_tokens: F64, seqs: F64, kv_tokens: F64, seconds: F64, at_s: F64) -> Rows:
    """One observation a step (shape (n,) each): what a step sampler or a scheduler log gives."""
    n = len(seconds)
    work = np.stack(
        [np.ones(n), (prefill_tokens > 0) * 1.0, (seqs > 0) * 1.0, prefill_tokens, attn_tokens, seqs, kv_tokens, np.zeros(n)],
        axis=1,
    )
    return Rows(work, seconds, at_s, np.zeros(n, dtype=np.int64), np.full(n, 2, dtype=np.int8))


def _concat(parts: list[Rows]) -> Rows:
    if not parts:
        return Rows(np.zeros((0, 8)), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int8))
    return Rows(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("work", "seconds", "at_s", "instance", "kind")))


@dataclass(frozen=True, slots=True)
class Regression:
    """Fitted coefficients by name (seconds per unit of work), relative residuals (n,), and the form's name."""

    coefficients: dict[str, float]
    residuals: F64
    form: str

    def step(self) -> StepTime:
        names = [name for name in COEFFICIENTS[:N_STEP] if name in self.coefficients]
        return with_coefficients(StepTime(c0_s=0.0), {name: self.coefficients[name] for name in names})


def solve(rows: Rows, names: tuple[str, ...], weights: F64 | None = None, rounds: int = 15) -> Regression:
    """Non-negative least squares on relative errors with Huber weights (iteratively re-weighted).

    A residual is relative to the larger of observed and predicted: an interval whose start was guessed too late
    would otherwise pull every coefficient to zero (over-prediction has no bound, under-prediction ends at -1).
    """
    from scipy.optimize import nnls

    names = tuple(name for name in names if rows.work[:, COEFFICIENTS.index(name)].any())
    work = rows.work[:, [COEFFICIENTS.index(name) for name in names]]
    bound = "c_attn_s" in names and "c_prefill_s" in names
    if bound:  # the attention column carries its share of linear work, so that c_attn_s <= ATTN_MOST c_prefill_s
        attn, linear = names.index("c_attn_s"), names.index("c_prefill_s")
        work[:, attn] = ATTN_MOST * work[:, attn] + work[:, linear]
    scale = np.maximum(work.max(axis=0), 1e-30)  # unit columns: coefficients differ by eight orders of magnitude
    work = work / scale
    base = np.ones(len(rows)) if weights is None else weights
    robust = np.ones(len(rows))
    divisor = rows.seconds + float(np.median(rows.seconds))
    beta = np.zeros(len(names))
    for _ in range(rounds):
        root = np.sqrt(base * robust) / divisor
        beta, _ = nnls(work * root[:, None], rows.seconds * root, maxiter=60 * len(names))
        predicted = work @ beta
        divisor = np.maximum(rows.seconds, predicted)
        residual = (predicted - rows.seconds) / divisor
        spread = max(1.4826 * float(np.median(np.abs(residual))), 1e-6)
        robust = np.minimum(1.0, HUBER * spread / np.maximum(np.abs(residual), 1e-12))
    values = {name: float(value) for name, value in zip(names, beta / scale, strict=True)}
    if bound:
        values["c_prefill_s"] += values["c_attn_s"]
        values["c_attn_s"] *= ATTN_MOST
    return Regression(values, residual, "")


def predict(rows: Rows, coefficients: dict[str, float]) -> F64:
    """(n,) seconds by the form "sum"; coefficients that are not named are 0."""
    return np.asarray(rows.work @ np.array([coefficients.get(name, 0.0) for name in COEFFICIENTS]))


def blocks_of(rows: Rows, count: int) -> I64:
    """(n,) time block of every row: `count` blocks of equal numbers of rows, in time order."""
    order = np.argsort(rows.at_s, kind="stable")
    block = np.empty(len(rows), dtype=np.int64)
    block[order] = np.arange(len(rows)) * count // max(len(rows), 1)
    return block


def choose_form(rows: Rows, count: int = 6) -> tuple[Regression, list[dict[str, Any]]]:
    """The form with the least held-out error over time blocks; a longer one must earn it (PARSIMONY)."""
    block = blocks_of(rows, count)
    table: list[dict[str, Any]] = []
    best = ""
    for name, names in FORMS.items():
        errors = np.zeros(len(rows))
        for held in range(count):
            fitted = solve(rows.take(block != held), names)
            test = rows.take(block == held)
            guess = predict(test, fitted.coefficients)
            errors[block == held] = np.abs(guess - test.seconds) / np.maximum(guess, test.seconds)
        error = float(np.mean(errors))
        table.append({"form": name, "coefficients": list(names), "held_out_relative_error": error})
        kept = next((row for row in table if row["form"] == best), None)
        if kept is None or error < kept["held_out_relative_error"] * (1.0 - PARSIMONY) - 1e-4:
            best = name
    chosen = solve(rows, FORMS[best])
    return replace(chosen, form=best), table


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
        fitted = solve(*_named(with_prior(rows.take(kept), prior, weight[kept]), names), rounds=5)
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
        "request_s": "requests at idle, where nothing else adds to the first token",
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
