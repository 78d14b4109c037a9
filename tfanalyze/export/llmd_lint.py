"""Strict schema and semantic lint for EndpointPickerConfig and InferenceObjective (llm-d-router v0.10)."""

from __future__ import annotations

from typing import Any

from tfanalyze.export import yamltext
from tfanalyze.export.schema import problems

ALPHA = (
    "utilization-filter", "endpoint-attribute-scorer", "endpoint-attribute-filter", "session-affinity-scorer",
    "session-affinity-filter", "priority-holdback-policy", "soft-reflective-ceiling-policy", "topology-extractor",
    "topology-affinity-filter", "topology-affinity-scorer", "header-profile-handler", "burst-prefix-cache-producer",
    "p2p-source-producer",
)  # fmt: skip


def lint(doc: Any) -> tuple[list[str], list[str]]:
    """(problems, plugins that need --allow-experimental-plugins)."""
    found = problems(doc, "llmd-epp")
    if found:
        return found, []
    plugins = doc.get("plugins") or []
    names = [str(p.get("name") or p["type"]) for p in plugins]
    found += [f"plugin name {name!r} is used twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    found += _references(doc, set(names))
    found += _flow(doc)
    handlers = [p["type"] for p in plugins if str(p["type"]).endswith("-profile-handler")]
    if len(handlers) > 1:
        found.append(f"only one profile handler is allowed, found {', '.join(handlers)}")
    if "single-profile-handler" in handlers and len(doc.get("schedulingProfiles") or []) > 1:
        found.append("single-profile-handler allows one scheduling profile")
    alpha = {
        str(p["type"]) for p in plugins if p["type"] in ALPHA or str(p["type"]).startswith("multicluster-")
    }
    return found, sorted(alpha)


def _references(doc: Any, names: set[str]) -> list[str]:
    found = []
    for profile in doc.get("schedulingProfiles") or []:
        for ref in profile["plugins"]:
            if ref["pluginRef"] not in names:
                found.append(f"profile {profile['name']}: pluginRef {ref['pluginRef']!r} names no plugin")
    flow = doc.get("flowControl") or {}
    detector = (flow.get("saturationDetector") or {}).get("pluginRef")
    limit = flow.get("usageLimitPolicyPluginRef")
    found += [
        f"flowControl: {name!r} names no plugin" for name in (detector, limit) if name and name not in names
    ]
    return found


def _flow(doc: Any) -> list[str]:
    flow = doc.get("flowControl") or {}
    gates = {str(g).split("=")[0]: not str(g).endswith("=false") for g in doc.get("featureGates") or []}
    found = []
    if set(flow) - {"saturationDetector"} and not gates.get("flowControl"):
        found.append("flowControl is ignored without the feature gate flowControl")
    bands = [band["priority"] for band in flow.get("priorityBands") or []]
    found += [f"priority band {p} is given twice" for p in dict.fromkeys(bands) if bands.count(p) > 1]
    for band in flow.get("priorityBands") or []:
        if str(band.get("maxRequests", 1)) == "0":
            found.append(
                f"priority band {band['priority']}: maxRequests 0 means the default of 5000, not zero"
            )
    return found


def lint_objectives(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split("---\n"):
        found += problems(yamltext.plain(yamltext.load(part, "InferenceObjective")), "llmd-objective")
    return found
