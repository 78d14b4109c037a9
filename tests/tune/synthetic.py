"""Evaluators with a known truth: what a search should find, and a space in which nothing helps."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tfanalyze.replay.policies import PolicySet, param
from tfanalyze.tune.measure import Measured, Scenario
from tfanalyze.tune.space import Space, _fields, _knob

N = 1200
SPAN_S = 3600.0


@dataclass(frozen=True)
class Toy:
    """An instance policy of two knobs that matter (if the truth says so) and one that never does."""

    name: ClassVar[str] = "toy"
    kind: ClassVar[str] = "instance"
    trivial: ClassVar[bool] = False
    a: float = param(0.1, "share", 0.0, 1.0, "the first")
    b: float = param(0.1, "share", 0.0, 1.0, "the second")
    idle: float = param(0.5, "share", 0.0, 1.0, "does nothing")


@dataclass(frozen=True)
class Nothing:
    name: ClassVar[str] = "nothing"
    kind: ClassVar[str] = "site"
    trivial: ClassVar[bool] = True


@dataclass(frozen=True)
class Open:
    name: ClassVar[str] = "open"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = True


PRESENT = PolicySet(Open(), Nothing(), Toy())


def toy_space(present: PolicySet = PRESENT) -> Space:
    knobs = tuple(_knob("instance", present.instance, f, None) for f in _fields(present.instance))
    return Space({"instance": (present.instance,), "site": (Nothing(),), "admit": (Open(),)}, knobs, present)


class Planted:
    """Attainment falls with the distance from (0.7, 0.3); noise is common per window and own per policy.

    ``height`` 0: nothing that is set has any effect, only luck differs.
    """

    def __init__(self, height: float, noise: float = 0.0, luck: int = 1, sleep_s: float = 0.0) -> None:
        self.height, self.noise, self.luck, self.sleep_s = height, noise, luck, sleep_s
        self.calls = 0

    def measure(self, policy: PolicySet, scenario: Scenario, sizes: tuple[int, ...] = ()) -> Measured:
        self.calls += 1
        if self.sleep_s:
            time.sleep(self.sleep_s)
        toy: Any = policy.instance
        share = 0.6 + self.height * (1.0 - ((toy.a - 0.7) ** 2 + (toy.b - 0.3) ** 2) / 0.85)
        window = sum(map(ord, scenario.window)) + round(scenario.load * 100)
        common = np.random.default_rng([self.luck, window])
        arrival = np.sort(common.uniform(0.0, SPAN_S, N))
        tokens = common.integers(50, 400, N).astype(np.float64)
        level = common.uniform(0.0, 1.0, N)
        own = np.random.default_rng([self.luck, window, scenario.seed, hash((toy.a, toy.b, toy.idle)) & 0xFFFFFFFF])
        # luck that lasts: the difference is correlated over time, as a backlog makes it
        drift = np.repeat(own.normal(0.0, self.noise, 60), N // 60)
        ok = level < np.clip(share + drift, 0.0, 1.0)
        zero = np.zeros(N)
        return Measured(
            arrival, 0.0, SPAN_S, np.where(ok, tokens, 0.0), tokens, tokens, ok, np.zeros(N, bool), np.where(ok, 0.5, 5.0),
            zero, np.zeros(N, np.int8), np.arange(N, dtype=np.int32) % 3, ("interactive",),
        )  # fmt: skip


class Doomed(Planted):
    """The first measurement on a cluster says which process it is in, and hangs until that is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0.3, noise=0.05)
        self.folder = folder

    def measure(self, policy: PolicySet, scenario: Scenario, sizes: tuple[int, ...] = ()) -> Measured:
        try:
            with (self.folder / "pid").open("x") as f:
                f.write(str(os.getpid()))
        except FileExistsError:
            return super().measure(policy, scenario, sizes)
        time.sleep(120.0)
        return super().measure(policy, scenario, sizes)
