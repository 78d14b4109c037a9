"""The workload itself: what was asked for, how it is mixed; and the requests that fared worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfanalyze.report import numbers
from tfanalyze.report.blame import ALL_CAUSES, Blame, worst
from tfanalyze.report.columns import REASON, STATUS, Run
from tfanalyze.report.figures import Figure, Line, Spec, Table, axis, figure, line, log_axis, time_unit
from tfanalyze.report.model import table_of
from tfanalyze.report.reduce import QUANTILES, bins_of, sums
from tfanalyze.report.runs import DASHES
from tfanalyze.report.section import Block, Note


def workload(found: Mapping[str, Any] | None, run: Run | None) -> list[Block | None]:
    """Arrivals, lengths and classes of the trace, then what `inspect` found."""
    blocks: list[Block | None] = []
    if run is not None and len(run):
        blocks += [arrivals(run), lengths(run, "input_tokens"), lengths(run, "output_tokens"), class_table(run)]
    if found:
        blocks += inspected(found)
    elif run is None:
        blocks.append(Note("Nothing known of the workload: tfanalyze inspect describes what was ingested.", missing=True))
    return blocks


def arrivals(run: Run) -> Figure:
    """Requests a second by class."""
    arrival_s = np.sort(run.arrival_s)
    order = np.argsort(run.arrival_s, kind="stable")
    bins = bins_of(arrival_s, 120, 60)
    unit, size = time_unit(float(bins.edge_s[-1] - bins.edge_s[0]))
    x = (bins.middle_s - bins.edge_s[0]) / size
    data, rows = [], []
    for c, one in enumerate(run.classes):
        mine = (run.slo_class == c)[order]
        if not mine.any():
            continue
        rate = sums(bins, mine) / bins.width_s
        data.append(line(Line(one.name, x, rate, f"@{c % 7}", DASHES[c % 7], step=True), "%{y:.3g} requests/s"))
        rows.append((one.name, numbers.count(int(mine.sum())), numbers.digits(float(rate.mean())), numbers.digits(float(rate.max()))))
    total = sums(bins, np.ones(len(run))) / bins.width_s
    peak = float(total.max() / max(total.mean(), 1e-9))
    sentence = (f"{numbers.count(len(run))} requests over {numbers.seconds(float(arrival_s[-1] - arrival_s[0]))}; the busiest of the "
                f"{len(bins)} windows has {numbers.digits(peak)} times the mean rate.")  # fmt: skip
    layout: Spec = {"xaxis": axis(f"{unit} since the start"), "yaxis": axis("requests/s", rangemode="tozero")}
    return figure("arrivals", "Arrivals by class", sentence, data, layout, Table(("class", "requests", "mean 1/s", "peak 1/s"), tuple(rows)), wide=True)


def lengths(run: Run, column: str) -> Figure:
    """Distribution of prompt or answer lengths, by class."""
    what = {"input_tokens": "prompt", "output_tokens": "answer"}[column]
    values = getattr(run, column)
    data, rows, told = [], [], []
    for c, one in enumerate(run.classes):
        mine = values[(run.slo_class == c) & (values >= 0)]
        if not len(mine):
            continue
        points = np.quantile(mine, QUANTILES)
        data.append(line(Line(one.name, np.maximum(points, 1.0), QUANTILES * 100, f"@{c % 7}", DASHES[c % 7]), "%{y:.0f} % up to %{x:,.0f} tokens"))
        q = np.quantile(mine, (0.5, 0.95, 0.99))
        rows.append((one.name, *(numbers.count(float(value)) for value in q), numbers.count(float(mine.mean()))))
        told.append(f"{one.name} P50 {numbers.count(float(q[0]))}, P99 {numbers.count(float(q[2]))}")
    layout: Spec = {"xaxis": log_axis(f"{what} tokens"), "yaxis": axis("% of requests", range=[0, 101])}
    sentence = f"Lengths of the {what}s, log scale: {'; '.join(told)}. A long flat tail means that a few requests carry much of the work."
    return figure(column, f"{what.capitalize()} lengths", sentence, data, layout, Table(("class", "P50", "P95", "P99", "mean"), tuple(rows)), height=300)


def class_table(run: Run) -> Table:
    rows = []
    total = max(int(np.maximum(run.input_tokens, 0).sum() + np.maximum(run.output_tokens, 0).sum()), 1)
    for c, one in enumerate(run.classes):
        mine = run.slo_class == c
        if mine.any():
            tokens = int(np.maximum(run.input_tokens[mine], 0).sum() + np.maximum(run.output_tokens[mine], 0).sum())
            limits = ", ".join(f"{name} {numbers.seconds(value)}" for name, value in
                               (("TTFT", one.ttft_s), ("TPOT", one.tpot_s), ("E2E", one.e2e_s)) if np.isfinite(value))  # fmt: skip
            rows.append((one.name, numbers.count(int(mine.sum())), numbers.share(float(mine.mean())), numbers.share(tokens / total), limits or "none"))
    return Table(("class", "requests", "of requests", "of tokens", "SLO limits"), tuple(rows), "SLO classes", "What each class asks for and what it is promised.")


def inspected(found: Mapping[str, Any]) -> list[Block | None]:
    """What `inspect` returned, as tables: plain values first, then each part of it."""
    plain = {key: value for key, value in found.items() if not isinstance(value, (dict, list, tuple))}
    blocks: list[Block | None] = [table_of("ingested", plain, "As ingested")] if plain else []
    blocks += [table_of(str(key), value) for key, value in found.items() if isinstance(value, (dict, list, tuple)) and value]
    return blocks


def worst_requests(run: Run, verdict: Blame) -> Table | Note:
    """The ten worst misses of a run and what their time went to."""
    rows = []
    for row in worst(run, verdict):
        rows.append((
            run.name_of(row), run.classes[run.slo_class[row]].name, ALL_CAUSES[verdict.cause[row]], _end(run, row),
            f"{verdict.over[row]:.1f}x" if verdict.over[row] > 1 else numbers.NONE,
            *(numbers.seconds(float(part[row])) for part in (run.gateway_s, run.queue_s, run.prefill_s, run.decode_s)),
            f"{numbers.count(int(run.input_tokens[row]))} / {numbers.count(int(run.output_tokens[row]))}",
            run.instances[run.instance[row]] if 0 <= run.instance[row] < len(run.instances) else numbers.NONE,
        ))  # fmt: skip
    if not rows:
        return Note(f"Every request of {run.label} met its SLO.")
    head = ("request", "class", "blamed on", "end", "over limit", "gateway", "queue", "prefill", "decode", "tokens in / out", "instance")
    sentence = (
        "The requests furthest over their limit, and the largest of those never served. Times add up to the whole: waiting at the "
        "gateway, in the engine's queue, prefill until the first token, decode. tfanalyze explain REQUEST tells more about one."
    )
    return Table(head, tuple(rows), f"Ten worst requests: {run.label}", sentence)


def _end(run: Run, row: int) -> str:
    status, reason = int(run.status[row]), int(run.reason[row])
    return REASON[reason] if reason > 0 else STATUS[status] if status >= 0 else "unknown"


def explained(found: Sequence[Mapping[str, Any]] | None) -> Table | None:
    """Decisions that were explained in detail."""
    return table_of("explained", list(found), "Explained in detail") if found else None
