"""demo: the whole job on the sample traces, from logs to a report and a gateway config."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfanalyze.errors import InputError
from tfanalyze.runs import (
    Fitted,
    Progress,
    Setup,
    announce_compile,
    facts,
    finite,
    fit_shape,
    keep_fit,
    keep_outcome,
    peak_rss_bytes,
    prepare,
)

if TYPE_CHECKING:
    from tfanalyze.config import Config, SloClass
    from tfanalyze.replay import Outcome
    from tfanalyze.trace import Trace

FITTED_ON = ("rr-low", "rr-mid")  # two loads, routed round robin
HELD_OUT = "affinity-mid"  # another routing policy: neither fit nor tuning may look at it
POLICY = "tokenpilot+slomax"
PAUSE_S = 30.0  # longer pauses between the measured runs are closed
SHARES = (0.45, 0.25, 0.3)  # of time: train, validation, holdout (which then is the third run)

Tell = Callable[[Any], None]


def demo(
    *,
    out: str | Path = "reports/demo",
    samples: str | Path | None = None,
    trials: int = 60,
    seed: int = 1,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Ingest, inspect, fit, validate, tune, compare, export and report on ``samples``; results land in ``out``.

    ``tell`` gets what a person should see of each step as it is done (text or rich tables).  Fit and tuning use the
    runs rr-low and rr-mid; affinity-mid is held out of both.  Returns the JSON shape tfanalyze.demo/1.
    """
    from tfanalyze import render
    from tfanalyze.config import load_config

    began, say = time.perf_counter(), progress or (lambda share, what: None)
    show = tell or (lambda what: None)
    logs = _samples(samples)
    cfg = load_config(logs / "tfanalyze.toml")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    db = folder / "fleet.duckdb"
    for old in (db, db.with_suffix(".duckdb.wal")):
        old.unlink(missing_ok=True)

    say(0.0, "ingesting")
    show(f"1. ingest: three measured runs of two llama.cpp servers, from {logs}")
    show(render.render("ingest", {"schema": "tfanalyze.ingest/1", "db": str(db), **_ingest(logs, (*FITTED_ON, HELD_OUT), db)}))
    say(0.08, "looking at the workload")
    from tfanalyze.inspect import inspect

    show("2. inspect")
    show(render.render("inspect", inspect(db, config=cfg)))
    announce_compile(say)
    say(0.1, "fitting")
    fitted, shape, validation = _model(logs, db, cfg, seed, lambda share, what: say(0.1 + 0.2 * share, what))
    show(f"3. fit on {' and '.join(FITTED_ON)}")
    show(render.render("fit", shape))
    show(f"4. validate on {HELD_OUT}, which the fit has not seen")
    show(render.render("validate", validation))

    ready = _joined(prepare(None, db=db, config=cfg, seed=seed))
    show(f"5. tune {POLICY}: {trials} trials on the first part of the traffic, proof on the last")
    study = _tune(ready, fitted, trials, seed, lambda share, what: say(0.3 + 0.4 * share, what))
    _keep(db, "study", POLICY, study)
    show(render.render("tune", study))

    say(0.72, "comparing on the held-out window")
    runs, table = _holdout_table(ready, study, seed)
    for label, run in runs.items():
        keep_outcome(db, label, ready, run["outcome"])
    export = _export(ready, study, folder / "config", db)
    say(0.8, "writing the report")
    report = _report(db, cfg, ready, runs, study, validation, fitted, export, folder / "report.html", seed)
    result = {
        "schema": "tfanalyze.demo/1",
        **facts(ready, next(iter(runs.values()))["outcome"]),
        "requests": len(ready.trace),
        "trials": trials,
        "verdict": study["verdict"],
        "holdout": table,
        "db": str(db),
        "config": export["out"],
        "config_files": export["files"],
        "report": str(report),
        "wall_s": time.perf_counter() - began,
        "peak_rss_bytes": peak_rss_bytes(),
        "assumed": list(ready.assumed),
    }
    say(1.0, "done")
    shaped: dict[str, Any] = finite(result)
    return shaped


def _samples(samples: str | Path | None) -> Path:
    places = [Path(samples)] if samples else [Path(__file__).resolve().parents[1] / "sample_traces", Path("sample_traces")]
    for place in places:
        if (place / HELD_OUT).is_dir():
            return place
    raise InputError("no sample traces", str(places[0]), "run it in a checkout of the project")


def _ingest(logs: Path, names: Sequence[str], db: Any) -> dict[str, Any]:
    from tfanalyze.ingest import ingest_logs, ingest_metrics

    found = ingest_logs([_log(logs, name) for name in names], db=db)
    metrics = ingest_metrics([str(path) for name in names for path in sorted((logs / name).glob("metrics-*"))], db=db)
    return {**found, "files": [*found["files"], *metrics["files"]]}


def _log(logs: Path, name: str) -> str:
    found = sorted((logs / name).glob("requests.jsonl*"))
    if not found:
        raise InputError("holds no requests.jsonl", str(logs / name), "run it in a checkout of the project")
    return str(found[0])


