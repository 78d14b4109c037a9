"""Terminal tables of what was simulated and decided: replay, compare, tune, plan, check, explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfanalyze.report.numbers import count, digits, pretty, rate, seconds, share, signed_pct, sparkline, words
from tfanalyze.report.parts import Found, grid, now, number, p95, pairs, remarks, sentences, stack, tone, was

FROM_NOTHING_PCT = 1e5  # a difference larger than this is one to a baseline of about zero: no percentage says anything
TONES = {"gain": "green", "within_model_error": "yellow", "keep_current": "yellow", "worse_under_overload": "red"}
VERDICTS = {
    "gain": "gain",
    "within_model_error": "within model error: not a gain",
    "keep_current": "keep what you have",
    "worse_under_overload": "worse under overload: not recommended",
}


def render_replay(found: Found) -> RenderableType:
    metrics = found["metrics"]
    return stack(
        _metric_table(f"Replay of {found.get('policy', '')}", dict(metrics.get("by_class") or {}) | {"all": metrics}),
        _waste(metrics),
        _run_facts(found),
        remarks("Assumed", sentences(found.get("assumed"))),
    )


def _metric_table(title: str, parts: Mapping[str, Found], label: str = "class", extra: Mapping[str, Text] | None = None) -> Table:
    rows: list[Sequence[str | Text]] = []
    for name, one in parts.items():
        row: list[str | Text] = [name, rate(number(one.get("goodput_tok_s")), ""), share(number(one.get("attainment")))]
        row += [seconds(number((one.get("ttft_s") or {}).get(q))) for q in ("p50", "p95")]
        row += [p95(one.get("tpot_s")), share(number(one.get("prefix_hit_share"))), share(number(one.get("shed_share")))]
        rows.append([row[0], *([extra[name]] if extra else []), *row[1:]])
    head = [label, *(["gain"] if extra else []), "goodput", "in SLO", "TTFT P50", "P95", "TPOT P95", "hits", "shed"]
    return grid(title, head, rows)


def _waste(metrics: Found) -> Text | None:
    lost = {name: number for name, number in (metrics.get("waste_tokens") or {}).items() if number}
    return Text("computed for nobody: " + ", ".join(f"{name} {count(number)} tokens" for name, number in lost.items())) if lost else None


def _run_facts(found: Found) -> Table:
    error = found.get("model_error")
    fleet = found.get("fleet") or {}
    rows: list[tuple[str, str | Text]] = [
        ("trace", f"{found.get('trace') or ''} {found.get('trace_hash', '')}: {count(found.get('requests', 0))} requests, load {digits(number(found.get('load', 1.0)))}x".strip()),
        ("fleet", f"{fleet.get('instances', '?')} instances, profile {pretty('', found.get('profile'))} {found.get('profile_hash', '')}"),
        ("model", _model_error(error)),
        ("took", f"{seconds(number(found.get('kernel_s')))} in the core, {seconds(number(found.get('wall_s')))} in all; seed {found.get('seed')}"),
    ]  # fmt: skip
    return pairs("", rows)


def _model_error(error: Any) -> str:
    if isinstance(error, Mapping):
        error = error.get("ttft_s_p95", next(iter(error.values()), None))
    if isinstance(error, (int, float)):
        return f"simulated with a model whose held-out P95 TTFT error is {share(float(error))}"
    return str(error) if error else "not validated on this fleet: tfanalyze validate says how far to trust it"


def render_compare(found: Found) -> RenderableType:
    runs = found["runs"]
    gains = {name: _gain(one.get("gain")) for name, one in runs.items()}
    return stack(
        _metric_table(f"Policies on the same requests; gain in goodput against {found.get('baseline', '')}",
                      {name: one["metrics"] for name, one in runs.items()}, "policy", gains),
        remarks("95 % intervals of the gain", [f"{name}: {_interval(one['gain'])}" for name, one in runs.items() if one.get("gain")]),
        _run_facts(found),
        remarks("Assumed", sentences(found.get("assumed"))),
    )  # fmt: skip


def _gain(found: Any) -> Text:
    value = found.get("pct", found.get("gain_pct")) if isinstance(found, Mapping) else None
    return tone(value, signed_pct(number(value)))


def _interval(found: Any) -> str:
    return f"{signed_pct(number(found.get('ci_low_pct')))} to {signed_pct(number(found.get('ci_high_pct')))}"


def render_tune(found: Found) -> RenderableType:
    word = str(found.get("verdict", ""))
    hold = found.get("holdout") or {}
    head = Text.assemble(("Verdict: ", "bold"), (VERDICTS.get(word, word), f"bold {TONES.get(word, '')}".strip()))
    loads = [(f"{load}x load", *_difference(one)) for load, one in (found.get("by_load") or {}).items()]
    against = [(name, *_difference(one)) for name, one in (found.get("against") or {}).items()]
    names = ("", "baseline", "tuned", "gain", "95 % interval")
    changed = [(name, pretty("", was(one)), pretty("", now(one))) for name, one in (found.get("changed_params") or {}).items()]
    knobs = sorted((found.get("knobs") or {}).items(), key=lambda item: -number(item[1].get("importance")))
    clear = [(name, share(number(one.get("importance")))) for name, one in knobs if one.get("identifiable")]
    vague = len(knobs) - len(clear)
    facts: list[tuple[str, str | Text]] = [
        ("search", f"{found.get('trials', 0)} trials in {seconds(number(found.get('search_s', found.get('wall_s'))))}, Optuna's share {share(number(found.get('optuna_share')))}"),
        ("shed", f"{share(number(found.get('shed_share')))} of offered requests, now {share(number(found.get('shed_share_present')))}"),
    ]  # fmt: skip
    return stack(
        Group(head, Text(str(found.get("verdict_reason", "")))),
        grid("On traffic that the search never saw", names, [("holdout", *_difference(hold)), *loads] if hold else loads),
        grid("Settings to change", ("setting", "now", "tuned"), changed) if changed else Text("No setting changes."),
        grid("Against other policies on the holdout", ("policy", "it", "tuned", "gain", "95 % interval"), against) if against else None,
        grid("Which knobs matter", ("knob", "importance"), clear) if clear else None,
        Text(f"For {vague} {'others ' if clear else ''}any value does on this traffic: do not trust the one found.") if vague else None,
        pairs("", facts),
        _canary(found.get("canary")),
        remarks("Noted", sentences(found.get("notes"))),
    )  # fmt: skip


def _difference(one: Found) -> tuple[str, str, Text, str]:
    gain = one.get("gain_pct")
    if isinstance(gain, (int, float)) and abs(gain) > FROM_NOTHING_PCT:
        return (_amount(one.get("baseline")), _amount(one.get("tuned")), Text("from nothing"), "")
    return (_amount(one.get("baseline")), _amount(one.get("tuned")), tone(gain, signed_pct(number(gain))), _interval(one))


def _amount(value: Any) -> str:
    return digits(float(value), 4) if isinstance(value, (int, float)) else pretty("", value)


def _canary(found: Any) -> Table | None:
    if not isinstance(found, Mapping):
        return None
    return pairs("Canary plan", [(words(str(key)), pretty(str(key), value)) for key, value in found.items()])


def render_plan(found: Found) -> RenderableType:
    target = ", ".join(f"{name} {share(number(value))}" for name, value in (found.get("target") or {}).items())
    rows = [(f"{number(one.get('load')):g}x", str(one.get("gpu") or "as now"), str(one.get("policy")), count(one["needed"]) if one.get("needed") else "out of reach",
             digits(number(one.get("gpus"))), digits(number(one.get("gpu_hours")))) for one in found.get("cases") or ()]  # fmt: skip
    curves: list[tuple[str, str | Text]] = []
    for one in found.get("cases") or ():
        curve = one.get("curve") or []
        if curve:
            line = sparkline([point["attainment"] for point in curve], 40)
            curves.append((f"{one.get('policy')}, {number(one.get('load')):g}x", f"{line}  {curve[0]['instances']} to {curve[-1]['instances']} instances"))
    return stack(
        grid(f"Fewest instances that reach {target}", ("load", "GPU", "policy", "instances", "GPUs", "GPU-hours"), rows, left=3),
        pairs("Attainment by fleet size", curves) if curves else None,
        remarks("Saved", [_saving(one) for one in found.get("savings") or () if one.get("policy_needs")]),
        remarks("Assumed", sentences(found.get("assumed"))),
    )


def _saving(one: Any) -> str:
    """One line of what the better policy saves."""
    gpu = f" of {one['gpu']}" if one.get("gpu") else ""
    needs = one.get("baseline_needs")
    before = f"instead of {count(number(needs))}" if needs else "where the baseline reaches it with no fleet"
    saved = f": {digits(number(one['gpus_saved']))} GPUs saved ({share(number(one.get('saved_share')))})" if one.get("gpus_saved") is not None else ""
    return f"at {number(one.get('load')):g}x load {count(number(one['policy_needs']))} instances{gpu} {before}{saved}"


def render_check(found: Found) -> RenderableType:
    then, seen = found.get("predicted") or {}, found.get("realised") or {}
    kinds = {"attainment": "attainment", "shed": "shed_share", "goodput": "goodput_tok_s", "p50_ttft": "ttft_s", "p95_ttft": "ttft_s"}
    rows = [(words(name), pretty(kinds.get(name, name), then[name]), pretty(kinds.get(name, name), seen.get(name))) for name in then]
    moved = []
    for name, one in (found.get("drift") or {}).items():
        before, after = (_typical(name, one.get(key)) for key in ("was", "is"))
        moved.append((words(name), before, after, Text("moved", style="yellow") if one.get("drifted") else Text("")))
    return stack(
        Group(Text(f"Advice: {str(found.get('advice', '')).replace('_', ' ')}", style="bold"), Text(str(found.get("why", "")))),
        _promise(found),
        grid(f"Predicted against realised, {count(number(found.get('requests')))} requests", ("", "predicted", "realised"), rows) if rows else None,
        grid("Is the traffic still what was tuned on?", ("", "then", "now", ""), moved) if moved else None,
    )


def _promise(found: Found) -> RenderableType | None:
    """What was promised, within which bounds, and what came of it."""
    if "bound" not in found:
        return None
    kind = "ttft_s" if "_" in str(found["metric"]) and str(found["metric"]).startswith("p") else "attainment"
    kept = "measured on the holdout" if found.get("before_measured") else "simulated on the holdout"
    rows = [
        ("before the change", pretty(kind, found["before"]), kept),
        ("promised", pretty(kind, found["expected"]), f"as predicted down to {pretty(kind, found['bound'])}" if kind == "attainment" else f"as predicted up to {pretty(kind, found['bound'])}"),
        ("seen", pretty(kind, found["value"]), f"standard error {pretty(kind, found['value_sd'])}; surely a gain from {pretty(kind, found['gain_above'])}"),
    ]  # fmt: skip
    return grid(f"The promise, by {words(str(found['metric']))}: {str(found['outcome']).replace('_', ' ')}", ("", "", ""), rows, left=3)


def _typical(name: str, value: Any) -> str:
    """A feature of the traffic in one cell: of deciles the middle one."""
    if isinstance(value, list):
        return f"median {pretty(name, value[len(value) // 2])}" if value else ""
    if isinstance(value, Mapping):
        return "/".join(f"{100 * number(one):.0f}" for one in value.values()) + " %"
    return pretty(name, value)


def render_explain(found: Found) -> RenderableType:
    fate, choice = found.get("fate") or {}, found.get("decision") or {}
    limits = fate.get("slo") or {}
    broke = [f"{words(one)} {seconds(number(fate.get(f'{one}_s')))} (limit {seconds(number(limits.get(f'{one}_s')))})" for one in fate.get("broke") or ()]
    end = "inside its SLO" if fate.get("attained") else f"missed its SLO: {', '.join(broke) or fate.get('reason') or fate.get('status')}"
    facts: list[tuple[str, str | Text]] = [
        ("request", f"{found.get('request_id')}, {found.get('slo_class')}, {count(number(found.get('input_tokens')))} tokens in, {count(number(found.get('output_tokens')))} out"),
        ("fate", f"{fate.get('status')} on {fate.get('instance') or 'no instance'}, {end}"),
        ("because", str(choice.get("because", ""))),
    ]  # fmt: skip
    blame = [(words(str(one["cause"])), seconds(number(one.get("seconds"))), share(number(one.get("share")))) for one in found.get("blame") or ()]
    candidates = list(choice.get("candidates") or ())
    terms = list(dict.fromkeys(name for one in candidates for name, value in (one.get("terms") or {}).items() if value))
    rows = [[name, *(digits(number((one.get("terms") or {}).get(name))) for one in candidates[:4])] for name in terms]
    rows.append(["score (lowest wins)", *(digits(number(one.get("score"))) for one in candidates[:4])])
    head = ("term", *(f"{one['instance']}{' *' if one['instance'] == choice.get('chosen') else ''}" for one in candidates[:4]))
    regret = found.get("regret") or {}
    others = [(str(one["instance"]), seconds(number(one.get("ttft_s"))), seconds(number(one.get("e2e_s"))), "yes" if one.get("attained") else "no",
               count(number(one.get("fleet_effective_tokens")))) for one in regret.get("branches") or ()]  # fmt: skip
    return stack(
        pairs(f"Under {found.get('policy', '')}", facts),
        grid("Where its time went", ("", "seconds", "of its miss"), blame) if blame else None,
        grid(f"What the policy saw of {len(candidates)} candidates (* chosen)", head, rows) if candidates else None,
        grid("Had it gone elsewhere", ("instance", "TTFT", "E2E", "in SLO", "fleet's effective tokens"), others) if others else None,
        remarks("Assumed", sentences(found.get("assumed"))),
    )
