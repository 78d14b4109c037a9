"""vLLM server logs with request logging: received, finished and aborted lines joined by request id; prompts are dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tfanalyze.ingest import blocks
from tfanalyze.ingest.files import Source, lines
from tfanalyze.ingest.formats.base import ASSUMED, DERIVED, Context, Format, Head, Row, stem
from tfanalyze.ingest.times import ANSI, clock_for

RECEIVED = re.compile(r"Received request ([\w.:-]+?): ")
GENERATED = re.compile(r"Generated response ([\w.:-]+?)(?: \(streaming (?:delta|complete)\))?: ")
ABORTED = re.compile(r"(?:Request ([\w.:-]+) aborted|Aborted request\(?s?\)? ([\w.:-]+))")
FAILED = re.compile(r"Request ([\w.:-]+) failed")
MAX_TOKENS = re.compile(r"\bmax_tokens=(\d+)")
TOKEN_IDS = re.compile(r"prompt_token_ids: \[([\d, ]*)(\.\.\.)?\]")
OUT_IDS = re.compile(r"output_token_ids: (?:\[|\()([\d, ]*)(?:\]|\))")
REASON = re.compile(r"finish_reason: (\w+)")
LORA = re.compile(r"lora_request: LoRARequest\(lora_name='([^']{1,128})'")


def sniff(head: Head) -> bool:
    return not head.rows and bool(RECEIVED.search(head.text)) and "params: SamplingParams(" in head.text


def read(source: Source, ctx: Context) -> Iterator[Row]:
    """Open requests are kept until their end is seen; at the end of the file their status is unknown."""
    clock = clock_for(source.path, source.text_head(), ctx.options.tz, ctx.options.year)
    instance = ctx.options.instance or stem(source.name)
    open_rows: dict[str, Row] = {}
    for number, raw in lines(source):
        text = ANSI.sub("", raw)
        start = RECEIVED.search(text)
        if start:
            time_us = clock.time_us(text[: start.start()])
            if start[1] in open_rows:
                yield open_rows.pop(start[1])
            open_rows[start[1]] = _received(text, start, time_us, number, ctx, instance)
            open_rows[start[1]]["arrival_unc_us"] = clock.resolution_us // 2
            continue
        done = _ended(text, clock.time_us(text[:120]), open_rows)
        if done is not None:
            yield done
    yield from open_rows.values()
    if clock.note:
        ctx.notes.append(clock.note)
    ctx.units["arrival"] = f"log time of the received line, +- {clock.resolution_us // 2} us, zone {ctx.options.tz}"


def _received(text: str, start: re.Match[str], time_us: int | None, number: int, ctx: Context, instance: str) -> Row:
    row: Row = {"line": number, "request_id": _id(start[1]), "arrival_us": time_us, "instance": instance}
    limit, ids, lora = MAX_TOKENS.search(text), TOKEN_IDS.search(text), LORA.search(text)
    if limit:
        row["max_tokens"] = int(limit[1])
    if lora:
        row["model_version"] = lora[1]
    if ids and not ids[2] and ids[1].strip():
        tokens = [int(token) for token in ids[1].replace(",", " ").split()]
        row["input_tokens"] = len(tokens)
        row["blocks"] = blocks.hash_tokens(ctx.key, tokens) or None
        row["block_size"] = blocks.TOKENS_PER_BLOCK
    return row


def _ended(text: str, time_us: int | None, open_rows: dict[str, Row]) -> Row | None:
    for pattern, status in ((GENERATED, "ok"), (ABORTED, "cancelled"), (FAILED, "error")):
        found = pattern.search(text)
        if not found or "streaming delta" in text:
            continue
        row = open_rows.pop(next(group for group in found.groups() if group), None)
        if row is None:
            return None
        row["status"] = status
        if time_us is not None and row["arrival_us"] is not None:
            row["e2e_us"] = time_us - row["arrival_us"]
        reason, ids = REASON.search(text), OUT_IDS.search(text)
        if reason:
            row["finish_reason"] = reason[1]
        if ids and ids[1].strip():
            row["output_tokens"] = ids[1].count(",") + (0 if ids[1].rstrip().endswith(",") else 1)
        return row
    return None


def _id(text: str) -> str:
    return text.removesuffix("-0") if text.startswith(("cmpl-", "chatcmpl-")) else text


FORMAT = Format(
    "vllm_log", "vLLM server log with request lines", "python", "engine", sniff, read=read, token_basis="engine",
    derived={"arrival_us": DERIVED, "e2e_us": DERIVED, "instance": ASSUMED, "blocks": DERIVED, "status": DERIVED},
)  # fmt: skip
