"""Results as tables of at most 80 columns; each `render_<command>` takes what that command returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfanalyze.report.numbers import (
    NONE,
    count,
    digits,
    pretty,
    rate,
    seconds,
    sentence,
    share,
    signed_pct,
    sparkline,
    words,
)

Found = Mapping[str, Any]
TONES = {"gain": "green", "within_model_error": "yellow", "keep_current": "yellow", "worse_under_overload": "red"}
VERDICTS = {
    "gain": "gain",
    "within_model_error": "within model error: not a gain",
    "keep_current": "keep what you have",
    "worse_under_overload": "worse under overload: not recommended",
}
MOST_LINES = 8


# parts ----------------------------------------------------------------------------------------------------------


def grid(title: str, head: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1) -> Table:
    """A plain table: the first `left` columns are words, the others numbers."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for k, name in enumerate(head):
        table.add_column(name, justify="left" if k < left else "right", overflow="fold", header_style="dim", no_wrap=k >= left)
    for row in rows:
        table.add_row(*row)
    return table


def pairs(title: str, rows: Iterable[tuple[str, str | Text]]) -> Table:
    """A name and a value a line."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def stack(*parts: RenderableType | None) -> Group:
    """Parts under each other with a blank line between."""
    shown = [part for part in parts if part is not None]
    return Group(*(part if k == len(shown) - 1 else Padding(part, (0, 0, 1, 0)) for k, part in enumerate(shown)))


def remarks(title: str, lines: Sequence[Any], most: int = MOST_LINES) -> Group | None:
    """A list of sentences; those past `most` are counted."""
    if not lines:
        return None
    shown = [Text(f"- {pretty('', line)}", overflow="fold") for line in lines[:most]]
    if len(lines) > most:
        shown.append(Text(f"  and {len(lines) - most} more: --json has them all", style="dim"))
    return Group(Text(title, style="bold"), *shown)


def tone(value: float | None, text: str) -> Text:
    """Green above zero, red below."""
    return Text(text, style="" if not value else "green" if value > 0 else "red")


def three(found: Any) -> str:
    """P50 / P95 / P99 of a duration."""
    return " / ".join(seconds(_float(found.get(q))) for q in ("p50", "p95", "p99")) if isinstance(found, Mapping) else NONE


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)


# commands -------------------------------------------------------------------------------------------------------


def render_ingest(found: Found) -> RenderableType:
    files, totals = list(found.get("files") or []), found.get("totals") or {}
    rows = [(_tail(str(one.get("path", ""))), str(one.get("format", "")), count(one.get("rows", 0)), count(one.get("taken", 0)),
             count(one.get("rejected", 0)) + (" (known already)" if one.get("already") else "")) for one in files[:40]]  # fmt: skip
    reasons: dict[str, int] = {}
    for one in files:
        for reason, number in (one.get("reasons") or {}).items():
            reasons[str(reason)] = reasons.get(str(reason), 0) + int(number)
    notes = list(dict.fromkeys(str(note) for one in files for note in one.get("notes") or ()))
    skipped = [f"{_tail(str(one.get('path', '')))}: {one.get('why', '')}" for one in found.get("skipped") or ()]
    skipped = [line.replace(f"{one.get('path', '')}: ", "") for line, one in zip(skipped, found.get("skipped") or (), strict=True)]
    return stack(
        grid("Ingested", ("file", "format", "rows", "taken", "rejected"), rows, left=2) if rows else Text("Nothing ingested."),
        remarks("Rejected, by reason", [f"{reason}: {count(number)}" for reason, number in reasons.items()]),
        remarks("Skipped", skipped),
        remarks("Noted", notes),
        pairs("", [(words(str(key)), pretty(str(key), value)) for key, value in totals.items() if not isinstance(value, dict)]) if len(files) > 1 else None,
        Text(f"in {found['db']}", style="dim") if found.get("db") else None,
    )  # fmt: skip


def render_inspect(found: Found) -> RenderableType:
    speed = found.get("rate") or {}
    facts: list[tuple[str, str | Text]] = [
        ("requests", f"{count(found['requests'])} over {seconds(_float(found.get('span_s')))}, from {found.get('began') or 'an unknown date'}"),
        ("rate", f"{rate(_float(speed.get('mean_req_s')), 'req/s')} on average, {rate(_float(speed.get('peak_minute_req_s')), 'req/s')} in the busiest minute"),
        ("over time", sparkline(speed.get("by_time") or [], 56)),
    ]  # fmt: skip
    sessions, prefix = found.get("sessions") or {}, found.get("prefix") or {}
    if sessions.get("sessions"):
        facts.append(("sessions", f"{count(sessions['sessions'])}, {digits(_float(sessions.get('turns_mean')))} turns each, think time P50 {seconds(_float(sessions.get('think_s_p50')))}"))
    facts.append(("prefix", f"{share(_float(prefix.get('reusable_share')))} of prompt tokens seen before, {share(_float(prefix.get('cached_share')))} were cached"))
    tokens = [(words(name), *(count(_float(one.get(q))) for q in ("mean", "p50", "p95", "p99", "max"))) for name, one in (found.get("tokens") or {}).items() if one.get("known")]
    return stack(
        pairs("Workload", facts),
        grid("Tokens", ("", "mean", "P50", "P95", "P99", "max"), tokens) if tokens else None,
        _classes(found),
        _time(found.get("time") or {}),
        _statuses(found),
        remarks("Assumed", list(found.get("assumed") or ())),
        remarks("Rejected rows", [f"{one['file']}:{one['line']}: {one['reason']}" for one in found.get("rejects") or ()], 100),
    )  # fmt: skip


def _classes(found: Found) -> Table:
    seen = (found.get("observed") or {}).get("by_class") or {}
    rows = []
    for name, one in (found.get("classes") or {}).items():
        mine = seen.get(name) or {}
        rows.append((name, count(one["requests"]), share(_float(mine.get("attainment"))),
                     rate(_float(mine.get("goodput_tok_s")), ""), three(mine.get("ttft_s")), _p95(mine.get("tpot_s"))))  # fmt: skip
    whole = found.get("observed")
    if whole and len(rows) > 1:
        rows.append(("all", count(whole["requests"]), share(_float(whole.get("attainment"))), rate(_float(whole.get("goodput_tok_s")), ""),
                     three(whole.get("ttft_s")), _p95(whole.get("tpot_s"))))  # fmt: skip
    return grid("Classes, as observed", ("class", "requests", "in SLO", "goodput", "TTFT P50/P95/P99", "TPOT P95"), rows)


def _p95(found: Any) -> str:
    return seconds(_float(found.get("p95"))) if isinstance(found, Mapping) else NONE


def _time(found: Found) -> Table | None:
    parts = found.get("share") or {}
    rows = [(name, share(value), "█" * round(40 * value)) for name, value in parts.items()]
    if not rows:
        return None
    table = grid("Where the requests' time went", ("", "share", ""), rows)
    table.columns[2].justify = "left"
    return table


def _statuses(found: Found) -> Table:
    status = (found.get("observed") or {}).get("status") or {}
    rows: list[tuple[str, str | Text]] = [
        ("ends", ", ".join(f"{name} {count(n)}" for name, n in status.items()) or "unknown"),
        ("retries", count(found.get("retries") or 0)),
        ("instances", ", ".join(f"{name} {count(n)}" for name, n in list((found.get("instances") or {}).items())[:12]) or "not in the log"),
        ("rejected rows", ", ".join(f"{name} {count(n)}" for name, n in (found.get("rejected") or {}).items()) or "none"),
        ("metrics", f"{count(sum((found.get('metrics') or {}).values()))} samples of {len(found.get('metrics') or {})} quantities"),
    ]  # fmt: skip
    return pairs("", rows)


def render_fit(found: Found) -> RenderableType:
    parts: list[RenderableType | None] = []
    for name, one in (found.get("profiles") or {}).items():
        rows = [(key, f"{_float(c.get('value')):.3g}", f"{_float(c.get('low')):.3g}", f"{_float(c.get('high')):.3g}", str(c.get("unit", "")))
                for key, c in _items(one.get("coefficients"))]  # fmt: skip
        table = grid(f"Profile {name}: step time, with 90 % intervals", ("coefficient", "value", "low", "high", "unit"), rows)
        table.columns[4].justify = "left"
        parts.append(table if rows else None)
        held = [(words(key), share(_float(value))) for key, value in (one.get("held_out") or {}).items() if isinstance(value, (int, float))]
        parts.append(grid("Error on held-out data", ("", "error"), held) if held else None)
        parts.append(remarks("What the log can tell apart", _sentences(one.get("identifiability"))))
        parts.append(remarks("Health", _sentences(one.get("health"))))
    parts.append(remarks("Health", _sentences(found.get("health"))))
    parts.append(remarks("Assumed", _sentences(found.get("assumed"))))
    parts.append(Text(f"written to {found['out']}", style="dim") if found.get("out") else None)
    return stack(*parts)


def _items(found: Any) -> Iterable[tuple[str, Found]]:
    if isinstance(found, Mapping):
        return [(str(key), one if isinstance(one, Mapping) else {"value": one}) for key, one in found.items()]
    return [(str(one.get("name", k)), one) for k, one in enumerate(found or ())]


def _sentences(found: Any) -> list[str]:
    """Whatever a check found, as lines; its empty parts are left out, a part's own sentence stands for the part."""
    if isinstance(found, Mapping):
        return [f"{words(str(key))}: {pretty(str(key), value)}" for key, value in found.items() if value not in (None, [], {}, "")]
    if isinstance(found, str):
        return [found] if found else []
    return [sentence(one) for one in found or ()]


