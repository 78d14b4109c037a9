"""The strict schema and lint for llm-d: what its loader refuses, we refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tfanalyze.export.llmd_lint import ignored, lint, lint_objectives

GOOD: dict[str, Any] = {
    "apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "featureGates": ["flowControl"],
    "plugins": [{"type": "queue-scorer"}, {"type": "utilization-detector", "parameters": {"queueDepthThreshold": 5}}],
    "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer", "weight": 1.5}]}],
    "flowControl": {"maxRequests": "4k", "defaultRequestTTL": "1m30s", "saturationDetector": {"pluginRef": "utilization-detector"}, "priorityBands": [{"priority": 1}]},
}  # fmt: skip


def changed(**more: Any) -> dict[str, Any]:
    return {**GOOD, **more}


def test_a_good_config_passes() -> None:
    assert lint(GOOD) == ([], [])


BAD = [
    (changed(plugin=[]), "plugin"),
    (changed(plugins=[{"type": "queue-scorer", "parameters": {"weight": 1}}]), "weight"),
    (changed(plugins=[{"type": "prefix-cache-scorer", "parameters": {"matchLengthWeight": 1.5}}]), "1.5"),
    (changed(plugins=[*GOOD["plugins"], {"type": "queue-scorer"}]), "used twice"),
    (
        changed(schedulingProfiles=[{"name": "default", "plugins": [{"pluginRef": "gone"}]}]),
        "names no plugin",
    ),
    (changed(featureGates=["dataLayer"]), "dataLayer"),
    (changed(flowControl={"priorityBands": [{"priority": 1}, {"priority": 1}]}), "given twice"),
    (changed(flowControl={"defaultRequestTTL": "soon"}), "soon"),
    (changed(kind="SchedulerConfig"), "EndpointPickerConfig"),
    (
        changed(plugins=[*GOOD["plugins"], {"type": "queue-scorerr", "name": "x"}]),
        "did you mean queue-scorer",
    ),
    (
        changed(
            plugins=[*GOOD["plugins"], {"type": "single-profile-handler"}, {"type": "pd-profile-handler"}]
        ),
        "only one profile handler",
    ),
    (changed(schedulingProfiles=[*GOOD["schedulingProfiles"]] * 2), "profile name 'default' is used twice"),
    (
        changed(schedulingProfiles=[*GOOD["schedulingProfiles"], {"name": "b", "plugins": []}]),
        "need a profile handler",
    ),
    (
        changed(
            plugins=[*GOOD["plugins"], {"type": "max-score-picker"}, {"type": "random-picker"}],
            schedulingProfiles=[
                {"name": "a", "plugins": [{"pluginRef": "max-score-picker"}, {"pluginRef": "random-picker"}]}
            ],
        ),
        "only one picker",
    ),
    (changed(requestHandler={"parsers": [{"pluginRef": "queue-scorer"}]}), "is a queue-scorer, no parser"),
    (changed(flowControl={"saturationDetector": {"pluginRef": "queue-scorer"}}), "no saturation detector"),
    (
        changed(flowControl={"priorityBands": [{"priority": 1, "fairnessPolicyRef": "gone"}]}),
        "'gone' names no plugin",
    ),
    (changed(dataLayer={"sources": [{"pluginRef": "gone"}]}), "'gone' names no plugin"),
]
IGNORED = [
    (changed(featureGates=[]), "ignored without the feature gate"),
    (changed(featureGates=["flowControl", "flowControl=false"]), "ignored without the feature gate"),
    (changed(flowControl={"priorityBands": [{"priority": 1, "maxRequests": 0}]}), "not zero"),
    (changed(plugins=[*GOOD["plugins"], {"type": "tokenizer"}]), "use token-producer"),
]


@pytest.mark.parametrize(("doc", "words"), IGNORED)
def test_what_its_loader_takes_in_silence_is_said(doc: dict[str, Any], words: str) -> None:
    assert lint(doc) == ([], []) and ignored(GOOD) == []
    assert words in " ".join(ignored(doc))


@pytest.mark.parametrize(("doc", "words"), BAD)
def test_what_its_loader_refuses_is_found(doc: dict[str, Any], words: str) -> None:
    problems, _ = lint(doc)
    assert problems and words in " ".join(problems)


def test_alpha_plugins_are_named() -> None:
    doc = changed(
        plugins=[*GOOD["plugins"], {"type": "priority-holdback-policy", "parameters": {"minCeiling": 0.5}}]
    )
    assert lint(doc) == ([], ["priority-holdback-policy"])


def test_an_objective_needs_a_whole_priority_and_its_pool() -> None:
    text = "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: a}\nspec: {priority: %s, poolRef: {name: p}}\n"
    assert lint_objectives(text % 10) == []
    assert lint_objectives(text % "high")
    assert lint_objectives((text % 1).replace("poolRef", "poolReff"))
