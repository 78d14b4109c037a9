"""Benchmark clients that write one JSON object a run: vLLM `bench serve`, SGLang bench_serving, inference-perf, perf_analyzer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import (
    ASSUMED,
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
    sub,
    text_of,
    us,
    whole,
)


def _sniff_arrays(head: Head) -> bool:
    return head.has("input_lens", "output_lens") or (head.has("num_prompts", "request_rate") and head.has("output_lens"))


def _read_arrays(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "s", "durations": "s"}
    number = 0
    bases = set()
    for run, result in enumerate(documents(source)):
        starts, base = _starts(result, ctx)
        bases.add(base)
        for i in range(_length(result)):
            number += 1
            yield safe(number, _array_row, result, i, starts, run, number)
    ctx.time_base = bases.pop() if len(bases) == 1 else "monotonic"


def _starts(result: dict[str, Any], ctx: Context) -> tuple[list[int | None], str]:
    """Arrivals of a run: start_times (monotonic), or the start of the run where all requests were sent at once."""
    n = _length(result)
    given = result.get("start_times")
    if isinstance(given, list) and len(given) == n and n:
        return [us(value) for value in given], "monotonic"
    begun = us(result.get("benchmark_start_time_unix"))
    at_once = result.get("request_rate") in ("inf", None) and (whole(result.get("max_concurrency")) or n) >= n
    if begun is not None and at_once:
        ctx.notes.append("no arrivals in the file: all requests were sent at once when the run began (assumed)")
        return [begun] * n, "unix"
    return [None] * n, "monotonic"


def _length(result: dict[str, Any]) -> int:
    lengths = result.get("input_lens")
    return len(lengths) if isinstance(lengths, list) else 0


def _at(result: dict[str, Any], name: str, i: int) -> Any:
    values = result.get(name)
    return values[i] if isinstance(values, list) and i < len(values) else None


def _array_row(result: dict[str, Any], i: int, starts: list[int | None], run: int, number: int) -> Row:
    error = _at(result, "errors", i)
    failed = bool(error)
    ttft, itls, latency = us(_at(result, "ttfts", i)), _at(result, "itls", i), us(_at(result, "latencies", i))
    if latency is None and isinstance(itls, list) and ttft is not None:
        latency = ttft + sum(us(gap) or 0 for gap in itls)
    output = whole(_at(result, "output_lens", i))
    return {
        "line": number,
        "request_id": f"run{run}-{i}",
        "arrival_us": starts[i],
        "model": text_of(result.get("model_id") or result.get("model")),
        "input_tokens": whole(_at(result, "input_lens", i)),
        "cached_tokens": whole(_at(result, "cached_tokens", i)),
        "output_tokens": None if failed and not output else output,
        "queue_us": us(_at(result, "server_queue_times", i)),
        "ttft_us": None if failed or not ttft else ttft,
        "e2e_us": None if failed else latency,
        "status": "error" if failed else "ok",
    }


def _sniff_perf(head: Head) -> bool:
    return head.has("start_time", "end_time", "info") and head.has("request", "response")


def _read_perf(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "s (monotonic)", "durations": "s"}
    ctx.time_base = "monotonic"
    for number, row in enumerate(documents(source), 1):
        yield safe(number, _perf_row, row, number)


def _perf_row(row: dict[str, Any], number: int) -> Row:
    info = row.get("info")
    start, end = us(row.get("start_time")), us(row.get("end_time"))
    chunks = sub(info, "response_metrics", "chunk_times") or sub(info, "output_token_times")
    usage = sub(info, "response_metrics", "server_usage")
    body = load_object(row["request"]) if isinstance(row.get("request"), str) else None
    prompt = sub(info, "request_metrics", "text", "input_tokens")
    output = sub(info, "response_metrics", "output_tokens")
    return {
        "line": number,
        "arrival_us": start,
        "model": text_of(sub(body, "model")),
        "input_tokens": whole(prompt if prompt is not None else sub(info, "input_tokens")),
        "cached_tokens": whole(sub(usage, "prompt_tokens_details", "cached_tokens")),
        "output_tokens": whole(output if output is not None else sub(info, "output_tokens")),
        "max_tokens": whole(sub(body, "max_tokens")),
        "ttft_us": minus(us(chunks[0]), start) if isinstance(chunks, list) and chunks else None,
        "e2e_us": minus(end, start),
        "status": "error" if row.get("error") else "ok",
    }


def _sniff_analyzer(head: Head) -> bool:
    return head.has("experiments", "service_kind")


def _read_analyzer(source: Source, ctx: Context) -> Iterator[Row]:
    """Tokens are not in the file: they were counted from the answers, which are never read."""
    ctx.units |= {"arrival": "ns", "durations": "ns"}
    ctx.clock = "unix, from ns"
    number = 0
    for document in documents(source):
        for experiment in dicts(document.get("experiments")):
            found = experiment.get("window_boundaries")
            bounds = [b for b in found if isinstance(b, int)] if isinstance(found, list) else []
            for request in dicts(experiment.get("requests")):
                number += 1
                yield safe(number, _analyzer_row, request, bounds, number)


def _analyzer_row(request: dict[str, Any], bounds: list[int], number: int) -> Row:
    start = us(request.get("timestamp"), "ns")
    answers = [us(t, "ns") for t in request.get("response_timestamps") or []]
    inside = not bounds or start is None or min(bounds) // 1000 <= start <= max(bounds) // 1000
    return {
        "line": number,
        "arrival_us": start,
        "session_id": text_of(request.get("sequence_id")) if request.get("sequence_id") else None,
        "ttft_us": minus(answers[0], start) if answers else None,
        "e2e_us": minus(answers[-1], start) if answers else None,
        "status": "ok" if answers else "error",
        "phase": "measured" if inside else "warmup",
    }


_SET = {"status": DERIVED}
LIST = (
    Format(
        "vllm_bench", "vLLM bench serve and SGLang bench_serving results (JSON)", "python", "client", _sniff_arrays,
        read=_read_arrays, token_basis="client_tokenizer", derived={**_SET, "request_id": ASSUMED, "e2e_us": DERIVED},
    ),
    Format(
        "inference_perf", "inference-perf per-request lifecycle (JSON)", "python", "client", _sniff_perf, read=_read_perf,
        token_basis="client_tokenizer", derived={**_SET, "ttft_us": DERIVED, "e2e_us": DERIVED},
    ),
    Format(
        "perf_analyzer", "perf_analyzer and GenAI-Perf profile export (JSON)", "python", "client", _sniff_analyzer,
        read=_read_analyzer, derived={**_SET, "phase": DERIVED},
    ),
)  # fmt: skip
