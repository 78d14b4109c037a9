"""Replay: the simulated engine, the gateways and their policies, as one compiled event loop."""

from __future__ import annotations

from tfanalyze.replay.options import Options
from tfanalyze.replay.outcome import Outcome
from tfanalyze.replay.simulator import Simulator, replay

__all__ = ["Options", "Outcome", "Simulator", "replay"]
