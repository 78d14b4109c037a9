"""The command line: every command parses, calls one function of the library and shows what it returned."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tfanalyze import cliparts as cp
from tfanalyze.errors import TfanalyzeError

DB = Path("tfanalyze.duckdb")
INTERRUPTED = 130  # exit code of Ctrl-C
MODEL_ERROR = 3  # exit code: validate above --max-error; check: less than promised, or other traffic
ROLL_BACK = 4  # exit code: check sees no gain at all

app = typer.Typer(
    name="tfanalyze",
    help="Analyse logs of LLM inference fleets offline, replay other policies on them, tune, and export the config.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ingest_app = typer.Typer(help="Read logs or metrics into the workspace.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(ingest_app, name="ingest")


def _version(wanted: bool) -> None:
    if wanted:
        from tfanalyze import __version__

        sys.stdout.write(f"tfanalyze {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


# ingest -----------------------------------------------------------------------------------------------------------


@ingest_app.command("logs")
def ingest_logs(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, folders, globs; - is stdin. gz and zst are read too.")],
    db: cp.Db = DB,
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the files; auto looks at them.")] = "auto",
    explain: Annotated[bool, typer.Option("--explain", help="Only say what each column would come from; write nothing.")] = False,
    time_unit: Annotated[str | None, typer.Option(help="Unit of numeric arrivals: s, ms, us or ns. [default: detected]")] = None,
    time_base: Annotated[str | None, typer.Option(help="What times count from: unix, monotonic or relative. [default: detected]")] = None,
    start_at: Annotated[str | None, typer.Option(metavar="TIME", help="When a trace with relative times began: ISO time or epoch.")] = None,
    tz: cp.Zone = None,
    year: cp.Year = None,
    clock_ahead: cp.ClockAhead = None,
    instance: Annotated[str | None, typer.Option(help="Instance, where the log names none.")] = None,
    site: Annotated[str | None, typer.Option(help="Site, where the log names none.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, where the log names none.")] = None,
    slo_class: Annotated[str | None, typer.Option("--class", help="SLO class, where the log names none.")] = None,
    vantage: Annotated[str | None, typer.Option(help="Who wrote the log: client, gateway, router or engine. [default: by format]")] = None,
    block_size: Annotated[int | None, typer.Option(metavar="TOKENS", help="Tokens a prefix block, in place of what the format says.")] = None,
    block_scope: Annotated[str | None, typer.Option(help="shared if numbered block ids mean the same in all files, else file. [default: file]")] = None,
    keep_tenants: Annotated[bool, typer.Option("--keep-tenants", help="Store tenant and session names as they are, not pseudonyms.")] = False,
    key_file: Annotated[str | None, typer.Option(metavar="FILE", help="Key of pseudonyms and block hashes. [default: next to the workspace]")] = None,
    requests: Annotated[int | None, typer.Option(metavar="N", help="Requests to draw, where the file describes a load. [default: all]")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same ones. [default: 1]")] = None,
    wait: cp.Wait = None,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Read request logs; a file that was read before changes nothing."""
    import tfanalyze as tf

    given = cp.options_of(
        time_unit=time_unit, time_base=time_base, start_at=start_at, tz=tz, year=year, clock_ahead_s=clock_ahead, instance=instance,
        site=site, model=model, slo_class=slo_class, vantage=vantage, block_size=block_size, block_scope=block_scope,
        keep_tenants=keep_tenants, key_file=key_file, requests=requests, seed=seed, wait_s=wait,
    )  # fmt: skip
    options = {**tf.load_config(config).ingest, **given}
    if explain:
        for path in paths:
            found = tf.explain_file(path, format=format, **options)
            cp.show("explain_file", {"schema": "tfanalyze.explain_file/1", **found}, json, quiet)
        return
    with cp.progress(json, quiet) as report:
        result = tf.ingest_logs(paths, db=db, format=format, progress=report, **options)
    cp.show("ingest", {"schema": "tfanalyze.ingest/1", "db": str(db), **result}, json, quiet)


