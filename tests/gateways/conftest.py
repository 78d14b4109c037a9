"""Fixtures of the tests that start real gateways; see tests/gateways/install.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateways.install import HOME, ready


@pytest.fixture
def program() -> Callable[[str, str], str]:
    """Path of a gateway's program in its own environment; skips where it is not installed."""

    def find(gateway: str, name: str) -> str:
        if not ready(gateway):
            pytest.skip(f"{gateway} is not installed: python -m tests.gateways.install {gateway}")
        path: Path = HOME / gateway / "bin" / name
        return str(path)

    return find
