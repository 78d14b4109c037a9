"""Ingest of logs and metrics into a workspace: lose nothing, keep no secrets."""

from __future__ import annotations

from tfanalyze.ingest.explain import explain_file
from tfanalyze.ingest.lint import lint
from tfanalyze.ingest.logs import ingest_logs
from tfanalyze.ingest.metrics import ingest_metrics

__all__ = ["explain_file", "ingest_logs", "ingest_metrics", "lint"]
