"""Distinct prompt blocks in flight: what requests share counts once, and nothing is left at the end."""

from __future__ import annotations

from typing import Any

import pytest

from tfanalyze.config import DEFAULT_CLASSES, EngineLimits, Fleet, Pool
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay import Options, Simulator
from tfanalyze.replay.policies import load_policy
from tfanalyze.trace import Trace, from_columns

# 40, 36 and 24 tokens in blocks of 8: the first two share 24 tokens, the third is alone; the fourth comes when all are done
BLOCKS = [[0, 1, 2, 3, 4], [0, 1, 2, 5, 6], [7, 8, 9], [0, 1, 2, 3, 4]]


@pytest.fixture
def trace() -> Trace:
    return from_columns(
        arrival_s=[0.0, 0.1, 0.2, 100.0], input_tokens=[40, 36, 24, 40], output_tokens=[50] * 4, blocks=BLOCKS, block_size=8,
        classes=("interactive",), slo_class=["interactive"] * 4,
    )  # fmt: skip


def seen(trace: Trace, policy: str, row: int, **engine: Any) -> dict[str, float]:
    fleet = Fleet((Pool("p", engine=EngineLimits(block_size=8, kv_tokens=10_000, **engine)),))
    simulator = Simulator(
        trace, fleet, Profile("p", StepTime(c0_s=0.05)), DEFAULT_CLASSES, Options(trace_row=row)
    )
    decision = simulator.run(load_policy(policy)).decision
    assert decision is not None
    candidate: dict[str, float] = decision["candidates"][0]
    return candidate


@pytest.mark.parametrize(("row", "active", "hit"), [(0, 0, 0), (1, 5, 3), (2, 7, 0), (3, 0, 0)])
def test_shared_blocks_count_once(trace: Trace, row: int, active: int, hit: int) -> None:
    found = seen(trace, "dynamo", row)
    assert (found["active_blocks"], found["active_hit_blocks"]) == (active, hit)


def test_an_engine_without_prefix_cache_shares_none(trace: Trace) -> None:
    found = seen(trace, "dynamo", 2, cache="none")
    assert (found["active_blocks"], found["active_hit_blocks"]) == (10, 0)


def test_they_are_counted_only_for_a_policy_that_asks(trace: Trace) -> None:
    assert seen(trace, "least_requests", 1)["active_blocks"] == 0