def render_validate(found: Found) -> RenderableType:
    seen, said, errors = (found.get(key) or {} for key in ("observed", "predicted", "errors"))
    rows: list[Sequence[str | Text]] = []
    for key in ("capacity_tok_s", "output_tok_s", "goodput_tok_s", "attainment", "prefix_hit_share"):
        if seen.get(key) is not None or said.get(key) is not None:
            unit = "points" if key in ("attainment", "prefix_hit_share") else "%"
            rows.append((words(key), pretty(key, seen.get(key)), pretty(key, said.get(key)), _error(errors.get(key), unit)))
    for measure in ("ttft_s", "tpot_s", "e2e_s"):
        for q in ("p50", "p95", "p99"):
            at = [(one.get(measure) or {}).get(q) for one in (seen, said, errors)]
            rows.append((f"{words(measure)} {q.upper()}", seconds(_float(at[0])), seconds(_float(at[1])), _error(at[2], "%")))
    windows = [(f"{seconds(one['start_s'])} .. {seconds(one['end_s'])}", words(str(one["metric"])), count(one["requests"]), _error(one["error"], "%"))
               for one in found.get("worst_windows") or ()]  # fmt: skip
    worst, limit = found.get("worst_error") or {}, found.get("max_error")
    verdict = f"worst gated error {share(_float(worst.get('value')))} ({worst.get('of', '')})"
    if limit is not None:
        verdict += f", limit {share(_float(limit))}: {'within it' if found.get('ok') else 'ABOVE it'}"
    outside = (found.get("regime") or {}).get("text")
    return stack(
        grid("Predicted against observed", ("", "observed", "predicted", "error"), rows),
        _series(found.get("series") or found.get("state")),
        grid("Worst windows", ("window", "measure", "requests", "error"), windows, left=2) if windows else None,
        Text(verdict, style="" if found.get("ok", True) else "red"),
        Text("this is the data that the profile was fitted to: a new log tells more", style="dim") if found.get("held_out") is False else None,
        Text(f"outside the fitted regime: {outside}", style="yellow") if outside else None,
        remarks("Assumed", _sentences(found.get("assumed"))),
    )  # fmt: skip


