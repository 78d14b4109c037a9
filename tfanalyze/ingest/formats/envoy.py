"""Envoy and Envoy AI Gateway JSON access logs; keys are the user's choice: the usual ones are known, a mapping adds more."""

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
    text_of,
    us,
    whole,
)
from tfanalyze.ingest.times import iso_us, number_us

KEYS: dict[str, tuple[str, ...]] = {
    "id": ("x-request-id", "x_request_id", "request_id"),
    "time": ("start_time", "startTime", "time", "timestamp"),
    "duration": ("duration", "duration_ms", "total_duration"),
    "first": ("token_latency_ttft", "ttft", "time_to_first_token"),
    "code": ("response_code", "status", "responseCode"),
    "flags": ("response_flags", "responseFlags"),
    "host": ("upstream_host", "upstreamHost", "upstream_address"),
    "attempts": ("attempts", "upstream_request_attempt_count", "attempt_count"),
    "input": ("gen_ai.usage.input_tokens", "input_tokens", "llm_input_token", "prompt_tokens"),
    "cached": ("gen_ai.usage.cached_input_tokens", "cached_input_tokens", "llm_cached_input_token"),
    "output": ("gen_ai.usage.output_tokens", "output_tokens", "llm_output_token", "completion_tokens"),
    "model": ("gen_ai.response.model", "gen_ai.request.model", "response_model", "model_name_override", "model"),
    "session": ("session.id", "session_id"),
    "tenant": ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id", "x-tenant-id", "tenant"),
    "class": ("x-llm-d-inference-objective", "x-gateway-inference-objective", "slo_class"),
}
FLAGS = {"DC": "cancelled", "UT": "timeout", "SI": "timeout", "RL": "rejected", "UO": "rejected", "UF": "error", "URX": "error", "NR": "error"}


def sniff(head: Head) -> bool:
    if head.is_document or not head.rows:
        return False
    flags = any(name in head.keys for name in KEYS["flags"])
    return flags and any(name in head.keys for name in KEYS["time"]) and any(name in head.keys for name in KEYS["duration"])


def read(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "ISO 8601", "durations": "ms"}
    ctx.notes.append("one line a request of the client: attempts are only counted, their instances but for the last unknown")
    for line, row in json_rows(source):
        yield bad_line(source, line) if row is None else safe(line, _row, row, ctx, line)


def _pick(row: dict[str, Any], what: str) -> Any:
    for name in KEYS[what]:
        value = row.get(name)
        if value is not None and value != "-":
            return value
    return None


def _row(row: dict[str, Any], ctx: Context, line: int) -> Row:
    time, attempts = _pick(row, "time"), whole(_pick(row, "attempts"))
    flags = str(_pick(row, "flags") or "").split(",")
    status = next((FLAGS[flag] for flag in flags if flag in FLAGS), None) or status_of(_pick(row, "code"))
    broken = status in ("cancelled", "timeout", "error", "rejected")
    output, prompt = whole(_pick(row, "output")), whole(_pick(row, "input"))
    code = whole(_pick(row, "code"))
    return {
        "line": line,
        "request_id": text_of(_pick(row, "id")),
        "corr_id": text_of(_pick(row, "id")),
        "arrival_us": iso_us(time, ctx.options.tz) or number_us(time),
        "model": text_of(_pick(row, "model")),
        "instance": text_of(_pick(row, "host")),
        "tenant": text_of(_pick(row, "tenant")),
        "slo_class": text_of(_pick(row, "class")),
        "session_id": text_of(_pick(row, "session")),
        "input_tokens": prompt or None,
        "cached_tokens": whole(_pick(row, "cached")),
        "output_tokens": None if broken and not output else output,
        "ttft_us": us(_pick(row, "first"), "ms"),
        "e2e_us": us(_pick(row, "duration"), "ms"),
        "status": status,
        "http_status": code or None,
        "attempt_no": attempts - 1 if attempts else None,
    }


FORMAT = Format(
    "envoy", "Envoy and Envoy AI Gateway access log (JSON lines)", "python", "gateway", sniff, read=read, token_basis="usage",
    derived={"status": DERIVED},
)  # fmt: skip
