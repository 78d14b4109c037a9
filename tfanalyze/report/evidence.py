"""Headline, tuning evidence, ceilings, export: what was gained, how sure that is, and how it was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfanalyze.report import numbers
from tfanalyze.report.columns import Run
from tfanalyze.report.figures import Figure, Line, Spec, Table, amounts, axis, bar, figure, level, line
from tfanalyze.report.runs import attainment, goodput_tok_s
from tfanalyze.report.section import Block, Card, Cards, Heading, Lines, Note

VERDICTS = {
    "gain": ("Gain", "good", "The tuned settings do better on traffic that the search never saw, by more than chance and the model's error explain."),
    "within_model_error": ("Within model error", "unsure", "The difference is smaller than what the model gets wrong: not a gain."),
    "keep_current": ("Keep what you have", "unsure", "No setting found does reliably better than the present ones."),
    "worse_under_overload": ("Not recommended", "bad", "The tuned settings do better at the recorded load but worse when it grows."),
}  # fmt: skip
MAX_POINTS = 500


def headline(runs: Sequence[Run], tune: Mapping[str, Any] | None) -> list[Block]:
    """The few numbers that decide: goodput now, tuned, interval, verdict; else the runs; else nothing."""
    holdout = (tune or {}).get("holdout")
    if tune and holdout:
        return _tuned_headline(tune, holdout)
    if not runs:
        return [Note("No run to compare yet: tfanalyze compare --policy round_robin --policy tokenpilot adds some.", missing=True)]
    simulated = [run for run in runs if run.simulated] or list(runs)
    first, best = simulated[0], max(simulated, key=goodput_tok_s)
    cards = [_run_card(run, first) for run in runs[:6]]
    gain = 100 * (goodput_tok_s(best) / goodput_tok_s(first) - 1) if goodput_tok_s(first) > 0 else float("nan")
    text = (
        f"{best.label} delivers the most effective tokens, {numbers.signed_pct(gain)} against {first.label}, one run each: "
        "run tfanalyze tune for an interval and a holdout before changing anything."
        if best is not first
        else f"None of the other runs delivers more effective tokens than {first.label}."
    )
    return [Cards(tuple(cards)), Note(text)]


def _run_card(run: Run, first: Run) -> Card:
    now, base = goodput_tok_s(run), goodput_tok_s(first)
    change = "" if run is first or base <= 0 or not run.simulated else f"{numbers.signed_pct(100 * (now / base - 1))} · "
    return Card(f"goodput, {run.label}", numbers.rate(now), f"{change}attainment {numbers.share(attainment(run))}")


def _tuned_headline(tune: Mapping[str, Any], holdout: Mapping[str, Any]) -> list[Block]:
    word, tone, meaning = VERDICTS.get(str(tune.get("verdict")), (str(tune.get("verdict")), "", ""))
    low, high = holdout.get("ci_low_pct"), holdout.get("ci_high_pct")
    level_pct = f"{100 * float(holdout.get('confidence', 0.95)):.0f} %"
    interval = f"{level_pct} interval {numbers.pretty('x_pct', low)} to {numbers.pretty('x_pct', high)}"
    cards = [
        Card("goodput with the present settings", _value(holdout.get("baseline")), f"on the holdout, {tune.get('baseline', 'baseline')}"),
        Card("goodput tuned", _value(holdout.get("tuned")), f"on the holdout, {tune.get('policy', 'tuned policy')}"),
        Card("change", numbers.pretty("x_pct", holdout.get("gain_pct")), interval, tone),
        Card("verdict", word, _sheds(tune), tone),
    ]  # fmt: skip
    said = f"{meaning} {tune.get('verdict_reason', '')}".strip()
    tail = "The figures below replay the whole trace, also the part that the search saw: they explain, the numbers above prove."
    return [Cards(tuple(cards)), Note(f"{said} {tail}")]


def _sheds(tune: Mapping[str, Any]) -> str:
    now = tune.get("shed_share_present")
    before = f" (now {numbers.share(float(now))})" if now is not None else ""
    return f"sheds {numbers.share(_shed(tune))} of the requests{before}" if _shed(tune) == _shed(tune) else ""


def _value(found: Any) -> str:
    if isinstance(found, Mapping):
        found = found.get("goodput_tok_s", found.get("value"))
    return numbers.rate(float(found)) if found is not None else numbers.NONE


def _shed(tune: Mapping[str, Any]) -> float:
    found = tune.get("shed_share")
    found = found.get("tuned") if isinstance(found, Mapping) else found
    return float("nan") if found is None else float(found)


# tuning ---------------------------------------------------------------------------------------------------------


def tuning(tune: Mapping[str, Any] | None) -> list[Block | None]:
    if not tune:
        return [Note("No tuning study yet: tfanalyze tune --objective goodput fills this.", missing=True)]
    return [
        changed(tune), by_load(tune), history(tune), importance(tune), pareto(tune), rivals(tune), _study(tune), canary(tune),
    ]  # fmt: skip


def changed(tune: Mapping[str, Any]) -> Table | None:
    """The settings that the study wants to change."""
    found = tune.get("changed_params")
    if not found:
        return None
    best = tune.get("best_params", {})
    rows = []
    items = found.items() if isinstance(found, Mapping) else ((name, best.get(name)) for name in found)
    for name, change in items:
        if isinstance(change, Mapping):
            old, new = change.get("from", change.get("old", change.get("current"))), change.get("to", change.get("new", change.get("tuned")))
        elif isinstance(change, (list, tuple)) and len(change) == 2:
            old, new = change
        else:
            old, new = None, change
        rows.append((str(name), _setting(old), _setting(new)))
    kept = max(len(best) - len(rows), 0)
    said = f"{kept} other knobs stay as they are: they made no difference that could be told from noise." if kept else ""
    title = "Settings to change" if _is_gain(tune) else "Settings that the study would change"
    return Table(("setting", "now", "tuned"), tuple(rows), title, said if _is_gain(tune) else f"{NOT_ADVISED} {said}".strip())


def _setting(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value if value is not None else numbers.NONE)


def by_load(tune: Mapping[str, Any]) -> Figure | None:
    """Gain at 0.8, 1.0 and 1.2 times the recorded load, with intervals."""
    found = tune.get("by_load")
    if not found:
        return None
    items = found.items() if isinstance(found, Mapping) else ((one.get("load"), one) for one in found)
    points = [(float(load), one) for load, one in items]
    x = [f"{load:g}x" for load, _ in points]
    gain = [float(one["gain_pct"]) for _, one in points]
    low = [float(one.get("ci_low_pct", one["gain_pct"])) for _, one in points]
    high = [float(one.get("ci_high_pct", one["gain_pct"])) for _, one in points]
    error: Spec = {"type": "data", "symmetric": False, "array": [h - g for g, h in zip(gain, high, strict=True)],
                   "arrayminus": [g - b for g, b in zip(gain, low, strict=True)], "color": "@fg", "thickness": 1.5}  # fmt: skip
    data = [bar("gain", x, gain, "@0", error=error)]
    told = ", ".join(f"{numbers.signed_pct(g)} at {name}" for name, g in zip(x, gain, strict=True))
    sentence = f"Change of goodput on the holdout: {told} of the recorded load. Where a whisker touches zero, no difference is proven."
    layout: Spec = {"yaxis": axis("% change of goodput", zeroline=True), "xaxis": axis("load", type="category"), "bargap": 0.5, "showlegend": False}
    rows = tuple((name, *(numbers.signed_pct(v) for v in (g, lo, hi))) for name, g, lo, hi in zip(x, gain, low, high, strict=True))
    return figure("loads", "Gain by load", sentence, data, layout, Table(("load", "gain", "low", "high"), rows))


def history(tune: Mapping[str, Any]) -> Figure | None:
    """Objective of every trial and the best so far."""
    trials = [one for one in (tune.get("history") or ()) if one.get("value") is not None]
    if not trials:
        return None
    value = np.array([float(_first(one["value"])) for one in trials])
    number = np.array([int(one.get("number", one.get("trial", k))) for k, one in enumerate(trials)])
    down = str(tune.get("direction", "maximize")).startswith("min")
    best = np.minimum.accumulate(value) if down else np.maximum.accumulate(value)
    step = max(1, -(-len(trials) // MAX_POINTS))
    dots: Spec = {
        "type": "scatter", "mode": "markers", "name": "trial", "x": number[::step].tolist(), "y": [float(f"{v:.5g}") for v in value[::step]],
        "marker": {"color": "@5", "size": 6, "opacity": 0.7}, "hovertemplate": "trial %{x}: %{y:.4g}<extra></extra>",
    }  # fmt: skip
    lead = line(Line("best so far", number[::step], best[::step], "@1", step=True), "best of the first %{x}: %{y:.4g}")
    found = int(np.flatnonzero(value == best[-1])[0])
    sentence = (f"Each dot is one trial on the tuning window, the line the best so far. The best of {len(trials)} came at trial {number[found]}"
                f"{'; it still rose near the end, so more trials may help' if found > 0.9 * len(trials) else ''}.")  # fmt: skip
    layout: Spec = {"xaxis": axis("trial"), "yaxis": axis(numbers.words(str(tune.get("objective", "objective"))))}
    rows = tuple((str(number[k]), numbers.digits(float(value[k]), 5), numbers.digits(float(best[k]), 5))
                 for k in np.unique(np.linspace(0, len(trials) - 1, 12).astype(int)))  # fmt: skip
    return figure("history", "Tuning history", sentence, [dots, lead], layout, Table(("trial", "value", "best so far"), rows))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def importance(tune: Mapping[str, Any]) -> Figure | None:
    """Share of the objective's variation that each knob explains."""
    found = tune.get("importance")
    if not found:
        return None
    items = {name: (one.get("importance", one.get("share", 0.0)) if isinstance(one, Mapping) else one) for name, one in found.items()}
    known = sorted(((str(name), float(value)) for name, value in items.items() if value is not None), key=lambda item: -item[1])
    ranked = [item for item in known if item[1] >= 0.005][:20]
    if not ranked:
        return None
    rest = len(known) - len(ranked)
    tail = f" For the other {rest} any value does on this traffic; they stay as they are." if rest else ""
    names, values = [name for name, _ in ranked], [100 * value for _, value in ranked]
    data = [bar("importance", names, values, "@0", across=True, text=[f"{value:.0f} %" for value in values])]
    sentence = f"Share of the differences between trials that each knob explains; {names[0]} matters most.{tail}"
    layout: Spec = {"xaxis": amounts("% of the variation", values), "yaxis": axis("", autorange="reversed", automargin=True), "showlegend": False}
    rows = tuple((name, f"{value:.1f} %") for name, value in zip(names, values, strict=True))
    return figure("importance", "Which knobs matter", sentence, data, layout, Table(("knob", "share"), rows), height=110 + 26 * len(names))


