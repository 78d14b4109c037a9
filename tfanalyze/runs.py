"""What the commands replay: trace, fleet, profiles and classes put together from a workspace, a config and options."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfanalyze.config import (
    Config,
    EngineLimits,
    Fleet,
    FleetEvent,
    Gateway,
    Pool,
    Site,
    SloClass,
    Transfer,
    load_config,
)
from tfanalyze.errors import ConfigError, InputError, ReplayError, WorkspaceError
from tfanalyze.models.profile import Profile, default_names, from_json, load_profiles, to_json

if TYPE_CHECKING:
    from tfanalyze.models.fitting import FitResult
    from tfanalyze.replay import Options, Outcome, Simulator
    from tfanalyze.trace import Trace

Progress = Callable[[float, str], None]
DB = "tfanalyze.duckdb"
DEFAULT_PROFILE = "h100-llama3.1-8b"  # for traces that carry no timings
DEFAULT_INSTANCES = 4
FIT = "fit"  # kind under which a workspace keeps what was fitted


@dataclass(frozen=True)
class Setup:
    """Everything one replay needs but the policy. ``assumed`` says what was not given and is taken by default."""

    trace: Trace
    fleet: Fleet
    profiles: Mapping[str, Profile]
    classes: tuple[SloClass, ...]
    options: Options
    config: Config
    settings: Mapping[str, float | str] = field(default_factory=dict)
    load: float = 1.0
    assumed: tuple[str, ...] = ()

    def simulator(self) -> Simulator:
        from tfanalyze.replay import Simulator

        return Simulator(self.trace, self.fleet, self.profiles, self.classes, self.options)

    @property
    def model_error(self) -> float | None:
        """Largest held-out relative P95 TTFT error of the profiles; None where none is known."""
        errors = [p.held_out["ttft_s_p95"] for p in self.profiles.values() if "ttft_s_p95" in p.held_out]
        return max(abs(e) for e in errors) if errors else None


def prepare(
    source: str | Path | Trace | None = None,
    *,
    db: str | Path = DB,
    config: Config | str | Path | None = None,
    profile: str | Path | None = None,
    instances: int | None = None,
    load: float = 1.0,
    seed: int = 1,
    gateways: int | None = None,
    report_interval_s: float | None = None,
    settings: Mapping[str, float | str] | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
    **options: Any,
) -> Setup:
    """Put a replay together. ``source``: a log file or Trace; None = the requests of workspace ``db``.

    Where several say the same, the first wins: arguments, tfanalyze.toml, what fit found, the log, defaults.
    ``options``: fields of replay.Options.  Errors: those of load_trace, load_config and load_profiles.
    """
    from tfanalyze.replay import Options

    cfg = config if isinstance(config, Config) else load_config(config)
    if not 0 < load < 1e6:
        raise ConfigError(f"is {load:g}", "--load", "give a factor above 0, 1 = as recorded")
    trace = _trace(source, db, cfg, since_s, until_s)
    fitted = load_fit(db) if source is None or _same_place(source, db) else None
    assumed = [*cfg.assumed, *trace.notes]
    profiles = _profiles(cfg, profile, fitted, assumed)
    fleet = _fleet(trace, cfg, fitted if profile is None else None, instances, assumed)
    fleet = _with_gateway(fleet, cfg, gateways, report_interval_s)
    if load != 1.0:
        from tfanalyze.traceops import scale_load

        trace = scale_load(trace, load, seed)
    merged = {**cfg.settings, **(settings or {})}
    return Setup(trace, fleet, profiles, cfg.classes, Options(**options), cfg, merged, load, tuple(dict.fromkeys(assumed)))


def _same_place(source: Any, db: str | Path) -> bool:
    return isinstance(source, str | Path) and Path(source) == Path(db)


def _trace(source: str | Path | Trace | None, db: str | Path, cfg: Config, since_s: float | None, until_s: float | None) -> Trace:
    from tfanalyze.classify import classifier
    from tfanalyze.trace import Trace, load_trace, read_trace
    from tfanalyze.traceops import cut

    if isinstance(source, Trace):
        return source
    classify = classifier(cfg.class_rules)
    if source is None or Path(source).suffix == ".duckdb":
        return load_trace(source or db, since_s=since_s, until_s=until_s, classes=cfg.classes, classify=classify)
    trace = read_trace(source, classes=cfg.classes, classify=classify, **dict(cfg.ingest))
    if since_s is not None or until_s is not None:
        trace = cut(trace, since_s or 0.0, math.inf if until_s is None else until_s)
    return trace


def _profiles(
    cfg: Config, profile: str | Path | None, fitted: Fitted | None, assumed: list[str]
) -> dict[str, Profile]:
    if profile is not None:
        return load_profiles(profile)
    named = {pool.profile for pool in cfg.fleet.pools if pool.profile} if cfg.fleet else set()
    found = dict(fitted.profiles) if fitted else {}
    for name in sorted(named - set(found)):
        found[name] = next(iter(load_profiles(name).values()))
    if found:
        return found
    shipped = default_names()
    if not shipped:
        raise ReplayError("no profile", "replay", "fit one: tfanalyze fit, or give --profile FILE")
    name = DEFAULT_PROFILE if DEFAULT_PROFILE in shipped else shipped[0]
    assumed.append(f"step times of the shipped profile {name} (no fit in the workspace; choose another with --profile)")
    return load_profiles(name)


def _fleet(trace: Trace, cfg: Config, fitted: Fitted | None, instances: int | None, assumed: list[str]) -> Fleet:
    fleet = cfg.fleet or (fitted.fleet if fitted else None)
    if fleet is not None:
        if cfg.fleet is None and cfg.engine is not None:
            fleet = replace(fleet, pools=tuple(replace(pool, engine=cfg.engine) for pool in fleet.pools))
        return with_instances(fleet, instances) if instances is not None else fleet
    count = instances if instances is not None else len(trace.instances) or DEFAULT_INSTANCES
    if count < 1:
        raise ConfigError(f"is {count}", "--instances", "give at least 1")
    if instances is None:
        assumed.append(f"{count} instances, {'as many as the log names' if trace.instances else 'choose with --instances or [[pools]]'}")
    engine = cfg.engine or EngineLimits()
    if cfg.engine is None:
        assumed.append(f"engine limits: {engine.max_num_batched_tokens} batched tokens, {engine.max_num_seqs} sequences, {engine.kv_tokens} KV tokens")
    return Fleet((Pool("pool", count=count, engine=engine),))


def with_instances(fleet: Fleet, instances: int) -> Fleet:
    """The fleet with that many instances in all, shared over its pools as they are now (at least one each)."""
    if instances < len(fleet.pools):
        raise ConfigError(f"is {instances}", "--instances", f"the fleet has {len(fleet.pools)} pools: give at least one each")
    total = fleet.n_instances
    counts = [max(1, instances * pool.count // total) for pool in fleet.pools]
    order = sorted(range(len(counts)), key=lambda i: -(instances * fleet.pools[i].count % total))
    at = 0
    while sum(counts) != instances:
        i = order[at % len(order)]
        step = 1 if sum(counts) < instances else -1
        counts[i] += step if counts[i] + step >= 1 else 0
        at += 1
    return replace(fleet, pools=tuple(replace(pool, count=count) for pool, count in zip(fleet.pools, counts, strict=True)))


def _with_gateway(fleet: Fleet, cfg: Config, gateways: int | None, report_interval_s: float | None) -> Fleet:
    gateway = cfg.gateway or fleet.gateway
    if gateways is not None:
        if gateways < 1:
            raise ConfigError(f"is {gateways}", "--gateways", "give at least 1")
        gateway = replace(gateway, replicas=gateways)
    if report_interval_s is not None:
        if report_interval_s < 0:
            raise ConfigError(f"is {report_interval_s:g}", "--report-interval", "give seconds, 0 = live")
        gateway = replace(gateway, report_interval_s=report_interval_s)
    return replace(fleet, gateway=gateway)


# what fit found, kept in the workspace --------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    profiles: dict[str, Profile]
    fleet: Fleet
    report: dict[str, Any]
    ensemble: dict[str, list[Profile]] = field(default_factory=dict)


def fit_run(
    db: str | Path = DB,
    *,
    config: Config | str | Path | None = None,
    out: str | Path | None = None,
    calibrate: bool = True,
    seed: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit, keep the result in the workspace, and write the profiles to ``out`` where one is given.

    Returns the JSON shape tfanalyze.fit/1.
    """
    import json

    from tfanalyze.models.fitting import fit

    cfg = config if isinstance(config, Config) else load_config(config)
    result = fit(db, fleet=cfg.fleet, calibrate=calibrate, seed=seed, progress=progress)
    keep_fit(db, result)
    if out is not None:
        write_text(out, json.dumps(to_json(result.profiles), indent=1, sort_keys=True) + "\n")
    return fit_shape(result, db, out, seed, cfg)


