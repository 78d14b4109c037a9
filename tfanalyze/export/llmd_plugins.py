"""Plugin types that llm-d-router registers, by what they are; which are alpha; which are deprecated.

Source: llm-d-router ebab687 (after v0.10.0), cmd/epp/runner.
"""

from __future__ import annotations

# role -> types; a type may have two roles (context-length-aware scores and filters)
ROLES: dict[str, tuple[str, ...]] = {
    "scorer": (
        "active-request-scorer", "context-length-aware", "endpoint-attribute-scorer", "header-label-affinity-scorer",
        "kv-cache-utilization-scorer", "latency-scorer", "load-aware-scorer", "lora-affinity-scorer", "mm-embeddings-cache-scorer",
        "multicluster-kv-cache-utilization-scorer", "multicluster-prefix-cache-scorer", "multicluster-queue-scorer", "no-hit-lru-scorer",
        "precise-prefix-cache-scorer", "prefix-cache-scorer", "queue-scorer", "running-requests-size-scorer", "session-affinity-scorer",
        "token-load-scorer", "topology-affinity-scorer",
    ),
    "filter": (
        "by-label", "by-label-selector", "context-length-aware", "decode-filter", "encode-filter", "endpoint-attribute-filter",
        "header-based-testing-filter", "label-selector-filter", "multicluster-session-affinity-filter", "prefill-filter",
        "prefix-cache-affinity-filter", "session-affinity-filter", "slo-headroom-tier-filter", "topology-affinity-filter",
        "utilization-filter", "utilization-detector", "concurrency-detector",
    ),
    "picker": ("max-score-picker", "random-picker", "weighted-random-picker"),
    "profile handler": (
        "data-parallel-profile-handler", "disagg-profile-handler", "header-profile-handler", "pd-profile-handler", "single-profile-handler",
    ),
    "admitter": ("latency-slo-admitter", "probabilistic-admitter"),
    "saturation detector": ("concurrency-detector", "utilization-detector"),
    "fairness policy": ("global-strict-fairness-policy", "program-aware-fairness", "round-robin-fairness-policy"),
    "ordering policy": ("edf-ordering-policy", "fcfs-ordering-policy", "slo-deadline-ordering-policy"),
    "usage limit policy": ("priority-holdback-policy", "soft-reflective-ceiling-policy", "static-usage-limit-policy"),
    "parser": (
        "anthropic-parser", "openai-parser", "passthrough-parser", "sglanghttp-parser", "vertexai-parser", "vllmgrpc-parser", "vllmhttp-parser",
    ),
    "data source": (
        "dcgm-data-source", "endpoint-notification-source", "k8s-notification-source", "metrics-data-source", "models-data-source",
        "multicluster-metrics-data-source",
    ),
    "extractor": (
        "core-metrics-extractor", "dcgm-extractor", "models-data-extractor", "multicluster-metrics-extractor", "topology-extractor",
    ),
    "discovery": ("file-discovery", "multicluster-file-discovery"),
    "other": (
        "agent-identity", "always-disagg-multimodal-decider", "always-disagg-pd-decider", "approx-prefix-cache-producer",
        "burst-prefix-cache-producer", "destination-endpoint-served-verifier", "disagg-headers-handler", "disaggregatedset-rollout-screener",
        "inflight-load-producer", "mm-embeddings-cache-producer", "multicluster-approx-prefix-cache-producer", "p2p-source-producer",
        "precise-prefix-cache-producer", "predicted-latency-producer", "prefill-header-handler", "prefix-based-pd-decider",
        "priority-then-time-eviction-order-policy", "request-attribute-reporter", "session-id-producer", "sheddable-eviction-filter",
        "token-producer", "tokenizer",
    ),
}  # fmt: skip

KNOWN = frozenset(kind for kinds in ROLES.values() for kind in kinds)

# these start only with --allow-experimental-plugins; so does everything multicluster-*
ALPHA = frozenset({
    "agent-identity", "burst-prefix-cache-producer", "dcgm-data-source", "dcgm-extractor", "disaggregatedset-rollout-screener",
    "endpoint-attribute-filter", "endpoint-attribute-scorer", "header-label-affinity-scorer", "header-profile-handler",
    "p2p-source-producer", "priority-holdback-policy", "priority-then-time-eviction-order-policy", "session-affinity-filter",
    "session-affinity-scorer", "sheddable-eviction-filter", "soft-reflective-ceiling-policy", "topology-affinity-filter",
    "topology-affinity-scorer", "topology-extractor", "utilization-filter",
} | {kind for kind in KNOWN if kind.startswith("multicluster-")})  # fmt: skip

# removed in v0.11.0 -> what replaces them
DEPRECATED = {
    "by-label": "label-selector-filter", "by-label-selector": "label-selector-filter", "pd-profile-handler": "disagg-profile-handler",
    "disagg-headers-handler": "disagg-profile-handler", "prefill-header-handler": "disagg-profile-handler", "tokenizer": "token-producer",
}  # fmt: skip


def roles(kind: str) -> frozenset[str]:
    return frozenset(role for role, kinds in ROLES.items() if kind in kinds)
