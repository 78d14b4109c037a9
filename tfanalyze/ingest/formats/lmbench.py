"""LMBenchmark (production-stack, llm-d benchmark, AIBrix experiments): CSV, one request a row, unix seconds."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import DERIVED, Col, Context, Format, Head, to_us

FIELDS = {
    "prompt_tokens": "DOUBLE", "generation_tokens": "DOUBLE", "ttft": "DOUBLE", "generation_time": "DOUBLE",
    "user_id": "VARCHAR", "question_id": "INTEGER", "launch_time": "DOUBLE", "finish_time": "DOUBLE",
}  # fmt: skip


def sniff(head: Head) -> bool:
    return {"prompt_tokens", "generation_tokens", "launch_time", "finish_time"} <= set(head.header)


def mapping(ctx: Context) -> dict[str, Col]:
    ctx.units["durations"] = "s"
    cols = {
        "arrival_us": Col(ctx.numeric_time("launch_time")),
        "input_tokens": Col("try_cast(round(prompt_tokens) AS BIGINT)"),
        "output_tokens": Col("try_cast(round(generation_tokens) AS BIGINT)"),
        "ttft_us": Col(to_us("ttft", "s")),
        "e2e_us": Col(to_us("(finish_time - launch_time)", "s"), DERIVED),
        "status": Col("CASE WHEN finish_time IS NULL THEN NULL ELSE 'ok' END", DERIVED),
    }
    if "user_id" in ctx.present:
        cols["session_id"] = Col("user_id")
    if "question_id" in ctx.present:
        first = ctx.one(f"SELECT min(question_id) FROM {ctx.staged}") or 0
        cols["turn"] = Col(f"question_id::BIGINT - {int(first)}", DERIVED)
    return cols


FORMAT = Format(
    "lmbench", "LMBenchmark results (CSV)", "csv", "client", sniff, FIELDS, mapping, token_basis="client_tokenizer"
)