def pareto(tune: Mapping[str, Any]) -> Figure | None:
    """Trials of a study with two objectives, and those that no other beats in both."""
    found = tune.get("pareto")
    points = found.get("front", found.get("points")) if isinstance(found, Mapping) else found
    if not points or len(_pair(points[0])) < 2:
        return None
    values = points[0].get("values") if isinstance(points[0], Mapping) else None
    names = [str(name) for name in values] if isinstance(values, Mapping) else ["first objective", "second objective"]
    pairs = sorted(_pair(one)[:2] for one in points)[:MAX_POINTS]
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    data: list[Spec] = [{
        "type": "scatter", "mode": "lines+markers", "name": "front", "x": x, "y": y, "line": {"color": "@0", "shape": "hv"},
        "marker": {"size": 8, "color": "@0"}, "hovertemplate": f"{names[0]} %{{x:.4g}}<br>{names[1]} %{{y:.4g}}<extra></extra>",
    }]  # fmt: skip
    sentence = f"{len(pairs)} settings that no other trial beats in both {names[0]} and {names[1]}: pick by what you can give up."
    layout: Spec = {"xaxis": axis(str(names[0])), "yaxis": axis(str(names[1])), "showlegend": False}
    rows = tuple((numbers.digits(a, 4), numbers.digits(b, 4)) for a, b in pairs[:40])
    return figure("pareto", "Pareto front", sentence, data, layout, Table((str(names[0]), str(names[1])), rows))


