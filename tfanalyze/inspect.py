"""inspect: the workload at a glance, from what was ingested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.config import Config, SloClass, load_config
from tfanalyze.errors import WorkspaceError
from tfanalyze.trace import F64, I8, I32

if TYPE_CHECKING:
    from tfanalyze.trace import Trace
    from tfanalyze.workspace import Workspace

PEAK_S = 60.0  # width of the window that peaks are read in
STATUS = {0: "ok", 1: "error", 2: "timeout", 3: "cancelled", 4: "rejected", -1: "unknown"}


@dataclass(frozen=True)
class Seen:
    """What the log saw, in the columns of an Outcome that ``tfanalyze.slo`` reads; a request with unknown status that ended is ok."""

    arrival_s: F64
    first_token_s: F64
    finish_s: F64
    status: I8
    reason: I8
    hit_tokens: I32
    delivered_tokens: I32
    waste_tokens: dict[str, int]


def seen(trace: Trace) -> Seen | None:
    """The observed outcome of a trace, or None where the log holds no times."""
    o = trace.observed
    if o is None or not np.isfinite(o.e2e_s).any():
        return None
    ended = np.isfinite(o.e2e_s)
    status = np.where((o.status == -1) & ended, 0, o.status).astype(np.int8)
    return Seen(
        arrival_s=trace.arrival_s,
        first_token_s=trace.arrival_s + o.ttft_s,
        finish_s=trace.arrival_s + o.e2e_s,
        status=status,
        reason=np.zeros(len(trace), np.int8),
        hit_tokens=np.maximum(o.cached_tokens, 0).astype(np.int32),
        delivered_tokens=np.where(status == 0, np.maximum(trace.output_tokens, 0), 0).astype(np.int32),
        waste_tokens={},
    )


def inspect(
    db: str | Path | Workspace = "tfanalyze.duckdb",
    *,
    config: Config | str | Path | None = None,
    rejects: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Rates, lengths, classes, prefix reuse, SLO attainment as observed, where time went, retries and rejects.

    ``rejects``: also the first 100 rejected rows, with file, line and reason.  Returns the JSON shape tfanalyze.inspect/1.
    Errors: WorkspaceError when nothing was ingested.
    """
    from contextlib import nullcontext

    from tfanalyze.classify import classifier
    from tfanalyze.trace import load_trace
    from tfanalyze.workspace import Workspace

    say = progress or (lambda share, what: None)
    cfg = config if isinstance(config, Config) else load_config(config)
    opened: Any = nullcontext(db) if isinstance(db, Workspace) else Workspace.open(db, read_only=True)
    with opened as workspace:
        if not workspace.count("requests"):
            raise WorkspaceError("holds no requests", workspace.path, "ingest a log first: tfanalyze ingest logs PATH")
        say(0.1, "reading requests")
        trace = load_trace(workspace, classes=cfg.classes, classify=classifier(cfg.class_rules))
        say(0.6, "counting")
        facts = _ingested(workspace, rejects)
        time_share = _time_share(workspace)
    say(0.9, "summing up")
    return _shape(workspace.path, trace, cfg, facts, time_share)


def _shape(path: str, trace: Trace, cfg: Config, facts: dict[str, Any], time_share: dict[str, Any]) -> dict[str, Any]:
    from datetime import UTC, datetime

    from tfanalyze.runs import finite

    began = datetime.fromtimestamp(trace.start_us / 1e6, UTC).isoformat() if trace.start_us else None
    body = {
        "schema": "tfanalyze.inspect/1",
        "db": path,
        "requests": len(trace),
        "began": began,
        "span_s": trace.span_s,
        "rate": _rate(trace),
        "tokens": {name: _lengths(getattr(trace, name)) for name in ("input_tokens", "output_tokens", "max_tokens")},
        "classes": _classes(trace, cfg.classes),
        "sessions": _sessions(trace),
        "prefix": _prefix(trace),
        "observed": _observed(trace, cfg.classes),
        "time": time_share,
        "instances": _instances(trace),
        **facts,
        "assumed": [*cfg.assumed, *trace.notes],
    }
    shaped: dict[str, Any] = finite(body)
    return shaped


