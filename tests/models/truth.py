"""A synthetic truth: a log made by the simulated engine with known coefficients and measurement noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfanalyze.config import DEFAULT_CLASSES, EngineLimits, Fleet, Pool
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.parts import insert_rows
from tfanalyze.replay import Outcome, replay
from tfanalyze.trace import Trace, from_columns
from tfanalyze.workspace import Workspace

TRUE = StepTime(c0_s=0.008, c_prefill_s=6e-5, c_attn_s=2e-9, c_seq_s=1.5e-4, c_kv_s=8e-8)
PROFILE = Profile("pool", TRUE, request_s=0.02)
LIMITS = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=64, kv_tokens=200_000)


def fleet(count: int = 1) -> Fleet:
    return Fleet((Pool("pool", count=count, engine=LIMITS),))


def trace(n: int = 600, rate: float = 3.0, seed: int = 1, instances: int = 1) -> Trace:
    """Poisson arrivals, log-normal lengths, round robin over the instances."""
    rng = np.random.default_rng(seed)
    names = [f"pool-{i}" for i in range(instances)] if instances > 1 else ["pool"]
    return from_columns(
        arrival_s=np.cumsum(rng.exponential(1 / rate, n)),
        input_tokens=np.clip(rng.lognormal(6.5, 0.9, n), 16, 12_000).astype(int),
        output_tokens=np.clip(rng.lognormal(4.8, 0.7, n), 4, 1_500).astype(int),
        instance=[names[i % instances] for i in range(n)],
        slo_class=["interactive"] * n,
        name="truth",
    )


def run(what: Trace, profile: Profile = PROFILE, count: int = 1) -> Outcome:
    return replay(what, fleet(count), "recorded", profile, classes=DEFAULT_CLASSES)


def write(workspace: Workspace, what: Trace, outcome: Outcome, noise: float = 0.02, seed: int = 2, stamps: bool = False, timed: bool = True) -> None:
    """Put the simulated requests into a workspace as a gateway would have logged them."""
    rng = np.random.default_rng(seed)
    ok = outcome.status == 0
    ttft = (outcome.first_token_s - outcome.arrival_s) * rng.lognormal(0, noise, len(what))
    e2e = np.maximum((outcome.finish_s - outcome.arrival_s) * rng.lognormal(0, noise / 4, len(what)), ttft)
    columns: dict[str, Any] = {
        "row_uid": np.arange(len(what))[ok], "request_id": np.array([f"r{i}" for i in range(len(what))], object)[ok],
        "arrival_us": (1_700_000_000_000_000 + np.rint(outcome.arrival_s * 1e6).astype(np.int64))[ok],
        "instance": np.array([outcome.instance_names[i] for i in outcome.instance], object)[ok],
        "input_tokens": what.input_tokens[ok], "output_tokens": what.output_tokens[ok],
        "ttft_us": np.rint(ttft[ok] * 1e6).astype(np.int64), "e2e_us": np.rint(e2e[ok] * 1e6).astype(np.int64),
        "status": np.array(["ok"] * int(ok.sum()), object), "slo_class": np.array(["interactive"] * int(ok.sum()), object),
        "vantage": np.array(["gateway"] * int(ok.sum()), object), "time_base": np.array(["unix"] * int(ok.sum()), object),
    }  # fmt: skip
    if stamps:
        columns["queue_us"] = np.rint((outcome.start_s - outcome.arrival_s)[ok] * 1e6).astype(np.int64)
    if not timed:
        del columns["ttft_us"]
    insert_rows(workspace.con, columns)


def made(n: int = 600, rate: float = 3.0, seed: int = 1, noise: float = 0.02, profile: Profile = PROFILE, instances: int = 1, timed: bool = True) -> Workspace:
    """A workspace in memory with one noisy log of the truth."""
    workspace = Workspace.open(":memory:")
    what = trace(n, rate, seed, instances)
    write(workspace, what, run(what, profile, instances), noise, seed + 100, timed=timed)
    return workspace


def slower(profile: Profile, factor: float) -> Profile:
    names = ("c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s")
    return replace(profile, step=replace(profile.step, **{n: getattr(profile.step, n) * factor for n in names}))
