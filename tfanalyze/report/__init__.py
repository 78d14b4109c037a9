"""The report: one HTML file for people who decide, and tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfanalyze.errors import InputError

if TYPE_CHECKING:
    from tfanalyze.report.columns import Run
    from tfanalyze.report.section import Section

MOST_RUNS = 6  # more lines than that no figure can show


def report(
    bundle: Mapping[str, Any], out: str | Path, *, progress: Callable[[float, str], None] | None = None
) -> Path:
    """Write one self-contained HTML file from what the other commands returned.

    Every part of `bundle` may be missing; its place then says which command fills it:

        title, subtitle   strings
        workload          what inspect returned
        fit, validate     what fit (its report) and validate returned
        runs              {label: {"outcome": Outcome, "trace": Trace, "summary": slo.summarise(...)}}; the first is the
                          baseline, the last the policy to look at most closely
        classes           the SloClasses that the runs were judged by (default: the default classes)
        fleet             the Fleet that was simulated (needed for site flows)
        tune, export      what tune and export returned
        ceilings          {label: slo.summarise(...) or goodput in tok/s}
        explain           [what explain returned, ...]
        assumed           lines: what was assumed, not known
        meta              {"version", "command" (a line or several), "seed", ..._hash: what it takes to reproduce it}

    Errors: InputError if `out` cannot be written. The file appears whole or not at all.
    """
    from tfanalyze.report.page import render

    say = progress or (lambda share, what: None)
    meta = dict(bundle.get("meta") or {})
    parts = sections(bundle, say)
    say(0.9, "writing the page")
    version = f"tfanalyze {meta['version']}" if meta.get("version") else "tfanalyze"
    title = str(bundle.get("title") or "Inference fleet report")
    subtitle = str(bundle.get("subtitle") or _subtitle(bundle))
    text = render(title, subtitle, parts, f"Made by {version}. This file is complete: it loads nothing from the network.")
    written = _write(Path(out), text)
    say(1.0, "report written")
    return written


def sections(bundle: Mapping[str, Any], say: Callable[[float, str], None]) -> list[Section]:
    """The tabs of the page, in order."""
    from tfanalyze.report import evidence, fleet, model, runs, workload
    from tfanalyze.report.blame import blame
    from tfanalyze.report.section import Heading, Note, section

    shown = _runs(bundle, say)
    tune, plan = bundle.get("tune"), bundle.get("fleet")
    verdicts = [blame(run) for run in shown]
    say(0.4, "drawing")
    none = [Note("No runs to show: tfanalyze compare --policy round_robin --policy tokenpilot adds some.", missing=True)]
    by_run: dict[str, Callable[[], Sequence[Any]]] = {
        "overview": lambda: [runs.goodput_over_time(shown), runs.attainment_bars(shown), runs.fates(shown)],
        "latency": lambda: [*runs.distributions(shown), runs.latency_over_time(shown)],
        "misses": lambda: [runs.miss_causes(shown, verdicts), runs.waste(shown),
                           workload.worst_requests(shown[-1], verdicts[-1]), workload.explained(bundle.get("explain"))],
        "fleet": lambda: [*fleet.heat_maps(shown), fleet.prefix_hits(shown), fleet.busy(shown), fleet.site_flows(shown, plan),
                          _one_site(plan), fleet.quotas(shown)],
    }  # fmt: skip
    drawn: dict[str, list[Any]] = {key: list(make()) if shown else list(none) for key, make in by_run.items()}
    say(0.7, "drawing")
    return [
        section("overview", "Overview", [*evidence.headline(shown, tune), *drawn["overview"]]),
        section("workload", "Workload", workload.workload(bundle.get("workload"), shown[0] if shown else None)),
        section("latency", "Latency", drawn["latency"]),
        section("misses", "Misses", drawn["misses"]),
        section("fleet", "Fleet", drawn["fleet"]),
        section("tuning", "Tuning", [*evidence.tuning(tune), evidence.ceilings(shown, bundle.get("ceilings")),
                                     *evidence.exported(bundle.get("export"))]),
        section("model", "Model", model.model(bundle.get("fit"), bundle.get("validate"))),
        section("reproduce", "Reproduce", [*_reproduce(bundle), Heading("What was assumed"), *_assumed(bundle)]),
    ]  # fmt: skip


def _runs(bundle: Mapping[str, Any], say: Callable[[float, str], None]) -> list[Run]:
    from tfanalyze.report.columns import observed_run, simulated_run

    given = dict(bundle.get("runs") or {})
    labels = list(given)
    kept = labels if len(labels) <= MOST_RUNS else [*labels[: MOST_RUNS - 1], labels[-1]]
    classes = bundle.get("classes")
    found = []
    traces = []
    for k, label in enumerate(kept):
        say(0.3 * k / len(kept), f"reading run {label}")
        one = given[label]
        if len(one["trace"]):
            found.append(simulated_run(label, one["trace"], one["outcome"], one.get("summary") or {}, classes))
            traces.append(one["trace"])
    seen = observed_run(traces[0], classes) if traces and "observed" not in kept else None
    return [seen, *found] if seen is not None else found


def _one_site(fleet: Any) -> Any:
    from tfanalyze.report.section import Note

    return Note("One site: no flows between sites to show.") if fleet is not None and len(fleet.sites) < 2 else None


def _subtitle(bundle: Mapping[str, Any]) -> str:
    from tfanalyze.report.numbers import count, seconds

    for one in (bundle.get("runs") or {}).values():
        trace = one["trace"]
        if len(trace):
            span = seconds(float(trace.arrival_s[-1] - trace.arrival_s[0]))
            name = f"{trace.name}: " if trace.name else ""
            return f"{name}{count(len(trace))} requests over {span}, {len(bundle['runs'])} simulated runs"
    return "what was ingested, fitted and tried so far"


def _reproduce(bundle: Mapping[str, Any]) -> list[Any]:
    from tfanalyze.report.figures import Table
    from tfanalyze.report.numbers import pretty, words
    from tfanalyze.report.section import Lines, Note

    meta = dict(bundle.get("meta") or {})
    command = meta.pop("command", None)
    runs = {label: one["outcome"] for label, one in (bundle.get("runs") or {}).items()}
    for key in ("trace_hash", "profile_hash", "seed"):
        values = {str(getattr(one, key)) for one in runs.values() if getattr(one, key, None) is not None}
        if values:
            meta[key] = ", ".join(sorted(values))
    facts = tuple((words(str(key)), pretty(str(key), value)) for key, value in meta.items())
    blocks: list[Any] = []
    if command:
        lines: Sequence[str] = [command] if isinstance(command, str) else list(command)
        blocks.append(Lines(tuple(str(one) for one in lines), code=True))
    blocks.append(Note("The same inputs and seed give the same bytes: these hashes say what they were."))
    blocks.append(Table(("", ""), facts) if facts else Note("No hashes were handed over.", missing=True))
    if runs:
        rows = tuple((label, str(one.outcome_hash), _policy(one.policy)) for label, one in runs.items())
        blocks.append(Table(("run", "outcome hash", "policy and settings"), rows, "Runs"))
    return blocks


def _policy(found: Mapping[str, Any]) -> str:
    """A policy's parts and their settings on one line."""
    parts = []
    for one in found.values():
        if isinstance(one, Mapping) and one.get("name"):
            settings = one.get("params") or one.get("settings") or {}
            shown = ", ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items())
            parts.append(f"{one['name']} ({shown})" if shown else str(one["name"]))
    return "; ".join(parts)


def _assumed(bundle: Mapping[str, Any]) -> list[Any]:
    from tfanalyze.report.section import Lines, Note

    lines = [str(one) for one in bundle.get("assumed") or ()]
    for one in (bundle.get("runs") or {}).values():
        lines += [str(note) for note in one["trace"].notes if str(note) not in lines]
    return [Lines(tuple(lines))] if lines else [Note("Nothing was reported as assumed.")]


def _write(out: Path, text: str) -> Path:
    part = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise InputError(f"cannot be written: {error.strerror}", str(out), "give another --out") from error
    return out