def _model(
    logs: Path, db: Path, cfg: Config, seed: int, say: Progress
) -> tuple[Fitted, dict[str, Any], dict[str, Any]]:
    """Fit on two runs, validate on the third, keep both in the workspace."""
    from tfanalyze.models.fitting import fit
    from tfanalyze.models.validating import validate
    from tfanalyze.workspace import Workspace

    with Workspace.open(":memory:") as two:
        _ingest(logs, FITTED_ON, two)
        result = fit(two, seed=seed, progress=lambda share, what: say(0.7 * share, what))
    keep_fit(db, result)
    with Workspace.open(":memory:") as third:
        _ingest(logs, (HELD_OUT,), third)
        found = validate(
            third, result.profiles, fleet=result.fleet, classes=cfg.classes, progress=lambda share, what: say(0.7 + 0.3 * share, what)
        )
    validation: dict[str, Any] = finite({"schema": "tfanalyze.validate/1", "db": HELD_OUT, **found})
    _keep(db, "validation", "last", validation)
    fitted = Fitted(result.profiles, result.fleet, result.report, result.ensemble)
    return fitted, fit_shape(result, db, None, seed, cfg), validation


def _keep(db: Path, kind: str, name: str, body: Mapping[str, Any]) -> None:
    from tfanalyze.workspace import Workspace

    with Workspace.open(db, wait_s=10.0) as workspace:
        workspace.save_json(kind, name, body)


def _joined(ready: Setup) -> Setup:
    """The measured runs one after another: pauses longer than PAUSE_S are closed."""
    import numpy as np

    trace = ready.trace
    gaps = np.minimum(np.diff(trace.arrival_s, prepend=trace.arrival_s[0]), PAUSE_S)
    note = f"pauses longer than {PAUSE_S:g} s between the measured runs were closed"
    return replace(ready, trace=replace(trace, arrival_s=np.cumsum(gaps), name="sample traces"), assumed=(*ready.assumed, note))


def _tune(ready: Setup, fitted: Fitted, trials: int, seed: int, say: Progress) -> dict[str, Any]:
    from tfanalyze.studies import members_of
    from tfanalyze.tune import tune

    found = tune(
        ready.trace, ready.fleet, ready.profiles, ready.classes, policy=POLICY, baseline="recorded", trials=trials, seed=seed,
        ensemble=members_of(fitted.ensemble), shares=SHARES, accept_model_error=True, progress=say,
    )  # fmt: skip
    study: dict[str, Any] = finite({"schema": "tfanalyze.tune/1", **found, "assumed": list(ready.assumed)})
    return study


def _holdout_table(ready: Setup, study: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs over the whole trace; and their metrics on the window that tuning never looked at, the log's own first."""
    from tfanalyze.inspect import seen
    from tfanalyze.replay.policies import load_policy
    from tfanalyze.slo import summarise
    from tfanalyze.tune.run import windows_of

    window = windows_of(float(ready.trace.arrival_s[0]), ready.trace.span_s, SHARES)["holdout"]
    simulator = replace(ready, options=replace(ready.options, series_bins=120)).simulator()
    policies = {"recorded": load_policy("recorded"), "round_robin": load_policy("round_robin"), f"{POLICY} (tuned)": _tuned(study)}
    runs: dict[str, Any] = {}
    table: dict[str, Any] = {}
    measured = seen(ready.trace)
    if measured is not None:
        table["measured (the log)"] = summary_between(ready.trace, measured, ready.classes, window.start_s)
    for label, policy in policies.items():
        outcome = simulator.run(policy, seed)
        runs[label] = {"outcome": outcome, "trace": ready.trace, "summary": summarise(ready.trace, outcome, ready.classes)}
        table[label] = summary_between(ready.trace, outcome, ready.classes, window.start_s)
    return runs, table


def summary_between(trace: Trace, outcome: Outcome | Any, classes: Sequence[SloClass], start_s: float) -> dict[str, Any]:
    """``slo.summarise`` of the requests that arrive from ``start_s`` on."""
    from dataclasses import fields

    import numpy as np

    from tfanalyze.slo import summarise
    from tfanalyze.traceops import take

    rows = np.flatnonzero(trace.arrival_s >= start_s)
    n = len(trace)
    columns = {
        f.name: value[rows]
        for f in fields(outcome)
        if isinstance(value := getattr(outcome, f.name), np.ndarray) and value.shape == (n,) and f.name != "instance_busy_s"
    }
    return summarise(take(trace, rows), replace(outcome, **columns), classes)


def _tuned(study: Mapping[str, Any]) -> Any:
    """What the study chose; its defaults where the study would rather keep the recorded routing."""
    from tfanalyze.replay.policies import load_policy

    if study["tuned"]["policy"] == POLICY:
        return load_policy(POLICY, study["tuned"]["settings"])
    return load_policy(POLICY)


def _export(ready: Setup, study: Mapping[str, Any], out: Path, db: Path) -> dict[str, Any]:
    from tfanalyze.export import export

    result = export(
        "tokenfleet", _tuned(study), out=out, evidence=study, fleet=ready.fleet, classes=ready.classes, accept_model_error=True
    )
    kept: dict[str, Any] = finite(result)
    _keep(db, "export", "tokenfleet", kept)
    return kept


def _report(
    db: Path, cfg: Config, ready: Setup, runs: Mapping[str, Any], study: Mapping[str, Any], validation: Mapping[str, Any],
    fitted: Fitted, export: Mapping[str, Any], out: Path, seed: int,
) -> Path:  # fmt: skip
    from tfanalyze import __version__
    from tfanalyze.inspect import inspect
    from tfanalyze.report import report
    from tfanalyze.studies import ceilings

    bundle = {
        "title": "Sample fleet: two llama.cpp servers",
        "workload": inspect(db, config=cfg), "fit": fitted.report, "validate": validation, "runs": runs,
        "classes": ready.classes, "fleet": ready.fleet, "tune": study, "export": export,
        "ceilings": ceilings(ready, study, seed), "assumed": list(ready.assumed),
        "meta": {"version": __version__, "command": "make demo", "seed": seed, "model_error": ready.model_error},
    }  # fmt: skip
    return report(bundle, out)
