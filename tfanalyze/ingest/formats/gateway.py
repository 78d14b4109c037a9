"""Our own gateway log: one finished request a JSON line; also any JSON lines that use the canonical column names."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import DERIVED, Col, Context, Format, Head, status_sql, to_us

FIELDS = {
    "request_id": "VARCHAR", "arrival": "DOUBLE", "arrival_us": "BIGINT", "model": "VARCHAR", "model_version": "VARCHAR",
    "site": "VARCHAR", "instance": "VARCHAR", "tenant": "VARCHAR", "slo_class": "VARCHAR", "priority": "INTEGER",
    "session_id": "VARCHAR", "turn": "INTEGER", "retry_of": "VARCHAR", "prompt_tokens": "BIGINT",
    "input_tokens": "BIGINT", "cached_tokens": "BIGINT", "completion_tokens": "BIGINT", "output_tokens": "BIGINT",
    "max_tokens": "BIGINT", "deadline_s": "DOUBLE", "deadline_us": "BIGINT", "queue_ms": "DOUBLE", "queue_us": "BIGINT",
    "ttft_ms": "DOUBLE", "ttft_us": "BIGINT", "e2e_ms": "DOUBLE", "e2e_us": "BIGINT", "status": "VARCHAR",
    "finish_reason": "VARCHAR", "block_size": "INTEGER", "block_hashes": "VARCHAR[]", "blocks": "UBIGINT[]",
    "engine_prompt_ms": "DOUBLE", "engine_predicted_ms": "DOUBLE", "delay_ms": "DOUBLE", "attempt_no": "INTEGER",
    "corr_id": "VARCHAR", "trace_id": "VARCHAR", "phase": "VARCHAR", "http_status": "INTEGER",
}  # fmt: skip

SAME = (
    "request_id", "model", "model_version", "site", "instance", "tenant", "slo_class", "priority", "session_id", "turn",
    "retry_of", "cached_tokens", "max_tokens", "finish_reason", "attempt_no", "corr_id", "trace_id", "phase", "http_status",
)  # fmt: skip
RENAMED = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
DURATIONS = {
    "queue_us": "queue_ms", "ttft_us": "ttft_ms", "e2e_us": "e2e_ms", "engine_prompt_us": "engine_prompt_ms",
    "engine_predicted_us": "engine_predicted_ms", "delay_us": "delay_ms",
}  # fmt: skip
HASH_SQL = (
    "list_transform(block_hashes, lambda b: coalesce(try_cast('0x' || b AS UBIGINT), "
    "(md5_number(b) % 18446744073709551616::UHUGEINT)::UBIGINT))"
)


def sniff(head: Head) -> bool:
    arrival = {"arrival", "arrival_us"} & head.keys
    tokens = {"prompt_tokens", "input_tokens"} & head.keys
    return bool(arrival and tokens) and not head.is_document


def mapping(ctx: Context) -> dict[str, Col]:
    have = ctx.present
    cols = {name: Col(name) for name in SAME if name in have}
    if "arrival" in have:
        cols["arrival_us"] = Col(ctx.numeric_time("arrival"))
    else:
        cols["arrival_us"] = Col("arrival_us")
        ctx.numeric_time("arrival_us", "us")
    for name, other in RENAMED.items():
        if {name, other} & have:
            cols[name] = Col(name if name in have else other)
    for name, other in DURATIONS.items():
        if other in have:
            cols[name] = Col(to_us(other, "ms"))
        elif name in have:
            cols[name] = Col(name)
    if {"deadline_s", "deadline_us"} & have:
        cols["deadline_us"] = Col(to_us("deadline_s", "s") if "deadline_s" in have else "deadline_us")
    if "status" in have:
        cols["status"] = Col(status_sql("status"))
    ctx.units["durations"] = "ms" if any(other in have for other in DURATIONS.values()) else "us"
    cols.update(_blocks(ctx))
    return cols


def _blocks(ctx: Context) -> dict[str, Col]:
    """Block hashes as given; the tokens a block stands for are measured when the log does not say."""
    have = ctx.present
    if not {"block_hashes", "blocks"} & have:
        return {}
    column = "block_hashes" if "block_hashes" in have else "blocks"
    blocks = Col(HASH_SQL if column == "block_hashes" else "blocks")
    if "block_size" in have:
        return {"blocks": blocks, "block_size": Col("block_size")}
    if not {"prompt_tokens", "input_tokens"} & have:
        return {"blocks": blocks}
    tokens = "prompt_tokens" if "prompt_tokens" in have else "input_tokens"
    size = ctx.one(
        f"SELECT round(median({tokens} / len({column})))::INTEGER FROM {ctx.staged} WHERE len({column}) > 0"
    )
    if not size or size < 1:
        return {"blocks": blocks}
    ctx.notes.append(f"block size taken as {size} tokens: the median of prompt tokens a block")
    return {"blocks": blocks, "block_size": Col(str(int(size)), DERIVED)}


FORMAT = Format(
    "gateway", "tfanalyze gateway log (JSON lines)", "jsonl", "gateway", sniff, FIELDS, mapping, token_basis="usage"
)