def fit_shape(result: FitResult, db: str | Path, out: str | Path | None, seed: int, cfg: Config) -> dict[str, Any]:
    """The JSON shape tfanalyze.fit/1."""
    return {
        "schema": "tfanalyze.fit/1",
        "db": str(db),
        "out": str(out) if out is not None else None,
        "seed": seed,
        "fleet": fleet_facts(result.fleet),
        **finite(result.report),
    }


def keep_fit(db: str | Path, result: FitResult) -> None:
    """Keep what fit found in a workspace, for replays to come."""
    from tfanalyze.workspace import Workspace

    body = {
        "report": finite(result.report),
        "profiles": to_json(result.profiles),
        "fleet": asdict(result.fleet),
        "ensemble": {key: [to_json(p) for p in members[:20]] for key, members in result.ensemble.items()},
    }
    with Workspace.open(db, wait_s=10.0) as workspace:
        workspace.save_json(FIT, "last", body)


def load_fit(db: str | Path) -> Fitted | None:
    """What fit kept in a workspace, or None."""
    from tfanalyze.workspace import Workspace

    if not Path(db).is_file():
        return None
    with Workspace.open(db, read_only=True) as workspace:
        if not workspace.list_json(FIT):
            return None
        body = workspace.load_json(FIT)
    members = {key: [next(iter(from_json(one).values())) for one in many] for key, many in body.get("ensemble", {}).items()}
    return Fitted(from_json(body["profiles"], str(db)), fleet_from(body["fleet"]), body["report"], members)