def _pair(point: Any) -> tuple[float, ...]:
    values = point.get("values", point.get("value")) if isinstance(point, Mapping) else point
    values = values.values() if isinstance(values, Mapping) else values
    return tuple(float(one) for one in values) if isinstance(values, (list, tuple)) or hasattr(values, "__iter__") else ()


def rivals(tune: Mapping[str, Any]) -> Figure | None:
    """Goodput of the other policies on the same holdout."""
    found = tune.get("baselines")
    holdout = tune.get("holdout") or {}
    if not found:
        return None
    values = {str(name): _number(one) for name, one in found.items()}
    values |= {"present settings": _number(holdout.get("baseline")), "tuned": _number(holdout.get("tuned"))}
    ranked = sorted(((name, value) for name, value in values.items() if value == value), key=lambda item: -item[1])
    if not ranked:
        return None
    colors = ["@0" if name == "tuned" else "@1" if name == "present settings" else "@6" for name, _ in ranked]
    data = [bar("goodput", [name for name, _ in ranked], [value for _, value in ranked], "@0", across=True,
                text=[_amount(value) for _, value in ranked])]  # fmt: skip
    data[0]["marker"]["color"] = colors
    sentence = f"Effective tokens a second on the holdout, the same requests for all; {ranked[0][0]} comes out first."
    layout: Spec = {"xaxis": amounts("tokens/s", [value for _, value in ranked]), "yaxis": axis("", autorange="reversed", automargin=True), "showlegend": False}
    rows = tuple((name, numbers.rate(value)) for name, value in ranked)
    return figure("rivals", "Against other policies", sentence, data, layout, Table(("policy", "goodput"), rows), height=110 + 28 * len(ranked))


