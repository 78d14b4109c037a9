"""Mooncake traces: JSON lines with block ids; also the extended forms with sessions and delays (AIPerf, Dynamo)."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import OBSERVED, Col, Context, Format, Head, to_us

FIELDS = {
    "timestamp": "DOUBLE", "input_length": "BIGINT", "output_length": "BIGINT", "hash_ids": "UBIGINT[]",
    "session_id": "VARCHAR", "delay": "DOUBLE", "priority": "INTEGER", "request_id": "VARCHAR", "schema": "VARCHAR",
    "block_size": "INTEGER", "not_before_ms": "DOUBLE", "play_id": "VARCHAR", "model": "VARCHAR",
    "dependencies": "STRUCT(request_id VARCHAR, delay_ms DOUBLE)[]",
}  # fmt: skip


def sniff(head: Head) -> bool:
    return head.has("input_length", "output_length") and not head.has("chat_id") and not head.is_document


def mapping(ctx: Context) -> dict[str, Col]:
    unit = ctx.options.time_unit or "ms"
    ctx.units |= {"arrival": unit, "delay": "ms"}
    ctx.time_base = "relative"
    header = f"SELECT any_value(block_size) FROM {ctx.staged} WHERE schema IS NOT NULL"
    cols = {
        "arrival_us": Col(f"coalesce({to_us('timestamp', unit)}, {to_us('not_before_ms', 'ms')})"),
        "input_tokens": Col("input_length"),
        "output_tokens": Col("output_length"),
    }
    if "hash_ids" in ctx.present:
        cols["blocks"] = Col(ctx.numbered_blocks("hash_ids"))
        cols["block_size"] = Col(str(ctx.options.block_size or ctx.one(header) or 512), OBSERVED)
    if "play_id" in ctx.present:  # agentic: what waits for another request of its play comes a delay after it
        cols["session_id"] = Col("play_id")
        cols["delay_us"] = Col("try_cast(round(dependencies[1].delay_ms * 1000) AS BIGINT)")
    if "delay" in ctx.present:
        cols["delay_us"] = Col("try_cast(round(delay * 1000) AS BIGINT)")
    same = ("session_id", "priority", "request_id", "model")
    cols |= {name: Col(name) for name in same if name in ctx.present and name not in cols}
    return cols


FORMAT = Format("mooncake", "Mooncake trace (JSON lines)", "jsonl", "gateway", sniff, FIELDS, mapping, record="input_length IS NOT NULL OR schema IS NULL")
