"""What the commands after replay do: validate, tune, plan, check, explain, export, report, on what a workspace holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfanalyze.config import Config, load_config
from tfanalyze.errors import ConfigError, InputError, WorkspaceError
from tfanalyze.runs import (
    DB,
    Progress,
    Setup,
    announce_compile,
    compare_runs,
    finite,
    keep_outcome,
    load_fit,
    newest,
    of_policy,
    prepare,
)

STUDY, VALIDATED, EXPORTED = "study", "validation", "export"  # kinds under which a workspace keeps results
SERIES_BINS = 120
CEILINGS = {
    "infinite cache": {"infinite_cache": True},
    "perfect signals": {"perfect_signals": True},
    "known lengths": {"known_lengths": True},
}


def validate_run(
    db: str | Path = DB,
    *,
    profile: str | Path | None = None,
    max_error: float | None = None,
    config: Config | str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Validate a profile (a file, a shipped one, else what fit kept) on a workspace and keep the result there.

    Returns the JSON shape tfanalyze.validate/1; ``ok`` is False above ``max_error``.
    """
    from tfanalyze.models.profile import load_profiles
    from tfanalyze.models.validating import validate

    cfg = config if isinstance(config, Config) else load_config(config)
    if max_error is not None and max_error <= 0:
        raise ConfigError(f"is {max_error:g}", "--max-error", "give a share above 0, such as 0.15")
    fitted = load_fit(db)
    profiles: Any = load_profiles(profile) if profile is not None else (fitted.profiles if fitted else None)
    fleet = cfg.fleet or (fitted.fleet if fitted and profile is None else None)
    ensemble = fitted.ensemble if fitted and profile is None else None
    found = validate(
        db, profiles, max_error=max_error, fleet=fleet, classes=cfg.classes, ensemble=ensemble, progress=progress
    )
    result: dict[str, Any] = finite({"schema": "tfanalyze.validate/1", "db": str(db), **found})
    if profile is None:
        result["held_out"] = False  # the profile was fitted to these very requests
    _keep(db, VALIDATED, "last", result)
    return result


def explain_run(
    request: str,
    source: str | Path | None = None,
    *,
    policy: str = "tokenpilot",
    db: str | Path = DB,
    seed: int = 1,
    progress: Progress | None = None,
    **setup: Any,
) -> dict[str, Any]:
    """Explain one request's decision and fate under a policy.  Returns the JSON shape tfanalyze.explain/1."""
    from tfanalyze.explain import explain
    from tfanalyze.replay.policies import load_policy

    ready = prepare(source, db=db, seed=seed, **setup)
    found = explain(
        request, ready.trace, ready.fleet, load_policy(policy, ready.settings), ready.profiles, classes=ready.classes, seed=seed
    )
    result: dict[str, Any] = finite({"schema": "tfanalyze.explain/1", "policy": policy, **found, "assumed": list(ready.assumed)})
    return result


