"""Mooncake traces: JSON lines with block ids; also the extended forms with sessions and delays (AIPerf, Dynamo)."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import OBSERVED, Col, Context, Format, Head

FIELDS = {
    "timestamp": "DOUBLE", "input_length": "BIGINT", "output_length": "BIGINT", "hash_ids": "UBIGINT[]",
    "session_id": "VARCHAR", "delay": "DOUBLE", "priority": "INTEGER", "request_id": "VARCHAR",
}  # fmt: skip


def sniff(head: Head) -> bool:
    return head.has("input_length", "output_length") and not head.has("chat_id") and not head.is_document


def mapping(ctx: Context) -> dict[str, Col]:
    ctx.units |= {"arrival": "ms", "delay": "ms"}
    ctx.time_base = "relative"
    cols = {
        "arrival_us": Col("round(timestamp * 1000)::BIGINT"),
        "input_tokens": Col("input_length"),
        "output_tokens": Col("output_length"),
    }
    if "hash_ids" in ctx.present:
        cols["blocks"] = Col(ctx.numbered_blocks("hash_ids"))
        cols["block_size"] = Col(str(ctx.options.block_size or 512), OBSERVED)
    if "delay" in ctx.present:
        cols["delay_us"] = Col("round(delay * 1000)::BIGINT")
    cols |= {name: Col(name) for name in ("session_id", "priority", "request_id") if name in ctx.present}
    return cols


FORMAT = Format("mooncake", "Mooncake trace (JSON lines)", "jsonl", "gateway", sniff, FIELDS, mapping)
