"""Seeded traces with the published statistics of real ones: three SLO classes, clients, sessions, two or more sites.

| part | statistic | source |
|---|---|---|
| interactive | input P50/P90/P99 1020/2735/4142, output 129/424/601 tokens | Azure LLM inference trace 2023, conversation (Patel et al., Splitwise, ISCA 2024) |
| long_context | input 6909/27367/85400, output 350/597/1119 tokens; 37 % of prefix blocks reused | Mooncake conversation trace (Qin et al., FAST 2025) |
| offline | input 1469/5188/7436, output 13/55/252 tokens, in bursts of a batch | Azure LLM inference trace 2023, code |
| clients | a few clients send most: rates by Zipf; Gamma gaps with a CV of about 3.5 each | ServeGen (Xiang et al., 2025): rate-weighted CV 3.5 of m-large; BurstGPT (Wang et al., 2025): Gamma gaps |
| sites | load swings by half around its mean, sites out of phase | an assumption of ours: no public trace names sites |
| sessions | median think time 10 s (log-normal), tenants = clients | an assumption of ours |
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfanalyze.errors import ConfigError
from tfanalyze.trace import Trace, from_columns

BLOCK_TOKENS = 64
START_US = 1_767_225_600_000_000  # 2026-01-01, so that the same seed gives the same bytes
AT = (0.0, 0.5, 0.9, 0.99, 1.0)  # quantiles that the length tables give


@dataclass(frozen=True)
class Kind:
    """One class of traffic: lengths at the quantiles AT, and how its requests hang together."""

    name: str
    share: float  # of requests
    input_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]
    more_turns: float  # probability that a session goes on after each turn
    system_prompts: int  # distinct shared beginnings
    system_tokens: int
    batch: float = 1.0  # mean requests that come at once
    deadline_s: tuple[float, float] | None = None


KINDS = (
    Kind("interactive", 0.75, (30, 1020, 2735, 4142, 14050), (1, 129, 424, 601, 1000), 0.6, 8, 192),
    Kind("long_context", 0.10, (890, 6909, 27367, 85400, 126195), (1, 350, 597, 1119, 2000), 0.62, 4, 448),
    Kind("offline", 0.15, (20, 1469, 5188, 7436, 7437), (1, 13, 55, 252, 1899), 0.0, 6, 128, 20.0, (600.0, 3600.0)),
)
CLIENTS = 40
CLIENT_CV = 3.5
SWING = 0.5
THINK_MEDIAN_S, THINK_SIGMA = 10.0, 1.0
TTFT_S, PREFILL_S, DECODE_S = 0.2, 0.0002, 0.025  # how long an answer takes, to place later turns


@dataclass
class _Rows:
    """Requests as they are made, in no order."""

    arrival_s: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    client: list[int] = field(default_factory=list)
    prev: list[int] = field(default_factory=list)
    think_s: list[float] = field(default_factory=list)
    deadline_s: list[float] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)
    fresh: int = 1 << 20  # next block id never used; smaller ones are system prompts'


def synth(out: str | Path | None = None, *, seconds: float, rate: float, seed: int, sites: int = 2) -> Trace:
    """A mixed trace of about ``rate`` requests a second for ``seconds``; written to ``out`` as a gateway log if given.

    ``out`` ends in .jsonl, .jsonl.gz or .jsonl.zst. Later turns carry think times (delay_ms), offline requests
    deadlines, every request its prefix blocks of 64 tokens; there are no timings in it. Deterministic in ``seed``.
    Errors: ConfigError unless seconds, rate and sites are positive.
    """
    if not (seconds > 0 and rate > 0 and sites >= 1):
        raise ConfigError(f"seconds {seconds:g}, rate {rate:g}, sites {sites}", "synth", "give numbers above 0")
    rng = np.random.default_rng(seed)
    rows = _Rows()
    for number, kind in enumerate(KINDS):
        _add_kind(rows, kind, number, max(1, round(kind.share * rate * seconds)), seconds, sites, rng)
    trace = from_columns(
        arrival_s=rows.arrival_s, input_tokens=rows.input_tokens, output_tokens=rows.output_tokens,
        max_tokens=[_allowed(o) for o in rows.output_tokens], slo_class=rows.kind, classes=[k.name for k in KINDS],
        tenant=[f"client{c:02d}" for c in rows.client], prev=rows.prev, think_s=rows.think_s,
        deadline_s=rows.deadline_s, blocks=rows.blocks, block_size=BLOCK_TOKENS, start_us=START_US, name=f"synth-{seed}",
        notes=(f"made by synth, seed {seed}",),
    )  # fmt: skip
    if out is not None:
        write_log(trace, Path(out), sites)
    return trace


def _allowed(output: int) -> int:
    """max_tokens as clients set it: the next of a few round numbers."""
    return next(limit for limit in (256, 512, 1024, 2048) if output <= limit)


def _lengths(table: tuple[float, ...], count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draws from the distribution with these quantiles, straight in log length between them."""
    drawn = np.exp(np.interp(rng.random(count), AT, np.log(np.array(table))))
    whole: npt.NDArray[np.int64] = np.maximum(np.rint(drawn), 1).astype(np.int64)
    return whole


def _add_kind(rows: _Rows, kind: Kind, number: int, count: int, seconds: float, sites: int, rng: np.random.Generator) -> None:
    """``count`` requests of one kind, whole sessions or batches at a time."""
    per_start = kind.batch / (1 - kind.more_turns)
    starts = iter(_starts(max(4, round(2 * count / per_start)), seconds, sites, rng))
    end = len(rows.arrival_s) + count
    while len(rows.arrival_s) < end:
        at_s, client = next(starts, (float(rng.random()) * seconds, int(rng.integers(CLIENTS))))
        size = int(rng.geometric(1 / kind.batch))
        for member in range(min(size, end - len(rows.arrival_s))):
            _add_session(rows, kind, number, at_s + 0.02 * member, client, seconds, end, rng)


