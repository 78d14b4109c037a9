"""LLMServingSim: measured vLLM runs (requests.jsonl, engine time stamps) and its workloads (arrival_time_ns)."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import DERIVED, Col, Context, Format, Head, to_us

FIELDS = {
    "request_id": "VARCHAR", "input_toks": "BIGINT", "output_toks": "BIGINT", "arrival_time": "DOUBLE",
    "arrival_time_ns": "BIGINT", "queued_ts": "DOUBLE", "scheduled_ts": "DOUBLE", "first_token_ts": "DOUBLE",
    "last_token_ts": "DOUBLE", "block_tokens": "INTEGER", "prefix_chain_hashes": "UBIGINT[]",
}  # fmt: skip


def sniff(head: Head) -> bool:
    return head.has("input_toks", "output_toks") and not head.is_document


def mapping(ctx: Context) -> dict[str, Col]:
    """Queue entry, scheduling and tokens are on one monotonic clock: durations count from queue entry."""
    cols = {"request_id": Col("request_id"), "input_tokens": Col("input_toks"), "output_tokens": Col("output_toks")}
    if "arrival_time_ns" in ctx.present:
        ctx.units["arrival"] = "ns"
        ctx.time_base = "relative"
        cols["arrival_us"] = Col("arrival_time_ns // 1000")
    else:
        cols["arrival_us"] = Col(ctx.numeric_time("arrival_time"))
    if "first_token_ts" in ctx.present:
        ctx.units["durations"] = "s (differences of one monotonic clock)"
        gaps = {
            "queue_us": "scheduled_ts - queued_ts", "ttft_us": "first_token_ts - queued_ts",
            "e2e_us": "last_token_ts - queued_ts", "engine_prompt_us": "first_token_ts - scheduled_ts",
            "engine_predicted_us": "last_token_ts - first_token_ts",
        }  # fmt: skip
        cols |= {name: Col(to_us(f"({gap})", "s"), DERIVED) for name, gap in gaps.items()}
        cols["status"] = Col("CASE WHEN last_token_ts IS NULL THEN NULL ELSE 'ok' END", DERIVED)
    if "prefix_chain_hashes" in ctx.present:
        cols["blocks"] = Col("prefix_chain_hashes")
        cols["block_size"] = Col("coalesce(block_tokens, 16)")
    return cols


FORMAT = Format(
    "llmservingsim", "LLMServingSim runs and workloads (JSON lines)", "jsonl", "engine", sniff, FIELDS, mapping,
    token_basis="engine",
)  # fmt: skip
