"""Runs over seeds, intervals over seeds, and plain tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfanalyze.config import Fleet, SloClass
from tfanalyze.replay import Simulator
from tfanalyze.replay.policies import load_policy
from tfanalyze.slo import summarise
from tfanalyze.trace import Trace

Spec = tuple[str, dict[str, float]]  # policies, settings


def run_all(
    specs: Mapping[str, Spec], trace_of: Callable[[int], Trace], seeds: Sequence[int], fleet: Fleet, profile: Any,
    classes: tuple[SloClass, ...],
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Metrics of every policy on every seed's trace: {label: [one a seed]}; a trace is prepared once for all policies."""
    found: dict[str, list[dict[str, Any]]] = {label: [] for label in specs}
    for seed in seeds:
        trace = trace_of(seed)
        simulator = Simulator(trace, fleet, profile, classes)
        for label, (policy, settings) in specs.items():
            outcome = simulator.run(load_policy(policy, settings), seed)
            metrics = summarise(trace, outcome, classes)
            metrics["wasted_tokens"] = sum(outcome.waste_tokens.values())
            found[label].append(metrics)
    return found


def column(runs: Sequence[Mapping[str, Any]], path: str) -> Any:
    """One number a seed by its dotted path, e.g. "ttft_s.p50"."""
    values = []
    for run in runs:
        value: Any = run
        for part in path.split("."):
            value = value[part]
        values.append(np.nan if value is None else float(value))
    return np.array(values)


def interval(values: Any, seed: int = 0) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval over seeds."""
    draw = np.random.default_rng(seed)
    means = values[draw.integers(0, len(values), (4000, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def change(runs: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], path: str) -> str:
    """Paired relative change to the base, with its interval: "+31.2 % [29.0, 33.5]"."""
    ratio = column(runs, path) / column(base, path) - 1.0
    mean, low, high = (100.0 * v for v in interval(ratio))
    return f"{mean:+.1f} % [{low:+.1f}, {high:+.1f}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded columns."""
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "| " + " | ".join(str(cell).ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in [head, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
