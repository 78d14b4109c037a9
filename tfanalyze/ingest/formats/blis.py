"""BLIS (inference-sim) TraceV2 data files: CSV with microseconds; 0 stands for a time that did not happen."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import DERIVED, Col, Context, Format, Head, status_sql

FIELDS = {
    "request_id": "VARCHAR", "client_id": "VARCHAR", "tenant_id": "VARCHAR", "slo_class": "VARCHAR", "session_id": "VARCHAR",
    "round_index": "INTEGER", "input_tokens": "BIGINT", "output_tokens": "BIGINT", "model": "VARCHAR", "deadline_us": "BIGINT",
    "server_input_tokens": "BIGINT", "arrival_time_us": "BIGINT", "send_time_us": "BIGINT", "first_chunk_time_us": "BIGINT",
    "last_chunk_time_us": "BIGINT", "status": "VARCHAR", "finish_reason": "VARCHAR",
}  # fmt: skip


def sniff(head: Head) -> bool:
    return {"arrival_time_us", "input_tokens", "output_tokens", "request_id"} <= set(head.header)


def mapping(ctx: Context) -> dict[str, Col]:
    cols = {
        "request_id": Col("request_id"),
        "arrival_us": Col(ctx.numeric_time("arrival_time_us", "us")),
        "input_tokens": Col("coalesce(nullif(server_input_tokens, 0), input_tokens)"),
        "output_tokens": Col("output_tokens"),
        "deadline_us": Col("nullif(deadline_us, 0)::HUGEINT - arrival_time_us", DERIVED),
        "ttft_us": Col("nullif(first_chunk_time_us, 0)::HUGEINT - coalesce(nullif(send_time_us, 0), arrival_time_us)", DERIVED),
        "e2e_us": Col("nullif(last_chunk_time_us, 0)::HUGEINT - coalesce(nullif(send_time_us, 0), arrival_time_us)", DERIVED),
        "status": Col(status_sql("status")),
        "session_id": Col("session_id"), "turn": Col("round_index"), "tenant": Col("tenant_id"), "model": Col("model"),
        "slo_class": Col("slo_class"), "finish_reason": Col("finish_reason"),
    }  # fmt: skip
    needs = {"deadline_us": "deadline_us", "ttft_us": "first_chunk_time_us", "e2e_us": "last_chunk_time_us", "turn": "round_index",
             "tenant": "tenant_id", "session_id": "session_id", "model": "model", "slo_class": "slo_class",
             "finish_reason": "finish_reason", "status": "status"}  # fmt: skip
    return {name: col for name, col in cols.items() if name not in needs or needs[name] in ctx.present}


FORMAT = Format("blis", "BLIS TraceV2 data (CSV)", "csv", "client", sniff, FIELDS, mapping, token_basis="usage")
