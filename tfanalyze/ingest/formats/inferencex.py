"""InferenceX client metrics: CSV, one finished request a row, times of the client's monotonic clock."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import DERIVED, Col, Context, Format, Head

FIELDS = {
    "start_time_ms": "DOUBLE", "relative_time_sec": "DOUBLE", "ttft_ms": "DOUBLE", "tpot_ms": "DOUBLE", "latency_ms": "DOUBLE",
    "input_num_turns": "INTEGER", "input_num_tokens": "BIGINT", "output_num_tokens": "BIGINT", "conversation_id": "VARCHAR",
    "client_id": "VARCHAR",
}  # fmt: skip


def sniff(head: Head) -> bool:
    return {"start_time_ms", "input_num_tokens", "output_num_tokens", "latency_ms"} <= set(head.header)


def mapping(ctx: Context) -> dict[str, Col]:
    ctx.units |= {"arrival": "s", "durations": "ms"}
    ctx.time_base = "relative"
    return {
        "arrival_us": Col("try_cast(coalesce(round(relative_time_sec * 1e6), round((start_time_ms - "
                          f"(SELECT min(start_time_ms) FROM {ctx.staged})) * 1e3)) AS BIGINT)"),
        "session_id": Col("conversation_id"),
        "turn": Col("(input_num_turns::BIGINT - 1) // 2", DERIVED),
        "input_tokens": Col("input_num_tokens"),
        "output_tokens": Col("output_num_tokens"),
        "ttft_us": Col("try_cast(round(ttft_ms * 1000) AS BIGINT)"),
        "e2e_us": Col("try_cast(round(latency_ms * 1000) AS BIGINT)"),
        "status": Col("'ok'", DERIVED),
    }  # fmt: skip


FORMAT = Format(
    "inferencex", "InferenceX client metrics (CSV)", "csv", "client", sniff, FIELDS, mapping, token_basis="client_tokenizer"
)