def fleet_from(body: Mapping[str, Any]) -> Fleet:
    """The Fleet whose ``asdict`` this is."""
    return Fleet(
        tuple(Pool(**{**pool, "engine": EngineLimits(**pool["engine"])}) for pool in body["pools"]),
        tuple(Site(**site) for site in body["sites"]),
        Gateway(**body["gateway"]),
        Transfer(**body["transfer"]),
        tuple(FleetEvent(**event) for event in body["events"]),
    )


def fleet_facts(fleet: Fleet) -> dict[str, Any]:
    """A fleet in a few numbers, for results."""
    return {
        "instances": fleet.n_instances,
        "pools": {pool.name: pool.count for pool in fleet.pools},
        "sites": [site.name for site in fleet.sites],
        "gateways": fleet.gateway.replicas,
        "report_interval_s": fleet.gateway.report_interval_s,
        "scheduler": sorted({pool.engine.scheduler for pool in fleet.pools}),
    }


# replay and compare ---------------------------------------------------------------------------------------------


def replay_run(
    source: str | Path | Trace | None = None,
    *,
    policy: str = "tokenpilot",
    db: str | Path = DB,
    seed: int = 1,
    out: str | Path | None = None,
    keep: bool = True,
    progress: Progress | None = None,
    **setup: Any,
) -> dict[str, Any]:
    """Replay under one policy and sum up; ``setup`` as in ``prepare``.

    ``out``: Parquet file of one row a request.  ``keep``: a run of a workspace is also written to its table
    ``simulated``.  Returns the JSON shape tfanalyze.replay/1.
    """
    from tfanalyze.frames import check_parquet, write_parquet
    from tfanalyze.replay.policies import load_policy
    from tfanalyze.slo import summarise

    began = time.perf_counter()
    say = progress or (lambda share, what: None)
    if out is not None:
        check_parquet(out)
    say(0.0, "reading the trace")
    ready = prepare(source, db=db, seed=seed, **setup)
    policies = load_policy(policy, ready.settings)
    refuse_recorded(policy, ready.trace)
    announce_compile(say)
    say(0.3, "replaying")
    simulator = ready.simulator()
    outcome = simulator.run(policies, seed)
    say(0.9, "summing up")
    metrics = summarise(ready.trace, outcome, ready.classes)
    if out is not None:
        write_parquet(out, ready.trace, outcome, ready.classes, run=policy)
    if keep and source is None:
        keep_outcome(db, policy, ready, outcome)
    say(1.0, "done")
    shaped: dict[str, Any] = finite({
        "schema": "tfanalyze.replay/1",
        "policy": policy,
        "params": outcome.policy,
        "requests": len(ready.trace),
        **facts(ready, outcome),
        "wall_s": time.perf_counter() - began,
        "peak_rss_bytes": peak_rss_bytes(),
        "outcome_hash": outcome.outcome_hash,
        "metrics": metrics,
        "out": str(out) if out is not None else None,
        "assumed": list(ready.assumed),
    })  # fmt: skip
    return shaped


