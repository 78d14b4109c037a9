"""Figures of runs side by side: goodput over time, latency distributions, attainment, misses, waste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from tfanalyze.report import numbers
from tfanalyze.report.blame import Blame, by_cause
from tfanalyze.report.columns import Run
from tfanalyze.report.figures import (
    DASHES,
    Figure,
    Line,
    Spec,
    Table,
    amounts,
    axis,
    bar,
    figure,
    level,
    line,
    log_axis,
    time_unit,
)
from tfanalyze.report.reduce import Bins, bins_of, quantile_line, quantile_points, quantiles, sums
from tfanalyze.trace import F64

MEASURES = {"ttft_s": "time to the first token", "tpot_s": "time per further token", "e2e_s": "time to the last token"}
SHORT = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
OBSERVED_COLOR = "@fg"
PATTERNS = ("", "/", ".", "-", "\\", "+", "|")


def color_of(runs: Sequence[Run], k: int) -> str:
    """The log's own line is in the colour of the text, the last simulated run (the one to look at) in the first colour."""
    return OBSERVED_COLOR if not runs[k].simulated else f"@{_place(runs, k)}"


def dash_of(runs: Sequence[Run], k: int) -> str:
    return "dot" if not runs[k].simulated else DASHES[_place(runs, k)]


def pattern_of(runs: Sequence[Run], k: int) -> str:
    """Bars differ by pattern as well as by colour."""
    return "x" if not runs[k].simulated else PATTERNS[_place(runs, k)]


def _place(runs: Sequence[Run], k: int) -> int:
    if not any(run.simulated for run in runs[k + 1 :]):
        return 0
    return (1 + sum(run.simulated for run in runs[:k])) % 7


def goodput_tok_s(run: Run) -> float:
    """SLO-attaining output tokens a second, over the span of arrivals."""
    if "goodput_tok_s" in run.summary:
        return float(run.summary["goodput_tok_s"])
    span_s = float(run.arrival_s[-1] - run.arrival_s[0]) if len(run) > 1 else 1.0
    return float(run.delivered_tokens[run.attained].sum()) / max(span_s, 1e-9)


def attainment(run: Run, rows: np.ndarray | None = None) -> float:
    part = run.attained if rows is None else run.attained[rows]
    return float(part.mean()) if len(part) else float("nan")


def goodput_over_time(runs: Sequence[Run]) -> Figure:
    """Effective tokens a second by the time the requests arrived, with the offered load behind."""
    by_arrival = [_in_order(run) for run in runs]
    bins = bins_of(by_arrival[0][0], 120, 60)
    unit, size = time_unit(float(bins.edge_s[-1] - bins.edge_s[0]))
    x = (bins.middle_s - bins.edge_s[0]) / size
    offered = sums(bins, np.maximum(runs[0].output_tokens, 0)) / bins.width_s
    hover = "%{y:,.0f} tok/s"
    data = [line(Line("offered", x, offered, "@muted", "solid", 1.0, fill=True), hover)]
    rows = [("offered", *_level_cells(offered))]
    for k, run in enumerate(runs):
        arrival_s, order = by_arrival[k]
        good = sums(bins_at(arrival_s, bins), (run.delivered_tokens * run.attained)[order]) / bins.width_s
        data.append(line(Line(run.label, x, good, color_of(runs, k), dash_of(runs, k)), hover))
        rows.append((run.label, *_level_cells(good)))
    best = max(runs, key=goodput_tok_s)
    sentence = (
        f"The grey area is what clients asked for; each line is what came whole and inside its SLO. "
        f"{best.label} delivers most: {numbers.rate(goodput_tok_s(best))} on average. Where a line leaves the grey area, "
        f"tokens were late, cut off or never made."
    )
    layout: Spec = {"hovermode": "x unified", "xaxis": axis(f"arrival, {unit} since the start"), "yaxis": axis("output tokens/s", rangemode="tozero")}
    table = Table(("run", "mean tok/s", "lowest", "highest"), tuple(rows))
    return figure("goodput", "Goodput and offered load over time", sentence, data, layout, table, wide=True)


def bins_at(arrival_s: F64, bins: Bins) -> Bins:
    """The same windows cut through another run's (shifted) arrivals."""
    cut = np.searchsorted(arrival_s, bins.edge_s, side="left").astype(np.int64)
    cut[0], cut[-1] = 0, len(arrival_s)
    return replace(bins, cut=cut)