def _series(found: Any) -> Table | None:
    if not isinstance(found, Mapping) or "predicted" not in found:
        return None
    rows = []
    for name, values in found["predicted"].items():
        rows.append((f"{words(name)}, replayed", sparkline(values, 50)))
        if (found.get("observed") or {}).get(name):
            rows.append((f"{words(name)}, observed", sparkline(found["observed"][name], 50)))
    return pairs("Over time", rows)


def _error(value: Any, unit: str) -> Text:
    if value is None:
        return Text(NONE)
    size = abs(float(value))
    return Text(f"{100 * float(value):+.1f} {unit}", style="green" if size <= 0.08 else "yellow" if size <= 0.15 else "red")


def render_replay(found: Found) -> RenderableType:
    metrics = found["metrics"]
    return stack(
        _metric_table(f"Replay of {found.get('policy', '')}", dict(metrics.get("by_class") or {}) | {"all": metrics}),
        _waste(metrics),
        _run_facts(found),
        remarks("Assumed", _sentences(found.get("assumed"))),
    )


def _metric_table(title: str, parts: Mapping[str, Found], label: str = "class", extra: Mapping[str, Text] | None = None) -> Table:
    rows: list[Sequence[str | Text]] = []
    for name, one in parts.items():
        row: list[str | Text] = [name, rate(_float(one.get("goodput_tok_s")), ""), share(_float(one.get("attainment")))]
        row += [seconds(_float((one.get("ttft_s") or {}).get(q))) for q in ("p50", "p95")]
        row += [_p95(one.get("tpot_s")), share(_float(one.get("prefix_hit_share"))), share(_float(one.get("shed_share")))]
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
        ("trace", f"{found.get('trace') or ''} {found.get('trace_hash', '')}: {count(found.get('requests', 0))} requests, load {digits(_float(found.get('load', 1.0)))}x".strip()),
        ("fleet", f"{fleet.get('instances', '?')} instances, profile {pretty('', found.get('profile'))} {found.get('profile_hash', '')}"),
        ("model", _model_error(error)),
        ("took", f"{seconds(_float(found.get('kernel_s')))} in the core, {seconds(_float(found.get('wall_s')))} in all; seed {found.get('seed')}"),
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
        remarks("Assumed", _sentences(found.get("assumed"))),
    )  # fmt: skip


