"""Target dynamo: the router policy YAML of NVIDIA Dynamo 1.6 (--router-policy-config)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import yamltext
from tfanalyze.export.parts import Context, Rendered, from_public, only, params_of, policy_class, policy_set
from tfanalyze.export.schema import problems
from tfanalyze.replay.policies import PolicySet

PROOF = "proven: Dynamo 1.6.1's parser reads it and its selector counts costs by it (make test-gateways)"
MAIN = "dynamo-router-policy.yaml"
COST, TIER = "dynamo-default-cost-fn", "dynamo-two-tier-cost-fn"
OWNED = {
    COST: (
        "overlap_score_credit",
        "overlap_score_credit_decay",
        "prefill_load_scale",
        "decode_active_request_weight",
        "router_temperature",
    ),
    TIER: ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold"),
}
LIMITS = ("quantum", "prefill_busy_threshold", "request_queue_limit_per_worker")
FAMILIES = 3
UNMODELLED = (
    "raw_isl_token_queue_limit_per_worker",
    "cached_token_queue_limit_per_worker",
    "prefill_busy_threshold_frac",
)


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "dynamo", instance=("dynamo",), admit=("dynamo_queues",))
    if type(policy.instance).name == "dynamo" and params_of(policy.instance)["selection"] == "lmetric":
        raise ExportError(
            "selection 'lmetric' has no name in the 1.6 policy file",
            "export --target dynamo",
            f"the nearest is {COST}; pin dynamo.selection and tune again",
        )
    if type(policy.admit).name == "dynamo_queues" and len(ctx.classes) > FAMILIES:
        raise ExportError(
            f"{len(ctx.classes)} SLO classes, {FAMILIES} policy families were tuned",
            "export --target dynamo",
            "merge classes in tfanalyze.toml, then tune again",
        )


def effective(policy: PolicySet, ctx: Context) -> PolicySet:
    """Without the parameters of the selector that is not chosen, and of families that have no class."""
    chosen = str(params_of(policy.instance).get("selection", COST))
    idle = (
        [name for kind, names in OWNED.items() if kind != chosen for name in names]
        if type(policy.instance).name == "dynamo"
        else []
    )
    instance = replace(
        policy.instance, **{f.name: f.default for f in fields(policy.instance) if f.name in idle}
    )
    admit = policy.admit
    if type(admit).name == "dynamo_queues":
        spare = {f"{key}_{q}" for key in LIMITS for q in range(len(ctx.classes), FAMILIES)}
        admit = replace(admit, **{f.name: f.default for f in fields(admit) if f.name in spare})
    return replace(policy, instance=instance, admit=admit)


def sniff(text: str) -> bool:
    return "worker_selection:" in text or "policy_classes:" in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    node: Any = {} if ctx.current is None else yamltext.load(ctx.current, ctx.current_name)
    indent = yamltext.INDENTS[0] if ctx.current is None else yamltext.indent_of(ctx.current)
    if type(policy.instance).name == "dynamo":
        _put_selector(node, params_of(policy.instance))
    notes: list[str] = []
    if type(policy.admit).name == "dynamo_queues":
        _put_classes(node, params_of(policy.admit), ctx)
        notes = [
            "limits are multiplied by the number of discovered workers",
            "a request names its family in the header x-dynamo-meta-policy-class: NAME",
        ]
    text = yamltext.dump(node, indent)
    if ctx.current is None:
        text = (
            "# Dynamo 1.6: python -m dynamo.frontend --router-mode kv --router-policy-config "
            + MAIN
            + "\n"
            + text
        )
    dropped = ("deficits of the classes are charged in prompt tokens in replay, in uncached tokens there",)
    return Rendered(
        {MAIN: text},
        tuple(notes),
        dropped,
        (f"python -m dynamo.frontend --router-mode kv --router-policy-config {MAIN}",),
    )


def _put_selector(node: Any, values: Mapping[str, Any]) -> None:
    kind = str(values["selection"])
    selection = node.setdefault("worker_selection", {})
    name = str(selection.get("aggregated", "tuned"))
    entries = selection.setdefault("instances", [])
    selection.setdefault("aggregated", name)
    entry = next((item for item in entries if item.get("name") == name), None)
    if entry is None:
        entry = {"name": name, "type": kind, "parameters": {}}
        entries.append(entry)
    if entry.get("type") != kind:
        entry["type"], entry["parameters"] = kind, {}
    yamltext.merge(entry.setdefault("parameters", {}), {key: _kept(values[key]) for key in OWNED[kind]})


def _kept(value: Any) -> Any:
    return value if isinstance(value, int) else float(value)


def _put_classes(node: Any, values: Mapping[str, Any], ctx: Context) -> None:
    if not node.get("policy_classes"):
        node["default_policy_family"] = ctx.classes[0].name
        node["uncached_isl_buckets"] = [{"min_tokens": 0, "bucket": "all"}]
        node["policy_classes"] = []
    present = {entry.get("policy_family"): entry for entry in node["policy_classes"]}
    bucket = str(node["uncached_isl_buckets"][0]["bucket"])
    for q, slo in enumerate(ctx.classes):
        wanted = {key: values[f"{key}_{q}"] for key in LIMITS}
        entry = present.get(slo.name)
        if entry is None:
            entry = {
                "name": f"{slo.name}_{bucket}",
                "policy_family": slo.name,
                "cache_bucket": bucket,
                "queue_policy": "fcfs",
            }
            node["policy_classes"].append(entry)
        yamltext.merge(entry, wanted)


def check(files: Mapping[str, str]) -> list[str]:
    doc = yamltext.plain(yamltext.load(files[MAIN], MAIN))
    found = problems(doc, "dynamo-policy")
    if found:
        return found
    buckets = [entry["bucket"] for entry in doc.get("uncached_isl_buckets") or []]
    classes = doc.get("policy_classes") or []
    for family in dict.fromkeys(
        entry.get("policy_family") for entry in classes if entry.get("policy_family")
    ):
        have = sorted(
            str(entry.get("cache_bucket")) for entry in classes if entry.get("policy_family") == family
        )
        if have != sorted(buckets):
            found.append(
                f"policy_family {family} needs exactly one class for each bucket {buckets}, has {have}"
            )
    selection = doc.get("worker_selection") or {}
    names = [entry["name"] for entry in selection.get("instances") or []]
    if selection.get("aggregated") not in [None, "default", *names]:
        found.append(f"worker_selection.aggregated names no instance: {selection['aggregated']}")
    return found


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    doc = yamltext.plain(yamltext.load(text, where))
    selection = doc.get("worker_selection") or {}
    name = selection.get("aggregated")
    entry = next((item for item in selection.get("instances") or [] if item.get("name") == name), None)
    values: dict[str, Any] = {}
    if entry is not None:
        if entry.get("type") not in OWNED:
            raise ExportError(
                f"worker selection {entry.get('type')!r} is not modelled",
                where,
                f"the nearest: {', '.join(OWNED)}",
            )
        given = entry.get("parameters") or {}
        values = {
            "selection": entry["type"],
            **{key: value for key, value in given.items() if key in OWNED[entry["type"]]},
        }
    instance = from_public(policy_class("dynamo"), values, f"{where}: worker_selection")
    admit = _read_classes(doc, where) if doc.get("policy_classes") else None
    return policy_set(instance=instance, admit=admit)


def _read_classes(doc: Mapping[str, Any], where: str) -> Any:
    """The classes of the first bucket, in the order of the file: family q is SLO class q."""
    bucket = (doc.get("uncached_isl_buckets") or [{}])[0].get("bucket")
    if len(doc.get("uncached_isl_buckets") or []) > 1:
        raise ExportError(
            "several uncached_isl_buckets are not modelled",
            where,
            "the nearest: one bucket, one class a family",
        )
    values: dict[str, Any] = {}
    for q, entry in enumerate(c for c in doc["policy_classes"] if c.get("cache_bucket") == bucket):
        for key in UNMODELLED:
            if key in entry:
                raise ExportError(
                    f"{entry['name']}.{key} is not modelled", where, f"the nearest: {', '.join(LIMITS)}"
                )
        if q >= FAMILIES:
            raise ExportError(f"more than {FAMILIES} policy families are not modelled", where, "merge some")
        values |= {f"{key}_{q}": entry[key] for key in LIMITS if key in entry}
    return from_public(policy_class("dynamo_queues"), values, f"{where}: policy_classes")
