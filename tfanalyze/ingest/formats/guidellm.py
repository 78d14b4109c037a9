"""GuideLLM reports, versions 0.1, 0.6 (metadata version 1) and 0.8 (version 2): one JSON document."""

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
    sub,
    text_of,
    us,
    whole,
)

GROUPS = {"successful": "ok", "errored": "error", "incomplete": "cancelled"}


def sniff(head: Head) -> bool:
    return head.has("benchmarks") and (
        '"metadata"' in head.text or '"requests"' in head.text or '"args"' in head.text
    )


def read(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "s", "request_latency": "s", "*_ms": "ms"}
    ctx.clock = "unix, from s"
    number = 0
    for document in documents(source):
        for run, benchmark in enumerate(dicts(document.get("benchmarks"))):
            groups = benchmark.get("requests")
            for group, status in GROUPS.items():
                for request in dicts(sub(groups, group)):
                    number += 1
                    yield safe(number, _row, request, status, run, number)
            total = whole(sub(benchmark, "run_stats", "requests_made", "total"))
            have = sum(len(dicts(sub(groups, group))) for group in GROUPS)
            if total and have < total:
                ctx.notes.append(f"run {run} made {total} requests and kept {have}: the report is a sample")


def _row(request: dict[str, Any], status: str, run: int, number: int) -> Row:
    times = sub(request, "info", "timings") or {}
    start = us(_any(times.get("request_start"), request.get("request_start_time"), request.get("start_time")))
    end = us(_any(times.get("request_end"), request.get("request_end_time"), request.get("end_time")))
    first = us(_any(times.get("first_token_iteration"), request.get("first_token_time")))
    ttft = us(request.get("time_to_first_token_ms"), "ms")
    return {
        "line": number,
        "request_id": text_of(_any(request.get("request_id"), request.get("id"))),
        "corr_id": text_of(request.get("response_id")),
        "arrival_us": start if start is not None else us(times.get("targeted_start")),
        "session_id": text_of(sub(request, "info", "conversation_id")),
        "turn": whole(sub(request, "info", "turn_index")),
        "input_tokens": whole(_any(sub(request, "input_metrics", "text_tokens"), request.get("prompt_tokens"))),
        "cached_tokens": whole(sub(request, "input_metrics", "cached_tokens")),
        "output_tokens": whole(_any(sub(request, "output_metrics", "text_tokens"), request.get("output_tokens"))),
        "ttft_us": ttft if ttft is not None else minus(first, start),
        "e2e_us": us(request.get("request_latency")) if request.get("request_latency") is not None else minus(end, start),
        "status": status,
        "phase": "measured",
        "attempt_no": 0,
        "trace_id": f"run{run}",
    }


def _any(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


FORMAT = Format(
    "guidellm", "GuideLLM report (JSON)", "python", "client", sniff, read=read, token_basis="usage",
    derived={"phase": DERIVED, "attempt_no": DERIVED, "trace_id": DERIVED},
)  # fmt: skip