def _gain(found: Any) -> Text:
    value = found.get("pct", found.get("gain_pct")) if isinstance(found, Mapping) else None
    return tone(value, signed_pct(_float(value)))


def _interval(found: Any) -> str:
    return f"{signed_pct(_float(found.get('ci_low_pct')))} to {signed_pct(_float(found.get('ci_high_pct')))}"


def render_tune(found: Found) -> RenderableType:
    word = str(found.get("verdict", ""))
    hold = found.get("holdout") or {}
    head = Text.assemble(("Verdict: ", "bold"), (VERDICTS.get(word, word), f"bold {TONES.get(word, '')}".strip()))
    loads = [(f"{load}x load", *_difference(one)) for load, one in (found.get("by_load") or {}).items()]
    against = [(name, *_difference(one)) for name, one in (found.get("against") or {}).items()]
    names = ("", "baseline", "tuned", "gain", "95 % interval")
    changed = [(name, pretty("", _was(one)), pretty("", _now(one))) for name, one in (found.get("changed_params") or {}).items()]
    knobs = sorted((found.get("knobs") or {}).items(), key=lambda item: -_float(item[1].get("importance")))
    clear = [(name, share(_float(one.get("importance")))) for name, one in knobs if one.get("identifiable")]
    vague = len(knobs) - len(clear)
    facts: list[tuple[str, str | Text]] = [
        ("search", f"{found.get('trials', 0)} trials in {seconds(_float(found.get('search_s', found.get('wall_s'))))}, Optuna's share {share(_float(found.get('optuna_share')))}"),
        ("shed", f"{share(_float(found.get('shed_share')))} of offered requests, now {share(_float(found.get('shed_share_present')))}"),
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
        remarks("Noted", _sentences(found.get("notes"))),
    )  # fmt: skip


def _difference(one: Found) -> tuple[str, str, Text, str]:
    gain = one.get("gain_pct")
    return (_amount(one.get("baseline")), _amount(one.get("tuned")), tone(gain, signed_pct(_float(gain))), _interval(one))


def _amount(value: Any) -> str:
    return digits(float(value), 4) if isinstance(value, (int, float)) else pretty("", value)


def _was(one: Any) -> Any:
    return next((one[key] for key in ("from", "present", "now", "was", "old") if key in one), None) if isinstance(one, Mapping) else (one[0] if isinstance(one, (list, tuple)) else None)


def _now(one: Any) -> Any:
    return next((one[key] for key in ("to", "tuned", "new", "is") if key in one), None) if isinstance(one, Mapping) else (one[-1] if isinstance(one, (list, tuple)) else one)


def _canary(found: Any) -> Table | None:
    if not isinstance(found, Mapping):
        return None
    return pairs("Canary plan", [(words(str(key)), pretty(str(key), value)) for key, value in found.items()])


