"""Read an EndpointPickerConfig as the policies `llmd` and `llmd_flow`; refuse what they do not model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import yamltext
from tfanalyze.export.llmd_lint import gate_on
from tfanalyze.export.llmd_plugins import ROLES, roles
from tfanalyze.export.parts import from_public, policy_class, policy_set
from tfanalyze.replay.policies import PolicySet

# weight parameter -> plugin type, and policy parameter -> key in the plugin's parameters
SCORERS: dict[str, tuple[str, dict[str, str]]] = {
    "queue_weight": ("queue-scorer", {}),
    "kv_weight": ("kv-cache-utilization-scorer", {}),
    "prefix_weight": (
        "prefix-cache-scorer",
        {"match_length_weight": "matchLengthWeight", "match_length_scale_tokens": "matchLengthScaleTokens"},
    ),
    "running_weight": ("running-requests-size-scorer", {}),
    "token_load_weight": ("token-load-scorer", {"queue_threshold_tokens": "queueThresholdTokens"}),
    "load_aware_weight": ("load-aware-scorer", {"load_threshold": "threshold"}),
    "active_weight": (
        "active-request-scorer",
        {"idle_threshold": "idleThreshold", "max_busy_score": "maxBusyScore"},
    ),
}
SCORER_TYPES = {kind for kind, _ in SCORERS.values()}
PICKERS = ROLES["picker"]
PRODUCER, DETECTOR, HOLDBACK = (
    "approx-prefix-cache-producer",
    "utilization-detector",
    "priority-holdback-policy",
)
KEEPS_ALL = ("decode-filter",)  # of a fleet whose replicas prefill and decode, the only one that llmd replays
UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
SUFFIX = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def declared_default(policy: Any, name: str) -> Any:
    entry = next(f for f in fields(policy) if f.name == name)
    return entry.default


def seconds(text: str, where: str) -> float:
    """A Go duration."""
    if text == "0":
        return 0.0
    parts = re.findall(r"([0-9.]+)(ns|us|µs|ms|s|m|h)", text)
    if not parts or "".join(a + b for a, b in parts) != text:
        raise ExportError(f"{text!r} is no duration", where, "write it as 20s or 1m30s")
    return sum(float(amount) * UNITS_S[unit] for amount, unit in parts)


def quantity(value: Any, where: str) -> float:
    """A Kubernetes quantity."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)([A-Za-z]*)", str(value))
    if not found or found[2] not in SUFFIX:
        raise ExportError(f"{value!r} is no quantity", where, "write it as 400 or 4k")
    return float(found[1]) * SUFFIX[found[2]]


def the_profile(profiles: Any, where: str) -> Any:
    """The one scheduling profile, or the one named default."""
    if len(profiles) == 1:
        return profiles[0]
    named = [profile for profile in profiles if profile.get("name") == "default"]
    if not named:
        raise ExportError(
            "has several scheduling profiles and none is named default",
            where,
            "replay models one; export it for that profile alone",
        )
    return named[0]


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    doc = yamltext.plain(yamltext.load(text, where))
    plugins = {str(p.get("name") or p.get("type")): p for p in doc.get("plugins") or []}
    for plugin in plugins.values():  # these act wherever they are declared
        kind = str(plugin.get("type"))
        if "admitter" in roles(kind) or (
            "profile handler" in roles(kind) and kind != "single-profile-handler"
        ):
            raise ExportError(
                f"uses {kind}, which replay does not model", where, "the nearest it models: llmd+llmd_flow"
            )
    profiles = doc.get("schedulingProfiles") or []
    if profiles:
        refs = the_profile(profiles, where).get("plugins") or []
    else:  # the loader then makes one of all that can be in a profile
        acting = ("scorer", "filter", "picker")
        refs = [{"pluginRef": n} for n, p in plugins.items() if roles(str(p.get("type"))) & set(acting)]
    values = _weights(refs, plugins, where)
    instance = from_public(policy_class("llmd"), values, f"{where}: schedulingProfiles")
    admit = _flow(doc, plugins, where) if gate_on(doc) else None
    return policy_set(instance=instance, admit=admit)


