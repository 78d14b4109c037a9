"""The mixed workload of the headline table: chat sessions, long documents, offline batches. Lengths and shares follow published traces in kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfanalyze.config import SloClass
from tfanalyze.trace import Trace, from_columns

BLOCK = 64
CLASSES = (
    SloClass("interactive", ttft_s=2.0, tpot_s=0.1, priority=0, timeout_s=30.0, max_retries=1),
    SloClass("long_context", ttft_s=15.0, tpot_s=0.2, priority=1, timeout_s=90.0, max_retries=1),
    SloClass("offline", e2e_s=600.0, priority=2),
)
PATIENT = tuple(
    SloClass(c.name, c.ttft_s, c.tpot_s, c.e2e_s, c.priority) for c in CLASSES
)  # never give up, never retry


@dataclass
class Rows:
    """Columns as they are drawn; block ids are handed out once."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    used: int = 0

    def fresh(self, count: float) -> list[int]:
        count = max(0, int(count))
        self.used += count
        return list(range(self.used - count, self.used))

    def add(self, **row: Any) -> None:
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)


def mixed(seed: int, scale: float, span_s: float = 900.0) -> Trace:
    """Mixed traffic of ``span_s`` seconds; ``scale`` multiplies the rate at which clients come, not what each does.

    Interactive: sessions (geometric, 1/0.35 turns) behind one of six system prompts, each turn extends the last, arrivals with
    a slow wave and a burst of 25 s every 240 s.  Long context: a document of about 18,000 tokens, asked about 1.7 times.
    Offline: batches of about 130 prompts at once, deadline 600 s.
    """
    draw = np.random.default_rng(seed)
    rows = Rows()
    systems = [rows.fresh(16) for _ in range(6)]
    for start in _arrivals(draw, 3.0 * scale, span_s, wave=0.5, burst=1.0):
        _session(draw, rows, start, span_s, systems[min(5, int(draw.geometric(0.4)) - 1)])
    for start in _arrivals(draw, 0.35 * scale, span_s, wave=0.3, burst=0.6):
        _document(draw, rows, start, span_s)
    start = 0.0
    while start < 0.8 * span_s:
        for _ in range(int(draw.integers(60, 200) * scale)):
            rows.add(
                arrival_s=start + 4.0 * draw.random(), input_tokens=int(draw.lognormal(7.0, 0.6)) + 1,
                output_tokens=int(min(3000, draw.lognormal(6.0, 0.7))) + 1, slo_class="offline",
                blocks=[], deadline_s=600.0,
            )  # fmt: skip
        start += draw.exponential(70.0)
    count = len(rows.columns["arrival_s"])
    return from_columns(
        **rows.columns, max_tokens=np.full(count, 4096), classes=[c.name for c in CLASSES], block_size=BLOCK,
        name=f"mixed seed {seed} scale {scale:.3f}",
    )  # fmt: skip


def _arrivals(draw: Any, rate: float, span_s: float, wave: float, burst: float) -> list[float]:
    found, now = [], 0.0
    while now < span_s:
        swing = 1.0 + wave * np.sin(2.0 * np.pi * now / 180.0) + (burst if now % 240.0 < 25.0 else 0.0)
        now += draw.exponential(1.0 / (rate * max(0.1, swing)))
        found.append(now)
    return [t for t in found if t < span_s]


def _session(draw: Any, rows: Rows, now: float, span_s: float, system: list[int]) -> None:
    held = list(system)
    for _ in range(int(draw.geometric(0.35))):
        if now > span_s:
            return
        total, out = (
            len(held) * BLOCK + int(draw.lognormal(5.3, 0.9)),
            int(min(1500, draw.lognormal(5.3, 0.8))) + 1,
        )
        held = held + rows.fresh((total + out) // BLOCK - len(held))
        rows.add(
            arrival_s=now, input_tokens=total + 1, output_tokens=out, slo_class="interactive", blocks=held,
            deadline_s=np.nan,
        )  # fmt: skip
        now += draw.exponential(20.0) + 0.03 * out + 3.0


def _document(draw: Any, rows: Rows, now: float, span_s: float) -> None:
    held = rows.fresh(min(1500, draw.lognormal(5.6, 0.6)))
    for _ in range(int(draw.geometric(0.6))):
        if now > span_s:
            return
        rows.add(
            arrival_s=now, input_tokens=len(held) * BLOCK + int(draw.lognormal(4.5, 0.6)) + 1,
            output_tokens=int(min(2000, draw.lognormal(5.8, 0.7))) + 1, slo_class="long_context", blocks=held,
            deadline_s=np.nan,
        )  # fmt: skip
        now += draw.exponential(40.0) + 15.0


def prefix_rich(seed: int, span_s: float = 900.0, rate: float = 6.0) -> Trace:
    """Agents: long tool preambles shared by many, sessions of about eight turns that grow by 600 tokens a turn."""
    draw = np.random.default_rng(seed)
    rows = Rows()
    tools = [rows.fresh(draw.integers(40, 160)) for _ in range(24)]
    for start in _arrivals(draw, rate / 8.0, span_s, wave=0.4, burst=0.5):
        held, now = list(tools[min(23, int(draw.geometric(0.15)) - 1)]), start
        for _ in range(int(draw.geometric(1 / 8))):
            if now > span_s or len(held) > 500:
                break
            total, out = (
                len(held) * BLOCK + int(draw.lognormal(6.2, 0.7)),
                int(min(800, draw.lognormal(4.8, 0.8))) + 1,
            )
            held = held + rows.fresh((total + out) // BLOCK - len(held))
            rows.add(
                arrival_s=now, input_tokens=total + 1, output_tokens=out, slo_class="interactive", blocks=held
            )
            now += draw.exponential(8.0) + 0.03 * out
    return from_columns(
        **rows.columns, max_tokens=np.full(len(rows.columns["arrival_s"]), 1024), classes=["interactive"],
        block_size=BLOCK, name=f"agents seed {seed}",
    )  # fmt: skip
