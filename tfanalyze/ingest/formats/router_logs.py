"""Text logs of routers and TGI: production-stack, the endpoint picker (llm-d, GIE), AIBrix's gateway plugin, TGI."""

from __future__ import annotations

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
    minus,
    stem,
    text_of,
    us,
    whole,
)
from tfanalyze.ingest.times import ANSI, clock_for, duration_us, iso_us, number_us

ROUTING = re.compile(
    r"Routing request (?P<id>[\w.:-]+)(?: for model: (?P<model>\S+))?(?: with session id (?P<session>\S+))? to (?P<url>\S+) "
    r"at (?P<at>\d+(?:\.\d+)?)"
)
KEYS = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')
PICKER_IN = ("EPP received request", "received request", "Request received", "LLM Request assembled", "LLM request assembled")
PICKER_OUT = ("EPP sent response body back to proxy", "EPP sent response", "Request handled", "response completed")


# production-stack -------------------------------------------------------------------------------------------------


def _sniff_stack(head: Head) -> bool:
    return bool(ROUTING.search(head.text)) or "vllm_router.services" in head.text


def _read_stack(source: Source, ctx: Context) -> Iterator[Row]:
    """A request may be routed twice (prefill, then decode): each line is a row, joined by corr_id."""
    ctx.units["arrival"] = "s"
    ctx.clock = "unix, from s"
    for number, text in lines(source):
        for found in ROUTING.finditer(ANSI.sub("", text)):
            session = text_of(found["session"])
            url = found["url"].rstrip(",").split("//")[-1]
            yield {
                "line": number,
                "request_id": found["id"],
                "corr_id": found["id"],
                "arrival_us": us(found["at"]),
                "instance": url.split("/")[0],
                "model": text_of(found["model"]),
                "session_id": session,
            }


# endpoint picker --------------------------------------------------------------------------------------------------


def _sniff_picker(head: Head) -> bool:
    text = head.text
    return ("EPP received request" in text or "ext-proc" in text or "handlers/server.go" in text or "backend/provider.go" in text) and (
        "INFO\t" in text or '"msg"' in text or "\tLEVEL" in text
    )


