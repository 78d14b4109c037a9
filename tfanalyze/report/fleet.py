"""Figures of the fleet: queue and KV by instance, prefix hits, where each class went, quota movements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfanalyze.config import Fleet
from tfanalyze.report import numbers
from tfanalyze.report.columns import Run
from tfanalyze.report.figures import (
    DASHES,
    Figure,
    Line,
    Spec,
    Table,
    axis,
    bar,
    figure,
    heat,
    line,
    time_unit,
)
from tfanalyze.report.reduce import MAX_BINS, grouped, occupancy, thinned
from tfanalyze.report.runs import color_of, pattern_of
from tfanalyze.trace import F64

HEAT_BINS = 120


def heat_maps(runs: Sequence[Run]) -> list[Figure]:
    """Queue and KV by instance over time of the first and the last simulated run, each pair on one scale."""
    simulated = [run for run in runs if run.simulated and len(run.instances)]
    shown = simulated[:1] + simulated[1:][-1:]
    if not shown:
        return []
    queues = [_queue(run) for run in shown]
    holds = [_kv(run) for run in shown]
    most = max((float(rows.max()) for _, rows in queues if rows.size), default=0.0)
    figures = [
        _heat(run, "queue", "Engine queue by instance", "requests", t_s, rows, max(most, 1.0), "%{z:.0f} waiting")
        for run, (t_s, rows) in zip(shown, queues, strict=True)
    ]
    if all(one is not None for one in holds):
        used = max(1.0, *(100 * float(one[1].max()) for one in holds if one is not None and one[1].size))
        figures += [
            _heat(run, "kv", "KV use by instance", "% used", one[0], 100 * one[1], used, "%{z:.0f} % of KV used")
            for run, one in zip(shown, holds, strict=True) if one is not None
        ]  # fmt: skip
    else:
        tokens = [_context_tokens(run) for run in shown]
        most = max((float(rows.max()) for _, rows in tokens if rows.size), default=1.0)
        figures += [
            _heat(run, "kv", "Context tokens in the batch by instance", "tokens", t_s, rows, max(most, 1.0), "%{z:,.0f} tokens")
            for run, (t_s, rows) in zip(shown, tokens, strict=True)
        ]  # fmt: skip
    return figures


def _queue(run: Run) -> tuple[F64, F64]:
    series = run.series
    if series is not None and "waiting" in series:
        return thinned(np.asarray(series["t_s"]), np.asarray(series["waiting"]), HEAT_BINS)[0], _across(series, "waiting")
    at_s = _times(run)
    entered = run.arrival_s + run.gateway_s
    return at_s, occupancy(run, entered, entered + run.queue_s, at_s)


def _kv(run: Run) -> tuple[F64, F64] | None:
    series = run.series
    if series is None or "kv_used_share" not in series:
        return None
    return thinned(np.asarray(series["t_s"]), np.asarray(series["kv_used_share"]), HEAT_BINS)[0], _across(series, "kv_used_share")


def _context_tokens(run: Run) -> tuple[F64, F64]:
    at_s = _times(run)
    started = run.arrival_s + run.gateway_s + run.queue_s
    tokens = run.input_tokens.astype(np.float64) + run.delivered_tokens
    return at_s, occupancy(run, started, run.arrival_s + run.e2e_s, at_s, tokens)


def _across(series: Mapping[str, F64], name: str) -> F64:
    rows = thinned(np.asarray(series["t_s"]), np.asarray(series[name]), HEAT_BINS)[1]
    return np.asarray(rows.T, np.float64)


def _times(run: Run) -> F64:
    ends = run.arrival_s + run.e2e_s
    last = float(np.nanmax(ends)) if np.isfinite(ends).any() else float(run.arrival_s[-1])
    return np.linspace(float(np.nanmin(run.arrival_s)), last, HEAT_BINS)


def _heat(run: Run, key: str, title: str, unit: str, t_s: F64, rows: F64, top: float, hover: str) -> Figure:
    span = float(t_s[-1] - t_s[0]) if len(t_s) > 1 else 1.0
    name, size = time_unit(span)
    shown, labels = grouped(rows, run.instances)
    mean = rows.mean(axis=1) if rows.size else np.zeros(len(run.instances))
    high, low = int(mean.argmax()), int(mean.argmin())
    spread = f"{run.instances[high]} is the fullest on average ({numbers.digits(float(mean[high]))} {unit}), " \
             f"{run.instances[low]} the emptiest ({numbers.digits(float(mean[low]))})" if len(mean) > 1 else \
             f"on average {numbers.digits(float(mean[0]))} {unit}"  # fmt: skip
    sentence = f"One row an instance; the stronger the colour, the fuller, on one scale for all runs; {spread}. Uneven rows mean uneven load."
    data = [heat((t_s - t_s[0]) / size, labels, shown, unit, hover, top)]
    layout: Spec = {"xaxis": axis(f"{name} since the start"), "yaxis": {"automargin": True, "autorange": "reversed", "type": "category"}}
    table = Table(("instance", f"mean {unit}", f"highest {unit}"),
                  tuple((run.instances[n], numbers.digits(float(mean[n])), numbers.digits(float(rows[n].max())))
                        for n in range(min(len(mean), 64))))  # fmt: skip
    height = min(520, 150 + 22 * len(shown))
    return figure(f"{key}-{run.label}", f"{title}: {run.label}", sentence, data, layout, table, height=height)


def prefix_hits(runs: Sequence[Run]) -> Figure | None:
    """Share of served prompt tokens that came from a prefix cache, by class."""
    usable = [(k, run) for k, run in enumerate(runs) if bool((run.hit_tokens >= 0).any())]
    if not usable:
        return None
    present = [c for c in range(len(runs[0].classes)) if (runs[0].slo_class == c).any()]
    names = [runs[0].classes[c].name for c in present] + ["all"]
    data, rows, told = [], [], []
    for k, run in usable:
        served = (run.status == 0) & (run.hit_tokens >= 0)
        shares = [_hit_share(run, served & (run.slo_class == c)) for c in present] + [_hit_share(run, served)]
        told.append(f"{run.label} {numbers.share(shares[-1])}")
        text = ["" if np.isnan(value) else f"{100 * value:.0f} %" for value in shares]
        data.append(bar(run.label, names, [100 * value for value in shares], color_of(runs, k), text=text,
                        pattern=pattern_of(runs, k)))  # fmt: skip
        rows.append((run.label, *(numbers.share(value) for value in shares)))
    sentence = f"Prompt tokens that needed no prefill because their prefix was cached: {', '.join(told)}. Higher saves prefill time."
    layout: Spec = {"barmode": "group", "yaxis": axis("% of prompt tokens", rangemode="tozero"), "bargap": 0.25}
    return figure("hits", "Prefix hits by class", sentence, data, layout, Table(("run", *names), tuple(rows)))


def _hit_share(run: Run, rows: np.ndarray) -> float:
    prompt = float(run.input_tokens[rows].sum())
    return float(run.hit_tokens[rows].sum()) / prompt if prompt else float("nan")


def busy(runs: Sequence[Run]) -> Figure | None:
    """Share of the span in which each instance ran steps."""
    shown = [(k, run) for k, run in enumerate(runs) if run.busy_s is not None and len(run.instances) <= 64]
    if not shown:
        return None
    data, rows, told = [], [], []
    for k, run in shown:
        assert run.busy_s is not None
        ends = run.arrival_s + run.e2e_s
        span = float(np.nanmax(ends) - np.nanmin(run.arrival_s)) if np.isfinite(ends).any() else 1.0
        shares = run.busy_s / max(span, 1e-9)
        told.append(f"{run.label} {numbers.share(float(shares.mean()))}")
        data.append(bar(run.label, run.instances, (100 * shares).tolist(), color_of(runs, k), text=[f"{100 * v:.0f} %" for v in shares],
                        pattern=pattern_of(runs, k)))  # fmt: skip
        rows += [(run.label, run.instances[n], numbers.share(float(value))) for n, value in enumerate(shares)]
    sentence = f"Share of the run in which each instance was computing, on average: {', '.join(told)}. The same work in less time leaves room for more."
    layout: Spec = {"barmode": "group", "yaxis": axis("% of the time", rangemode="tozero"), "xaxis": {"automargin": True, "type": "category"}}
    return figure("busy", "How busy the instances were", sentence, data, layout, Table(("run", "instance", "busy"), tuple(rows)))


def site_flows(runs: Sequence[Run], fleet: Fleet | None) -> Figure | None:
    """Offered tokens from each class to each site, in the last simulated run; None with one site."""
    simulated = [run for run in runs if run.simulated]
    if fleet is None or len(fleet.sites) < 2 or not simulated:
        return None
    run = simulated[-1]
    site_names = [site.name for site in fleet.sites]
    site_of = np.array([site_names.index(pool.site) for pool in fleet.pools for _ in range(pool.count)] + [-1])
    if len(site_of) - 1 != len(run.instances):
        return None
    site = site_of[run.instance]
    tokens = np.maximum(run.input_tokens, 0).astype(np.int64) + np.maximum(run.output_tokens, 0)
    names = [one.name for one in run.classes] + site_names + ["not served"]
    links, rows = [], []
    for c, one in enumerate(run.classes):
        for s in range(-1, len(site_names)):
            amount = int(tokens[(run.slo_class == c) & (site == s)].sum())
            if amount:
                target = len(run.classes) + (s if s >= 0 else len(site_names))
                links.append((c, target, amount))
                rows.append((one.name, names[target], numbers.count(amount)))
    colors = [f"@{c % 7}" for c in range(len(run.classes))] + ["@muted"] * (len(site_names) + 1)
    data: list[Spec] = [{
        "type": "sankey", "arrangement": "snap", "valueformat": ",.0f", "valuesuffix": " tokens",
        "node": {"label": names, "color": colors, "pad": 18, "thickness": 16, "line": {"width": 0}},
        "link": {"source": [a for a, _, _ in links], "target": [b for _, b, _ in links], "value": [v for *_, v in links],
                 "color": [f"@{a % 7}:0.35" for a, _, _ in links]},
    }]  # fmt: skip
    by_site = {name: sum(v for _, b, v in links if b == len(run.classes) + s) for s, name in enumerate(site_names)}
    total = max(sum(v for *_, v in links), 1)
    told = ", ".join(f"{name} {numbers.share(value / total)}" for name, value in by_site.items())
    sentence = f"Where the tokens of each class went in {run.label}, wide is much: {told}."
    return figure("sites", f"Site flows: {run.label}", sentence, data, {}, Table(("class", "site", "tokens"), tuple(rows)), wide=True)


def quotas(runs: Sequence[Run]) -> Figure | None:
    """What admission let each class have over time, in the last simulated run that recorded it."""
    for run in reversed(runs):
        for name in ("quota", "admitted"):
            if run.series is not None and name in run.series and np.asarray(run.series[name]).any():
                return _quota(run, name)
    return None


def _quota(run: Run, name: str) -> Figure:
    assert run.series is not None
    t_s, rows = thinned(np.asarray(run.series["t_s"]), np.asarray(run.series[name], np.float64), MAX_BINS)
    unit, size = time_unit(float(t_s[-1] - t_s[0]) if len(t_s) > 1 else 1.0)
    names = [one.name for one in run.classes]
    labels = names if rows.shape[1] == len(names) else [f"queue {q}" for q in range(rows.shape[1])]
    shown = [q for q in range(rows.shape[1]) if rows[:, q].any()][:7]
    data = [line(Line(labels[q], (t_s - t_s[0]) / size, rows[:, q], f"@{q % 7}", DASHES[q % 7], step=True), "%{y:.3g}") for q in shown]
    span = [f"{labels[q]} {numbers.digits(float(rows[:, q].min()))} to {numbers.digits(float(rows[:, q].max()))}" for q in shown]
    title, what = ("Quota movements", "quota") if name == "quota" else ("Admitted by class", "requests in flight")
    told = "The quota of each class, as the controller moved it" if name == "quota" else "Requests that admission let in and that are not finished"
    sentence = f"{told}: {', '.join(span)}. Where one line rises as another falls, room went from one class to the other."
    layout: Spec = {"hovermode": "x unified", "xaxis": axis(f"{unit} since the start"), "yaxis": axis(what, rangemode="tozero")}
    table = Table(("class", "lowest", "highest"), tuple((labels[q], *(numbers.digits(float(f(rows[:, q]))) for f in (np.min, np.max))) for q in shown))
    return figure("quota", f"{title}: {run.label}", sentence, data, layout, table, wide=True)
