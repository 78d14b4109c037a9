"""Shared fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real traces; a test that needs it skips where it is absent."""
    path = Path(os.environ.get("TFANALYZE_DATA", ROOT / ".." / "shared" / "data")).resolve()
    if not path.is_dir():
        pytest.skip(f"no data at {path}: set TFANALYZE_DATA")
    return path
