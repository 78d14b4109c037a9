"""Target production-stack: Helm values of vLLM production-stack's router (a6c01db0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import argv, routers, yamltext
from tfanalyze.export.parts import Context, Rendered, from_public, only, params_of, policy_class, policy_set
from tfanalyze.replay.policies import PolicySet

PROOF = "schema-checked only: the chart's own schema accepts it; the router is not on the package index and does not run here"
MAIN = "production-stack-values.yaml"
FLAGS = {"kv_aware_threshold": "--kv-aware-threshold", "prefix_min_match_length": "--prefix-min-match-length"}
KEYS = {
    "prefix_min_match_length": "prefixMinMatchLength"
}  # of routerSpec; the same in extraArgs comes later and wins
LOGICS = ("roundrobin", "session", "kvaware", "prefixaware")


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "production-stack", instance=("production_stack",))
    routers.one_model_one_site("production-stack", ctx)


def sniff(text: str) -> bool:
    return "routerSpec:" in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    node: Any = {"routerSpec": {}} if ctx.current is None else yamltext.load(ctx.current, ctx.current_name)
    indent = yamltext.INDENTS[0] if ctx.current is None else yamltext.indent_of(ctx.current)
    spec = node.setdefault("routerSpec", {})
    values = params_of(policy.instance)
    if spec.get("routingLogic", "roundrobin") != values["routing_logic"] or ctx.current is None:
        spec["routingLogic"] = values["routing_logic"]
    words = spec.get("extraArgs") or []
    given = argv.flags([str(w) for w in words])
    for (
        name,
        key,
    ) in KEYS.items():  # Helm prints whole numbers of seven digits as 1e+06: those go to extraArgs
        if key in spec and FLAGS[name] not in given and int(values[name]) < 1_000_000:
            if spec[key] != values[name]:
                spec[key] = values[name]
            given[FLAGS[name]] = str(values[name])
    for flag, value in argv.wanted(policy.instance, FLAGS, ctx, given).items():
        if given.get(flag) != value:
            _put(words, flag, value)
    if words and "extraArgs" not in spec:
        spec["extraArgs"] = words
    notes = (
        ["session routing reads the header named in routerSpec.sessionKey"]
        if values["routing_logic"] in ("session", "kvaware")
        else []
    )
    text = yamltext.dump(node, indent)
    return Rendered(
        {MAIN: text},
        tuple(notes),
        ("prefixes match in chunks of 128 characters there, four characters a token in replay",),
        (f"helm upgrade RELEASE vllm/vllm-stack -f {MAIN}",),
    )


def _put(words: Any, flag: str, value: str) -> None:
    for k, word in enumerate(words):
        if str(word) == flag and k + 1 < len(words):
            if str(words[k + 1]) != value:
                words[k + 1] = value
            return
        if str(word).startswith(flag + "="):
            words[k] = f"{flag}={value}"
            return
    words.extend([flag, value])


def check(files: Mapping[str, str]) -> list[str]:
    spec = yamltext.plain(yamltext.load(files[MAIN], MAIN)).get("routerSpec") or {}
    found = (
        [f"routerSpec.routingLogic {spec.get('routingLogic')!r} is unknown"]
        if spec.get("routingLogic") not in LOGICS
        else []
    )
    if spec.get("routingLogic") == "session" and not spec.get("sessionKey"):
        found.append("routingLogic session needs routerSpec.sessionKey, the header that names the session")
    return found


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    spec = yamltext.plain(yamltext.load(text, where)).get("routerSpec")
    if not isinstance(spec, dict):
        raise ExportError("has no routerSpec", where, "give the Helm values")
    cls = policy_class("production_stack")
    values = argv.read(cls, argv.flags([str(word) for word in spec.get("extraArgs") or []]), FLAGS, where)
    values = {name: spec[key] for name, key in KEYS.items() if spec.get(key) is not None} | values
    return policy_set(
        instance=from_public(cls, {**values, "routing_logic": spec.get("routingLogic", "roundrobin")}, where)
    )
