"""Target ray-serve: request_router_config of a Ray Serve LLM deployment (Ray 2.60)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import routers, yamltext
from tfanalyze.export.parts import Context, Rendered, from_public, only, params_of, policy_class, policy_set
from tfanalyze.replay.policies import PolicySet

PROOF = "proven in part: Ray Serve 2.60 routes by its arguments; ray.serve.llm, which needs vLLM, was not started (make test-gateways)"
MAIN = "ray-serve.yaml"
KEY, NAME = "request_router_config", "PrefixCacheAffinityRouter"
CLASS = f"ray.serve.llm.request_router.{NAME}"
KWARGS = ("imbalanced_threshold", "match_rate_threshold")
KNOWN = {
    *KWARGS,
    "do_eviction",
    "eviction_threshold_chars",
    "eviction_target_chars",
    "eviction_interval_secs",
}
INFINITE = 1e9


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "ray-serve", instance=("ray_serve",))
    routers.one_model_one_site("ray-serve", ctx)


def sniff(text: str) -> bool:
    return NAME in text


def _found(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == KEY and isinstance(value, dict):
                yield value
            else:
                yield from _found(value)
    elif isinstance(node, list):
        for item in node:
            yield from _found(item)


def render(policy: PolicySet, ctx: Context) -> Rendered:
    values = params_of(policy.instance)
    node: Any = (
        {"deployment_config": {KEY: {}}}
        if ctx.current is None
        else yamltext.load(ctx.current, ctx.current_name)
    )
    indent = yamltext.INDENTS[0] if ctx.current is None else yamltext.indent_of(ctx.current)
    places = list(_found(node))
    if not places:
        raise ExportError(
            f"has no {KEY}", ctx.current_name, "add an empty one to the deployment_config that is meant"
        )
    for place in places:
        if str(place.get("request_router_class", "")).rpartition(":")[2].rpartition(".")[2] != NAME:
            place["request_router_class"] = CLASS
        kwargs = place.setdefault("request_router_kwargs", {})
        limit = float(values["imbalanced_threshold"])
        yamltext.merge(
            kwargs, {"imbalanced_threshold": yamltext.REMOVE if limit >= INFINITE else yamltext.number(limit)}
        )
        if ctx.current is None or "match_rate_threshold" in kwargs or values["match_rate_threshold"] != 0.1:
            yamltext.merge(kwargs, {"match_rate_threshold": float(values["match_rate_threshold"])})
    text = yamltext.dump(node, indent)
    if ctx.current is None:
        text = "# Ray Serve LLM 2.60: put this into the llm_config of the application\n" + text
    return Rendered(
        {MAIN: text},
        (),
        ("prefix matches are of characters there, of token blocks in replay",),
        ("serve deploy FILE",),
    )


def check(files: Mapping[str, str]) -> list[str]:
    found = []
    for place in _found(yamltext.plain(yamltext.load(files[MAIN], MAIN))):
        unknown = set(place.get("request_router_kwargs") or {}) - KNOWN
        found += [f"request_router_kwargs.{key} is unknown to {NAME}" for key in sorted(unknown)]
    return found


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    places = list(_found(yamltext.plain(yamltext.load(text, where))))
    if not places:
        raise ExportError(f"has no {KEY}", where, "give the Serve config of the LLM application")
    kwargs = [place.get("request_router_kwargs") or {} for place in places]
    if any(entry != kwargs[0] for entry in kwargs):
        raise ExportError(
            f"{len(kwargs)} deployments differ in request_router_kwargs",
            where,
            "give one deployment at a time",
        )
    given = {key: kwargs[0][key] for key in KWARGS if key in kwargs[0]}
    limit = given.get("imbalanced_threshold")
    if limit is None or math.isinf(float(limit)):
        given.pop("imbalanced_threshold", None)
    return policy_set(instance=from_public(policy_class("ray_serve"), given, where))
