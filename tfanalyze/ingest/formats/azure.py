"""Azure LLM inference traces 2023 and 2024: CSV with an arrival and two token counts."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import Col, Context, Format, Head

FIELDS = {"TIMESTAMP": "VARCHAR", "ContextTokens": "BIGINT", "GeneratedTokens": "BIGINT"}


def sniff(head: Head) -> bool:
    return head.header[:3] == list(FIELDS)


def mapping(ctx: Context) -> dict[str, Col]:
    return {
        "arrival_us": Col(ctx.text_time('"TIMESTAMP"')),
        "input_tokens": Col('"ContextTokens"'),
        "output_tokens": Col('"GeneratedTokens"'),
    }


FORMAT = Format("azure", "Azure LLM inference trace (CSV)", "csv", "gateway", sniff, FIELDS, mapping)
