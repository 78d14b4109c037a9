"""LiteLLM: rows of its spend log table, standard logging payloads, and the rows of simple callbacks (JSON lines)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfanalyze.ingest import blocks
from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import (
    DERIVED,
    Context,
    Format,
    Head,
    Row,
    documents,
    load_object,
    minus,
    safe,
    status_of,
    sub,
    text_of,
    whole,
)
from tfanalyze.ingest.times import iso_us, number_us


def sniff(head: Head) -> bool:
    table = head.has("startTime", "endTime") and (head.has("call_type") or head.has("model_group"))
    callback = head.has("prompt_tokens", "completion_tokens", "cost") and head.has("request", "response", "timestamp")
    return table or callback


def read(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "ISO 8601 in UTC, or epoch s"}
    for number, row in enumerate(documents(source), 1):
        yield safe(number, _row, row, ctx, number)


def _time(value: Any) -> int | None:
    return iso_us(value, "UTC") if isinstance(value, str) and "-" in value else number_us(value)


def _row(row: dict[str, Any], ctx: Context, number: int) -> Row:
    meta = row.get("metadata")
    if isinstance(meta, str):
        meta = load_object(meta)
    start, end, first = (_time(row.get(name)) for name in ("startTime", "endTime", "completionStartTime"))
    usage = sub(meta, "usage_object") or sub(row, "hidden_params", "usage_object") or {}
    tenant = row.get("team_id") or sub(meta, "user_api_key_team_id") or row.get("end_user") or row.get("user")
    prompt = whole(row.get("prompt_tokens"))
    status = status_of(row.get("status")) or "ok"
    failed = status != "ok"
    messages = row.get("messages") or sub(row, "request", "messages")
    hashes = blocks.hash_text(ctx.key, blocks.prompt_text(messages)) if messages else []
    return {
        "line": number,
        "request_id": text_of(row.get("request_id") or row.get("id") or sub(row, "response", "id")),
        "corr_id": text_of(row.get("litellm_call_id")),
        "trace_id": text_of(row.get("trace_id")),
        "arrival_us": start if start is not None else _time(row.get("timestamp")),
        "model": text_of(row.get("model_group") or row.get("model")),
        "instance": text_of(row.get("model_id") or _host(row.get("api_base"))),
        "tenant": text_of(tenant or row.get("api_key")),
        "session_id": text_of(row.get("session_id")),
        "input_tokens": None if failed and not prompt else prompt,
        "cached_tokens": whole(sub(usage, "prompt_tokens_details", "cached_tokens")),
        "output_tokens": None if failed and not row.get("completion_tokens") else whole(row.get("completion_tokens")),
        "max_tokens": whole(sub(row, "model_parameters", "max_tokens")),
        "ttft_us": minus(first, start) if first is not None and end is not None and first < end else None,
        "e2e_us": minus(end, start),
        "status": status,
        "http_status": whole(row.get("status_code")),
        "attempt_no": whole(sub(meta, "attempted_retries")),
        "blocks": hashes or None,
        "block_size": max(1, round(prompt / len(hashes))) if hashes and prompt else None,
    }


def _host(value: Any) -> str | None:
    """Host and port of an address: never its path or query, which can hold a key."""
    from urllib.parse import urlsplit

    if not isinstance(value, str):
        return None
    try:
        parts = urlsplit(value if "//" in value else "//" + value)
        return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    except ValueError:
        return None


FORMAT = Format(
    "litellm", "LiteLLM spend logs and logging payloads (JSON)", "python", "gateway", sniff, read=read, token_basis="usage",
    derived={"status": DERIVED, "blocks": DERIVED, "block_size": DERIVED},
)  # fmt: skip
