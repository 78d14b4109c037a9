"""SGLang request sources: request logs (text and JSON), metrics files, and request time statistics lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from tfanalyze.ingest.files import Source, lines
from tfanalyze.ingest.formats.base import (
    ASSUMED,
    DERIVED,
    Context,
    Format,
    Head,
    Row,
    load_object,
    safe,
    stem,
    sub,
    text_of,
    us,
    whole,
)
from tfanalyze.ingest.times import ANSI, Clock, clock_for, iso_us

STATS = re.compile(r"Req ?Time ?Stats\((?P<ids>[^)]*)\): (?P<times>.*)")
FINISH = re.compile(r"Finish: obj=")
RECEIVE = re.compile(r"Receive: obj=\w+\(rid='([^']{1,128})'")
META = re.compile(r"'meta_info': (\{)")
EVENT = re.compile(r'\{"timestamp": ?"[^"]+", ?"event": ?"request\.')
Received = dict[str, tuple[int | None, int | None, str | None]]  # rid -> arrival, max_tokens, x-request-id
PAIR = re.compile(r"([A-Za-z_ ]+)=([^,)]+)")
MAX_NEW = re.compile(r"'max_new_tokens': (\d+)")


def sniff(head: Head) -> bool:
    text = head.text
    if head.rows and not head.is_document:
        return head.has("request_parameters", "e2e_latency") or bool(EVENT.search(text))
    return bool(STATS.search(text) or FINISH.search(text) or RECEIVE.search(text) or EVENT.search(text))


def read(source: Source, ctx: Context) -> Iterator[Row]:
    clock = clock_for(source.path, source.text_head(), ctx.options.tz, ctx.options.year)
    instance = ctx.options.instance or stem(source.name)
    received: Received = {}
    seen: set[int] = set()
    for number, raw in lines(source):
        text = ANSI.sub("", raw)
        row = safe(number, _line, text, number, clock, ctx, received)
        if row:
            row.setdefault("instance", instance)
            seen.add(number)
            yield row
    for rid, (time_us, limit, _) in received.items():
        yield {"line": 0, "request_id": rid, "arrival_us": time_us, "max_tokens": limit, "instance": instance}
    ctx.units |= {"arrival": f"epoch s, or log time in zone {ctx.options.tz}", "durations": "s and ms, by field"}


def _line(text: str, number: int, clock: Clock, ctx: Context, received: Received) -> Row:
    stat = STATS.search(text)
    if stat:
        return {"line": number, **_stats(stat, clock.time_us(text[: stat.start()]))}
    brace = text.find("{")
    if '"event"' in text or '"request_parameters"' in text:
        event = load_object(text[brace:]) if brace >= 0 else None
        if event is None:
            return {"line": number, "bad": "not_a_record"}
        return _event(event, number, ctx, received)
    start = RECEIVE.search(text)
    if start:
        limit = MAX_NEW.search(text)
        received[start[1]] = (clock.time_us(text[: start.start()]), int(limit[1]) if limit else None, None)
        return {}
    if FINISH.search(text):
        return _finish(text, number, clock, received)
    return {}


def _stats(found: re.Match[str], time_us: int | None) -> Row:
    """`start_time` is monotonic; `entry_time` is unix. Without it the arrival is the log's time minus the durations."""
    ids = {key.strip().replace(" ", "_"): value.strip() for key, value in PAIR.findall(found["ids"])}
    times = {key.strip(): value.strip() for key, value in PAIR.findall(found["times"])}
    queue, forward = _ms(times.get("queue_duration")), _ms(times.get("forward_duration"))
    total = None if queue is None or forward is None else queue + forward
    entry = us(times.get("entry_time"))
    arrival = entry if entry is not None else None if time_us is None or total is None else time_us - total
    return {
        "request_id": text_of(ids.get("rid")),
        "arrival_us": arrival,
        "input_tokens": whole(ids.get("input_len")),
        "cached_tokens": whole(ids.get("cached_input_len")),
        "output_tokens": whole(ids.get("output_len")),
        "queue_us": queue or None,
        "e2e_us": total,
        "status": "ok",
    }


