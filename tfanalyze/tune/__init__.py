"""Tuning: a search over policies' parameters whose gain is proved on traffic it never saw."""

from __future__ import annotations

from tfanalyze.tune.check import check
from tfanalyze.tune.run import tune
from tfanalyze.tune.storage import DEFAULT_STORAGE

__all__ = ["DEFAULT_STORAGE", "check", "tune"]
