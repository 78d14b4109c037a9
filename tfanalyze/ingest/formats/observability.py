"""Exports of Langfuse, Helicone, Kong and APISIX: JSON lines or one JSON document; content is never looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import (
    DERIVED,
    Context,
    Format,
    Head,
    Row,
    dicts,
    documents,
    load_object,
    minus,
    safe,
    status_of,
    sub,
    text_of,
    us,
    whole,
)
from tfanalyze.ingest.times import iso_us


def _reader(row_of: Callable[[dict[str, Any]], Row | None]) -> Callable[[Source, Context], Iterator[Row]]:
    def read(source: Source, ctx: Context) -> Iterator[Row]:
        for number, row in enumerate(documents(source), 1):
            found = safe(number, lambda one: row_of(one) or {}, row)
            if not found:
                ctx.ignored += 1
            else:
                yield {"line": number, **found}

    return read


def langfuse(row: dict[str, Any]) -> Row | None:
    """`usage_details.input` is the fresh part or the whole prompt; `total` tells which."""
    if row.get("type") not in ("GENERATION", None):
        return None
    start, end = iso_us(row.get("start_time")), iso_us(row.get("end_time"))
    first = iso_us(row.get("completion_start_time"))
    usage = row.get("usage_details")
    fresh, cached = whole(sub(usage, "input")), whole(sub(usage, "input_cached_tokens"))
    output, total = whole(sub(usage, "output")), whole(sub(usage, "total"))
    additive = None not in (fresh, cached, output, total) and (fresh or 0) + (cached or 0) + (output or 0) == total
    parameters = row.get("model_parameters")
    if isinstance(parameters, str):
        parameters = load_object(parameters)
    return {
        "request_id": text_of(row.get("id")),
        "trace_id": text_of(row.get("trace_id")),
        "arrival_us": start,
        "model": text_of(row.get("provided_model_name")),
        "tenant": text_of(row.get("user_id")),
        "session_id": text_of(row.get("session_id")),
        "input_tokens": (fresh or 0) + (cached or 0) if additive else fresh,
        "cached_tokens": cached,
        "output_tokens": output,
        "max_tokens": whole(sub(parameters, "max_tokens")),
        "ttft_us": minus(first, start),
        "e2e_us": minus(end, start),
        "status": "error" if row.get("level") == "ERROR" else "ok",
    }


def helicone(row: dict[str, Any]) -> Row | None:
    code = whole(row.get("response_status"))
    properties = row.get("request_properties")
    session = sub(properties, "Helicone-Session-Id")
    end, start = iso_us(row.get("response_created_at")), iso_us(row.get("request_created_at"))
    delay = us(row.get("delay_ms"), "ms")
    return {
        "request_id": text_of(row.get("request_id")),
        "arrival_us": start,
        "model": text_of(row.get("response_model") or row.get("request_model")),
        "tenant": text_of(row.get("request_user_id")),
        "session_id": text_of(session),
        "input_tokens": whole(row.get("prompt_tokens")),
        "output_tokens": whole(row.get("completion_tokens")),
        "ttft_us": us(row.get("time_to_first_token"), "ms"),
        "e2e_us": delay if delay is not None else minus(end, start),
        "status": "cancelled" if code is not None and code < 0 else status_of(code),
        "http_status": code if code is not None and code > 0 else None,
    }


def kong(row: dict[str, Any]) -> Row | None:
    proxy = sub(row, "ai", "proxy")
    if not isinstance(proxy, dict):
        return None
    tries = dicts(row.get("tries"))
    last = tries[-1] if tries else {}
    return {
        "request_id": text_of(sub(row, "request", "id")),
        "arrival_us": us(row.get("started_at"), "ms"),
        "model": text_of(sub(proxy, "meta", "response_model") or sub(proxy, "meta", "request_model")),
        "instance": f"{last['ip']}:{last['port']}" if "ip" in last and "port" in last else None,
        "tenant": text_of(sub(row, "consumer", "id")),
        "input_tokens": whole(sub(proxy, "usage", "prompt_tokens")),
        "output_tokens": whole(sub(proxy, "usage", "completion_tokens")),
        "ttft_us": us(sub(proxy, "usage", "time_to_first_token"), "ms"),
        "e2e_us": us(sub(row, "latencies", "request"), "ms"),
        "status": status_of(sub(row, "response", "status")),
        "http_status": whole(sub(row, "response", "status")),
        "attempt_no": len(tries) - 1 if tries else None,
    }


def apisix(row: dict[str, Any]) -> Row | None:
    summary = row.get("llm_summary")
    if not isinstance(summary, dict):
        return None
    status = sub(row, "response", "status") if sub(row, "response", "status") is not None else row.get("status")
    return {
        "request_id": text_of(row.get("request_id")),
        "arrival_us": us(row.get("start_time"), "ms"),
        "model": text_of(summary.get("model") or summary.get("request_model")),
        "instance": text_of(row.get("upstream")),
        "input_tokens": whole(summary.get("prompt_tokens")),
        "output_tokens": whole(summary.get("completion_tokens")),
        "ttft_us": us(summary.get("duration"), "ms"),  # APISIX calls the time to the first token so
        "e2e_us": us(row.get("latency"), "ms"),
        "status": status_of(status) or "ok",
    }


def _has(*keys: str) -> Callable[[Head], bool]:
    return lambda head: head.has(*keys)


def _format(name: str, title: str, keys: tuple[str, ...], row_of: Callable[[dict[str, Any]], Row | None]) -> Format:
    return Format(
        name, title, "python", "gateway", _has(*keys), read=_reader(row_of), token_basis="usage", derived={"status": DERIVED}
    )


LIST = (
    _format("langfuse", "Langfuse observations (JSON)", ("trace_id", "usage_details", "start_time"), langfuse),
    _format("helicone", "Helicone requests (JSON)", ("request_created_at",), helicone),
    _format("kong", "Kong AI proxy log (JSON)", ("started_at", "latencies", "ai"), kong),
    _format("apisix", "APISIX log with llm_summary (JSON)", ("llm_summary",), apisix),
)
