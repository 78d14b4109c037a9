"""Agent call logs without text (LMCache agent traces, stripped LiteLLM callbacks): prefix hashes by characters."""

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
    status_of,
    text_of,
    whole,
)
from tfanalyze.ingest.times import iso_us, number_us


def sniff(head: Head) -> bool:
    return head.has("prefix_chain_hashes", "block_chars", "timestamp") and not head.is_document


def read(source: Source, ctx: Context) -> Iterator[Row]:
    """Turns count from the log, or by time inside a session. How many tokens a block is comes from prompt_tokens."""
    ctx.units["arrival"] = "ISO 8601, or epoch with its unit seen row by row"
    tokens = blocks = 0
    rows = []
    for line, row in json_rows(source):
        if row is None:
            yield bad_line(source, line)
            continue
        hashes = row.get("prefix_chain_hashes")
        prompt = whole(row.get("prompt_tokens"))
        if isinstance(hashes, list) and hashes and prompt:
            tokens, blocks = tokens + prompt, blocks + len(hashes)
        rows.append((line, row))
    size = round(tokens / blocks) if blocks else None
    if size:
        ctx.notes.append(f"a block of text stands for {size} tokens: prompt tokens by blocks over the whole file")
    for line, row in rows:
        hashes = row.get("prefix_chain_hashes")
        whole_hashes = isinstance(hashes, list) and all(isinstance(h, int) and h >= 0 for h in hashes)
        yield {
            "line": line,
            "arrival_us": iso_us(row.get("timestamp"), ctx.options.tz) or number_us(row.get("timestamp")),
            "trace_id": text_of(row.get("trace_id")),
            "model": text_of(row.get("model")),
            "slo_class": text_of(row.get("agent")),
            "session_id": text_of(row.get("session")),
            "turn": whole(row.get("turn")),
            "input_tokens": whole(row.get("prompt_tokens")),
            "output_tokens": whole(row.get("completion_tokens")),
            "status": status_of(row.get("status")),
            "blocks": hashes if whole_hashes and size else None,
            "block_size": size if whole_hashes else None,
        }


FORMAT = Format(
    "agents", "agent call logs with prefix hashes (JSON lines)", "python", "client", sniff, read=read, token_basis="usage",
    derived={"block_size": DERIVED, "arrival_us": DERIVED},
)  # fmt: skip
