"""Slow, obvious oracles: what docs/engine.md says, one step at a time, sharing no code with tfanalyze.replay."""