def tune_run(
    source: str | Path | None = None,
    *,
    policy: str | None = None,
    baseline: str | None = None,
    gateway_config: str | Path | None = None,
    objective: str | None = None,
    trials: int | None = None,
    timeout_s: float | None = None,
    pin: Mapping[str, float | str] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    constraints: Sequence[str] | None = None,
    study_name: str | None = None,
    workers: int | None = None,
    storage: str | None = None,
    ray: str | None = None,
    accept_model_error: bool = False,
    db: str | Path = DB,
    seed: int = 1,
    progress: Progress | None = None,
    **setup: Any,
) -> dict[str, Any]:
    """Tune on a workspace or a trace file, with the defaults of tfanalyze.toml; a workspace keeps the result.

    ``gateway_config``: the gateway's own file; the policy it runs is what is tuned (unless ``policy`` says other) and the
    baseline (unless ``baseline`` does).  Returns the JSON shape tfanalyze.tune/1.
    """
    from tfanalyze.tune import tune

    ready = prepare(source, db=db, seed=seed, **setup)
    mine = ready.config.tune
    present = None
    if gateway_config is not None:
        from tfanalyze.export import from_gateway

        present = from_gateway(gateway_config)[1]
    chosen = policy or (present.name if present is not None else mine.policy)
    name = study_name or f"{chosen}-{seed}"
    if progress is not None:
        announce_compile(progress)
    found = tune(
        ready.trace,
        ready.fleet,
        ready.profiles,
        ready.classes,
        policy=chosen,
        baseline=baseline or present or usual_baseline(ready),
        objective=objective or mine.objective,
        trials=trials or mine.trials,
        workers=workers,
        seed=seed,
        pin={**mine.pin, **(pin or {})},
        bounds={**mine.bounds, **(bounds or {})},
        constraints=tuple(constraints or mine.constraints),
        storage=storage,
        study_name=name,
        timeout_s=timeout_s if timeout_s is not None else (mine.timeout_s if mine.timeout_s < float("inf") else None),
        accept_model_error=accept_model_error,
        progress=progress,
        **_extra_tune(ready, ray, load_fit(db) if source is None else None),
    )
    result: dict[str, Any] = finite({"schema": "tfanalyze.tune/1", **found, "assumed": list(ready.assumed)})
    if source is None:
        _keep(db, STUDY, name, result)
    return result