def _number(found: Any) -> float:
    if isinstance(found, Mapping):
        found = found.get("goodput_tok_s", found.get("goodput", found.get("value")))
    return float(found) if isinstance(found, (int, float)) else float("nan")


STUDY = {
    "policy": "policy", "baseline": "against", "objective": "objective", "trials": "trials", "full_trials": "of them on the whole window",
    "duplicates": "skipped as tried before", "sampler": "sampler", "wall_s": "took", "optuna_share": "Optuna's share of the time", "seed": "seed",
    "shed_share": "sheds", "shed_share_present": "sheds now", "model_error_pct": "model error, of a difference", "strongest_untuned": "strongest untuned policy",
    "beats_untuned": "beats it for sure", "beats_random": "beats random search", "timed_out": "stopped by its time limit", "study": "name", "storage": "kept in",
}  # fmt: skip


def _study(tune: Mapping[str, Any]) -> Table | None:
    rows = tuple((label, numbers.pretty(key, tune[key])) for key, label in STUDY.items() if tune.get(key) not in (None, ""))
    return Table(("", ""), rows, "The study") if rows else None


def canary(tune: Mapping[str, Any]) -> Table | None:
    plan = tune.get("canary")
    if not isinstance(plan, Mapping):
        return None
    rows = tuple((numbers.words(str(key)), numbers.pretty(str(key), value)) for key, value in plan.items())
    said = "Try it on a part of the traffic first; roll back when the metric says so."
    return Table(("", ""), rows, "Canary plan", said if _is_gain(tune) else f"{NOT_ADVISED} Should you try it all the same:")


NOT_ADVISED = "The verdict is against changing anything."


def _is_gain(tune: Mapping[str, Any]) -> bool:
    return tune.get("verdict") == "gain"


def _amount(value: float) -> str:
    return numbers.rate(value, "").strip()


# ceilings, export -------------------------------------------------------------------------------------------------


def ceilings(runs: Sequence[Run], found: Mapping[str, Any] | None) -> Figure | Note:
    """Goodput with an infinite cache, perfect signals and so on, beside the runs."""
    if not found:
        return Note("No ceilings computed: tfanalyze replay --infinite-cache and --perfect-signals show how much head-room is left.", missing=True)
    values = {run.label: goodput_tok_s(run) for run in runs if run.simulated}
    own = set(values)
    values |= {str(name): _number(one) for name, one in found.items()}
    offered = next((float(run.summary["offered_output_tokens"]) / float(run.summary["window_s"]) for run in runs if run.summary.get("window_s")), None)
    names = list(values)
    data = [bar("goodput", names, [values[name] for name in names], "@0", across=True, text=[_amount(values[name]) for name in names])]
    data[0]["marker"]["color"] = ["@0" if name in own else "@2" for name in names]
    top = max(values, key=lambda name: values[name])
    best = max((values[name] for name in own), default=float("nan"))
    room = numbers.signed_pct(100 * (values[top] / best - 1)) if best > 0 else numbers.NONE
    told = "none of them would beat the best run" if top in own else f"{top} would add {room} to the best run"
    sentence = f"What the same policy could reach if something were free or known: {told}. Where the distance is small, work on it is not worth much."
    layout: Spec = {"xaxis": amounts("tokens/s", [*values.values(), offered or 0.0]), "yaxis": axis("", autorange="reversed", automargin=True), "showlegend": False}
    if offered:
        shape, note = level(offered, "offered", upright=True)
        layout |= {"shapes": [shape], "annotations": [{**note, "x": offered}]}
    rows = tuple((name, numbers.rate(values[name])) for name in names)
    return figure("ceilings", "Head-room: ceilings", sentence, data, layout, Table(("what", "goodput"), rows), height=110 + 28 * len(names))


EXPORTED = {"target": "target", "out": "folder", "files": "files", "proof": "how it was checked", "doubts": "doubts", "notes": "notes",
            "dropped": "left out", "commands": "to put it in place", "rollback": "to take it back"}  # fmt: skip


def exported(found: Mapping[str, Any] | None) -> list[Block | None]:
    """What was written for the gateway."""
    if not found:
        return [Heading("Export"), Note("Nothing exported yet: tfanalyze export --target tokenfleet writes the gateway's config and its evidence.", missing=True)]
    blocks: list[Block | None] = [Heading("Export")]
    rows = tuple((label, numbers.pretty(key, found[key])) for key, label in EXPORTED.items() if found.get(key))
    blocks.append(Table(("", ""), rows))
    if found.get("diff"):
        blocks.append(Lines(tuple(str(found["diff"]).splitlines()[:200]), code=True))
    return blocks
