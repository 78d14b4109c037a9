"""Qwen-Bailian usage traces: JSON lines with chats, turns and 16-token blocks."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import DERIVED, Col, Context, Format, Head

FIELDS = {
    "chat_id": "BIGINT", "parent_chat_id": "BIGINT", "timestamp": "DOUBLE", "input_length": "BIGINT",
    "output_length": "BIGINT", "type": "VARCHAR", "turn": "INTEGER", "hash_ids": "UBIGINT[]",
}  # fmt: skip


def sniff(head: Head) -> bool:
    return head.has("chat_id", "input_length", "output_length") and not head.is_document


ROOTS = """CREATE OR REPLACE TEMP TABLE bailian_roots AS WITH RECURSIVE up(chat_id, root) USING KEY (chat_id) AS (
 SELECT chat_id, chat_id FROM {staged} WHERE chat_id IS NOT NULL AND coalesce(parent_chat_id, -1) < 0
 UNION SELECT s.chat_id, up.root FROM {staged} s JOIN up ON s.parent_chat_id = up.chat_id
 WHERE s.chat_id <> s.parent_chat_id) SELECT chat_id, any_value(root) AS root FROM up GROUP BY chat_id"""


def mapping(ctx: Context) -> dict[str, Col]:
    ctx.units["arrival"] = "s"
    ctx.time_base = "relative"
    ctx.con.execute(ROOTS.format(staged=ctx.staged))
    root = f"(SELECT root FROM bailian_roots b WHERE b.chat_id = {ctx.staged}.chat_id)"
    cols = {
        "request_id": Col("chat_id::VARCHAR"),
        "arrival_us": Col("try_cast(round(timestamp * 1e6) AS BIGINT)"),
        "input_tokens": Col("input_length"),
        "output_tokens": Col("output_length"),
        "session_id": Col(f"coalesce({root}, chat_id)::VARCHAR", DERIVED),
    }
    if "turn" in ctx.present:
        cols["turn"] = Col("greatest(turn::BIGINT - 1, 0)", DERIVED)
    if "type" in ctx.present:
        cols["slo_class"] = Col("type", DERIVED)
    if "hash_ids" in ctx.present:
        cols["blocks"] = Col(ctx.numbered_blocks("hash_ids"))
        cols["block_size"] = Col(str(ctx.options.block_size or 16))
    return cols


FORMAT = Format("bailian", "Qwen-Bailian usage trace (JSON lines)", "jsonl", "gateway", sniff, FIELDS, mapping)
