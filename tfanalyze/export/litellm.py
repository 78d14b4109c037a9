"""Target litellm: config.yaml of the LiteLLM proxy (1.108.7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import routers, yamltext
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
)  # fmt: skip
from tfanalyze.export.schema import problems
from tfanalyze.replay.policies import PolicySet

WRITES_ADDRESSES = True
PROOF = "proven: LiteLLM 1.108.7 starts with it and shares requests by its weights (make test-gateways)"
MAIN = "litellm.yaml"
SITES = 4


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "litellm", instance=("litellm",))
    routers.same_replicas("litellm", ctx)
    if len(ctx.fleet.sites) > SITES:
        raise ExportError(
            f"{len(ctx.fleet.sites)} sites, weights of {SITES} were tuned",
            "export --target litellm",
            "merge sites in tfanalyze.toml, then tune again",
        )


def effective(policy: PolicySet, ctx: Context) -> PolicySet:
    """Without the weights and orders of sites that the fleet does not have."""
    from tfanalyze.export.parts import set_fields

    used = {_index(ctx, site) for site in instance_sites(ctx.fleet)}
    spare = {f"{what}_{k}": 1.0 for what in ("weight", "order") for k in range(SITES) if k not in used}
    from dataclasses import replace

    return replace(policy, instance=set_fields(policy.instance, **spare))


def _index(ctx: Context, site: str) -> int:
    return [entry.name for entry in ctx.fleet.sites].index(site)


def sniff(text: str) -> bool:
    return "litellm_params:" in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    node: Any = {"model_list": []} if ctx.current is None else yamltext.load(ctx.current, ctx.current_name)
    indent = yamltext.INDENTS[0] if ctx.current is None else yamltext.indent_of(ctx.current)
    values = params_of(policy.instance)
    notes = list(endpoint_note(ctx)) if ctx.current is None else []
    if ctx.current is None:
        _new_list(node, ctx)
    placed = _sites(node["model_list"], ctx.current_name or MAIN)
    equal = len({values[f"weight_{k}"] for _, k in placed}) == 1 and values[f"weight_{placed[0][1]}"] == 1
    named = any("weight" in entry["litellm_params"] for entry, _ in placed)
    spell = (
        ctx.current is None or named or not equal
    )  # a deployment without a weight beside one with it gets nothing
    for entry, k in placed:
        usual = {"weight": None if spell else 1, "order": 1, "max_parallel_requests": 0}
        wanted = {"weight": values[f"weight_{k}"], "order": values[f"order_{k}"]}
        _put(
            entry["litellm_params"],
            wanted | {"max_parallel_requests": values["max_parallel_requests"]},
            usual,
        )
    settings = node.setdefault("router_settings", {})
    if (
        settings.get("routing_strategy", "simple-shuffle") != values["routing_strategy"]
        or ctx.current is None
    ):
        settings["routing_strategy"] = values["routing_strategy"]
    if any(f"order_{k}" in values and values[f"order_{k}"] != 1 for k in range(SITES)) and not settings.get(
        "enable_pre_call_checks"
    ):
        settings["enable_pre_call_checks"] = True  # without it `order` is ignored
    notes.append("max_parallel_requests holds for each proxy process")
    text = yamltext.dump(node, indent)
    if ctx.current is None:
        text = "# litellm --config litellm.yaml  (set LITELLM_MASTER_KEY)\n" + text
    dropped = (
        "where every deployment is at max_parallel_requests the proxy answers 429; replay sends the request on",
    )
    return Rendered({MAIN: text}, tuple(notes), dropped, (f"LITELLM_MASTER_KEY=... litellm --config {MAIN}",))


def _put(params: Any, wanted: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Set what differs; a value that is the proxy's own default is not written where it is absent."""
    for key, value in wanted.items():
        if key in params:
            if not value and key == "max_parallel_requests":
                del params[key]
            elif not yamltext.same(params[key], value):
                params[key] = value
        elif value != usual[key]:
            params[key] = value


def _new_list(node: Any, ctx: Context) -> None:
    models = [pool.model or "default" for pool in ctx.fleet.pools for _ in range(pool.count)]
    for name, site, model in zip(instance_names(ctx.fleet), instance_sites(ctx.fleet), models, strict=True):
        params = {
            "model": f"openai/{model}",
            "api_base": endpoint(ctx, name) + "/v1",
            "api_key": "os.environ/ENGINE_API_KEY",
        }
        info = {"id": name, "site": site, "site_index": _index(ctx, site)}
        node["model_list"].append({"model_name": model, "litellm_params": params, "model_info": info})


def _sites(entries: Any, where: str) -> list[tuple[Any, int]]:
    """(deployment, index of its site): named in model_info, else the order of what differs in weight and order."""
    found: list[tuple[Any, int]] = []
    seen: dict[Any, int] = {}
    names: dict[str, int] = {}
    for entry in entries:
        info = entry.get("model_info") or {}
        if "site_index" in info:
            k = int(info["site_index"])
        elif "site" in info:
            k = names.setdefault(info["site"], len(names))
        else:
            params = entry.get("litellm_params") or {}
            k = seen.setdefault((params.get("weight"), params.get("order")), len(seen))
        found.append((entry, k))
    if any(not 0 <= k < SITES for _, k in found):
        raise ExportError(
            f"deployments of more than {SITES} kinds (weight and order)",
            where,
            "name their site: model_info: {site: NAME}",
        )
    return found


def check(files: Mapping[str, str]) -> list[str]:
    return problems(yamltext.plain(yamltext.load(files[MAIN], MAIN)), "litellm")


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    doc = yamltext.plain(yamltext.load(text, where))
    if not doc.get("model_list"):
        raise ExportError("has no model_list", where, "give the proxy's config.yaml")
    settings = doc.get("router_settings") or {}
    values: dict[str, Any] = {"routing_strategy": settings.get("routing_strategy", "simple-shuffle")}
    limits = set()
    for entry, k in _sites(doc["model_list"], where):
        params = entry.get("litellm_params") or {}
        for key, usual in (("weight", 1), ("order", 1)):
            value = params.get(key, usual)
            if values.setdefault(f"{key}_{k}", value) != value:
                raise ExportError(
                    f"deployments of one site differ in {key}: {values[f'{key}_{k}']} and {value}",
                    where,
                    "give them sites of their own",
                )
        limits.add(params.get("max_parallel_requests", 0))
    if len(limits) > 1:
        raise ExportError(
            f"deployments differ in max_parallel_requests: {sorted(limits)}",
            where,
            "the nearest: one limit for all",
        )
    values["max_parallel_requests"] = limits.pop()
    return policy_set(instance=from_public(policy_class("litellm"), values, where))
