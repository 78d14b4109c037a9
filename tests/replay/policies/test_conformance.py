"""Every policy in POLICIES keeps the contract; a new one is tested without editing this file."""

from __future__ import annotations

import pytest

from tfanalyze.replay.policies import POLICIES
from tfanalyze.replay.policies.loading import policy_class
from tfanalyze.testing import check_policy, decide_many, decide_without_jit


@pytest.fixture(scope="module")
def plain_python() -> dict[str, list[int]]:
    return decide_without_jit(list(POLICIES), seed=3, decisions=40)


@pytest.mark.parametrize("name", POLICIES)
def test_policy_keeps_the_contract(name: str) -> None:
    cls = policy_class(name)
    assert cls.name == name  # type: ignore[attr-defined]
    check_policy(cls)


@pytest.mark.parametrize("name", POLICIES)
def test_compiled_equals_plain_python(name: str, plain_python: dict[str, list[int]]) -> None:
    assert decide_many(policy_class(name), 3, 40) == plain_python[name]
