"""BurstGPT: CSV with seconds since the trace began; a response of 0 tokens is a failed request."""

from __future__ import annotations

from tfanalyze.ingest.formats.base import DERIVED, Col, Context, Format, Head

FIELDS = {
    "Timestamp": "DOUBLE", "Session ID": "VARCHAR", "Elapsed time": "DOUBLE", "Model": "VARCHAR", "Request tokens": "BIGINT",
    "Response tokens": "BIGINT", "Total tokens": "BIGINT", "Log Type": "VARCHAR",
}  # fmt: skip


def sniff(head: Head) -> bool:
    return {"Timestamp", "Request tokens", "Response tokens"} <= set(head.header)


def mapping(ctx: Context) -> dict[str, Col]:
    ctx.units |= {"arrival": "s", "elapsed": "s"}
    ctx.time_base = "relative"
    cols = {
        "arrival_us": Col('try_cast(round("Timestamp" * 1e6) AS BIGINT)'),
        "input_tokens": Col('"Request tokens"'),
        "output_tokens": Col('nullif("Response tokens", 0)'),
        "status": Col("""CASE WHEN "Response tokens" = 0 THEN 'error' ELSE 'ok' END""", DERIVED),
        "slo_class": Col('"Log Type"', DERIVED),
        "model": Col('"Model"'),
    }
    if "Session ID" in ctx.present:
        cols["session_id"] = Col("""nullif("Session ID", '')""")
    if "Elapsed time" in ctx.present:
        cols["e2e_us"] = Col('try_cast(round("Elapsed time" * 1e6) AS BIGINT)')
    return {name: col for name, col in cols.items() if name not in ("model", "slo_class") or _has(ctx, name)}


def _has(ctx: Context, name: str) -> bool:
    return {"model": "Model", "slo_class": "Log Type"}[name] in ctx.present


FORMAT = Format("burstgpt", "BurstGPT trace (CSV)", "csv", "gateway", sniff, FIELDS, mapping, token_basis="usage")
