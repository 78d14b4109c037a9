"""Target aibrix: environment of AIBrix's gateway plugin (e3e10f9e), as KEY=value lines or a manifest's env list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import envtext, routers
from tfanalyze.export.argv import word
from tfanalyze.export.parts import Context, Rendered, from_public, only, params_of, policy_class, policy_set
from tfanalyze.replay.policies import PolicySet

PROOF = "source-checked only: the variables and ranges that its source reads; the gateway is Go and does not run here"
MAIN = "aibrix.env"
ALGORITHM = "ROUTING_ALGORITHM"  # without the prefix that all others have
UNREAD = "AIBRIX_ROUTING_ALGORITHM"
WEIGHTS = {
    "prefix_cache_weight": "prefix-cache", "least_request_weight": "least-request",
    "least_kv_cache_weight": "least-kv-cache", "least_latency_weight": "least-latency",
}  # fmt: skip
PLAIN = {
    "imbalance_abs_count": "AIBRIX_PREFIX_CACHE_POD_RUNNING_REQUEST_IMBALANCE_ABS_COUNT",
    "standard_deviation_factor": "AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR",
}


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "aibrix", instance=("aibrix",))
    routers.one_model_one_site("aibrix", ctx)
    routers.same_replicas("aibrix", ctx)
    values = params_of(policy.instance)
    if values["algorithm"] == "weighted" and not any(values[name] for name in WEIGHTS):
        raise ExportError(
            "every weight of the list is 0",
            "export --target aibrix",
            "give one strategy a weight, or choose algorithm random",
        )


def effective(policy: PolicySet, ctx: Context) -> PolicySet:
    """Without the weights of a list that is not used."""
    if params_of(policy.instance)["algorithm"] == "weighted":
        return policy
    usual = {f.name: f.default for f in fields(policy.instance) if f.name in WEIGHTS}
    return replace(policy, instance=replace(policy.instance, **usual))


def sniff(text: str) -> bool:
    return "AIBRIX_" in text or ALGORITHM in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    values = params_of(policy.instance)
    present = envtext.read(ctx.current, ctx.current_name) if ctx.current is not None else {}
    wanted = {ALGORITHM: _algorithm(values)}
    for name, key in PLAIN.items():
        usual = next(f.default for f in fields(policy.instance) if f.name == name)
        if ctx.current is None or key in present or getattr(policy.instance, name) != usual:
            wanted[key] = word(values[name])
    text = envtext.edit(ctx.current or "", wanted, ctx.current_name, ALGORITHM)
    notes = (
        routers.REPLICA_NOTE.format(n=ctx.fleet.gateway.replicas),
        "a request's header routing-strategy overrides the algorithm",
    )
    return Rendered(
        {MAIN: text},
        notes,
        ("prefix blocks are of the gateway's tokenizer there",),
        (
            f"kubectl set env -n aibrix-system deploy/aibrix-gateway-plugins --env-file={MAIN}"
            if ctx.current is None
            else "kubectl apply -f FILE",
        ),
    )


def _algorithm(values: Mapping[str, Any]) -> str:
    if values["algorithm"] != "weighted":
        return str(values["algorithm"])
    return ",".join(f"{strategy}:{values[name]}" for name, strategy in WEIGHTS.items() if values[name])


def check(files: Mapping[str, str]) -> list[str]:
    found = envtext.read(files[MAIN], MAIN)
    return [
        f"{key} is {found[key]!r}: its default is taken for all but whole numbers above 0"
        for key in PLAIN.values()
        if key in found and not (found[key].isdigit() and int(found[key]) > 0)
    ]


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    found = envtext.read(text, where)
    values: dict[str, Any] = {}
    if ALGORITHM not in found:
        why = f"sets {UNREAD}, which the gateway does not read" if UNREAD in found else f"sets no {ALGORITHM}"
        raise ExportError(
            why, where, f"the gateway then picks no replica itself: set {ALGORITHM}, such as prefix-cache"
        )
    spoken = found[ALGORITHM]
    if ":" in spoken or "," in spoken:
        values = {"algorithm": "weighted", **dict.fromkeys(WEIGHTS, 0)}
        names = {strategy: name for name, strategy in WEIGHTS.items()}
        for item in spoken.split(","):
            strategy, _, weight = item.strip().partition(":")
            if strategy not in names:
                raise ExportError(
                    f"strategy {strategy!r} in the list is not modelled",
                    where,
                    f"the nearest: {', '.join(names)}",
                )
            values[names[strategy]] = int(weight or 1)
    else:
        values["algorithm"] = spoken
    for name, key in PLAIN.items():
        if key in found:
            try:
                values[name] = int(found[key])
            except ValueError as error:
                raise ExportError(f"{key} is {found[key]!r}", where, "a whole number is needed") from error
    return policy_set(instance=from_public(policy_class("aibrix"), values, where))