@ingest_app.command("metrics")
def ingest_metrics(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, folders, globs; - is stdin.")],
    db: cp.Db = DB,
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the files; auto looks at them.")] = "auto",
    instance: Annotated[str | None, typer.Option(help="Instance, where the file names none.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Time of a scrape that names none: ISO time or epoch.")] = None,
    tz: cp.Zone = None,
    year: cp.Year = None,
    clock_ahead: cp.ClockAhead = None,
    wait: cp.Wait = None,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Read engine and gateway metrics: Prometheus scrapes, query results, dashboards' exports."""
    import tfanalyze as tf

    given = cp.options_of(instance=instance, at=at, tz=tz, year=year, clock_ahead_s=clock_ahead, wait_s=wait)
    options = {**tf.load_config(config).ingest, **given}
    with cp.progress(json, quiet) as report:
        result = tf.ingest_metrics(paths, db=db, format=format, progress=report, **options)
    cp.show("ingest", {"schema": "tfanalyze.ingest/1", "db": str(db), **result}, json, quiet)


@app.command("inspect")
def inspect_command(
    db: cp.Db = DB,
    config: cp.ConfigFile = None,
    rejects: Annotated[bool, typer.Option("--rejects", help="Also list rejected rows with file, line and reason.")] = False,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """The workload at a glance: rates, lengths, classes, prefix reuse, attainment as observed, where time went."""
    from tfanalyze.inspect import inspect

    with cp.progress(json, quiet) as report:
        result = inspect(db, config=config, rejects=rejects, progress=report)
    cp.show("inspect", result, json, quiet)


@app.command()
def lint(db: cp.Db = DB, json: cp.Json = False, quiet: cp.Quiet = False) -> None:
    """What is wrong with the ingested traces, before anyone trusts them."""
    import tfanalyze as tf

    cp.show("lint", {"schema": "tfanalyze.lint/1", "db": str(db), **tf.lint(db)}, json, quiet)


# models -----------------------------------------------------------------------------------------------------------


@app.command()
def fit(
    db: cp.Db = DB,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the profile to this JSON file.")] = None,
    config: cp.ConfigFile = None,
    calibrate: Annotated[bool, typer.Option("--calibrate/--no-calibrate", help="Replay the recorded routing and adjust until the distributions agree.")] = True,
    seed: cp.Seed = 1,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Fit step times and KV facts to what was ingested, with intervals and held-out error."""
    from tfanalyze import runs

    with cp.progress(json, quiet) as report:
        result = runs.fit_run(db, config=config, out=out, calibrate=calibrate, seed=seed, progress=report)
    cp.show("fit", result, json, quiet)


@app.command()
def validate(
    db: cp.Db = DB,
    profile: cp.Profile = None,
    max_error: Annotated[float | None, typer.Option("--max-error", metavar="SHARE", help="Exit with 3 above this relative error, such as 0.15.")] = None,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Replay the recorded routing and compare with what was observed."""
    from tfanalyze import studies

    with cp.progress(json, quiet) as report:
        result = studies.validate_run(db, profile=profile, max_error=max_error, config=config, progress=report)
    cp.show("validate", result, json, quiet)
    if result.get("ok") is False:
        raise typer.Exit(MODEL_ERROR)


# replay -----------------------------------------------------------------------------------------------------------


@app.command()
def replay(
    trace: cp.Source = None,
    policy: Annotated[str, typer.Option("--policy", metavar="NAME+NAME", help="Policies joined by +, or file.py:Name.")] = "tokenpilot",
    set: cp.Set = None,
    db: cp.Db = DB,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.parquet", help="Write one row a request.")] = None,
    instances: cp.Instances = None,
    load: cp.Load = 1.0,
    seed: cp.Seed = 1,
    profile: cp.Profile = None,
    gateways: cp.Gateways = None,
    report_interval: cp.ReportInterval = None,
    open_loop: cp.OpenLoop = False,
    infinite_cache: cp.InfiniteCache = False,
    perfect_signals: cp.PerfectSignals = False,
    known_lengths: cp.KnownLengths = False,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Replay the traffic under another routing, admission or capacity policy."""
    from tfanalyze import runs

    with cp.progress(json, quiet) as report:
        result = runs.replay_run(
            trace, policy=policy, settings=cp.parse_settings(set), db=db, out=out, instances=instances, load=load, seed=seed,
            profile=profile, gateways=gateways, report_interval_s=report_interval, open_loop=open_loop,
            infinite_cache=infinite_cache, perfect_signals=perfect_signals, known_lengths=known_lengths, config=config,
            progress=report,
        )  # fmt: skip
    cp.show("replay", result, json, quiet)


@app.command()
def compare(
    trace: cp.Source = None,
    policy: Annotated[list[str] | None, typer.Option("--policy", metavar="NAME+NAME", help="Give two or more; gains are against the first.")] = None,
    set: cp.Set = None,
    db: cp.Db = DB,
    instances: cp.Instances = None,
    load: cp.Load = 1.0,
    seed: cp.Seed = 1,
    profile: cp.Profile = None,
    gateways: cp.Gateways = None,
    report_interval: cp.ReportInterval = None,
    open_loop: cp.OpenLoop = False,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Replay the same traffic under several policies, side by side."""
    from tfanalyze import runs

    with cp.progress(json, quiet) as report:
        result = runs.compare(
            trace, policies=policy or ["round_robin", "tokenpilot"], settings=cp.parse_settings(set), db=db, instances=instances,
            load=load, seed=seed, profile=profile, gateways=gateways, report_interval_s=report_interval, open_loop=open_loop,
            config=config, progress=report,
        )  # fmt: skip
    cp.show("compare", result, json, quiet)


@app.command()
def explain(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Request id as in the log, or r<row>.")],
    policy: Annotated[str, typer.Option("--policy", metavar="NAME+NAME", help="Policies joined by +.")] = "tokenpilot",
    set: cp.Set = None,
    db: cp.Db = DB,
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE", help="A log file in place of the workspace.")] = None,
    profile: cp.Profile = None,
    instances: cp.Instances = None,
    seed: cp.Seed = 1,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Why a request went where it went, what its time was spent on, and what another choice would have done."""
    from tfanalyze import studies

    with cp.progress(json, quiet) as report:
        result = studies.explain_run(
            request, trace, policy=policy, settings=cp.parse_settings(set), db=db, profile=profile, instances=instances,
            seed=seed, config=config, progress=report,
        )  # fmt: skip
    cp.show("explain", result, json, quiet)


# tuning -----------------------------------------------------------------------------------------------------------


@app.command()
def tune(
    trace: cp.Source = None,
    policy: Annotated[str | None, typer.Option("--policy", metavar="NAME+NAME", help="What to tune; a|b tries both. [default: tokenpilot+slomax]")] = None,
    baseline: Annotated[str | None, typer.Option("--baseline", metavar="NAME", help="What runs now. [default: recorded where the log names instances, else round_robin]")] = None,
    gateway_config: Annotated[Path | None, typer.Option("--gateway-config", metavar="FILE", help="What runs now, read from the gateway's own config: its policy is tuned from there.")] = None,
    objective: Annotated[str | None, typer.Option("--objective", help="goodput, attainment, p95_ttft:CLASS, cost:SHARE, fairness, or a weighted sum. [default: goodput]")] = None,
    trials: Annotated[int | None, typer.Option("--trials", metavar="N", help="[default: 100]")] = None,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", help="Threads. [default: all cores]")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="S", help="Stop the search after so many seconds.")] = None,
    set: cp.Set = None,
    pin: Annotated[list[str] | None, typer.Option("--pin", metavar="NAME.PARAM=VALUE", help="Do not search this parameter.")] = None,
    bound: Annotated[list[str] | None, typer.Option("--bound", metavar="NAME.PARAM=LOW:HIGH", help="Search it in this range.")] = None,
    constraint: Annotated[list[str] | None, typer.Option("--constraint", metavar="EXPR", help='Such as "attainment:interactive >= 0.95".')] = None,
    storage: Annotated[str | None, typer.Option("--storage", metavar="URL|FILE", help="Study storage: a journal file, or postgresql://... [default: tfanalyze-studies.journal beside the workspace]")] = None,
    study: Annotated[str | None, typer.Option("--study", metavar="NAME", help="Name of the study; the same name resumes it.")] = None,
    ray: Annotated[str | None, typer.Option("--ray", metavar="ADDRESS", help="Spread trials over a Ray cluster.")] = None,
    db: cp.Db = DB,
    instances: cp.Instances = None,
    load: cp.Load = 1.0,
    seed: cp.Seed = 1,
    profile: cp.Profile = None,
    gateways: cp.Gateways = None,
    report_interval: cp.ReportInterval = None,
    accept_model_error: cp.AcceptError = False,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Search a policy's parameters; report the gain on traffic that the search never saw."""
    from tfanalyze import studies
    from tfanalyze.tune.storage import DEFAULT_STORAGE

    storage = storage or str(db.parent / DEFAULT_STORAGE)
    with cp.progress(json, quiet) as report:
        result = studies.tune_run(
            trace, policy=policy, baseline=baseline, gateway_config=gateway_config, objective=objective, trials=trials, workers=workers, timeout_s=timeout,
            settings=cp.parse_settings(set), pin=cp.parse_settings(pin), bounds=cp.parse_bounds(bound), constraints=constraint,
            storage=storage, study_name=study, ray=ray, db=db, instances=instances, load=load, seed=seed, profile=profile,
            gateways=gateways, report_interval_s=report_interval, accept_model_error=accept_model_error, config=config,
            progress=report,
        )  # fmt: skip
    cp.show("tune", result, json, quiet)


@app.command()
def plan(
    trace: cp.Source = None,
    attainment: Annotated[float, typer.Option("--attainment", metavar="SHARE", help="Share of requests that must meet their SLO.")] = 0.95,
    policy: Annotated[str, typer.Option("--policy", metavar="NAME+NAME", help="Policies joined by +.")] = "tokenpilot",
    set: cp.Set = None,
    db: cp.Db = DB,
    load: cp.Load = 1.0,
    seed: cp.Seed = 1,
    profile: cp.Profile = None,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """How many instances meet the SLOs at a load, and the curve of attainment over fleet size."""
    from tfanalyze import studies

    with cp.progress(json, quiet) as report:
        result = studies.plan_run(
            trace, attainment=attainment, policy=policy, settings=cp.parse_settings(set), db=db, load=load, seed=seed,
            profile=profile, config=config, progress=report,
        )  # fmt: skip
    cp.show("plan", result, json, quiet)


@app.command()
def check(
    db: Annotated[Path, typer.Option("--db", metavar="FILE", help="The workspace with the new logs.")] = DB,
    study: Annotated[Path | None, typer.Option("--study", metavar="FILE", help="Workspace or JSON of the tuning. [default: --db]")] = None,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Compare what tuning predicted with what new logs show, and say whether the regime has drifted.

    Exits with 0 (as predicted, or too few requests to tell), 3 (a smaller gain, or other traffic) or 4 (no gain: roll back).
    """
    from tfanalyze import studies

    result = studies.check_run(db, study=study, config=config)
    cp.show("check", result, json, quiet)
    if result["advice"] in ("recalibrate", "tune_again", "roll_back"):
        raise typer.Exit(ROLL_BACK if result["advice"] == "roll_back" else MODEL_ERROR)


# results ----------------------------------------------------------------------------------------------------------


@app.command()
def export(
    target: Annotated[str, typer.Option("--target", metavar="NAME", help="The gateway, as listed above.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the config and its evidence.")] = Path("export"),
    policy: Annotated[str | None, typer.Option("--policy", metavar="NAME+NAME", help="Policies to export. [default: the last study's best]")] = None,
    set: cp.Set = None,
    current: Annotated[Path | None, typer.Option("--current", "--from", metavar="FILE", help="The gateway's present config: the result is a minimal change of it.")] = None,
    endpoint: Annotated[list[str] | None, typer.Option("--endpoint", metavar="NAME=URL", help="Address of an instance; may be repeated. [default: table endpoints of tfanalyze.toml]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, show the difference.")] = False,
    db: cp.Db = DB,
    accept_model_error: cp.AcceptError = False,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Write a tuned policy as the config of a gateway, with the evidence beside it.

    \b
    tokenfleet        tfanalyze's own policies, for a gateway of your own
    llm-d             EndpointPickerConfig and InferenceObjectives
    smg               Shepherd Model Gateway: arguments, priority classes
    sglang            sglang-router: arguments
    dynamo            NVIDIA Dynamo: router policy file
    vllm-router       vllm-router: arguments
    production-stack  vLLM production-stack: Helm values
    aibrix            AIBrix gateway: environment variables
    litellm           LiteLLM proxy: config.yaml
    envoy             Envoy: bootstrap
    ray-serve         Ray Serve LLM: router of a deployment
    """
    from tfanalyze import studies

    result = studies.export_run(
        target, out=out, policy=policy, settings=cp.parse_settings(set), current=current, dry_run=dry_run, db=db,
        accept_model_error=accept_model_error, config=config, endpoints=cp.parse_endpoints(endpoint),
    )  # fmt: skip
    cp.show("export", result, json, quiet)


@app.command()
def report(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="One file that loads nothing from the network.")] = Path("reports/report.html"),
    policy: Annotated[list[str] | None, typer.Option("--policy", metavar="NAME+NAME", help="Policies to show. [default: recorded, round_robin and the tuned one]")] = None,
    db: cp.Db = DB,
    profile: cp.Profile = None,
    seed: cp.Seed = 1,
    config: cp.ConfigFile = None,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """One HTML page for the people who decide."""
    from tfanalyze import studies

    with cp.progress(json, quiet) as bar:
        result = studies.report_run(db, out=out, policies=policy, profile=profile, seed=seed, config=config, progress=bar)
    cp.show("report", result, json, quiet)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the workspace, the config and the report.")] = Path("reports/demo"),
    trials: Annotated[int, typer.Option("--trials", metavar="N", help="Trials of the tuning.")] = 60,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """All of the above on the sample traces, ending with a report and an exported config."""
    import tfanalyze as tf

    with cp.progress(json, quiet) as bar:
        result = tf.demo(out=out, trials=trials, progress=bar, tell=None if json or quiet else cp.teller())
    cp.show("demo", result, json, quiet)


@app.command()
def synth(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the log (.jsonl, .jsonl.gz, .jsonl.zst).")],
    seconds: Annotated[float, typer.Option("--seconds", help="Length of the trace.")] = 600.0,
    rate: Annotated[float, typer.Option("--rate", help="Requests a second.")] = 4.0,
    sites: Annotated[int, typer.Option("--sites", help="Sites.")] = 2,
    seed: cp.Seed = 1,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Make a mixed interactive, long_context and offline trace with the published statistics of real ones."""
    from tfanalyze import studies

    cp.show("synth", studies.synth_run(out, seconds=seconds, rate=rate, sites=sites, seed=seed), json, quiet)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL over the views of docs/sql.md.")],
    db: cp.Db = DB,
    json: cp.Json = False,
    quiet: cp.Quiet = False,
) -> None:
    """Ask the workspace in SQL: real and simulated requests side by side, read only."""
    from tfanalyze import studies

    cp.show("sql", studies.sql_run(db, query), json, quiet)


@app.command()
def doctor(db: cp.Db = DB, config: cp.ConfigFile = None, json: cp.Json = False, quiet: cp.Quiet = False) -> None:
    """Versions, cores, workspace health, and what is missing to fit or tune."""
    import tfanalyze as tf

    cp.show("doctor", tf.doctor(db, config=config), json, quiet)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors that a user can mend are one line on stderr and exit code 2, Ctrl-C is 130."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    from typer.exceptions import Abort, Exit, TyperException

    code: Any = 0
    try:
        code = app(args=arguments, prog_name="tfanalyze", standalone_mode=False)
        sys.stdout.flush()
    except TfanalyzeError as error:
        sys.stderr.write(f"tfanalyze: {' '.join(str(error).split())}\n")
        code = 2
    except (Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exit as done:
        code = done.exit_code
    except TyperException as error:
        error.show()  # type: ignore[attr-defined]  # only its subclasses are raised, and all have it
        code = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing to say, no traceback at exit
    if code == INTERRUPTED:
        sys.stderr.write("tfanalyze: interrupted\n")
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
