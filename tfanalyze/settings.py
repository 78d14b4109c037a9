"""tfanalyze.toml -> Config; every complaint names the field, what was found and what is allowed."""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import date
from math import inf
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from tfanalyze.config import (
    DEFAULT_CLASSES,
    ClassRule,
    Config,
    EngineLimits,
    Fleet,
    FleetEvent,
    Gateway,
    IngestOptions,
    Pool,
    Site,
    SloClass,
    Transfer,
    TuneSettings,
)
from tfanalyze.errors import ConfigError

FILE = "tfanalyze.toml"

# field -> the words it may hold; "Class.field"
CHOICES: dict[str, tuple[str, ...]] = {
    "EngineLimits.scheduler": ("vllm", "sglang", "llamacpp"),
    "EngineLimits.cache": ("blocks", "slot", "none"),
    "EngineLimits.queue": ("fcfs", "priority"),
    "Pool.role": ("both", "prefill", "decode"),
    "FleetEvent.what": ("crash", "drain", "start", "stop"),
    "Gateway.index": ("exact", "approx", "none"),
    "IngestOptions.time_unit": ("s", "ms", "us", "ns"),
    "IngestOptions.time_base": ("unix", "monotonic", "relative"),
    "IngestOptions.vantage": ("client", "gateway", "router", "engine"),
    "IngestOptions.block_scope": ("file", "shared"),
}
# field -> (low, high); both ends allowed. A field that is not named here may be 0 or more.
RANGES: dict[str, tuple[float, float]] = {
    "SloClass.priority": (-1e9, 1e9),
    "SloClass.retry_jitter": (0, 1),
    "SloClass.max_retries": (0, 100),
    "EngineLimits.max_num_batched_tokens": (1, 1e9),
    "EngineLimits.max_num_seqs": (1, 1e6),
    "EngineLimits.block_size": (1, 1e6),
    "EngineLimits.kv_tokens": (1, 1e12),
    "EngineLimits.watermark_share": (0, 0.99),
    "EngineLimits.new_token_ratio": (0, 1),
    "EngineLimits.slot_similarity": (0, 1),
    "Pool.count": (1, 100_000),
    "Pool.gpus_per_instance": (1, 1e6),
    "Gateway.replicas": (1, 1000),
    "TuneSettings.trials": (1, 1e7),
    "IngestOptions.year": (1970, 2100),
    "IngestOptions.clock_ahead_s": (-1e9, 1e9),
    "IngestOptions.block_size": (1, 1e6),
    "IngestOptions.requests": (1, 1e9),
    "IngestOptions.wait_s": (0, 1e6),
}
TABLES: dict[str, str] = {
    "classes": "SLO classes, one table each: [classes.interactive]",
    "class_rules": "list of tables: [[class_rules]]",
    "engine": "engine limits of every pool that gives none of its own",
    "pools": "list of tables: [[pools]]",
    "sites": "list of tables: [[sites]]",
    "gateway": "what the gateway knows, and how late",
    "transfer": "prefill/decode hand-off link",
    "events": "list of tables: [[events]]",
    "policies": "parameters, one table a policy: [policies.tokenpilot]",
    "ingest": "options of ingest, and [ingest.mapping]",
    "endpoints": "addresses that export writes: instance = URL",
    "tune": "what tune takes by default, [tune.pin], [tune.bounds]",
}


def load_config(path: str | Path | None = None) -> Config:
    """Read ``path``; without one ./tfanalyze.toml if it is there, else the defaults.

    Errors: ConfigError that names the field, what was found, and what is allowed.
    """
    if path is None and not Path(FILE).is_file():
        return Config(assumed=tuple(_class_lines(DEFAULT_CLASSES)))
    where = str(path or FILE)
    try:
        text = Path(where).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where, "check the path given to --config") from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", where, "save it as UTF-8") from error
    return parse_config(text, where)