def _starts(count: int, seconds: float, sites: int, rng: np.random.Generator) -> list[tuple[float, int]]:
    """(time, client) of session starts, shuffled: Gamma gaps a client, warped by its site's swing of load."""
    weight = 1 / np.arange(1, CLIENTS + 1)
    share = rng.multinomial(count, weight / weight.sum())
    grid = np.linspace(0, seconds, 2049)
    starts: list[tuple[float, int]] = []
    for client, own in enumerate(share):
        gaps = rng.gamma(1 / CLIENT_CV**2, size=own + 1) + 1e-12
        even = np.cumsum(gaps)[:-1] / gaps.sum() * seconds
        phase = 2 * np.pi * (client % sites) / sites
        load = np.cumsum(1 + SWING * np.sin(2 * np.pi * grid / seconds + phase))
        times = np.interp(even, (load - load[0]) / (load[-1] - load[0]) * seconds, grid)
        starts += [(float(t), client) for t in times]
    return [starts[i] for i in rng.permutation(len(starts))]


def _add_session(rows: _Rows, kind: Kind, number: int, at_s: float, client: int, seconds: float, end: int, rng: np.random.Generator) -> None:
    """One conversation: inputs in rising order, each begins with all that was said before."""
    turns = int(rng.geometric(1 - kind.more_turns))
    inputs, outputs = np.sort(_lengths(kind.input_tokens, turns, rng)), _lengths(kind.output_tokens, turns, rng)
    think = np.exp(np.log(THINK_MEDIAN_S) + THINK_SIGMA * rng.standard_normal(turns))
    system = int(min(rng.zipf(1.5), kind.system_prompts)) - 1
    deadline = float(rng.uniform(*kind.deadline_s)) if kind.deadline_s else float("nan")
    history: list[int] = []
    before = -1
    for turn in range(turns):
        said, answer = int(inputs[turn]), int(outputs[turn])
        follows = before >= 0 and said > rows.input_tokens[before] + rows.output_tokens[before]
        if before >= 0:
            at_s += TTFT_S + PREFILL_S * rows.input_tokens[before] + DECODE_S * rows.output_tokens[before] + float(think[turn])
        if at_s >= seconds or len(rows.arrival_s) >= end:
            return
        if not follows:  # a new conversation: nothing of the old one is in it
            first = (number * 64 + system) * 1024
            history = list(range(first, first + min(kind.system_tokens, said) // BLOCK_TOKENS))
        full = (said + answer) // BLOCK_TOKENS  # the answer's blocks too: the engine has them
        new = full - len(history)
        history = [*history, *range(rows.fresh, rows.fresh + new)] if new > 0 else history[:full]
        rows.fresh += max(0, new)
        rows.arrival_s.append(at_s)
        rows.input_tokens.append(said)
        rows.output_tokens.append(answer)
        rows.kind.append(kind.name)
        rows.client.append(client)
        rows.prev.append(before if follows else -1)
        rows.think_s.append(float(think[turn]) if follows else float("nan"))
        rows.deadline_s.append(deadline)
        rows.blocks.append(list(history))
        before = len(rows.arrival_s) - 1


def write_log(trace: Trace, out: Path, sites: int = 1) -> None:
    """The trace as our gateway log (JSON lines, one request a line, no timings); packed by the file's ending."""
    from tfanalyze.traceops import sessions

    root = sessions(trace)
    turn = np.zeros(len(trace), np.int64)
    for row in np.flatnonzero(trace.prev >= 0):
        turn[row] = turn[trace.prev[row]] + 1
    _write(out, "".join(json.dumps(_line(trace, r, int(root[r]), int(turn[r]), sites)) + "\n" for r in range(len(trace))))


def _line(trace: Trace, row: int, root: int, turn: int, sites: int) -> dict[str, Any]:
    full = int(trace.input_tokens[row]) // trace.block_size
    ids = trace.block_id[trace.block_off[row] : trace.block_off[row + 1]][:full]
    line: dict[str, Any] = {
        "request_id": trace.request_ids[row] if trace.request_ids else f"r{row}",
        "arrival": round(trace.start_us / 1e6 + float(trace.arrival_s[row]), 6),
        "session_id": f"s{root}",
        "turn": turn,
        "slo_class": trace.classes[trace.slo_class[row]],
        "block_hashes": [f"{int(b) + 1:08x}" for b in ids],
        "block_size": trace.block_size,
        "prompt_tokens": int(trace.input_tokens[row]),
        "completion_tokens": int(trace.output_tokens[row]),
        "max_tokens": int(trace.max_tokens[row]),
    }
    if trace.tenant[row] >= 0:
        line["tenant"] = trace.tenants[trace.tenant[row]]
        line["site"] = f"site{int(trace.tenant[row]) % sites}"
    if turn and not np.isnan(trace.think_s[row]):
        line["delay_ms"] = round(float(trace.think_s[row]) * 1e3, 3)
    if not np.isnan(trace.deadline_s[row]):
        line["deadline_s"] = round(float(trace.deadline_s[row]), 3)
    return line


def _write(out: Path, text: str) -> None:
    """To a temporary name, then renamed."""
    raw = text.encode()
    if out.suffix == ".gz":
        import gzip

        raw = gzip.compress(raw, 9, mtime=0)
    elif out.suffix == ".zst":
        import zstandard

        raw = zstandard.ZstdCompressor(level=9, write_checksum=True).compress(raw)
    part = out.with_name(out.name + ".part")
    part.write_bytes(raw)
    part.replace(out)