def _ms(text: str | None) -> int | None:
    return us(text.removesuffix("ms"), "ms") if text and text.endswith("ms") else None


def _event(event: dict[str, Any], number: int, ctx: Context, received: Received) -> Row:
    name = str(event.get("event", "request.finished"))
    rid = text_of(event.get("rid")) or text_of(event.get("id")) or ""
    time_us = iso_us(event.get("timestamp"), ctx.options.tz)
    limit = whole(sub(event, "obj", "sampling_params", "max_new_tokens"))
    corr = text_of(sub(event, "headers", "x-request-id"))
    if name.startswith("request.received"):
        received[rid] = (time_us, limit, corr)
        return {}
    if "request_parameters" in event:
        parameters = load_object(str(event["request_parameters"]))
        limit = whole(sub(parameters, "sampling_params", "max_new_tokens"))
        return {"line": number, "max_tokens": limit, **_meta(event, None)}
    meta = sub(event, "out", "meta_info")
    if not isinstance(meta, dict):
        return {"line": number, "bad": "malformed_record"}
    begun, known, other = received.pop(rid, (None, None, None))
    row = _meta(meta, begun)
    if row["arrival_us"] is None and time_us is not None and row["e2e_us"] is not None:
        row["arrival_us"] = time_us - row["e2e_us"]
    return {"line": number, "max_tokens": limit if limit is not None else known, "corr_id": corr or other, **row}


def _finish(text: str, number: int, clock: Clock, received: Received) -> Row:
    found = META.search(text)
    meta = _literal(text, found.start(1)) if found else None
    if not isinstance(meta, dict):
        return {"line": number, "bad": "malformed_record"}
    begun, limit, _ = received.pop(str(meta.get("id")), (None, None, None))
    row = _meta(meta, begun)
    time_us = clock.time_us(text[:80])
    if row["arrival_us"] is None and time_us is not None and row["e2e_us"] is not None:
        row["arrival_us"] = time_us - row["e2e_us"]
    return {"line": number, "max_tokens": limit, **row}


def _literal(text: str, start: int) -> Any:
    """The Python dict that starts at `start`: cut at its closing brace, then read as a literal."""
    depth = 0
    quote = ""
    for i in range(start, min(len(text), start + 20_000)):
        char = text[i]
        if quote:
            if char == quote and text[i - 1] != "\\":
                quote = ""
        elif char in "'\"":
            quote = char
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                try:
                    return ast.literal_eval(text[start : i + 1])
                except (ValueError, SyntaxError, MemoryError, RecursionError):
                    return None
    return None


def _meta(meta: dict[str, Any], begun: int | None) -> Row:
    arrival = us(meta.get("request_received_ts"))
    reason = sub(meta, "finish_reason", "type") or meta.get("finish_reason")
    return {
        "request_id": text_of(meta.get("id")),
        "arrival_us": arrival if arrival is not None else begun,
        "model_version": text_of(meta.get("weight_version")),
        "input_tokens": whole(meta.get("prompt_tokens")),
        "cached_tokens": whole(meta.get("cached_tokens")),
        "output_tokens": whole(meta.get("completion_tokens")),
        "queue_us": us(meta.get("queue_time")),
        "ttft_us": us(meta.get("first_token_latency")),
        "e2e_us": us(meta.get("e2e_latency")),
        "status": "cancelled" if reason == "abort" else "ok",
        "finish_reason": text_of(reason),
    }


FORMAT = Format(
    "sglang_log", "SGLang request log, metrics file, time statistics", "python", "engine", sniff, read=read, token_basis="engine",
    derived={"arrival_us": DERIVED, "status": DERIVED, "instance": ASSUMED},
)  # fmt: skip