def parse_config(text: str, where: str = FILE) -> Config:
    """The same from text; ``where`` is what errors call it."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not TOML: {error}", where, "see docs/config.md for an example") from error
    _known(found, TABLES, where, "table")
    classes = _classes(found.get("classes"), where)
    engine = _one(EngineLimits, found["engine"], f"{where}: engine") if "engine" in found else None
    gateway = _one(Gateway, found["gateway"], f"{where}: gateway") if "gateway" in found else None
    rules = tuple(_many(ClassRule, found.get("class_rules", []), f"{where}: class_rules", {"class": "slo_class"}))
    for i, rule in enumerate(rules):
        _word(rule.slo_class, [c.name for c in classes], f"{where}: class_rules[{i}].class")
    return Config(
        classes=classes,
        class_rules=rules,
        fleet=_fleet(found, engine, gateway, where),
        engine=engine,
        gateway=gateway,
        settings=_settings(found.get("policies", {}), where),
        ingest=ingest_options(found.get("ingest", {}), f"{where}: ingest"),
        endpoints=_endpoints(found.get("endpoints", {}), f"{where}: endpoints"),
        tune=_tune(found.get("tune", {}), f"{where}: tune"),
        assumed=tuple(_assumed(found, classes)),
        path=where,
    )


def _assumed(found: Mapping[str, Any], classes: Sequence[SloClass]) -> list[str]:
    lines = [] if "classes" in found else _class_lines(classes)
    for pool in found.get("pools", []):
        if isinstance(pool, Mapping) and "count" not in pool:
            lines.append(f"pool {pool.get('name', '?')}: 1 instance")
    if "pools" in found and "gateway" not in found:
        lines.append("gateway: one replica that sees live engine state and exact prefix caches")
    return lines


def _class_lines(classes: Sequence[SloClass]) -> list[str]:
    lines = []
    for c in classes:
        limits = [f"{key.removesuffix('_s').upper()} <= {value:g} s" for key in ("ttft_s", "tpot_s", "e2e_s") if (value := getattr(c, key)) < inf]
        lines.append(f"SLO class {c.name}: {', '.join(limits) or 'no limit'} (default)")
    return lines


def _classes(found: Any, where: str) -> tuple[SloClass, ...]:
    if found is None:
        return DEFAULT_CLASSES
    table = _table(found, f"{where}: classes")
    if not table:
        raise ConfigError("names no class", f"{where}: classes", "give at least one, such as [classes.interactive]")
    classes = tuple(_one(SloClass, body, f"{where}: classes.{name}", name=name) for name, body in table.items())
    for c in classes:
        for key in ("ttft_s", "tpot_s", "e2e_s", "timeout_s"):
            if getattr(c, key) <= 0:
                raise ConfigError("is 0", f"{where}: classes.{c.name}.{key}", "give a number above 0, or leave it out for no limit")
    return classes


def _fleet(found: Mapping[str, Any], engine: EngineLimits | None, gateway: Gateway | None, where: str) -> Fleet | None:
    parts = {"sites", "transfer", "events"} & set(found)
    if "pools" not in found:
        if parts:
            raise ConfigError(f"[{sorted(parts)[0]}] without pools", where, "describe the instances in [[pools]]")
        return None
    sites = tuple(_many(Site, found.get("sites", []), f"{where}: sites")) or (Site("site0"),)
    pools = []
    for i, body in enumerate(_list(found["pools"], f"{where}: pools")):
        body = dict(_table(body, f"{where}: pools[{i}]"))
        own = body.pop("engine", None)
        base = engine or EngineLimits()
        limits = base if own is None else _one(EngineLimits, own, f"{where}: pools[{i}].engine", start=base)
        body.setdefault("site", sites[0].name)
        pool = _one(Pool, body, f"{where}: pools[{i}]", engine=limits)
        _word(pool.site, [site.name for site in sites], f"{where}: pools[{i}].site")
        pools.append(pool)
    _no_twins([pool.name for pool in pools], f"{where}: pools")
    _no_twins([site.name for site in sites], f"{where}: sites")
    events = tuple(_many(FleetEvent, found.get("events", []), f"{where}: events"))
    transfer = _one(Transfer, found["transfer"], f"{where}: transfer") if "transfer" in found else Transfer()
    return Fleet(tuple(pools), sites, gateway or Gateway(), transfer, events)


def _settings(found: Any, where: str) -> dict[str, float | str]:
    """[policies.NAME] tables -> "NAME.param" -> value; names are checked where the policies are loaded."""
    settings: dict[str, float | str] = {}
    for name, body in _table(found, f"{where}: policies").items():
        for key, value in _table(body, f"{where}: policies.{name}").items():
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ConfigError(f"is {value!r}", f"{where}: policies.{name}.{key}", "give a number, or a choice by name")
            settings[f"{name}.{key}"] = value
    return settings


def ingest_options(found: Any, where: str = "ingest") -> dict[str, Any]:
    """The options of ingest that a table gives, by name. Errors: ConfigError for a name, kind or value that is not allowed."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    body = {name: value for name, value in _table(found, where).items() if value is not None}
    mapping = body.pop("mapping", None)
    start = body.get("start_at")
    if isinstance(start, date) or _is_number(start):  # TOML has times of its own, Python callers may give an epoch
        body["start_at"] = str(start)
    options = _one(IngestOptions, body, where, mapping=None if mapping is None else _table(mapping, f"{where}.mapping"))
    try:
        ZoneInfo(options.tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"is {options.tz!r}", f"{where}.tz", "give an IANA zone such as Europe/Berlin") from error
    return {name: getattr(options, name) for name in (*body, *(("mapping",) if mapping is not None else ()))}