def _rate(trace: Trace) -> dict[str, Any]:
    """Requests a second: mean, and the busiest minute; spread of the gaps (1 = Poisson)."""
    span = trace.span_s
    mean = len(trace) / span if span > 0 else None
    per_bin = np.bincount((trace.arrival_s / PEAK_S).astype(np.int64))
    gaps = np.diff(trace.arrival_s)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None
    series = per_bin if len(per_bin) <= 120 else np.add.reduceat(per_bin, np.arange(0, len(per_bin), -(-len(per_bin) // 120)))
    return {"mean_req_s": mean, "peak_minute_req_s": float(per_bin.max() / PEAK_S), "gap_cv": cv, "by_time": series.tolist()}


def _lengths(column: Any) -> dict[str, Any]:
    known = column[column >= 0]
    if not len(known):
        return {"known": 0}
    p50, p95, p99 = (float(v) for v in np.percentile(known, (50, 95, 99)))
    total = int(known.sum(dtype=np.int64))
    return {"known": len(known), "mean": total / len(known), "p50": p50, "p95": p95, "p99": p99, "max": int(known.max()), "total": total}


def _classes(trace: Trace, classes: Sequence[SloClass]) -> dict[str, Any]:
    known = {c.name: c for c in classes}
    shown: dict[str, Any] = {}
    for i, name in enumerate(trace.classes):
        rows = trace.slo_class == i
        if rows.any():
            c = known.get(name, SloClass(name))
            shown[name] = {
                "requests": int(rows.sum()),
                "share": float(rows.mean()),
                "input_tokens_p50": float(np.median(trace.input_tokens[rows])),
                "output_tokens_p50": float(np.median(trace.output_tokens[rows])),
                "limits": {key: value for key in ("ttft_s", "tpot_s", "e2e_s") if np.isfinite(value := getattr(c, key))},
            }
    return shown


def _sessions(trace: Trace) -> dict[str, Any]:
    later = trace.prev >= 0
    if not later.any():
        return {"sessions": 0}
    think = trace.think_s[np.isfinite(trace.think_s)]
    first = int((~later).sum())
    return {"sessions": first, "turns_mean": len(trace) / first, "think_s_p50": float(np.median(think)) if len(think) else None}


def _prefix(trace: Trace) -> dict[str, Any]:
    """Share of prompt tokens whose block was seen before (a cache without end), and what the log says was cached."""
    inputs = int(trace.input_tokens.sum(dtype=np.int64))
    cached = trace.observed.cached_tokens if trace.observed is not None else np.full(len(trace), -1, np.int32)
    known = cached >= 0
    base = int(trace.input_tokens[known].sum(dtype=np.int64))
    shown: dict[str, Any] = {
        "block_size": trace.block_size or None,
        "cached_share": int(cached[known].sum(dtype=np.int64)) / base if base else None,
        "reusable_share": None,
    }
    if len(trace.block_id):
        size, counts = trace.block_size, np.diff(trace.block_off)
        row = np.repeat(np.arange(len(trace)), counts)
        place = np.arange(len(trace.block_id)) - np.repeat(trace.block_off[:-1], counts)
        first = np.zeros(len(trace.block_id), np.bool_)
        first[np.unique(trace.block_id, return_index=True)[1]] = True
        tokens = np.clip(trace.input_tokens[row] - place * size, 0, size)
        shown["reusable_share"] = int(tokens[~first].sum(dtype=np.int64)) / inputs
        shown["blocks"] = len(trace.block_id)
        shown["distinct_blocks"] = int(first.sum())
    return shown


def _observed(trace: Trace, classes: Sequence[SloClass]) -> dict[str, Any] | None:
    from tfanalyze.slo import summarise

    outcome = seen(trace)
    if outcome is None:
        return None
    summary = summarise(trace, outcome, classes)
    codes, counts = np.unique(outcome.status, return_counts=True)
    summary["status"] = {STATUS[int(code)]: int(n) for code, n in zip(codes, counts, strict=True)}
    summary.pop("waste_tokens")  # a log does not say
    return summary


def _instances(trace: Trace) -> dict[str, int]:
    if trace.observed is None:
        return {}
    counts = np.bincount(trace.observed.instance[trace.observed.instance >= 0], minlength=len(trace.instances))
    return {name: int(n) for name, n in zip(trace.instances, counts, strict=True)}


def _time_share(workspace: Workspace) -> dict[str, Any]:
    """Where the summed end-to-end seconds went, as far as the log says; shares sum to one."""
    row = workspace.con.execute(
        """
        SELECT sum(e2e_us) / 1e6, sum(least(queue_us, ttft_us)) / 1e6, sum(least(engine_prompt_us, ttft_us)) / 1e6, sum(ttft_us) / 1e6, count(*),
          count(queue_us), count(engine_prompt_us)
        FROM requests WHERE e2e_us IS NOT NULL AND ttft_us IS NOT NULL AND ttft_us <= e2e_us
        """
    ).fetchone()
    assert row is not None
    total, queue, prompt, ttft, rows, queued, prompted = row
    if not rows or not total:
        return {"requests": 0}
    parts: dict[str, float] = {}
    before = float(ttft)
    if queued:
        parts["queue"], before = float(queue) / total, before - float(queue)
    if prompted:
        parts["prefill"], before = float(prompt) / total, before - float(prompt)
    parts["before first token, other" if parts else "before first token"] = max(before, 0.0) / total
    parts["decode"] = (total - float(ttft)) / total
    return {"requests": int(rows), "seconds": float(total), "share": parts}


def _ingested(workspace: Workspace, rejects: bool) -> dict[str, Any]:
    con = workspace.con
    sources = con.execute("SELECT path, format, kind, rows, taken, rejected FROM sources ORDER BY source_id").fetchall()
    reasons = con.execute("SELECT reason, count(*) FROM rejects GROUP BY 1 ORDER BY 2 DESC, 1").fetchall()
    retries = con.execute("SELECT count(*) FROM requests WHERE retry_of IS NOT NULL OR attempt_no > 0").fetchone()
    metrics = con.execute("SELECT name, count(*) FROM metrics GROUP BY 1 ORDER BY 1").fetchall()
    found: dict[str, Any] = {
        "retries": int(retries[0]) if retries else 0,
        "rejected": {str(reason): int(n) for reason, n in reasons},
        "metrics": {str(name): int(n) for name, n in metrics},
        "sources": [dict(zip(("path", "format", "kind", "rows", "taken", "rejected"), row, strict=True)) for row in sources],
        "provenance": _provenance(workspace),
    }
    if rejects:
        rows = con.execute("SELECT file, line, reason, field FROM rejects ORDER BY file, line LIMIT 100").fetchall()
        found["rejects"] = [dict(zip(("file", "line", "reason", "field"), row, strict=True)) for row in rows]
    return found


def _provenance(workspace: Workspace) -> dict[str, dict[str, int]]:
    """Column -> {observed | derived | assumed: rows}."""
    import json

    found: dict[str, dict[str, int]] = {}
    for text, n in workspace.con.execute("SELECT provenance, count(*) FROM requests WHERE provenance IS NOT NULL GROUP BY 1").fetchall():
        for column, how in json.loads(text).items():
            of = found.setdefault(str(column), {})
            of[str(how)] = of.get(str(how), 0) + int(n)
    return dict(sorted(found.items()))
