"""VTC artifact results: a JSON line holds a whole run; a first token latency of -1 is a request that was rejected."""

from __future__ import annotations

from collections.abc import Iterator

from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import (
    DERIVED,
    Context,
    Format,
    Head,
    Row,
    bad_line,
    json_rows,
    sub,
    text_of,
    us,
    whole,
)


def sniff(head: Head) -> bool:
    return '"responses"' in head.text and '"req_time"' in head.text and '"first_token_latency"' in head.text


def read(source: Source, ctx: Context) -> Iterator[Row]:
    ctx.units |= {"arrival": "s", "durations": "s"}
    ctx.time_base = "relative"
    number = 0
    for line, run in json_rows(source):
        responses = sub(run, "result", "responses")
        if not isinstance(responses, list):
            yield bad_line(source, line)
            continue
        for response in responses:
            number += 1
            if not isinstance(response, dict):
                yield {"line": number, "bad": "not_a_record"}
                continue
            first = us(response.get("first_token_latency"))
            rejected = first is not None and first < 0
            yield {
                "line": number,
                "arrival_us": us(response.get("req_time")),
                "tenant": text_of(response.get("adapter_dir")),
                "input_tokens": whole(response.get("prompt_len")),
                "output_tokens": None if rejected else whole(response.get("output_len")),
                "max_tokens": whole(response.get("output_len")),
                "ttft_us": None if rejected else first,
                "e2e_us": None if rejected else us(response.get("request_latency")),
                "status": "rejected" if rejected else "ok",
            }


FORMAT = Format(
    "vtc", "VTC artifact results (JSON)", "python", "client", sniff, read=read, token_basis="client_tokenizer",
    derived={"status": DERIVED, "max_tokens": DERIVED},
)  # fmt: skip
