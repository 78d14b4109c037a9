"""OTLP spans as JSON: vLLM's llm_request, any span with gen_ai attributes, old and new names of the conventions.

A request may have several spans (client, gateway, engine): each becomes a row of its own vantage, joined by trace id.
Attributes that hold content are never looked at.
"""

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
    dicts,
    documents,
    minus,
    safe,
    status_of,
    sub,
    text_of,
    us,
    whole,
)

KINDS = {3: "client", "SPAN_KIND_CLIENT": "client", 2: "gateway", "SPAN_KIND_SERVER": "gateway"}
INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens")
OUTPUT = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion", "llm.usage.completion_tokens",
)  # fmt: skip
CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens", "llm.token_count.prompt_details.cache_read")
TTFT = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token")


def sniff(head: Head) -> bool:
    return head.has("resourceSpans")


def read(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "ns", "durations": "s"}
    ctx.clock = "unix, from ns"
    number = 0
    for document in documents(source):
        for resource in dicts(document.get("resourceSpans")):
            shared = attributes(sub(resource, "resource", "attributes"))
            for scope in dicts(resource.get("scopeSpans")):
                engine = "vllm" in str(sub(scope, "scope", "name")) or "sglang" in str(sub(scope, "scope", "name"))
                for span in dicts(scope.get("spans")):
                    number += 1
                    own = attributes(span.get("attributes"))
                    if _is_request(span, own):
                        yield safe(number, _row, span, own, shared, engine, number)
                    else:
                        ctx.ignored += 1


def _is_request(span: dict[str, Any], own: dict[str, Any]) -> bool:
    if span.get("name") == "llm_request" or _first(own, INPUT) is not None:
        return True
    return own.get("gen_ai.operation.name") in ("chat", "text_completion", "generate_content")


def _row(span: dict[str, Any], own: dict[str, Any], shared: dict[str, Any], engine: bool, number: int) -> Row:
    start, end = us(span.get("startTimeUnixNano"), "ns"), us(span.get("endTimeUnixNano"), "ns")
    e2e = us(own.get("gen_ai.latency.e2e"))
    queue = us(own.get("gen_ai.latency.time_in_queue"))
    kind: Any = span.get("kind")
    address, port = text_of(own.get("server.address")), text_of(own.get("server.port"))
    return {
        "line": number,
        "request_id": _id(own.get("gen_ai.request.id") or own.get("gen_ai.response.id")) or text_of(span.get("spanId")),
        "arrival_us": start or None,
        "model": text_of(own.get("gen_ai.response.model") or own.get("gen_ai.request.model") or shared.get("model")),
        "instance": text_of(shared.get("k8s.pod.name") or shared.get("service.instance.id") or shared.get("service.name"))
        if engine
        else (f"{address}:{port}" if address and port else address),
        "session_id": text_of(own.get("gen_ai.conversation.id") or own.get("session.id")),
        "input_tokens": whole(_first(own, INPUT)),
        "cached_tokens": whole(_first(own, CACHED)),
        "output_tokens": whole(_first(own, OUTPUT)),
        "max_tokens": whole(own.get("gen_ai.request.max_tokens")),
        "queue_us": queue,
        "ttft_us": us(_first(own, TTFT)),
        "e2e_us": e2e if e2e is not None else minus(end, start),
        "engine_prompt_us": us(own.get("gen_ai.latency.time_in_model_prefill")),
        "engine_predicted_us": us(own.get("gen_ai.latency.time_in_model_decode")),
        "status": _status(span, own),
        "finish_reason": _reason(own.get("gen_ai.response.finish_reasons")),
        "http_status": whole(own.get("http.response.status_code")),
        "trace_id": text_of(span.get("traceId")),
        "vantage": "engine" if engine else KINDS.get(kind, "gateway"),
        "token_basis": "engine" if engine else "usage",
    }


def _status(span: dict[str, Any], own: dict[str, Any]) -> str:
    failed = sub(span, "status", "code") in (2, "STATUS_CODE_ERROR")
    if own.get("error.type"):
        return status_of(own["error.type"]) or "error"
    return "error" if failed else "ok"


def _id(value: Any) -> str | None:
    text = text_of(value)
    return text.removesuffix("-0") if text and text.startswith(("cmpl-", "chatcmpl-")) else text


def _reason(value: Any) -> str | None:
    first = value[0] if isinstance(value, list) and value else value
    return text_of(first)


def _first(own: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((own[name] for name in names if own.get(name) is not None), None)


def attributes(value: Any) -> dict[str, Any]:
    """OTLP's list of key and typed value as a dict."""
    found: dict[str, Any] = {}
    for item in dicts(value):
        inner = item.get("value")
        if isinstance(inner, dict) and inner:
            plain = next(iter(inner.values()))
            if isinstance(plain, dict):
                plain = [next(iter(v.values()), None) for v in dicts(plain.get("values"))]
            found[str(item.get("key"))] = plain
    return found


FORMAT = Format(
    "otlp", "OTLP spans (JSON), vLLM and gen_ai conventions", "python", "engine", sniff, read=read,
    derived={"status": DERIVED},
)  # fmt: skip
