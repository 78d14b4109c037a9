"""Target llm-d: EndpointPickerConfig of the inference scheduler (EPP), with InferenceObjectives for the classes.

Source: llm-d-router ebab687 (after v0.10.0); its loader is Go and does not run here, so the file is checked against a
strict schema and lint of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import llmd_read, yamltext
from tfanalyze.export.llmd_lint import ignored, lint, lint_objectives
from tfanalyze.export.llmd_read import DETECTOR, HOLDBACK, PICKERS, PRODUCER, SCORERS, declared_default
from tfanalyze.export.parts import Context, Rendered, only, params_of
from tfanalyze.replay.policies import PolicySet

PROOF = "schema-checked only: llm-d's loader is Go and does not run here"
ACCEPTS = {"instance": ("llmd",), "site": (), "admit": ("llmd_flow",)}
MAIN, OBJECTIVES = "epp.yaml", "inference-objectives.yaml"
parse = llmd_read.parse
BANDS = 3
MIN_MAX = {
    w: SCORERS[w][0] for w in ("queue_weight", "running_weight", "active_weight")
}  # scores over who is a candidate


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "llm-d", instance=ACCEPTS["instance"], admit=ACCEPTS["admit"])
    if type(policy.instance).name != "llmd":
        raise ExportError(
            "without its scorers llm-d runs its own defaults",
            "export --target llm-d",
            "tune --policy llmd+llmd_flow",
        )
    if type(policy.admit).name == "llmd_flow" and len(ctx.classes) > BANDS:
        raise ExportError(
            f"{len(ctx.classes)} SLO classes, {BANDS} priority bands were tuned",
            "export --target llm-d",
            "merge classes in tfanalyze.toml, then tune again",
        )
    tuned = ctx.evidence.get("instances")
    min_max = [kind for weight, kind in MIN_MAX.items() if getattr(policy.instance, weight) > 0]
    if tuned and int(tuned) != ctx.fleet.n_instances and min_max:
        raise ExportError(
            f"{min_max[0]}'s weight was tuned on {tuned} instances and goes to {ctx.fleet.n_instances}: its min-max score means something else there",
            "export --target llm-d",
            "tune on the fleet it is for, or weigh token-load-scorer, which is absolute",
        )


def sniff(text: str) -> bool:
    return "kind: EndpointPickerConfig" in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    if ctx.current is None:
        node: Any = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
        indent = yamltext.INDENTS[0]
    else:
        node, indent = yamltext.load(ctx.current, ctx.current_name), yamltext.indent_of(ctx.current)
    notes = list(_put_scorers(node, policy.instance))
    files = {}
    if type(policy.admit).name == "llmd_flow":
        notes += _put_flow(node, policy.admit, ctx)
        files[OBJECTIVES] = _objectives(ctx, node["flowControl"]["priorityBands"])
    text = yamltext.dump(node, indent)
    if ctx.current is None:
        text = "# llm-d-router v0.10: --config-file epp.yaml\n" + text
    notes += ignored(yamltext.plain(node))
    alpha = lint(yamltext.plain(node))[1]
    if alpha:
        notes.append("needs --allow-experimental-plugins: " + ", ".join(alpha))
    dropped = ("prefix hits are counted in blocks of 64 tokens, as its approximate producer does at most",)
    commands = ("epp --config-file epp.yaml", f"kubectl apply -f {OBJECTIVES}" if files else "")
    return Rendered({MAIN: text, **files}, tuple(notes), dropped, tuple(c for c in commands if c))


def _plugin(node: Any, kind: str, parameters: Mapping[str, Any]) -> str:
    """Find or add the plugin of a type, set its parameters; returns the name to refer to it by."""
    plugins = node.setdefault("plugins", [])
    for plugin in plugins:
        if plugin.get("type") == kind:
            break
    else:
        plugin = {"type": kind}
        plugins.append(plugin)
    changed = {key: value for key, value in parameters.items() if value is not None}
    if changed:
        if plugin.get("parameters") is None:
            plugin["parameters"] = {}
        yamltext.merge(plugin["parameters"], changed)
    return str(plugin.get("name") or kind)


def _put_scorers(node: Any, policy: Any) -> list[str]:
    values = params_of(policy)
    profile = _profile(node)
    refs = profile["plugins"]
    for weight, (kind, owned) in SCORERS.items():
        used = float(values[weight]) > 0
        given = {
            key: values[name] for name, key in owned.items() if values[name] != declared_default(policy, name)
        }
        present = next((p for p in node.get("plugins", []) if p.get("type") == kind), None)
        if present is not None:  # a value that the file names is set whatever it is
            given |= {
                key: values[name] for name, key in owned.items() if key in (present.get("parameters") or {})
            }
        if not used and not given and present is None:
            continue
        name = _plugin(node, kind, given)
        ref: Any = next((entry for entry in refs if entry.get("pluginRef") == name), None)
        if not used and ref is not None:
            refs.remove(ref)
        elif used and ref is None:
            refs.insert(
                _before_picker(node, refs),
                {"pluginRef": name, "weight": yamltext.number(float(values[weight]))},
            )
        elif used and not yamltext.same(ref.get("weight", 1.0), values[weight]):
            ref["weight"] = yamltext.number(float(values[weight]))
    if values["prefix_weight"] and not any(
        str(p.get("type")).endswith("prefix-cache-producer") for p in node["plugins"]
    ):
        _plugin(node, PRODUCER, {})
    _put_picker(node, refs, str(values["picker"]))
    return []


def _profile(node: Any) -> Any:
    profiles = node.setdefault("schedulingProfiles", [])
    if not profiles:
        named = [
            str(p.get("name") or p["type"])
            for p in node.get("plugins", [])
            if p.get("type") in llmd_read.SCORER_TYPES
        ]
        profiles.append({"name": "default", "plugins": [{"pluginRef": name} for name in named]})
    profile = llmd_read.the_profile(profiles, "")
    profile.setdefault("plugins", [])
    return profile


def _before_picker(node: Any, refs: Any) -> int:
    kinds = {str(p.get("name") or p.get("type")): p.get("type") for p in node.get("plugins", [])}
    return next((k for k, ref in enumerate(refs) if kinds.get(ref.get("pluginRef")) in PICKERS), len(refs))


def _put_picker(node: Any, refs: Any, wanted: str) -> None:
    kinds = {str(p.get("name") or p.get("type")): p.get("type") for p in node.get("plugins", [])}
    at = next((ref for ref in refs if kinds.get(ref.get("pluginRef")) in PICKERS), None)
    if at is not None and kinds[at["pluginRef"]] == wanted:
        return
    name = _plugin(node, wanted, {})
    if at is not None:
        at["pluginRef"] = name
    else:
        refs.append({"pluginRef": name})


def _put_flow(node: Any, policy: Any, ctx: Context) -> list[str]:
    values = params_of(policy)
    gates = node.setdefault("featureGates", [])
    for gate in [g for g in gates if str(g).split("=")[0] == "flowControl"]:
        gates.remove(gate)
    gates.append("flowControl")
    name = _plugin(
        node,
        DETECTOR,
        {
            "queueDepthThreshold": values["queue_depth_threshold"],
            "kvCacheUtilThreshold": values["kv_cache_util_threshold"],
        },
    )
    flow = node.setdefault("flowControl", {})
    wanted: dict[str, Any] = {
        "saturationDetector": {"pluginRef": name},
        "priorityBands": _bands(flow, values, len(ctx.classes)),
    }
    ttl = float(values["default_request_ttl_s"])
    if "defaultRequestTTL" not in flow or llmd_read.seconds(str(flow["defaultRequestTTL"]), MAIN) != ttl:
        wanted["defaultRequestTTL"] = f"{ttl:.12g}s"
    if float(values["min_ceiling"]) < 1:
        wanted["usageLimitPolicyPluginRef"] = _plugin(
            node, HOLDBACK, {"minCeiling": values["min_ceiling"], "domain": "rank"}
        )
    elif "usageLimitPolicyPluginRef" in flow:
        wanted["usageLimitPolicyPluginRef"] = yamltext.REMOVE
    yamltext.merge(flow, wanted)
    notes = ["band caps hold for each EPP replica's queue, not for the fleet"]
    notes.append("a request is in its class's band only with the header x-llm-d-inference-objective: NAME")
    return notes


def _bands(flow: Any, values: Mapping[str, Any], n_classes: int) -> list[dict[str, Any]]:
    """A band a class: the file's own bands from the highest down, then new ones; a cap that is the same keeps its spelling."""
    present = sorted(flow.get("priorityBands") or [], key=lambda band: -int(band["priority"]))
    found: list[dict[str, Any]] = []
    for q in range(n_classes):
        cap = values[f"band{q}_max_requests"]
        if q < len(present):
            old = present[q].get("maxRequests", 0)
            keep = (llmd_read.quantity(old, MAIN) or 5000) == cap
            found.append(
                {"priority": int(present[q]["priority"])} | ({} if keep else {"maxRequests": str(cap)})
            )
        else:
            lowest = min((band["priority"] for band in found), default=None)
            priority = (
                band_priority(q, n_classes)
                if lowest is None or band_priority(q, n_classes) < lowest
                else lowest - 10
            )
            found.append({"priority": priority, "maxRequests": str(cap)})
    return found


def band_priority(q: int, n_classes: int) -> int:
    """Class 0 gets the highest band; the last one stays at 0, so that nothing is sheddable by accident."""
    return 10 * (min(n_classes, BANDS) - 1 - q)


def _objectives(ctx: Context, bands: Any) -> str:
    docs = []
    priorities = sorted((int(band["priority"]) for band in bands), reverse=True)
    for q, entry in enumerate(ctx.classes):
        body = {
            "apiVersion": "llm-d.ai/v1alpha2",
            "kind": "InferenceObjective",
            "metadata": {"name": entry.name.replace("_", "-")},
            "spec": {
                "priority": priorities[q],
                "poolRef": {"name": ctx.fleet.pools[0].name.replace("_", "-")},
            },
        }
        docs.append(yamltext.dump(body))
    return "---\n".join(docs)


def check(files: Mapping[str, str]) -> list[str]:
    problems = lint(yamltext.plain(yamltext.load(files[MAIN], MAIN)))[0]
    if OBJECTIVES in files:
        problems += lint_objectives(files[OBJECTIVES])
    return problems