def latency_over_time(runs: Sequence[Run], measure: str = "ttft_s") -> Figure:
    """P95 of a measure by arrival."""
    bins = bins_of(_in_order(runs[0])[0], 120, 60)
    unit, size = time_unit(float(bins.edge_s[-1] - bins.edge_s[0]))
    x = (bins.middle_s - bins.edge_s[0]) / size
    data, rows, peaks = [], [], {}
    for k, run in enumerate(runs):
        arrival_s, order = _in_order(run)
        y = quantile_line(bins_at(arrival_s, bins), getattr(run, measure)[order], 0.95)
        data.append(line(Line(run.label, x, y, color_of(runs, k), dash_of(runs, k)), "P95 %{y:.3g} s"))
        known = y[np.isfinite(y)]
        peaks[run.label] = float(known.max()) if len(known) else float("nan")
        typical = float(np.median(known)) if len(known) else float("nan")
        rows.append((run.label, numbers.seconds(typical), numbers.seconds(peaks[run.label])))
    told = "; ".join(f"{name} peaks at {numbers.seconds(value)}" for name, value in peaks.items())
    sentence = f"P95 {SHORT[measure]} of the requests that arrived in each window, on a log scale: {told}."
    layout: Spec = {"hovermode": "x unified", "xaxis": axis(f"arrival, {unit} since the start"), "yaxis": log_axis("seconds")}
    table = Table(("run", "median window", "worst window"), tuple(rows))
    return figure(f"{measure}-time", f"P95 {SHORT[measure]} over time", sentence, data, layout, table, wide=True)


def distributions(runs: Sequence[Run]) -> list[Figure]:
    """One distribution function for each class and each measure that its SLO limits (TTFT always)."""
    found = []
    for c, one in enumerate(runs[0].classes):
        rows = runs[0].slo_class == c
        if not rows.any():
            continue
        for measure in MEASURES:
            limit = float(getattr(one, measure))
            if measure == "ttft_s" or isfinite(limit):
                found.append(_distribution(runs, c, one.name, measure, limit))
    return [one for one in found if one is not None]


def _distribution(runs: Sequence[Run], c: int, name: str, measure: str, limit: float) -> Figure | None:
    data, rows, told = [], [], []
    for k, run in enumerate(runs):
        mine = run.slo_class == c
        values = getattr(run, measure)[mine]
        unserved = int((run.status[mine] > 0).sum())
        x, y = quantile_points(values, unserved if measure != "tpot_s" else 0)
        if not len(x):
            continue
        q = quantiles(values)
        inside = float((values <= limit).sum()) / max(int(mine.sum()), 1)
        data.append(line(Line(run.label, np.maximum(x, 1e-4), y * 100, color_of(runs, k), dash_of(runs, k)),
                         "%{y:.1f} % within %{x:.3g} s"))  # fmt: skip
        cells = tuple(numbers.seconds(q[p]) for p in ("p50", "p95", "p99"))
        rows.append((run.label, *cells, numbers.share(inside) if isfinite(limit) else numbers.NONE))
        told.append(f"{run.label} P95 {numbers.seconds(q['p95'])}")
    if not data:
        return None
    layout: Spec = {"xaxis": log_axis(f"{SHORT[measure]}, seconds"), "yaxis": axis("% of requests", range=[0, 101])}
    sentence = f"Further left is faster: {', '.join(told)}."
    if isfinite(limit):
        shape, note = level(limit, f"SLO {numbers.seconds(limit)}", upright=True)
        layout |= {"shapes": [shape], "annotations": [note]}
        sentence += " What lies left of the dashed line is inside the SLO; a line that ends below 100 % had requests that were never served."
    head = ("run", "P50", "P95", "P99", "inside the limit")
    title = f"{name}: {MEASURES[measure]} ({SHORT[measure]})"
    return figure(f"dist-{name}-{measure}", title, sentence, data, layout, Table(head, tuple(rows)), height=300)


def attainment_bars(runs: Sequence[Run]) -> Figure:
    """Share of requests inside their SLO, by class and run."""
    present = [c for c in range(len(runs[0].classes)) if (runs[0].slo_class == c).any()]
    names = [runs[0].classes[c].name for c in present] + ["all"]
    data, rows, overall = [], [], {}
    for k, run in enumerate(runs):
        shares = [attainment(run, run.slo_class == c) for c in present] + [attainment(run)]
        overall[run.label] = shares[-1]
        text = [f"{100 * value:.0f} %" for value in shares]
        pattern = pattern_of(runs, k)
        data.append(bar(run.label, names, [100 * s for s in shares], color_of(runs, k), text=text, pattern=pattern))
        rows.append((run.label, *(numbers.share(value) for value in shares)))
    told = ", ".join(f"{name} {numbers.share(value)}" for name, value in overall.items())
    sentence = f"Share of all offered requests that met their class's SLO (shed and timed-out ones count as missed): {told}."
    layout: Spec = {"barmode": "group", "yaxis": axis("% of requests", range=[0, 104]), "bargap": 0.25}
    table = Table(("run", *names), tuple(rows))
    return figure("attainment", "SLO attainment by class", sentence, data, layout, table)