def core_compiled() -> bool:
    """Whether the replay core is in this machine's compile cache."""
    from tfanalyze.replay.jit import CACHE_DIR, JIT_OFF

    return JIT_OFF or any(CACHE_DIR.rglob("*replay_kernel*.nbi"))


def announce_compile(say: Progress) -> None:
    """Say so before a first replay compiles the core."""
    if not core_compiled():
        say(0.3, "compiling the replay core, once on this machine (some 20 s)")


def facts(ready: Setup, outcome: Outcome) -> dict[str, Any]:
    """What a result must name so that it can be made again."""
    from tfanalyze import __version__

    return {
        "version": __version__,
        "kernel_s": outcome.kernel_s,
        "seed": outcome.seed,
        "trace": ready.trace.name,
        "trace_hash": outcome.trace_hash,
        "profile": sorted(p.name for p in ready.profiles.values()),
        "profile_hash": outcome.profile_hash,
        "model_error": ready.model_error,
        "load": ready.load,
        "fleet": fleet_facts(ready.fleet),
        "options": {key: value for key, value in asdict(ready.options).items() if value not in (False, 0, -1)},
    }


def compare_runs(
    ready: Setup, policies: Sequence[str], *, seed: int = 1, progress: Progress | None = None
) -> dict[str, dict[str, Any]]:
    """Replay the same trace under every policy: label -> {"outcome", "trace", "summary"}, in the order given."""
    from tfanalyze.replay.policies import PolicySet, load_policy
    from tfanalyze.slo import summarise

    say = progress or (lambda share, what: None)
    announce_compile(say)
    simulator = ready.simulator()
    runs: dict[str, dict[str, Any]] = {}
    for k, policy in enumerate(policies):
        say(k / len(policies), f"replaying {policy}")
        refuse_recorded(policy, ready.trace)
        chosen: PolicySet = load_policy(policy, of_policy(ready.settings, policy))
        outcome = simulator.run(chosen, seed)
        runs[policy] = {"outcome": outcome, "trace": ready.trace, "summary": summarise(ready.trace, outcome, ready.classes)}
    say(1.0, "done")
    return runs


def compare(
    source: str | Path | Trace | None = None,
    *,
    policies: Sequence[str] = ("round_robin", "tokenpilot"),
    db: str | Path = DB,
    seed: int = 1,
    keep: bool = True,
    progress: Progress | None = None,
    **setup: Any,
) -> dict[str, Any]:
    """Replay under several policies; every gain is against the first.  ``setup`` as in ``prepare``.

    Returns the JSON shape tfanalyze.compare/1.
    """
    began = time.perf_counter()
    if len(set(policies)) != len(policies) or len(policies) < 2:
        raise ConfigError(f"{len(policies)} policies: {', '.join(policies)}", "--policy", "give two or more different ones")
    ready = prepare(source, db=db, seed=seed, **setup)
    _all_used(ready.settings, policies)
    runs = compare_runs(ready, policies, seed=seed, progress=progress)
    if keep and source is None:
        for label, run in runs.items():
            keep_outcome(db, label, ready, run["outcome"])
    return comparison(ready, runs, began)