def _read_picker(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units["arrival"] = "ISO 8601, or epoch s"
    open_rows: dict[str, Row] = {}
    for number, text in lines(source):
        event = _picker_event(text, ctx)
        if event is None:
            ctx.ignored += 1
            continue
        time_us, message, fields = event
        rid = text_of(fields.get("x-request-id") or fields.get("request-id") or fields.get("requestID"))
        if rid is None or not message.startswith((*PICKER_IN, *PICKER_OUT, "Request evicted")):
            ctx.ignored += 1
            continue
        row = open_rows.setdefault(rid, {"line": number, "request_id": rid, "corr_id": rid, "arrival_us": time_us})
        _picker_update(row, message, time_us, fields)
    yield from open_rows.values()


def _picker_event(text: str, ctx: Context) -> tuple[int | None, str, dict[str, Any]] | None:
    stripped = text.strip()
    if stripped.startswith("{"):
        row = load_object(stripped)
        if row is None or "msg" not in row:
            return None
        stamp = row.get("ts")
        return (iso_us(stamp, ctx.options.tz) or number_us(stamp)), str(row["msg"]), row
    parts = stripped.split("\t")
    if len(parts) < 4:
        return None
    last = load_object(parts[-1])
    message = parts[-2] if last is not None else parts[-1]
    return iso_us(parts[0], ctx.options.tz), message, last or {}


def _picker_update(row: Row, message: str, time_us: int | None, fields: dict[str, Any]) -> None:
    if message.startswith(PICKER_OUT):
        row["e2e_us"] = minus(time_us, row["arrival_us"])
        row["status"] = "ok"
    if message.startswith("Request evicted"):
        row["status"] = "rejected"
    names = {"model": ("targetModelName", "modelName", "model"), "instance": ("endpoint", "targetPod", "target-pod"),
             "slo_class": ("objective", "x-llm-d-inference-objective"), "tenant": ("fairnessID", "fairness-id")}  # fmt: skip
    for column, keys in names.items():
        value = next((text_of(fields[key]) for key in keys if key in fields), None)
        if value:
            row[column] = value


# AIBrix -----------------------------------------------------------------------------------------------------------


def _sniff_aibrix(head: Head) -> bool:
    return '"request_end" request_id=' in head.text or '"request_start" request_id=' in head.text


def _read_aibrix(source: Source, ctx: Context) -> Iterator[Row]:
    clock = clock_for(source.path, source.text_head(), ctx.options.tz, ctx.options.year)
    open_rows: dict[str, Row] = {}
    for number, text in lines(source):
        kind = "start" if '"request_start"' in text else "end" if '"request_end"' in text else ""
        if not kind:
            ctx.ignored += 1
            continue
        fields = {key: value.strip('"') for key, value in KEYS.findall(text)}
        time_us, rid = clock.time_us(text[:60]), text_of(fields.get("request_id"))
        if rid is None:
            yield {"line": number, "bad": "malformed_record"}
        elif kind == "start":
            open_rows[rid] = {
                "line": number, "request_id": rid, "corr_id": rid, "arrival_us": time_us, "model": text_of(fields.get("model")),
                "instance": text_of(fields.get("target_pod")),
            }  # fmt: skip
        else:
            yield _aibrix_end(open_rows.pop(rid, None), fields, rid, time_us, number)
    yield from open_rows.values()
    if clock.note:
        ctx.notes.append(clock.note)
    ctx.units |= {"arrival": f"log time, zone {ctx.options.tz}", "durations": "Go durations"}


def _aibrix_end(row: Row | None, fields: dict[str, str], rid: str, time_us: int | None, number: int) -> Row:
    total = duration_us(fields.get("total_time_taken"))
    if row is None:
        row = {"line": number, "request_id": rid, "corr_id": rid, "arrival_us": minus(time_us, total)}
    row |= {
        "input_tokens": whole(fields.get("prompt_tokens")),
        "output_tokens": whole(fields.get("completion_tokens")),
        "e2e_us": total,
        "ttft_us": duration_us(fields.get("ttft")),
        "engine_prompt_us": duration_us(fields.get("prefill_time_taken")),
        "engine_predicted_us": duration_us(fields.get("decode_time_taken")),
        "status": "ok",
    }
    row["model"] = row.get("model") or text_of(fields.get("model_name"))
    row["instance"] = row.get("instance") or text_of(fields.get("target_pod"))
    return row


# TGI --------------------------------------------------------------------------------------------------------------


def _sniff_tgi(head: Head) -> bool:
    return "inference_time" in head.text and "validation_time" in head.text and "queue_time" in head.text


def _read_tgi(source: Source, ctx: Context) -> Iterator[Row]:
    """No token counts in the line: the output is inference time by time a token (estimated)."""
    instance = ctx.options.instance or stem(source.name)
    for number, text in lines(source):
        if "total_time" not in text:
            ctx.ignored += 1
            continue
        plain = ANSI.sub("", text)
        row = load_object(plain) if plain.lstrip().startswith("{") else None
        span = row.get("span") if row else None
        fields = span if isinstance(span, dict) else {key: value.strip('"') for key, value in KEYS.findall(plain)}
        stamp = row.get("timestamp") if row else plain[:40]
        yield _tgi_row(fields, iso_us(str(stamp).strip(), ctx.options.tz), plain, instance, number)
    ctx.units |= {"arrival": "log time minus total time", "durations": "Rust durations"}


def _tgi_row(fields: dict[str, Any], end: int | None, text: str, instance: str, number: int) -> Row:
    total, queue, check = (duration_us(fields.get(name)) for name in ("total_time", "queue_time", "validation_time"))
    inference, token = duration_us(fields.get("inference_time")), duration_us(fields.get("time_per_token"))
    limit = re.search(r"max_new_tokens: Some\((\d+)\)", text)
    return {
        "line": number,
        "arrival_us": minus(end, total),
        "arrival_unc_us": 1,
        "instance": instance,
        "output_tokens": round(inference / token) if inference and token else None,
        "max_tokens": int(limit[1]) if limit else None,
        "queue_us": None if queue is None else queue + (check or 0),
        "e2e_us": total,
        "status": "error" if " ERROR " in text[:60] else "ok",
        "token_basis": "estimated",
    }


_END = {"status": DERIVED, "e2e_us": DERIVED}
LIST = (
    Format(
        "production_stack", "vLLM production-stack router log", "python", "router", _sniff_stack, read=_read_stack
    ),
    Format(
        "epp", "endpoint picker log (llm-d, gateway API inference extension)", "python", "router", _sniff_picker,
        read=_read_picker, derived={**_END, "arrival_us": DERIVED},
    ),
    Format(
        "aibrix", "AIBrix gateway plugin log", "python", "gateway", _sniff_aibrix, read=_read_aibrix, token_basis="usage",
        derived={**_END, "arrival_us": DERIVED},
    ),
    Format(
        "tgi", "Text Generation Inference log", "python", "engine", _sniff_tgi, read=_read_tgi,
        derived={**_END, "arrival_us": DERIVED, "output_tokens": DERIVED, "instance": ASSUMED},
    ),
)  # fmt: skip