def miss_causes(runs: Sequence[Run], verdicts: Sequence[Blame]) -> Figure:
    """Missed output tokens by cause and run, as shares of the offered ones."""
    found = [by_cause(run, verdict) for run, verdict in zip(runs, verdicts, strict=True)]
    names = sorted({name for one in found for name in one}, key=lambda name: -sum(f.get(name, _NO)["tokens"] for f in found))
    data, rows, every = [], [], []
    for k, run in enumerate(runs):
        offered = max(float(np.maximum(run.output_tokens, 0).sum()), 1.0)
        shares = [100 * found[k].get(name, _NO)["tokens"] / offered for name in names]
        every += shares
        text = [f"{value:.1f} %" if value else "" for value in shares]
        data.append(bar(run.label, names, shares, color_of(runs, k), text=text, across=True, pattern=pattern_of(runs, k)))
        rows += [(run.label, name, numbers.count(found[k].get(name, _NO)["requests"]), f"{value:.1f} %")
                 for name, value in zip(names, shares, strict=True) if name in found[k]]  # fmt: skip
    tops = [f"{run.label}: {next(iter(f))}" if f else f"{run.label}: none missed" for run, f in zip(runs, found, strict=True)]
    sentence = f"Output tokens that missed their SLO, by what cost most of the time or ended the request. Largest cause, {'; '.join(tops)}."
    layout: Spec = {"barmode": "group", "xaxis": amounts("% of offered output tokens", every),
                    "yaxis": axis("", autorange="reversed", automargin=True)}  # fmt: skip
    height = 150 + len(names) * (16 + 16 * len(runs))
    table = Table(("run", "cause", "requests", "share of offered tokens"), tuple(rows))
    return figure("causes", "Why requests missed their SLO", sentence, data, layout, table, height=height)


_NO = {"requests": 0, "tokens": 0}


def waste(runs: Sequence[Run]) -> Figure | None:
    """Tokens that were computed and served nobody, by cause."""
    simulated = [run for run in runs if run.simulated]
    names = sorted({cause for run in simulated for cause, tokens in run.waste_tokens.items() if tokens})
    if not names:
        return None
    data, rows = [], []
    for k, cause in enumerate(names):
        tokens = [int(run.waste_tokens.get(cause, 0)) for run in simulated]
        text = [numbers.count(value) for value in tokens]
        data.append(bar(cause, [run.label for run in simulated], tokens, f"@{k % 7}", text=text, across=True, pattern=PATTERNS[k % 7]))
        data[-1]["textposition"] = "inside"
        rows.append((cause, *text))
    totals = {run.label: sum(run.waste_tokens.values()) for run in simulated}
    told = ", ".join(f"{name} {numbers.count(value)}" for name, value in totals.items())
    sentence = f"Tokens the engines computed for attempts that came to nothing, or computed twice after a preemption: {told}."
    layout: Spec = {"barmode": "stack", "xaxis": axis("tokens", rangemode="tozero"), "yaxis": axis("", autorange="reversed", automargin=True)}
    table = Table(("cause", *(run.label for run in simulated)), tuple(rows))
    return figure("waste", "Work that served nobody", sentence, data, layout, table, height=130 + 46 * len(simulated))


def fates(runs: Sequence[Run]) -> Figure:
    """What became of the requests: served inside the SLO, served late, and each way of not being served."""
    groups = ("in SLO", "late", "shed", "timed out", "failed", "cancelled")
    colors = ("@good", "@1", "@2", "@3", "@bad", "@muted")
    counts = np.array([_fate_counts(run) for run in runs], np.float64)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    labels = [run.label for run in runs]
    data = [
        bar(name, labels, shares[:, k], colors[k], across=True, pattern=("", "/", ".", "x", "-", "\\")[k],
            text=[f"{value:.1f} %" if value >= 4 else "" for value in shares[:, k]])
        for k, name in enumerate(groups) if counts[:, k].any()
    ]  # fmt: skip
    for one in data:
        one |= {"textposition": "inside", "textangle": 0}
    rows = tuple((label, *(f"{value:.1f} %" for value in shares[k])) for k, label in enumerate(labels))
    shed = ", ".join(f"{label} {shares[k, 2]:.1f} %" for k, label in enumerate(labels))
    sentence = f"Every offered request once. Shed by admission: {shed}; a policy that sheds more to look better shows it here."
    layout: Spec = {"barmode": "stack", "xaxis": axis("% of offered requests", range=[0, 100]),
                    "yaxis": axis("", autorange="reversed", automargin=True)}  # fmt: skip
    table = Table(("run", *groups), rows)
    return figure("fates", "What became of every request", sentence, data, layout, table, height=130 + 46 * len(runs))


def _fate_counts(run: Run) -> list[int]:
    served = run.status == 0
    shed = (run.status == 4) & (run.reason == 1)
    return [
        int((served & run.attained).sum()), int((served & ~run.attained).sum()), int(shed.sum()),
        int((run.status == 2).sum()), int((((run.status == 4) & ~shed) | (run.status == 1) | (run.status == 5)).sum()),
        int((run.status == 3).sum()),
    ]  # fmt: skip


def _in_order(run: Run) -> tuple[F64, np.ndarray | slice]:
    """Sorted arrivals and the order that sorts them (closed-loop arrivals may be out of row order)."""
    if len(run) < 2 or bool((run.arrival_s[1:] >= run.arrival_s[:-1]).all()):
        return run.arrival_s, slice(None)
    order = np.argsort(np.nan_to_num(run.arrival_s, nan=np.inf), kind="stable")
    return run.arrival_s[order], order


def _level_cells(values: F64) -> tuple[str, str, str]:
    return (numbers.count(float(values.mean())), numbers.count(float(values.min())), numbers.count(float(values.max())))
