"""Target envoy: bootstrap of Envoy 1.40 with site weights, priority levels, spill and a circuit breaker a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from tfanalyze.errors import ExportError
from tfanalyze.export import envoy_new, routers, yamltext
from tfanalyze.export.parts import (
    Context,
    Rendered,
    endpoint,
    endpoint_note,
    from_public,
    instance_names,
    instance_sites,
    only,
    params_of,
    policy_class,
    policy_set,
    set_fields,
)
from tfanalyze.replay.policies import PolicySet

WRITES_ADDRESSES = True
FILTERS = ("admission_control", "adaptive_concurrency", "local_ratelimit", "ext_proc", "fault")
PROOF = "proven: envoy 1.40.0 --mode validate accepts it; weights and breakers were seen to act (make test-gateways)"
MAIN = "envoy.yaml"
SITES = 4
HEADER = "x-slo-class"
CONNECTIONS = 65536  # a limit that never acts


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "envoy", instance=("envoy_lb",), site=("envoy",), admit=("envoy_breakers",))
    routers.same_replicas("envoy", ctx)
    if len(ctx.fleet.sites) > SITES:
        raise ExportError(
            f"{len(ctx.fleet.sites)} sites, weights of {SITES} were tuned",
            "export --target envoy",
            "merge sites in tfanalyze.toml, then tune again",
        )
    if (
        type(policy.instance).name == "envoy_lb"
        and params_of(policy.instance)["lb_policy"] == "LEAST_REQUEST_ALL"
        and ctx.fleet.n_instances > 64
    ):
        raise ExportError(
            "a full scan over more than 64 hosts is no sane choice_count",
            "export --target envoy",
            "the nearest is lb_policy LEAST_REQUEST",
        )


def effective(policy: PolicySet, ctx: Context) -> PolicySet:
    """Without the values of sites that the fleet does not have."""
    if type(policy.site).name != "envoy":
        return policy
    used = {_index(ctx, site) for site in instance_sites(ctx.fleet)}
    spare = {f"weight_{k}": 1.0 for k in range(SITES) if k not in used} | {
        f"priority_{k}": 0.0 for k in range(SITES) if k not in used
    }
    return replace(policy, site=set_fields(policy.site, **spare))


def _index(ctx: Context, site: str) -> int:
    return [entry.name for entry in ctx.fleet.sites].index(site)


def sniff(text: str) -> bool:
    return "static_resources:" in text and "load_assignment:" in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    if ctx.current is None:
        node: Any = envoy_new.bootstrap(ctx.classes[0].name, HEADER, _localities(ctx))
        indent = yamltext.INDENTS[0]
    else:
        node, indent = yamltext.load(ctx.current, ctx.current_name), yamltext.indent_of(ctx.current)
    cluster = _cluster(node, ctx.current_name or MAIN)
    if type(policy.site).name == "envoy":
        _put_sites(cluster, params_of(policy.site))
    if type(policy.instance).name == "envoy_lb":
        _put_lb(cluster, str(params_of(policy.instance)["lb_policy"]), ctx.fleet.n_instances)
    if type(policy.admit).name == "envoy_breakers":
        _put_breakers(cluster, params_of(policy.admit))
    text = yamltext.dump(node, indent)
    notes = [
        f"limits hold for each Envoy process; tuned with {ctx.fleet.gateway.replicas}",
        "spill follows the health of a level's hosts, not their load",
    ]
    if ctx.current is None:
        text = f"# Envoy 1.40: envoy -c envoy.yaml; class by header {HEADER}\n" + text
        notes += [
            f"the class is read from the header {HEADER}; {ctx.classes[0].name} has the breaker row HIGH, all others share DEFAULT",
            *endpoint_note(ctx),
        ]
    return Rendered({MAIN: text}, tuple(notes), (), (f"envoy --mode validate -c {MAIN}", f"envoy -c {MAIN}"))


def _localities(ctx: Context) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """(region, site, [(host, port)]) in the order of the fleet's sites."""
    found = []
    for site in ctx.fleet.sites:
        hosts = []
        for name, at in zip(instance_names(ctx.fleet), instance_sites(ctx.fleet), strict=True):
            if at == site.name:
                parts = urlsplit(endpoint(ctx, name))
                if parts.scheme == "https":
                    raise ExportError(
                        f"{name} is given as https",
                        "export --target envoy",
                        "give http: a new bootstrap has no TLS to engines; or give your own with --from",
                    )
                hosts.append((parts.hostname or name, parts.port or 80))
        found.append((site.region or site.name, site.name, hosts))
    return found


def _cluster(node: Any, where: str) -> Any:
    """The one cluster whose endpoints have localities, or the only one."""
    clusters = [
        c for c in (node.get("static_resources") or {}).get("clusters") or [] if "load_assignment" in c
    ]
    named = [c for c in clusters if any("locality" in e for e in c["load_assignment"].get("endpoints") or [])]
    chosen = named or clusters
    if len(chosen) != 1:
        raise ExportError(
            f"has {len(chosen)} clusters that could be the fleet",
            where,
            "give a bootstrap with one cluster whose endpoints have a locality",
        )
    return chosen[0]


