"""AIPerf profile exports, both schemas (timestamp_ns and request_start_ns): JSON lines, each metric with its unit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import (
    Context,
    Format,
    Head,
    Row,
    bad_line,
    json_rows,
    safe,
    status_of,
    sub,
    text_of,
    us,
    whole,
)


def sniff(head: Head) -> bool:
    return head.has("metadata", "metrics") and not head.has("benchmarks") and (
        '"request_start_ns"' in head.text or '"timestamp_ns"' in head.text
    )


def read(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "ns", "durations": "named by each metric"}
    ctx.clock = "unix, from ns"
    for line, row in json_rows(source):
        meta = row.get("metadata") if row else None
        if row is None or not isinstance(meta, dict):
            yield bad_line(source, line)
            continue
        yield safe(line, _row, row, meta, line)


def _row(row: dict[str, Any], meta: dict[str, Any], line: int) -> Row:
    metrics = row["metrics"] if isinstance(row.get("metrics"), dict) else {}
    error = row.get("error")
    status = "ok"
    if error:
        status = status_of(sub(error, "code")) or "error"
    if meta.get("was_cancelled"):
        status = "cancelled"
    start = meta.get("request_start_ns", meta.get("timestamp_ns"))
    phase = text_of(meta.get("benchmark_phase", meta.get("credit_phase")))
    input_tokens = _count(metrics, "input_sequence_length")
    return {
        "line": line,
        "request_id": text_of(meta.get("x_request_id")),
        "trace_id": text_of(meta.get("x_correlation_id")),
        "arrival_us": us(start, "ns"),
        "session_id": text_of(meta.get("conversation_id")),
        "turn": whole(meta.get("turn_index")),
        "input_tokens": input_tokens if input_tokens is not None else _count(metrics, "usage_prompt_tokens"),
        "cached_tokens": _count(metrics, "usage_prompt_cache_read_tokens"),
        "output_tokens": _count(metrics, "output_sequence_length"),
        "ttft_us": _time(metrics, "time_to_first_token", "ttft"),
        "e2e_us": _time(metrics, "request_latency"),
        "status": status,
        "phase": "warmup" if phase == "warmup" else "measured",
    }


def _count(metrics: dict[str, Any], name: str) -> int | None:
    return whole(sub(metrics, name, "value"))


def _time(metrics: dict[str, Any], *names: str) -> int | None:
    for name in names:
        unit = sub(metrics, name, "unit")
        if unit in ("s", "ms", "us", "ns"):
            return us(sub(metrics, name, "value"), unit)
        if unit in ("sec", "seconds"):
            return us(sub(metrics, name, "value"), "s")
    return None


FORMAT = Format("aiperf", "AIPerf profile export (JSON lines)", "python", "client", sniff, read=read, token_basis="client_tokenizer")
