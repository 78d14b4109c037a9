"""The workload itself: what was asked for, how it is mixed; and the requests that fared worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfanalyze.report import numbers
from tfanalyze.report.blame import ALL_CAUSES, Blame, worst
from tfanalyze.report.columns import REASON, STATUS, Run
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
    line,
    log_axis,
    time_unit,
)
from tfanalyze.report.model import table_of
from tfanalyze.report.reduce import QUANTILES, bins_of, sums
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
    layout: Spec = {"hovermode": "x unified", "xaxis": axis(f"{unit} since the start"), "yaxis": axis("requests/s", rangemode="tozero")}
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
    """What `inspect` returned: facts, token counts, where the time went, where it all came from."""
    rate, sessions, prefix = (found.get(key) or {} for key in ("rate", "sessions", "prefix"))
    facts = {
        "began": found.get("began"), "span_s": found.get("span_s"), "requests": found.get("requests"), "retries": found.get("retries"),
        "mean_req_s": rate.get("mean_req_s"), "peak_minute_req_s": rate.get("peak_minute_req_s"), "gap_cv": rate.get("gap_cv"),
        "sessions": sessions.get("sessions"), "turns_mean": sessions.get("turns_mean"), "think_s_p50": sessions.get("think_s_p50"),
        "block_size": prefix.get("block_size"), "seen_before_share": prefix.get("reusable_share"), "cached_share": prefix.get("cached_share"),
    }  # fmt: skip
    labels = {"gap_cv": "spread of the gaps (1 = Poisson)", "seen_before_share": "prompt tokens seen before", "cached_share": "prompt tokens cached",
              "mean_req_s": "mean rate", "peak_minute_req_s": "busiest minute", "turns_mean": "turns a session", "think_s_p50": "think time P50"}  # fmt: skip
    rows = tuple((labels.get(key, numbers.words(key)), numbers.pretty(key.removesuffix("_p50"), value)) for key, value in facts.items() if value is not None)
    tokens = {name: one for name, one in (found.get("tokens") or {}).items() if one.get("known")}
    return [
        Table(("", ""), rows, "As ingested") if rows else None,
        time_share((found.get("time") or {}).get("share")),
        table_of("tokens", tokens, "Tokens") if tokens else None,
        _sources(found.get("sources")),
        table_of("rejected", found.get("rejected"), "Rejected rows, by reason") if found.get("rejected") else None,
        _origins(found.get("provenance")),
    ]


def time_share(found: Mapping[str, Any] | None) -> Figure | None:
    """Where the summed end-to-end seconds went, as observed."""
    if not found:
        return None
    names, values = list(found), [100 * float(value) for value in found.values()]
    top = max(zip(values, names, strict=True))
    sentence = f"Of all the seconds between arrivals and last tokens, as the log tells it; most went to {top[1]} ({top[0]:.0f} %)."
    data = [bar("share", names, values, "@0", across=True, text=[f"{value:.1f} %" for value in values])]
    layout: Spec = {"xaxis": amounts("% of the time", values), "yaxis": axis("", autorange="reversed", automargin=True), "showlegend": False}
    rows = tuple((name, f"{value:.1f} %") for name, value in zip(names, values, strict=True))
    return figure("time", "Where the requests' time went", sentence, data, layout, Table(("part", "share"), rows), height=110 + 28 * len(names))


def _sources(found: Sequence[Mapping[str, Any]] | None) -> Table | None:
    """Files as ingested; a path by its last two parts, which tell files apart."""
    shown = [{**one, "path": "/".join(str(one.get("path", "")).split("/")[-2:])} for one in found or ()]
    return table_of("sources", shown, "Sources")


def _origins(found: Mapping[str, Mapping[str, Any]] | None) -> Table | None:
    """Which columns were observed, derived or assumed."""
    by_kind: dict[str, list[str]] = {}
    for column, kinds in (found or {}).items():
        by_kind.setdefault(" or ".join(sorted(kinds)), []).append(column)
    rows = tuple((kind, ", ".join(columns)) for kind, columns in by_kind.items())
    return Table(("", ""), rows, "Where the columns come from", "What a log does not name is unknown, never 0.") if rows else None


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