def comparison(ready: Setup, runs: Mapping[str, Mapping[str, Any]], began: float) -> dict[str, Any]:
    """The JSON shape tfanalyze.compare/1 of runs of one trace; the first run is the baseline."""
    base = next(iter(runs))
    first = runs[base]["outcome"]
    shown = {}
    for label, run in runs.items():
        gain = goodput_gain(ready, runs[base]["outcome"], run["outcome"]) if label != base else None
        shown[label] = {"params": run["outcome"].policy, "outcome_hash": run["outcome"].outcome_hash,
                        "kernel_s": run["outcome"].kernel_s, "gain": gain, "metrics": run["summary"]}  # fmt: skip
    shaped: dict[str, Any] = finite({
        "schema": "tfanalyze.compare/1",
        "baseline": base,
        "requests": len(ready.trace),
        **facts(ready, first),
        "kernel_s": sum(run["outcome"].kernel_s for run in runs.values()),
        "wall_s": time.perf_counter() - began,
        "peak_rss_bytes": peak_rss_bytes(),
        "runs": shown,
        "assumed": list(ready.assumed),
    })  # fmt: skip
    return shaped


def goodput_gain(ready: Setup, base: Outcome, other: Outcome, draws: int = 2000) -> dict[str, Any]:
    """Gain of ``other`` in goodput, percent of ``base``, with a paired 95 % block-bootstrap interval over time."""
    import numpy as np

    from tfanalyze.slo import attained
    from tfanalyze.tune.stats import BINS, bin_of, block_length, block_weights, grouped_sums, interval

    trace = ready.trace
    tokens = trace.output_tokens.astype(np.float64)
    good = [np.where(attained(trace, one, ready.classes), tokens, 0.0) for one in (base, other)]
    bins = int(min(BINS, max(8, len(trace) // 4)))
    group = bin_of(trace.arrival_s, float(trace.arrival_s[0]), float(trace.arrival_s[-1]), bins)
    sums = [grouped_sums(group, values, bins) for values in good]
    if sums[0].sum() <= 0:
        return {"pct": None, "ci_low_pct": None, "ci_high_pct": None}
    block = block_length(sums[1] - sums[0])
    weights = block_weights(bins, block, draws, np.random.default_rng(1))
    point = 100.0 * (sums[1].sum() / sums[0].sum() - 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = 100.0 * ((weights @ sums[1]) / (weights @ sums[0]) - 1.0)
    low, high = interval(point, drawn, bins / block)
    return {"pct": point, "ci_low_pct": low, "ci_high_pct": high}


def keep_outcome(db: str | Path, name: str, ready: Setup, outcome: Outcome) -> None:
    """Write a run into the workspace's table ``simulated``, in place of an earlier one of that name."""
    from tfanalyze.workspace import Workspace

    with Workspace.open(db, wait_s=10.0) as workspace:
        workspace.write_outcome(name, ready.trace, outcome, ready.classes)


def refuse_recorded(policy: str, trace: Trace) -> None:
    """Refuse to replay the recorded routing of a trace that has none."""
    if "recorded" in policy.split("+") and (trace.observed is None or not trace.instances):
        raise ReplayError("the log does not say which instance served a request", f"policy {policy}", "choose another policy, such as round_robin")


def of_policy(settings: Mapping[str, float | str], policy: str) -> dict[str, float | str]:
    """Those of the settings that belong to the policies of ``a+b+c``."""
    names = {name.strip() for name in policy.replace("|", "+").split("+")}
    return {key: value for key, value in settings.items() if key.split(".", 1)[0] in names}


def _all_used(settings: Mapping[str, float | str], policies: Sequence[str]) -> None:
    used = {key for policy in policies for key in of_policy(settings, policy)}
    for key in settings:
        if key not in used:
            raise ConfigError("has no effect here", f"--set {key}", f"the policies are {', '.join(policies)}")


def peak_rss_bytes() -> int:
    """Most memory this process has held."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def finite(value: Any) -> Any:
    """JSON-ready: NaN and infinity become null, numpy scalars and arrays become numbers and lists."""
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_text(path: str | Path, text: str) -> Path:
    """Write a file whole or not at all.  Errors: InputError where it cannot be written."""
    out = Path(path)
    part = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", str(out), "give another --out") from error
    return out


def newest(db: str | Path, kind: str) -> dict[str, Any] | None:
    """The result of a kind that was kept last in a workspace, or None."""
    from tfanalyze.workspace import Workspace

    try:
        with Workspace.open(db, read_only=True) as workspace:
            return workspace.load_json(kind) if workspace.list_json(kind) else None
    except WorkspaceError:
        if not Path(db).exists():
            return None
        raise
