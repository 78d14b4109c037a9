"""Strict schema and semantic lint for EndpointPickerConfig and InferenceObjective (llm-d-router v0.10)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from typing import Any

from tfanalyze.export import yamltext
from tfanalyze.export.llmd_plugins import ALPHA, DEPRECATED, KNOWN, roles
from tfanalyze.export.schema import problems

NAMED_BY_TYPE = {  # what a reference may name without declaring it: the loader adds these itself
    "global-strict-fairness-policy", "fcfs-ordering-policy", "static-usage-limit-policy", "utilization-detector",
}  # fmt: skip


def lint(doc: Any, also: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """(what its loader refuses, plugins that need --allow-experimental-plugins).

    ``also``: plugin types that a build of its own registers beside upstream's.
    """
    found = problems(doc, "llmd-epp")
    if found:
        return found, []
    plugins = doc.get("plugins") or []
    kinds = {str(p.get("name") or p["type"]): str(p["type"]) for p in plugins}
    names = [str(p.get("name") or p["type"]) for p in plugins]
    found += [f"plugin name {name!r} is used twice" for name in repeated(names)]
    found += [unknown(kind) for kind in dict.fromkeys(kinds.values()) if kind not in KNOWN | set(also)]
    found += _profiles(doc, kinds)
    found += [
        f"{where}: {name!r} names no plugin" for where, name, _ in _references(doc) if name not in kinds
    ]
    found += [
        f"{where}: {name!r} is a {kinds[name]}, no {role}"
        for where, name, role in _references(doc)
        if role and kinds.get(name) in KNOWN and role not in roles(kinds[name])
    ]
    bands = [band["priority"] for band in (doc.get("flowControl") or {}).get("priorityBands") or []]
    found += [f"priority band {p} is given twice" for p in repeated(bands)]
    return found, sorted(set(kinds.values()) & ALPHA)


def ignored(doc: Any) -> list[str]:
    """What its loader takes in silence and does not do, or will not take for long."""
    flow = doc.get("flowControl") or {}
    found = []
    if set(flow) - {"saturationDetector"} and not gate_on(doc):
        found.append("flowControl is ignored without the feature gate flowControl")
    for band in flow.get("priorityBands") or []:
        if str(band.get("maxRequests", 1)) == "0":
            found.append(
                f"priority band {band['priority']}: maxRequests 0 means the default of 5000, not zero"
            )
    kinds = dict.fromkeys(str(p.get("type")) for p in doc.get("plugins") or [])
    found += [f"{kind} is deprecated: use {DEPRECATED[kind]}" for kind in kinds if kind in DEPRECATED]
    return found


def gate_on(doc: Any) -> bool:
    """Is the feature gate flowControl on?  It is off by default; the last mention counts."""
    gates = [str(gate).partition("=") for gate in doc.get("featureGates") or []]
    values = [value.strip().lower() for name, _, value in gates if name == "flowControl"]
    return bool(values) and values[-1] in ("", "1", "t", "true")


def unknown(kind: str) -> str:
    near = difflib.get_close_matches(kind, sorted(KNOWN), n=1)
    return f"plugin type {kind!r} is not registered" + (f": did you mean {near[0]}?" if near else "")


def repeated(values: list[Any]) -> list[Any]:
    return [value for value in dict.fromkeys(values) if values.count(value) > 1]


def _profiles(doc: Any, kinds: dict[str, str]) -> list[str]:
    profiles = doc.get("schedulingProfiles") or []
    found = [f"profile name {name!r} is used twice" for name in repeated([p["name"] for p in profiles])]
    for profile in profiles:
        refs = [ref["pluginRef"] for ref in profile["plugins"]]
        found += [
            f"profile {profile['name']}: pluginRef {r!r} names no plugin" for r in refs if r not in kinds
        ]
        pickers = [r for r in refs if kinds.get(r, "").endswith("-picker")]
        if len(pickers) > 1:
            found.append(f"profile {profile['name']}: only one picker is allowed, found {', '.join(pickers)}")
    handlers = [kind for kind in kinds.values() if kind.endswith("-profile-handler")]
    if len(handlers) > 1:
        found.append(f"only one profile handler is allowed, found {', '.join(handlers)}")
    if len(profiles) > 1 and not handlers:
        found.append(f"{len(profiles)} scheduling profiles need a profile handler")
    if "single-profile-handler" in handlers and len(profiles) > 1:
        found.append("single-profile-handler allows one scheduling profile")
    return found


def _references(doc: Any) -> Iterator[tuple[str, str, str]]:
    """(where, the plugin referred to, what it must be), outside of the profiles."""
    flow, data = doc.get("flowControl") or {}, doc.get("dataLayer") or {}
    wanted: list[tuple[str, Any, str]] = [
        (
            "flowControl.saturationDetector",
            (flow.get("saturationDetector") or {}).get("pluginRef"),
            "saturation detector",
        ),
    ]
    if gate_on(doc):  # the rest of flowControl is not looked at without its gate
        wanted.append(("flowControl", flow.get("usageLimitPolicyPluginRef"), "usage limit policy"))
        named = [flow.get("defaultPriorityBand"), flow.get("defaultNegativePriorityBand")]
        for band in [*named, *(flow.get("priorityBands") or [])]:
            wanted.append(
                ("flowControl: priority band", (band or {}).get("fairnessPolicyRef"), "fairness policy")
            )
            wanted.append(
                ("flowControl: priority band", (band or {}).get("orderingPolicyRef"), "ordering policy")
            )
    for parser in (doc.get("requestHandler") or {}).get("parsers") or []:
        wanted.append(("requestHandler", parser["pluginRef"], "parser"))
    for source in data.get("sources") or []:
        wanted.append(("dataLayer.sources", source["pluginRef"], "data source"))
        for extractor in source.get("extractors") or []:
            wanted.append(("dataLayer.sources", extractor["pluginRef"], ""))  # producers extract too
    for where, name, role in wanted:
        if name and name not in NAMED_BY_TYPE:
            yield where, str(name), role


def lint_objectives(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split("---\n"):
        found += problems(yamltext.plain(yamltext.load(part, "InferenceObjective")), "llmd-objective")
    return found
