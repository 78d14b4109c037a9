"""Results as tables of at most 80 columns; each `render_<command>` takes what that command returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tfanalyze.report.numbers import NONE, count, digits, pretty, rate, seconds, share, sparkline, words
from tfanalyze.report.parts import Found, grid, now, number, p95, pairs, remarks, sentences, stack, three, was
from tfanalyze.report.verdicts import (
    render_check,
    render_compare,
    render_explain,
    render_plan,
    render_replay,
    render_tune,
)

__all__ = [
    "render_check", "render_compare", "render_doctor", "render_explain", "render_explain_file", "render_export", "render_fit", "render_ingest",
    "render_inspect", "render_lint", "render_plan", "render_replay", "render_report", "render_sql", "render_tune", "render_validate",
]  # fmt: skip


def render_ingest(found: Found) -> RenderableType:
    files, totals = list(found.get("files") or []), found.get("totals") or {}
    rows = [(_tail(str(one.get("path", ""))), str(one.get("format", "")), count(one.get("rows", 0)), count(one.get("taken", 0)),
             count(one.get("rejected", 0)) + (" (known already)" if one.get("already") else "")) for one in files[:40]]  # fmt: skip
    reasons: dict[str, int] = {}
    for one in files:
        for reason, lines in (one.get("reasons") or {}).items():
            reasons[str(reason)] = reasons.get(str(reason), 0) + int(lines)
    notes = list(dict.fromkeys(str(note) for one in files for note in one.get("notes") or ()))
    skipped = [f"{_tail(str(one.get('path', '')))}: {one.get('why', '')}" for one in found.get("skipped") or ()]
    skipped = [line.replace(f"{one.get('path', '')}: ", "") for line, one in zip(skipped, found.get("skipped") or (), strict=True)]
    return stack(
        grid("Ingested", ("file", "format", "rows", "taken", "rejected"), rows, left=2) if rows else Text("Nothing ingested."),
        remarks("Rejected, by reason", [f"{reason}: {count(lines)}" for reason, lines in reasons.items()]),
        remarks("Skipped", skipped),
        remarks("Noted", notes),
        pairs("", [(words(str(key)), pretty(str(key), value)) for key, value in totals.items() if not isinstance(value, dict)]) if len(files) > 1 else None,
        Text(f"in {found['db']}", style="dim") if found.get("db") else None,
    )  # fmt: skip


def render_inspect(found: Found) -> RenderableType:
    speed = found.get("rate") or {}
    facts: list[tuple[str, str | Text]] = [
        ("requests", f"{count(found['requests'])} over {seconds(number(found.get('span_s')))}, from {found.get('began') or 'an unknown date'}"),
        ("rate", f"{rate(number(speed.get('mean_req_s')), 'req/s')} on average, {rate(number(speed.get('peak_minute_req_s')), 'req/s')} in the busiest minute"),
        ("over time", sparkline(speed.get("by_time") or [], 56)),
    ]  # fmt: skip
    sessions, prefix = found.get("sessions") or {}, found.get("prefix") or {}
    if sessions.get("sessions"):
        facts.append(("sessions", f"{count(sessions['sessions'])}, {digits(number(sessions.get('turns_mean')))} turns each, think time P50 {seconds(number(sessions.get('think_s_p50')))}"))
    facts.append(("prefix", f"{share(number(prefix.get('reusable_share')))} of prompt tokens seen before, {share(number(prefix.get('cached_share')))} were cached"))
    tokens = [(words(name), *(count(number(one.get(q))) for q in ("mean", "p50", "p95", "p99", "max"))) for name, one in (found.get("tokens") or {}).items() if one.get("known")]
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
        rows.append((name, count(one["requests"]), share(number(mine.get("attainment"))),
                     rate(number(mine.get("goodput_tok_s")), ""), three(mine.get("ttft_s")), p95(mine.get("tpot_s"))))  # fmt: skip
    whole = found.get("observed")
    if whole and len(rows) > 1:
        rows.append(("all", count(whole["requests"]), share(number(whole.get("attainment"))), rate(number(whole.get("goodput_tok_s")), ""),
                     three(whole.get("ttft_s")), p95(whole.get("tpot_s"))))  # fmt: skip
    return grid("Classes, as observed", ("class", "requests", "in SLO", "goodput", "TTFT P50/P95/P99", "TPOT P95"), rows)


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


def render_explain_file(found: Found) -> RenderableType:
    """How a file would be read, column by column."""
    facts: list[tuple[str, str | Text]] = [(words(str(key)), pretty(str(key), value)) for key, value in found.items()
                                           if key not in ("schema", "columns", "empty", "notes", "sample") and not isinstance(value, (dict, list))]  # fmt: skip
    rows = [(str(one.get("column")), str(one.get("from") or ""), str(one.get("rests_on") or ""), share(number(one.get("filled"))))
            for one in found.get("columns") or ()]  # fmt: skip
    table = grid("Columns it fills", ("column", "from", "rests on", "filled"), rows, left=3)
    empty = [name for name in found.get("empty") or () if name not in INTERNAL]
    return stack(
        pairs("", facts),
        table if rows else None,
        Text(f"left unknown: {', '.join(empty)}", style="dim") if empty else None,
        remarks("Noted", sentences(found.get("notes"))),
    )


INTERNAL = {"row_uid", "source_id", "source_line", "provenance"}  # filled by the ingest itself


def render_fit(found: Found) -> RenderableType:
    parts: list[RenderableType | None] = []
    for name, one in (found.get("profiles") or {}).items():
        rows = [(key, f"{number(c.get('value')):.3g}", *("" if c.get(k) is None else f"{number(c[k]):.3g}" for k in ("low", "high")), str(c.get("unit", "")))
                for key, c in _items(one.get("coefficients"))]  # fmt: skip
        table = grid(f"Profile {name}: step time, with 90 % intervals", ("coefficient", "value", "low", "high", "unit"), rows)
        table.columns[4].justify = "left"
        parts.append(table if rows else None)
        parts.append(Text(f"form: {one['form']} ({one['form_reason']})", style="dim") if one.get("form_reason") else None)
        held = [(words(key), share(number(value))) for key, value in (one.get("held_out") or {}).items() if isinstance(value, (int, float))]
        parts.append(grid("Error on held-out data", ("", "error"), held) if held else None)
        parts.append(remarks("What the log can tell apart", sentences(one.get("identifiability"))))
        parts.append(remarks("Health", sentences(one.get("health"))))
    parts.append(remarks("Health", sentences(found.get("health"))))
    parts.append(remarks("Assumed", sentences(found.get("assumed"))))
    parts.append(Text(f"written to {found['out']}", style="dim") if found.get("out") else None)
    return stack(*parts)


def _items(found: Any) -> Iterable[tuple[str, Found]]:
    if isinstance(found, Mapping):
        return [(str(key), one if isinstance(one, Mapping) else {"value": one}) for key, one in found.items()]
    return [(str(one.get("name", k)), one) for k, one in enumerate(found or ())]


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
            rows.append((f"{words(measure)} {q.upper()}", seconds(number(at[0])), seconds(number(at[1])), _error(at[2], "%")))
    windows = [(f"{seconds(one['start_s'])} .. {seconds(one['end_s'])}", words(str(one["metric"])), count(one["requests"]), _error(one["error"], "%"))
               for one in found.get("worst_windows") or ()]  # fmt: skip
    worst, limit = found.get("worst_error") or {}, found.get("max_error")
    verdict = f"worst gated error {share(number(worst.get('value')))} ({worst.get('of', '')})"
    if limit is not None:
        verdict += f", limit {share(number(limit))}: {'within it' if found.get('ok') else 'ABOVE it'}"
    outside = (found.get("regime") or {}).get("text")
    return stack(
        grid("Predicted against observed", ("", "observed", "predicted", "error"), rows),
        _series(found.get("series") or found.get("state")),
        grid("Worst windows", ("window", "measure", "requests", "error"), windows, left=2) if windows else None,
        Text(verdict, style="" if found.get("ok", True) else "red"),
        Text("this is the data that the profile was fitted to: a new log tells more", style="dim") if found.get("held_out") is False else None,
        Text(f"outside the fitted regime: {outside}", style="yellow") if outside else None,
        remarks("Assumed", sentences(found.get("assumed"))),
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


def render_export(found: Found) -> RenderableType:
    facts: list[tuple[str, str | Text]] = [(words(key), pretty(key, found[key])) for key in ("target", "out", "proof", "rollback") if found.get(key)]
    facts.append(("files", ("not written (dry run): " if found.get("dry_run") else "") + ", ".join(found.get("files") or ())))
    changed = [(name, pretty("", was(one)), pretty("", now(one))) for name, one in (found.get("changed") or {}).items()]
    diff = str(found.get("diff") or "") if found.get("dry_run") else ""
    return stack(
        pairs("Exported", facts),
        grid("Changed", ("setting", "before", "after"), changed) if changed else None,
        Text(diff, overflow="fold") if diff else None,
        remarks("Doubts", sentences(found.get("doubts"))),
        remarks("Notes", sentences(found.get("notes"))),
        remarks("Left out", sentences(found.get("dropped"))),
        remarks("To put it in place", sentences(found.get("commands"))),
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