def _put_sites(cluster: Any, values: Mapping[str, Any]) -> None:
    assignment = cluster["load_assignment"]
    yamltext.merge(
        cluster,
        {"common_lb_config": {"locality_weighted_lb_config": {}}}
        if "locality_weighted_lb_config" not in (cluster.get("common_lb_config") or {})
        else {},
    )
    if assignment.get("policy", {}).get("overprovisioning_factor", 140) != values["overprovisioning_factor"]:
        assignment.setdefault("policy", {})["overprovisioning_factor"] = values["overprovisioning_factor"]
    for k, entry in enumerate(assignment["endpoints"]):
        weight, level = values[f"weight_{min(k, SITES - 1)}"], values[f"priority_{min(k, SITES - 1)}"]
        if entry.get("load_balancing_weight", 0) != weight:
            if weight:
                entry["load_balancing_weight"] = weight
            else:  # no weight is no load; 0 is refused
                entry.pop("load_balancing_weight", None)
        if entry.get("priority", 0) != level:
            entry["priority"] = level


def _put_lb(cluster: Any, wanted: str, n_hosts: int) -> None:
    name = "LEAST_REQUEST" if wanted == "LEAST_REQUEST_ALL" else wanted
    if cluster.get("lb_policy", "ROUND_ROBIN") != name:
        cluster["lb_policy"] = name
    count = n_hosts if wanted == "LEAST_REQUEST_ALL" else 2
    present = (cluster.get("least_request_lb_config") or {}).get("choice_count", 2)
    if name == "LEAST_REQUEST" and present != max(2, count):
        cluster.setdefault("least_request_lb_config", {})["choice_count"] = max(2, count)


def _put_breakers(cluster: Any, values: Mapping[str, Any]) -> None:
    rows = cluster.setdefault("circuit_breakers", {}).setdefault("thresholds", [])
    for level, key in (("HIGH", "high_max_requests"), ("DEFAULT", "default_max_requests")):
        row = next((r for r in rows if r.get("priority", "DEFAULT") == level), None)
        limit = values[key]
        if row is None:  # fewer connections than requests would make a queue of max_pending_requests
            wide = max(CONNECTIONS, limit)
            rows.append(
                {
                    "priority": level,
                    "max_requests": limit,
                    "max_connections": wide,
                    "max_pending_requests": wide,
                }
            )
        elif row.get("max_requests", 1024) != limit:
            row["max_requests"] = limit


def check(files: Mapping[str, str]) -> list[str]:
    doc = yamltext.plain(yamltext.load(files[MAIN], MAIN))
    cluster = _cluster(doc, MAIN)
    endpoints = cluster["load_assignment"].get("endpoints") or []
    levels = sorted({int(entry.get("priority", 0)) for entry in endpoints})
    found = (
        []
        if levels == list(range(len(levels)))
        else [f"priority levels must be 0, 1, ... without a gap, found {levels}"]
    )
    for level in levels:
        if not any(e.get("load_balancing_weight") for e in endpoints if e.get("priority", 0) == level):
            found.append(f"priority level {level} has no locality with a weight: it would get no load")
    for row in (cluster.get("circuit_breakers") or {}).get("thresholds") or []:
        for key in ("max_connections", "max_pending_requests"):
            if row.get(key, 1024) < row.get("max_requests", 1024):
                found.append(
                    f"{row.get('priority', 'DEFAULT')}: {key} {row.get(key, 1024)} is below max_requests, so it would act first"
                )
    return found


def _refuse_filters(node: Any, where: str) -> None:
    """HTTP filters that turn requests away or choose hosts by rules that replay's envoy policies do not have."""
    if isinstance(node, dict):
        for entry in node.get("http_filters") or []:
            kind = str(entry.get("name")) + str((entry.get("typed_config") or {}).get("@type"))
            for name in FILTERS:
                if name in kind:
                    raise ExportError(
                        f"http filter {name} is not modelled",
                        where,
                        "the nearest is a circuit breaker for each class: envoy_breakers",
                    )
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _refuse_filters(value, where)


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    whole = yamltext.plain(yamltext.load(text, where))
    _refuse_filters(whole, where)
    cluster = _cluster(whole, where)
    endpoints = cluster["load_assignment"].get("endpoints") or []
    if len(endpoints) > SITES:
        raise ExportError(f"{len(endpoints)} localities; {SITES} are modelled", where, "merge some")
    values: dict[str, Any] = {
        "overprovisioning_factor": cluster["load_assignment"]
        .get("policy", {})
        .get("overprovisioning_factor", 140)
    }
    for k, entry in enumerate(endpoints):
        values |= {
            f"weight_{k}": entry.get("load_balancing_weight", 0),
            f"priority_{k}": entry.get("priority", 0),
        }
    weighted = "locality_weighted_lb_config" in (cluster.get("common_lb_config") or {})
    site = from_public(policy_class("envoy"), values, where) if weighted else None
    name = cluster.get("lb_policy", "ROUND_ROBIN")
    if name == "LEAST_REQUEST" and (cluster.get("least_request_lb_config") or {}).get("choice_count", 2) > 2:
        name = "LEAST_REQUEST_ALL"
    instance = from_public(policy_class("envoy_lb"), {"lb_policy": name}, where)
    rows = {
        r.get("priority", "DEFAULT"): r.get("max_requests", 1024)
        for r in (cluster.get("circuit_breakers") or {}).get("thresholds") or []
    }
    limits = {"high_max_requests": rows.get("HIGH", 1024), "default_max_requests": rows.get("DEFAULT", 1024)}
    admit = from_public(policy_class("envoy_breakers"), limits, where) if rows else None
    return policy_set(instance=instance, site=site, admit=admit)
