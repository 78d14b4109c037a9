"""Options of a replay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay. The three headroom ceilings are oracles: no real gateway can do that."""

    open_loop: bool = False  # every turn arrives when the log says, not think time after the previous answer
    infinite_cache: bool = False  # ceiling: what any instance ever computed is a hit everywhere
    perfect_signals: bool = False  # ceiling: live reports, exact index, one gateway
    known_lengths: bool = False  # ceiling: policies are told the true output length
    debug: bool = False  # check conservation laws at every planning
    series_bins: int = 0  # time bins of running, waiting and KV by instance
    trace_row: int = -1  # keep every candidate's state and score at this row's first decision
    force_row: int = -1  # send this row's first attempt to force_instance
    force_instance: int = -1