def _weights(refs: list[Any], plugins: Mapping[str, Any], where: str) -> dict[str, Any]:
    cls = policy_class("llmd")
    values: dict[str, Any] = dict.fromkeys(SCORERS, 0.0)
    kinds = {kind: (weight, owned) for weight, (kind, owned) in SCORERS.items()}
    for plugin in plugins.values():
        if plugin.get("type") in kinds:
            given = plugin.get("parameters") or {}
            values |= {name: given[key] for name, key in kinds[plugin["type"]][1].items() if key in given}
        elif plugin.get("type") in PICKERS:  # a profile without a picker takes one that is declared
            values["picker"] = str(plugin["type"])
    seen: set[str] = set()
    for ref in refs:
        plugin = plugins.get(ref.get("pluginRef"))
        if plugin is None:
            raise ExportError(
                f"pluginRef {ref.get('pluginRef')!r} names no plugin", where, "declare it under plugins"
            )
        kind = str(plugin.get("type"))
        if kind in kinds and kind in seen:
            raise ExportError(
                f"the profile uses {kind} twice", where, "replay models one of a type: merge them"
            )
        seen.add(kind)
        if kind in kinds:
            values[kinds[kind][0]] = float(ref.get("weight", 1.0))
        elif kind in PICKERS:
            values["picker"] = kind
        elif kind not in KEEPS_ALL and (roles(kind) & {"scorer", "filter"} or not roles(kind)):
            raise ExportError(
                f"the profile uses {kind}, which replay does not model",
                where,
                f"the nearest it models: {', '.join(sorted(SCORER_TYPES))}",
            )
    assert set(values) <= {f.name for f in fields(cls)}, values
    return values


def _flow(doc: Mapping[str, Any], plugins: Mapping[str, Any], where: str) -> Any:
    flow = doc.get("flowControl") or {}
    detector = plugins.get((flow.get("saturationDetector") or {}).get("pluginRef", DETECTOR), {})
    if detector and detector.get("type") != DETECTOR:
        raise ExportError(
            f"saturation detector {detector.get('type')} is not modelled", where, f"the nearest is {DETECTOR}"
        )
    given = detector.get("parameters") or {}  # its headroom is used only as a filter, not for flow control
    _refuse_unmodelled(flow, plugins, where)
    names = {
        "queueDepthThreshold": "queue_depth_threshold",
        "kvCacheUtilThreshold": "kv_cache_util_threshold",
    }
    values = {name: given[key] for key, name in names.items() if key in given}
    if "defaultRequestTTL" in flow:
        values["default_request_ttl_s"] = seconds(str(flow["defaultRequestTTL"]), where)
    bands = sorted(flow.get("priorityBands") or [], key=lambda band: -int(band["priority"]))
    for q, band in enumerate(bands[:3]):
        cap = quantity(band.get("maxRequests", 0), f"{where}: priorityBands")
        values[f"band{q}_max_requests"] = int(cap) if cap else 5000  # 0 means the default
    limit = plugins.get(str(flow.get("usageLimitPolicyPluginRef")))
    if limit is not None and limit.get("type") == HOLDBACK:
        values["min_ceiling"] = (limit.get("parameters") or {}).get("minCeiling", 1.0)
    elif limit is not None and limit.get("type") != "static-usage-limit-policy":
        raise ExportError(
            f"usage limit policy {limit.get('type')} is not modelled", where, f"the nearest is {HOLDBACK}"
        )
    return from_public(policy_class("llmd_flow"), values, f"{where}: flowControl")


def _refuse_unmodelled(flow: Mapping[str, Any], plugins: Mapping[str, Any], where: str) -> None:
    """Orders, shares and caps of flowControl that `llmd_flow` does not have."""
    bands = flow.get("priorityBands") or []
    named = [flow.get("defaultPriorityBand") or {}, flow.get("defaultNegativePriorityBand") or {}, *bands]
    modelled = {
        "fairnessPolicyRef": "global-strict-fairness-policy",
        "orderingPolicyRef": "fcfs-ordering-policy",
    }
    for band in named:
        for key, near in modelled.items():
            ref = str(band.get(key, near))
            kind = str((plugins.get(ref) or {}).get("type", ref))
            if kind != near:
                raise ExportError(f"{key} {kind} is not modelled", where, f"the nearest is {near}")
    if flow.get("enableEviction"):
        raise ExportError(
            "enableEviction is not modelled", where, "the nearest is to shed in the queue: min_ceiling"
        )
    total = sum(quantity(band.get("maxRequests", 0), where) or 5000 for band in bands) or 5000
    cap = quantity(flow.get("maxRequests", 0), where)
    if cap and cap < total:
        raise ExportError(
            f"maxRequests {cap:g} over all bands is not modelled",
            where,
            f"the nearest is a cap for each band: their sum is {total:g}",
        )
