"""evidence.md: the same facts as evidence.json, in the order in which a change review asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WHAT = {  # figure of the study -> how it is called, factor, format
    "goodput": ("goodput: output tokens a second, delivered whole and inside their SLO", 1.0, ",.1f"),
    "attainment": ("requests inside their SLO, %", 100.0, ".1f"),
    "p50_ttft": ("P50 TTFT, s", 1.0, ".3g"),
    "p95_ttft": ("P95 TTFT, s", 1.0, ".3g"),
    "shed": ("requests turned away, %", 100.0, ".1f"),
}


def as_markdown(doc: Mapping[str, Any], rests_on: tuple[str, ...]) -> str:
    """The evidence for people."""
    lines = [
        f"# Change of {doc['target']}: evidence",
        "",
        *_gain(doc),
        "",
        "## What changes",
        "",
        *_changes(doc),
    ]
    for title, key in (
        ("Accepted against the tool's advice", "accepted_doubts"),
        ("Notes", "notes"),
        ("The study's notes", "study_notes"),
        ("Approximated", "dropped"),
    ):
        if doc.get(key):
            lines += ["", f"## {title}", "", *[f"- {line}" for line in doc[key]]]
    lines += ["", "## Load it", "", *[f"    {line}" for line in doc["commands"]]]
    lines += _canary(doc.get("canary"))
    lines += ["", "## Roll back", "", str(doc["rollback"]), "", "## What it rests on", ""]
    lines += [
        f"- {key.replace('_', ' ')}: `{doc[key]}`" for key in rests_on if key in doc and key != "version"
    ]
    if not doc.get("tuned"):
        lines.append("- no study: nothing was measured")
    lines += [
        f"- model error (held-out P95 TTFT): {_error(doc.get('model_error'))}",
        f"- written by tfanalyze {doc['tfanalyze']}",
        f"- this target is {doc['proof']}",
    ]
    return "\n".join(lines) + "\n"


def _gain(doc: Mapping[str, Any]) -> list[str]:
    hold = doc.get("holdout")
    if not isinstance(hold, Mapping):
        return ["No study came with this export: **no gain is claimed**."]
    verdict = str(doc.get("verdict", "none"))
    lines = [f"Verdict: **{verdict}**. {doc.get('verdict_reason', '')}".rstrip()]
    if verdict != "gain":
        lines += ["", "The study does **not** advise this change: it is here because it was asked for."]
    base = f"`{doc['baseline']}`" if doc.get("baseline") else "the present config"
    if hold.get("gain_pct") is not None:
        counted = (
            f"{int(hold['requests']):,} requests that the tuning never saw"
            if hold.get("requests")
            else "traffic that the tuning never saw"
        )
        lines += [
            "",
            f"Replayed on {counted}: **{hold['gain_pct']:+.1f} %** {doc.get('objective', 'goodput')} against {base}{_interval(hold)}.",
        ]
    lines += _figures(doc, base)
    loads = [
        (load, row)
        for load, row in (doc.get("by_load") or {}).items()
        if isinstance(row, Mapping) and row.get("gain_pct") is not None
    ]
    if loads:
        lines += ["", "| times the recorded load | gain |", "|---|---|"]
        lines += [f"| {load} | {row['gain_pct']:+.1f} %{_interval(row)} |" for load, row in loads]
    return lines + _others(doc, hold)


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row.get("ci_low_pct"), row.get("ci_high_pct")
    return f" (95 % interval {low:+.1f} to {high:+.1f} %)" if low is not None and high is not None else ""


def _figures(doc: Mapping[str, Any], base: str) -> list[str]:
    before, after = doc.get("predicted_present") or {}, doc.get("predicted") or {}
    rows = [
        f"| {words} | {before[name] * factor:{form}} | {after[name] * factor:{form}} |"
        for name, (words, factor, form) in WHAT.items()
        if before.get(name) is not None and after.get(name) is not None
    ]
    return ["", f"| predicted | {base} | this config |", "|---|---|---|", *rows] if rows else []


def _others(doc: Mapping[str, Any], hold: Mapping[str, Any]) -> list[str]:
    """What else was replayed on the same traffic and did as well or better."""
    mine = hold.get("tuned")
    others = {
        name: value for name, value in (doc.get("baselines") or {}).items() if isinstance(value, int | float)
    }
    if mine is None or not others:
        return []
    sign = -1.0 if doc.get("direction") == "minimize" else 1.0
    better = sorted(
        (name for name in others if sign * (others[name] - mine) > 0), key=lambda name: -sign * others[name]
    )
    if not better:
        return [
            "",
            f"None of {len(others)} other policies did better on the same traffic: {', '.join(others)}.",
        ]
    found = ", ".join(f"{name} {others[name]:,.4g}" for name in better)
    return [
        "",
        f"**Better on the same traffic** than this config ({mine:,.4g}): {found}. Differences may be within the interval above.",
    ]


def _changes(doc: Mapping[str, Any]) -> list[str]:
    changed, moved = doc["changed"], doc.get("changed_params") or {}
    if any(old is not None for old, _ in changed.values()):
        return [
            f"- `{name}`: {'not set' if old is None else old} -> {'taken away' if new is None else new}"
            for name, (old, new) in changed.items()
        ]
    if not changed:
        return ["- nothing"]
    lines = ["The present config was not given (`--from FILE`), so what it sets now is not known.", ""]
    for name, (_, new) in changed.items():
        if name in moved:
            unit = moved[name].get("unit") or ""
            lines.append(f"- `{name}`: {new} {unit}".rstrip() + f" (default {moved[name].get('from')})")
    rest = [f"`{name}` {new}" for name, (_, new) in changed.items() if name not in moved]
    if rest:
        lines += [
            f"- written too, {'not moved by the search' if moved else 'as they are'}: {', '.join(rest)}"
        ]
    return lines


def _canary(plan: Any) -> list[str]:
    if not isinstance(plan, Mapping) or not plan.get("how"):
        return []
    lines = ["", "## Try it first", "", f"{str(plan['how'])[0].upper()}{str(plan['how'])[1:]}"]
    if plan.get("share") is not None and plan.get("hours") is not None:
        lines[-1] += f": {plan['share']:.0%} of the traffic for {plan['hours']:g} h"
        lines[-1] += f" in slices of {plan['slice_minutes']:g} min" if plan.get("slice_minutes") else ""
    lines[-1] += "."
    stop = plan.get("roll_back_when") or {}
    if stop.get("attainment_below") is not None:
        lines.append(
            f"Roll back when attainment is below {stop['attainment_below']:.1%}"
            + (f", or {stop['or']}" if stop.get("or") else "")
            + "."
        )
    return lines


def _error(value: Any) -> str:
    by = value.get("by") if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("ttft_s_p95", value.get("value"))
    return f"unknown ({by or 'no profile was validated'})" if value is None else f"{float(value):.1%}"