def render_export(found: Found) -> RenderableType:
    facts: list[tuple[str, str | Text]] = [(words(key), pretty(key, found[key])) for key in ("target", "out", "proof", "rollback") if found.get(key)]
    facts.append(("files", ("not written (dry run): " if found.get("dry_run") else "") + ", ".join(found.get("files") or ())))
    changed = [(name, pretty("", _was(one)), pretty("", _now(one))) for name, one in (found.get("changed") or {}).items()]
    diff = str(found.get("diff") or "") if found.get("dry_run") else ""
    return stack(
        pairs("Exported", facts),
        grid("Changed", ("setting", "before", "after"), changed) if changed else None,
        Text(diff, overflow="fold") if diff else None,
        remarks("Doubts", _sentences(found.get("doubts"))),
        remarks("Notes", _sentences(found.get("notes"))),
        remarks("Left out", _sentences(found.get("dropped"))),
        remarks("To put it in place", _sentences(found.get("commands"))),
    )


def render_lint(found: Found) -> RenderableType:
    styles = {"error": "red", "warn": "yellow", "info": "dim"}
    rows = [(Text(str(one["level"]), style=styles.get(str(one["level"]), "")), str(one["check"]), count(one["count"]), f"{one['what']}; {one['mend']}" if one.get("mend") else str(one["what"]))
            for one in found.get("findings") or ()]  # fmt: skip
    if not rows:
        return Text(f"{count(found.get('requests', 0))} requests, nothing found that looks wrong.")
    table = grid(f"{count(found.get('requests', 0))} requests looked at", ("", "check", "rows", "what"), rows, left=2)
    table.columns[3].justify, table.columns[3].no_wrap = "left", False
    return table


def render_doctor(found: Found) -> RenderableType:
    marks = {True: Text("ok", style="green"), False: Text("mend", style="red"), None: Text("")}
    rows = [(marks[one["ok"]], str(one["name"]), f"{one['found']}; {one['mend']}" if one.get("mend") else str(one["found"])) for one in found["checks"]]
    table = grid("", ("", "check", "found"), rows, left=3)
    return stack(table, Text("All well." if found["ok"] else "Some checks failed: see the lines marked mend.", style="green" if found["ok"] else "red"))


def render_plan(found: Found) -> RenderableType:
    target = ", ".join(f"{name} {share(_float(value))}" for name, value in (found.get("target") or {}).items())
    rows = [(f"{_float(one.get('load')):g}x", str(one.get("gpu") or "as now"), str(one.get("policy")), count(one["needed"]) if one.get("needed") else "out of reach",
             digits(_float(one.get("gpus"))), digits(_float(one.get("gpu_hours")))) for one in found.get("cases") or ()]  # fmt: skip
    curves: list[tuple[str, str | Text]] = []
    for one in found.get("cases") or ():
        curve = one.get("curve") or []
        if curve:
            line = sparkline([point["attainment"] for point in curve], 40)
            curves.append((f"{one.get('policy')}, {_float(one.get('load')):g}x", f"{line}  {curve[0]['instances']} to {curve[-1]['instances']} instances"))
    return stack(
        grid(f"Fewest instances that reach {target}", ("load", "GPU", "policy", "instances", "GPUs", "GPU-hours"), rows, left=3),
        pairs("Attainment by fleet size", curves) if curves else None,
        remarks("Saved", _sentences(found.get("savings"))),
        remarks("Assumed", _sentences(found.get("assumed"))),
    )


def render_sql(found: Found) -> RenderableType:
    rows = [tuple(pretty("", value) if not isinstance(value, float) else digits(value, 6) for value in row) for row in found["rows"][:200]]
    numeric = [any(isinstance(row[k], (int, float)) for row in found["rows"][:50]) for k in range(len(found["columns"]))]
    table = grid("", tuple(found["columns"]), rows)
    for column, is_number in zip(table.columns, numeric, strict=True):
        column.justify = "right" if is_number else "left"
        column.no_wrap = False
    more = len(found["rows"]) - 200
    return stack(table, Text(f"{count(more)} more rows: --json has them all", style="dim") if more > 0 else Text(f"{count(len(found['rows']))} rows", style="dim"))


def render_report(found: Found) -> RenderableType:
    return Text(f"{found['path']} ({digits(found['bytes'] / 1e6)} MB), runs: {', '.join(found.get('runs') or ()) or 'none'}")


def _tail(path: str) -> str:
    """The last two parts of a path, which is what tells files apart."""
    parts = path.rstrip("/").split("/")
    return "/".join(parts[-2:])