def _extra_tune(ready: Setup, ray: str | None, fitted: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {"settings": of_policy(ready.settings, "+".join({key.split(".")[0] for key in ready.settings}))}
    if ray is not None:
        extra["ray"] = ray
    if fitted is not None and fitted.ensemble:
        extra["ensemble"] = members_of(fitted.ensemble)
    return {key: value for key, value in extra.items() if value}


def members_of(ensemble: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """{key: [draw, ...]} -> [{key: draw}, ...], at most eight."""
    count = min(8, *(len(draws) for draws in ensemble.values()))
    return [{key: draws[i] for key, draws in ensemble.items()} for i in range(count)]


def usual_baseline(ready: Setup) -> str:
    """What runs now: the configured baseline where the log can show it, else round robin."""
    wanted = ready.config.tune.baseline
    if wanted == "recorded" and (ready.trace.observed is None or not ready.trace.instances):
        return "round_robin"
    return wanted


def plan_run(
    source: str | Path | None = None,
    *,
    attainment: float = 0.95,
    policy: str = "tokenpilot",
    db: str | Path = DB,
    seed: int = 1,
    progress: Progress | None = None,
    **setup: Any,
) -> dict[str, Any]:
    """How many instances a load needs.  Returns the JSON shape tfanalyze.plan/1."""
    from tfanalyze.plan import plan
    from tfanalyze.replay.policies import load_policy

    ready = prepare(source, db=db, seed=seed, **setup)
    found = plan(
        ready.trace, ready.fleet, ready.profiles, ready.classes,
        policy=load_policy(policy, ready.settings), target=attainment, seed=seed, progress=progress,
    )  # fmt: skip
    result: dict[str, Any] = finite({"schema": "tfanalyze.plan/1", **found, "assumed": list(ready.assumed)})
    return result


def check_run(
    db: str | Path = DB, *, study: str | Path | None = None, config: Config | str | Path | None = None
) -> dict[str, Any]:
    """Compare a study's prediction with new logs.  ``study``: a workspace or the JSON of tune; default: ``db``.

    Returns the JSON shape tfanalyze.check/1.
    """
    from tfanalyze.tune import check

    cfg = config if isinstance(config, Config) else load_config(config)
    result: dict[str, Any] = finite({"schema": "tfanalyze.check/1", **check(db, study_of(study or db), classes=cfg.classes)})
    return result


def study_of(place: str | Path) -> dict[str, Any]:
    """The tune result in a JSON file, or the last one that a workspace keeps.

    Errors: InputError, WorkspaceError where there is none.
    """
    if Path(place).suffix == ".json":
        try:
            found: dict[str, Any] = json.loads(Path(place).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"is no tune result: {error}", str(place), "make one with: tfanalyze tune --json > FILE") from error
        return found
    kept = newest(place, STUDY)
    if kept is None:
        raise WorkspaceError("holds no study", str(place), "make one with: tfanalyze tune")
    return kept


def export_run(
    target: str,
    *,
    out: str | Path = "export",
    policy: str | None = None,
    settings: Mapping[str, float | str] | None = None,
    current: str | Path | None = None,
    dry_run: bool = False,
    db: str | Path = DB,
    accept_model_error: bool = False,
    config: Config | str | Path | None = None,
    endpoints: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Export the last study's best policy, or ``policy`` with ``settings``.  Returns the JSON shape tfanalyze.export/1."""
    from tfanalyze.export import export, target_module
    from tfanalyze.replay.policies import load_policy

    target_module(target)  # an unknown target is said first
    ready = prepare(None, db=db, config=config, settings=settings)
    study = newest(db, STUDY) if policy is None else None
    if policy is None and study is None:
        raise WorkspaceError("holds no study to export", str(db), "tune first, or name a policy with --policy")
    if study is not None:
        chosen = load_policy(study["tuned"]["policy"], {**study["tuned"]["settings"], **(settings or {})})
    else:
        chosen = load_policy(str(policy), ready.settings)
    evidence: dict[str, Any] = dict(study or {})
    evidence.setdefault("model_error", ready.model_error)
    result = export(
        target, chosen, out=Path(out), evidence=evidence, fleet=ready.fleet, classes=ready.classes, current=current,
        dry_run=dry_run, accept_model_error=accept_model_error, endpoints={**ready.config.endpoints, **(endpoints or {})},
    )  # fmt: skip
    if not dry_run:
        _keep(db, EXPORTED, target, finite(result))
    return result


def study_policy(study: Mapping[str, Any]) -> Any:
    """The PolicySet that a study chose."""
    from tfanalyze.replay.policies import load_policy

    return load_policy(study["tuned"]["policy"], study["tuned"]["settings"])


def report_run(
    db: str | Path = DB,
    *,
    out: str | Path = "reports/report.html",
    policies: Sequence[str] | None = None,
    profile: str | Path | None = None,
    seed: int = 1,
    config: Config | str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the report of all that a workspace holds.  Returns the JSON shape tfanalyze.report/1."""
    from tfanalyze.report import report

    say = progress or (lambda share, what: None)
    bundle = report_bundle(db, policies=policies, profile=profile, seed=seed, config=config, progress=lambda share, what: say(0.7 * share, what))
    path = report(bundle, Path(out), progress=lambda share, what: say(0.7 + 0.3 * share, what))
    return {
        "schema": "tfanalyze.report/1",
        "path": str(path),
        "bytes": path.stat().st_size,
        "runs": list(bundle["runs"]),
        "parts": sorted(key for key in ("workload", "fit", "validate", "tune", "export") if bundle.get(key)),
    }


def report_bundle(
    db: str | Path,
    *,
    policies: Sequence[str] | None = None,
    profile: str | Path | None = None,
    seed: int = 1,
    config: Config | str | Path | None = None,
    progress: Progress | None = None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that ``report`` shows, from a workspace: workload, fit, validation, study, runs, ceilings."""
    from tfanalyze import __version__
    from tfanalyze.inspect import inspect

    say = progress or (lambda share, what: None)
    cfg = config if isinstance(config, Config) else load_config(config)
    ready = prepare(None, db=db, config=cfg, profile=profile, seed=seed, series_bins=SERIES_BINS)
    study, fitted = newest(db, STUDY), load_fit(db)
    runs = _report_runs(db, ready, policies, study, seed, say)
    return {
        "workload": inspect(db, config=cfg),
        "fit": fitted.report if fitted else None,
        "validate": newest(db, VALIDATED),
        "runs": runs,
        "classes": ready.classes,
        "fleet": ready.fleet,
        "tune": study,
        "export": newest(db, EXPORTED),
        "ceilings": ceilings(ready, study, seed, say),
        "assumed": list(ready.assumed),
        "meta": {
            "version": __version__,
            "command": list(command) or [f"tfanalyze report --db {Path(db).name}"],
            "seed": seed,
            "model_error": ready.model_error,
        },
    }


def _report_runs(
    db: str | Path, ready: Setup, policies: Sequence[str] | None, study: Mapping[str, Any] | None, seed: int, say: Progress
) -> dict[str, dict[str, Any]]:
    wanted = list(policies or [])
    if not policies:
        wanted = list(dict.fromkeys([usual_baseline(ready), "round_robin"]))
        wanted += [] if study else ["tokenpilot"]
    runs = compare_runs(ready, wanted, seed=seed, progress=lambda share, what: say(0.5 * share, what))
    if study and not policies:
        runs |= tuned_run(ready, study, seed)
    for label, run in runs.items():
        keep_outcome(db, label, ready, run["outcome"])
    return runs


def tuned_run(ready: Setup, study: Mapping[str, Any], seed: int) -> dict[str, dict[str, Any]]:
    """The run of a study's best policy, labelled "NAME (tuned)"."""
    from tfanalyze.slo import summarise

    outcome = ready.simulator().run(study_policy(study), seed)
    return {f"{study['tuned']['policy']} (tuned)": {"outcome": outcome, "trace": ready.trace, "summary": summarise(ready.trace, outcome, ready.classes)}}


def ceilings(
    ready: Setup, study: Mapping[str, Any] | None, seed: int, progress: Progress | None = None
) -> dict[str, Any]:
    """What three oracles would add to the policy that is shown last."""
    from dataclasses import replace

    from tfanalyze.replay.policies import load_policy
    from tfanalyze.slo import summarise

    policy = study_policy(study) if study else load_policy("tokenpilot", of_policy(ready.settings, "tokenpilot"))
    found = {}
    for k, (label, options) in enumerate(CEILINGS.items()):
        if progress is not None:
            progress(0.5 + 0.15 * k, f"ceiling: {label}")
        oracle = replace(ready, options=replace(ready.options, series_bins=0, **options))
        found[label] = summarise(ready.trace, oracle.simulator().run(policy, seed), ready.classes)
    return found


def synth_run(out: str | Path, *, seconds: float, rate: float, sites: int, seed: int) -> dict[str, Any]:
    """Write a synthetic log.  Returns the JSON shape tfanalyze.synth/1."""
    from tfanalyze.synth import synth
    from tfanalyze.trace import trace_hash

    for name, value in (("--seconds", seconds), ("--rate", rate), ("--sites", sites)):
        if value <= 0:
            raise ConfigError(f"is {value:g}", name, "give a number above 0")
    trace = synth(Path(out), seconds=seconds, rate=rate, seed=seed, sites=sites)
    return {
        "schema": "tfanalyze.synth/1", "path": str(out), "requests": len(trace), "span_s": trace.span_s, "seed": seed,
        "classes": {name: int((trace.slo_class == i).sum()) for i, name in enumerate(trace.classes)},
        "trace_hash": trace_hash(trace),
    }  # fmt: skip


def sql_run(db: str | Path, query: str) -> dict[str, Any]:
    """Rows of a query.  Returns the JSON shape tfanalyze.sql/1."""
    from tfanalyze.sql import run_sql

    frame = run_sql(db, query)
    return {"schema": "tfanalyze.sql/1", "columns": list(frame.columns), "rows": finite([list(row) for row in frame.rows()])}


def _keep(db: str | Path, kind: str, name: str, body: Mapping[str, Any]) -> None:
    from tfanalyze.workspace import Workspace

    with Workspace.open(db, wait_s=10.0) as workspace:
        workspace.save_json(kind, name, body)
