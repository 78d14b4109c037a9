"""NVIDIA Dynamo request traces: JSON lines, plain or wrapped by the recorder; u64 block hashes; payloads are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import (
    DERIVED,
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
    return '"dynamo.request.trace' in head.text


def read(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "ms", "durations": "ms"}
    top = 0
    for line, wrapped in json_rows(source):
        if wrapped is None:
            yield bad_line(source, line)
            continue
        event = wrapped["event"] if isinstance(wrapped.get("event"), dict) else wrapped
        request = event.get("request")
        if event.get("event_type") != "request_end" or not isinstance(request, dict):
            ctx.ignored += 1
            continue
        top = max(top, whole(request.get("request_received_ms")) or 0)
        yield safe(line, _row, event, request, line)
    if top < 10**11:
        ctx.time_base = "relative"


def _row(event: dict[str, Any], request: dict[str, Any], line: int) -> Row:
    replay = request["replay"] if isinstance(request.get("replay"), dict) else {}
    hashes = replay.get("input_sequence_hashes")
    sound = isinstance(hashes, list) and all(isinstance(h, int) and 0 <= h < 2**64 for h in hashes)
    total, end = us(request.get("total_time_ms"), "ms"), us(event.get("event_time_unix_ms"), "ms")
    arrival = us(request.get("request_received_ms"), "ms")
    if arrival is None and end is not None and total is not None:
        arrival = end - total
    worker = sub(request, "worker", "decode_worker_id")
    session = sub(event, "agent_context", "session_id") or sub(event, "agent_context", "trajectory_id")
    tokens = whole(request.get("input_tokens"))
    return {
        "line": line,
        "request_id": text_of(request.get("request_id")),
        "corr_id": text_of(request.get("x_request_id")),
        "arrival_us": arrival,
        "model": text_of(request.get("model")),
        "instance": text_of(worker if worker is not None else sub(request, "worker", "worker_id")),
        "session_id": text_of(session),
        "input_tokens": tokens if tokens is not None else whole(replay.get("input_length")),
        "cached_tokens": whole(request.get("cached_tokens")),
        "output_tokens": whole(request.get("output_tokens")),
        "queue_us": us(request.get("prefill_wait_time_ms"), "ms"),
        "engine_prompt_us": us(request.get("prefill_time_ms"), "ms"),
        "ttft_us": us(request.get("ttft_ms"), "ms"),
        "e2e_us": total,
        "status": status_of(request.get("status")) or ("error" if request.get("error") else "ok"),
        "finish_reason": text_of(request.get("finish_reason")),
        "blocks": hashes if sound else None,
        "block_size": whole(replay.get("trace_block_size")) if sound else None,
    }


FORMAT = Format(
    "dynamo", "NVIDIA Dynamo request trace (JSON lines)", "python", "gateway", sniff, read=read, token_basis="engine",
    derived={"status": DERIVED},
)  # fmt: skip
