"""Ingest of logs and metrics into a workspace: lose nothing, keep no secrets."""

from __future__ import annotations

from tfanalyze.ingest.logs import ingest_logs
from tfanalyze.ingest.metrics import ingest_metrics

__all__ = ["ingest_logs", "ingest_metrics"]
