"""Outcome: what became of every request of a replay, as columns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfanalyze.trace import F32, F64, I8, I16, I32


@dataclass(frozen=True, slots=True)
class Outcome:
    """Columns of shape (n,), rows as in the trace; seconds on the trace's clock as the client saw them; NaN = did not happen."""

    arrival_s: F64  # first attempt; in closed loop a later turn's real arrival
    admit_s: F64  # left the gateway (last attempt)
    start_s: F64  # first scheduled by its engine
    first_token_s: F64
    finish_s: F64
    status: I8  # replay/state.py: OK, ERROR, TIMEOUT, CANCELLED, REJECTED, LOST; -1 = never arrived
    reason: I8
    attempts: I8
    instance: I32  # index into instance_names, -1 = never sent
    hit_tokens: I32
    delivered_tokens: I32
    preemptions: I16
    waste_tokens: dict[str, int]  # tokens computed that served nobody, by cause
    instance_names: tuple[str, ...]
    instance_busy_s: F64  # (N,)
    seed: int
    trace_hash: str
    profile_hash: str
    policy: dict[str, Any]
    kernel_s: float  # wall time of the compiled part alone; not part of the hash
    counters: dict[str, int] = field(default_factory=dict)
    series: dict[str, Any] | None = None
    decision: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    waste_gpu_s: dict[str, float] = field(default_factory=dict)  # the steps' seconds, shared by tokens, that served nobody
    retry_after_s: F32 | None = None  # what a shed attempt was told to wait, NaN = nothing

    @property
    def outcome_hash(self) -> str:
        """Equal for equal outcomes."""
        digest = hashlib.sha256()
        for column in self.columns().values():
            digest.update(np.ascontiguousarray(column).tobytes())
        digest.update(repr(sorted(self.waste_tokens.items())).encode())
        return digest.hexdigest()[:16]

    def columns(self) -> dict[str, Any]:
        """The per-request columns by name."""
        names = (
            "arrival_s", "admit_s", "start_s", "first_token_s", "finish_s", "status", "reason", "attempts",
            "instance", "hit_tokens", "delivered_tokens", "preemptions", "retry_after_s",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def frame(self) -> Any:
        """The per-request columns as a polars DataFrame, one row a request in the trace's order.

        ``tfanalyze.outcome_frame(trace, outcome, classes)`` adds what the trace and the SLO classes know.
        """
        import polars as pl

        return pl.DataFrame({name: np.ascontiguousarray(column) for name, column in self.columns().items()})
