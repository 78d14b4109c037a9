"""Ingest of logs and metrics into a workspace: lose nothing, keep no secrets."""

from __future__ import annotations

from tfanalyze.ingest.logs import ingest_logs

__all__ = ["ingest_logs"]