def _endpoints(found: Any, where: str) -> dict[str, str]:
    for name, url in _table(found, where).items():
        if not isinstance(url, str):
            raise ConfigError(f"is {url!r}", f"{where}.{name}", "give a URL such as 'http://10.0.0.5:8000'")
    return dict(found)


def _tune(found: Any, where: str) -> TuneSettings:
    body = dict(_table(found, where))
    pin = _table(body.pop("pin", {}), f"{where}.pin")
    bounds: dict[str, tuple[float, float]] = {}
    for name, pair in _table(body.pop("bounds", {}), f"{where}.bounds").items():
        numbers = isinstance(pair, list) and len(pair) == 2 and all(_is_number(v) for v in pair)
        if not numbers or not pair[0] < pair[1]:
            raise ConfigError(f"is {pair!r}", f"{where}.bounds.{name}", "give [low, high] with low < high")
        bounds[name] = (float(pair[0]), float(pair[1]))
    settings: TuneSettings = _one(TuneSettings, body, where, pin=dict(pin), bounds=bounds)
    return settings


# one dataclass from one table ---------------------------------------------------------------------------------


def _many(kind: type[Any], found: Any, where: str, renamed: Mapping[str, str] | None = None) -> list[Any]:
    bodies = [_table(body, f"{where}[{i}]") for i, body in enumerate(_list(found, where))]
    return [_one(kind, {(renamed or {}).get(k, k): v for k, v in body.items()}, f"{where}[{i}]") for i, body in enumerate(bodies)]


def _one(kind: type[Any], body: Any, where: str, *, start: Any = None, **given: Any) -> Any:
    """An instance of dataclass ``kind`` from a table; ``given`` are fields that the table may not name."""
    body = _table(body, where)
    hints = get_type_hints(kind)
    free = [f for f in fields(kind) if f.name not in given]
    _known(body, [f.name for f in free], where, "field")
    values: dict[str, Any] = dict(given)
    for f in free:
        if f.name in body:
            values[f.name] = _value(body[f.name], hints[f.name], f"{kind.__name__}.{f.name}", f"{where}.{f.name}")
        elif start is not None:
            values[f.name] = getattr(start, f.name)
        elif f.default is MISSING and f.default_factory is MISSING:
            shown = "class" if f.name == "slo_class" else f.name
            raise ConfigError(f"has no {shown!r}", where, f"add {shown} = ...")
    return kind(**values)


def _value(value: Any, hint: Any, key: str, where: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(h for h in get_args(hint) if h is not type(None))
    if hint is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"is {value!r}", where, "allowed: true or false")
        return value
    if hint is str:
        if not isinstance(value, str):
            raise ConfigError(f"is {value!r}", where, "give a text in quotes")
        if key in CHOICES:
            _word(value, CHOICES[key], where)
        return value
    if get_origin(hint) is tuple:
        items = _list(value, where)
        return tuple(_value(item, str, "", f"{where}[{i}]") for i, item in enumerate(items))
    low, high = RANGES.get(key, (0.0, inf))
    span = f"allowed: {'a whole number ' if hint is int else ''}{_span(low, high)}"
    if not _is_number(value) or (hint is int and value != int(value)) or not low <= value <= high:
        raise ConfigError(f"is {value!r}", where, span)
    return int(value) if hint is int else float(value)


def _span(low: float, high: float) -> str:
    ends = [f"{end:,.0f}" if end == int(end) and abs(end) >= 10_000 else f"{end:.0f}" if end == int(end) else f"{end:g}" for end in (low, high) if end != inf]
    return f"from {ends[0]} up" if high == inf else f"{ends[0]} to {ends[1]}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) != inf or value == inf


def _table(found: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise ConfigError(f"is {found!r}, not a table", where, "see docs/config.md")
    return found


def _list(found: Any, where: str) -> list[Any]:
    if not isinstance(found, list):
        raise ConfigError("is not a list", where, f"write it as [[{where.rpartition(' ')[2]}]]; see docs/config.md")
    return found


def _word(value: str, allowed: Sequence[str], where: str) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"is {value!r}", where, f"allowed: {', '.join(allowed)}{hint}")


def _known(found: Mapping[str, Any], allowed: Any, where: str, what: str) -> None:
    names = list(allowed)
    for name in found:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(names)}"
            raise ConfigError(f"has no {what} {name!r}", where, hint)


def _no_twins(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"name {name!r} twice", where, "give each its own name")
