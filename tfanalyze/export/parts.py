"""What every exporter shares: the policy's declared parameters, what a target is given and what it gives back."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tfanalyze.config import Fleet, SloClass
from tfanalyze.errors import ExportError, PolicyError
from tfanalyze.replay.fleet import instance_names as instance_names
from tfanalyze.replay.policies import POLICIES, PolicySet

TRIVIAL = {"admit": "admit_all", "site": "any_site", "instance": "round_robin"}


@dataclass(frozen=True)
class Context:
    """What a target may know beside the policy."""

    fleet: Fleet
    classes: tuple[SloClass, ...]
    evidence: Mapping[str, Any] = field(default_factory=dict)
    current: str | None = None  # text of the user's present config
    current_name: str = ""
    endpoints: Mapping[str, str] = field(default_factory=dict)  # instance name -> base URL


@dataclass(frozen=True)
class Rendered:
    """Files a target writes: name -> text, the main one first; what it stands on that the policy does not say."""

    files: dict[str, str]
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()  # parameters that the target approximates, with how
    commands: tuple[str, ...] = ()  # how to load it, for people


def policy_class(name: str) -> Any:
    """The class behind a policy's name."""
    if name not in POLICIES:
        raise PolicyError(f"no policy is named {name!r}", mend=f"one of {', '.join(sorted(POLICIES))}")
    module, _, attribute = POLICIES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def trivial(kind: str) -> Any:
    return policy_class(TRIVIAL[kind])()


def policy_set(*, instance: Any = None, site: Any = None, admit: Any = None) -> PolicySet:
    """A PolicySet whose missing hooks are the trivial defaults."""
    return PolicySet(
        admit=trivial("admit") if admit is None else admit,
        site=trivial("site") if site is None else site,
        instance=trivial("instance") if instance is None else instance,
    )


def params_of(policy: Any) -> dict[str, float | int | str]:
    """Parameters by name: choices as their word, whole numbers as int."""
    found: dict[str, float | int | str] = {}
    for entry in fields(policy):
        if entry.metadata:
            found[entry.name] = to_public(entry, getattr(policy, entry.name))
    return found


def to_public(entry: Any, value: float) -> float | int | str:
    meta = entry.metadata
    if meta["choices"]:
        return str(meta["choices"][int(value)])
    return int(value) if meta["integer"] and float(value).is_integer() else float(value)


def from_public(cls: Any, given: Mapping[str, Any], where: str) -> Any:
    """Build a policy from named values; complains with the field, what was found and what is allowed."""
    import difflib

    declared = {entry.name: entry for entry in fields(cls) if entry.metadata}
    values: dict[str, float] = {}
    for name, value in given.items():
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(declared)}"
            raise ExportError(f"{cls.name} has no parameter {name!r}", where, hint)
        values[name] = _from_public(declared[name], value, f"{where}.{name}" if where else name)
    return cls(**values)


def _from_public(entry: Any, value: Any, where: str) -> float:
    meta = entry.metadata
    if meta["choices"]:
        if value not in meta["choices"]:
            raise ExportError(f"is {value!r}", where, f"allowed: {', '.join(meta['choices'])}")
        return float(meta["choices"].index(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExportError(f"is {value!r}", where, "a number is needed")
    if not meta["low"] <= value <= meta["high"]:
        raise ExportError(
            f"is {value}", where, f"allowed: {meta['low']:g} to {meta['high']:g} {meta['unit']}"
        )
    return float(value)


def set_fields(policy: Any, **values: float) -> Any:
    """A copy with some fields replaced, as floats."""
    from dataclasses import replace

    return replace(policy, **{name: float(value) for name, value in values.items()})


def only(
    policy: PolicySet,
    target: str,
    *,
    instance: tuple[str, ...],
    site: tuple[str, ...] = (),
    admit: tuple[str, ...] = (),
) -> None:
    """Refuse a policy that was not tuned as this target's own: its numbers mean something else there."""
    allowed = {"instance": instance, "site": site, "admit": admit}
    for kind, part in (("instance", policy.instance), ("site", policy.site), ("admit", policy.admit)):
        name = type(part).name
        if name in allowed[kind] or type(part).trivial:
            continue
        near = ", ".join(allowed[kind]) or "none: this gateway has no such hook"
        raise ExportError(
            f"{kind} policy {name!r} cannot be said in {target}: its parameters mean something else there",
            f"export --target {target}",
            f"the nearest it can say: {near}; tune it with --policy {'+'.join(n[0] for n in allowed.values() if n)}",
        )
    main = instance or site or admit
    names = {type(part).name for part in policy.parts()}
    if not names & set(instance + site + admit):
        raise ExportError(
            f"nothing in policy {policy.name or 'round_robin'!r} belongs to {target}",
            f"export --target {target}",
            f"tune it with --policy {main[0]}",
        )


# limits that count over all instances: on another number of them they are other limits
FLEET_TOTALS: dict[str, tuple[str, ...]] = {
    "router_queue": ("max_concurrent_requests", "queue_size"),
    "smg_priority": ("max_concurrent_requests", "interactive_queue_size", "default_queue_size", "bulk_queue_size"),
    "envoy_breakers": ("high_max_requests", "default_max_requests"),
    "llmd_flow": ("band0_max_requests", "band1_max_requests", "band2_max_requests"),
}  # fmt: skip


def same_fleet_size(policy: PolicySet, ctx: Context, target: str) -> None:
    """Refuse limits over the whole fleet that were tuned on another number of instances; defaults were not tuned."""
    tuned, now = int(ctx.evidence.get("instances") or 0), ctx.fleet.n_instances
    if not tuned or tuned == now:
        return
    for part in policy.parts():
        for entry in fields(part):
            value = getattr(part, entry.name)
            if entry.name in FLEET_TOTALS.get(type(part).name, ()) and value != entry.default:
                raise ExportError(
                    f"{type(part).name}.{entry.name} = {value:g} was tuned on {tuned} instances and goes to {now}",
                    f"export --target {target}",
                    f"tune on the fleet it is for; or claim no gain: --policy NAME --set {type(part).name}.{entry.name}={value * now / tuned:.0f}",
                )


def instance_sites(fleet: Fleet) -> tuple[str, ...]:
    return tuple(pool.site for pool in fleet.pools for _ in range(pool.count))


def endpoint(ctx: Context, name: str) -> str:
    """Base URL of an instance: as given, else a host of its own name, which the notes say."""
    return ctx.endpoints.get(name, f"http://{name}:8000")


def check_endpoints(given: Mapping[str, str], fleet: Fleet) -> dict[str, str]:
    """The addresses, without a last slash.  Errors: ExportError for an instance the fleet lacks, or what is no URL."""
    import difflib
    from urllib.parse import urlsplit

    names = instance_names(fleet)
    for name, url in given.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            mend = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(names[:8])}"
            raise ExportError(f"the fleet has no instance {name!r}", f"endpoint {name}", mend)
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            sound = False
        if not sound:
            raise ExportError(f"is {url!r}", f"endpoint {name}", "give a URL such as http://10.0.0.5:8000")
    return {name: url.rstrip("/") for name, url in given.items()}


def endpoint_note(ctx: Context) -> tuple[str, ...]:
    missing = [name for name in instance_names(ctx.fleet) if name not in ctx.endpoints]
    if not missing:
        return ()
    return (f"addresses assumed (http://NAME:8000) for {len(missing)} instance(s): {', '.join(missing[:4])}",)
