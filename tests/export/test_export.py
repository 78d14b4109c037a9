"""Every target: what is exported reads back as the same policy, changes only what it must, and refuses the rest."""

from __future__ import annotations

import json
import os
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tfanalyze.config import DEFAULT_CLASSES, Fleet, Gateway, Pool, Site
from tfanalyze.errors import ExportError
from tfanalyze.export import EXPORTERS, export, from_gateway, target_module
from tfanalyze.export.parts import Context
from tfanalyze.replay.policies import load_policy

ONE = Fleet((Pool("a100", count=3),))
TWO = Fleet(
    (Pool("near", count=2, site="eu"), Pool("far", count=2, site="us")), sites=(Site("eu"), Site("us", 0.08))
)
OWN = {
    "tokenfleet": "tokenpilot+fleetmind+slomax", "llm-d": "llmd+llmd_flow", "smg": "smg+smg_priority", "sglang": "sglang+router_queue",
    "dynamo": "dynamo+dynamo_queues", "vllm-router": "vllm_router+router_queue", "production-stack": "production_stack",
    "aibrix": "aibrix", "litellm": "litellm", "envoy": "envoy_lb+envoy+envoy_breakers", "ray-serve": "ray_serve",
}  # fmt: skip
MULTI_SITE = ("tokenfleet", "litellm", "envoy")


def fleet_of(target: str) -> Fleet:
    return TWO if target in MULTI_SITE else ONE


def shaken(part: Any, draw: random.Random) -> Any:
    """The policy with every parameter at a random value of its range, simplexes left alone."""
    values = {}
    for entry in fields(part):
        meta = entry.metadata
        if not meta or meta["simplex"] or meta["high"] > 1e12:
            continue
        value = meta["low"] + (meta["high"] - meta["low"]) * draw.random() ** (3 if meta["log"] else 1)
        values[entry.name] = float(round(value)) if meta["integer"] else value
    return replace(part, **values)


def random_policy(target: str, seed: int) -> Any:
    draw = random.Random(seed)
    policy = load_policy(OWN[target])
    policy = replace(
        policy, **{kind: shaken(getattr(policy, kind), draw) for kind in ("instance", "site", "admit")}
    )
    if target == "dynamo":
        policy = replace(policy, instance=replace(policy.instance, selection=float(seed % 2)))
    if target == "smg":
        policy = replace(
            policy,
            admit=replace(policy.admit, interactive_reserved_per_slot=0.4, default_reserved_per_slot=0.2),
        )
    if target == "production-stack" and policy.instance.routing_logic == 1:
        policy = replace(policy, instance=replace(policy.instance, routing_logic=3.0))
    if target == "envoy":  # priority levels without a gap, each with a weight
        site = replace(
            policy.site, priority_0=0.0, priority_1=float(seed % 2), weight_0=3.0, weight_1=1.0 + seed
        )
        policy = replace(policy, site=site)
    return policy


def said(target: str, policy: Any) -> Any:
    module = target_module(target)
    ctx = Context(fleet_of(target), DEFAULT_CLASSES)
    return module.effective(policy, ctx) if hasattr(module, "effective") else policy


def run(target: str, policy: Any, out: Path, **more: Any) -> dict[str, Any]:
    return export(target, policy, out=out, fleet=fleet_of(target), classes=DEFAULT_CLASSES, **more)


@pytest.mark.parametrize("target", EXPORTERS)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_exported_reads_back_as_the_same_policy(target: str, seed: int, tmp_path: Path) -> None:
    policy = random_policy(target, seed)
    result = run(target, policy, tmp_path)
    found, again = from_gateway(tmp_path / result["files"][0])
    assert found == target
    assert again == said(target, policy)


@pytest.mark.parametrize("target", EXPORTERS)
def test_exporting_what_runs_already_changes_nothing(target: str, tmp_path: Path) -> None:
    result = run(target, random_policy(target, 3), tmp_path)
    main = tmp_path / result["files"][0]
    again = run(target, random_policy(target, 3), tmp_path / "again", current=main)
    assert again["diff"] == ""
    assert (tmp_path / "again" / main.name).read_bytes() == main.read_bytes()


@pytest.mark.parametrize("target", EXPORTERS)
def test_a_change_of_a_present_config_is_the_policy_asked_for(target: str, tmp_path: Path) -> None:
    main = tmp_path / run(target, random_policy(target, 3), tmp_path)["files"][0]
    wanted = random_policy(target, 4)
    result = run(target, wanted, tmp_path / "new", current=main)
    assert from_gateway(tmp_path / "new" / main.name, target)[1] == said(target, wanted)
    assert result["diff"] and result["changed"]
    assert (tmp_path / "new" / f"{main.name}.before").read_bytes() == main.read_bytes()


@pytest.mark.parametrize("target", EXPORTERS)
def test_a_policy_of_another_gateway_is_refused_with_the_nearest(target: str, tmp_path: Path) -> None:
    other = "aibrix" if target != "aibrix" else "sglang"
    with pytest.raises(ExportError, match=r"cannot be said.*nearest"):
        run(target, load_policy(other), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_writes_nothing_and_shows_the_diff(tmp_path: Path) -> None:
    result = run("llm-d", load_policy("llmd"), tmp_path / "out", dry_run=True)
    assert "+  - pluginRef: queue-scorer" in result["diff"]
    assert not (tmp_path / "out").exists()


EPP = """\
# our scheduler; ask the platform team before changing it
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
    name: q   # the queue
  - {type: prefix-cache-scorer, name: "cache"}
  - type: kv-cache-utilization-scorer
  - type: max-score-picker
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: q, weight: 1.5}
      # cache counts double
      - {pluginRef: cache, weight: 3}
      - pluginRef: max-score-picker
requestHandler:
  parsers: []
"""


def test_a_minimal_diff_keeps_comments_order_quotes_and_what_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "epp.yaml"
    path.write_text(EPP)
    _, policy = from_gateway(path)
    assert policy.instance.queue_weight == 1.5 and policy.instance.kv_weight == 0.0
    tuned = replace(policy, instance=replace(policy.instance, queue_weight=2.25))
    run("llm-d", tuned, tmp_path / "out", current=path)
    changed = EPP.replace("weight: 1.5", "weight: 2.25")
    written = (tmp_path / "out" / "epp.yaml").read_text()
    assert set(written.splitlines()) - set(changed.splitlines()) == {"  - type: approx-prefix-cache-producer"}
    assert [line for line in changed.splitlines() if line not in written.splitlines()] == []


def test_a_script_is_edited_in_place(tmp_path: Path) -> None:
    text = "#!/bin/bash\n# start\nexport HF_HOME=/models   # keep\npython -m sglang_router.launch_router --host 0.0.0.0 \\\n  --policy cache_aware --cache-threshold=0.5 \\\n  --worker-urls http://a:1 http://b:1\n"
    path = tmp_path / "start.sh"
    path.write_text(text)
    _, policy = from_gateway(path)
    assert policy.instance.cache_threshold == 0.5
    run(
        "sglang",
        replace(policy, instance=replace(policy.instance, cache_threshold=0.25, balance_abs_threshold=9.0)),
        tmp_path / "o",
        current=path,
    )
    written = (tmp_path / "o" / "sglang-router.sh").read_text()
    assert written == text.replace("--cache-threshold=0.5", "--cache-threshold=0.25").replace(
        "--policy cache_aware", "--policy cache_aware \\\n  --balance-abs-threshold 9"
    )


def test_the_charts_own_key_is_read_and_changed_in_place(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("routerSpec:\n  routingLogic: prefixaware\n  prefixMinMatchLength: 256  # characters\n")
    _, policy = from_gateway(path)
    assert policy.instance.prefix_min_match_length == 256
    for wanted, line in ((512, "prefixMinMatchLength: 512  # characters"), (1_000_000, "- '1000000'")):
        tuned = replace(policy, instance=replace(policy.instance, prefix_min_match_length=float(wanted)))
        out = tmp_path / str(wanted)
        run("production-stack", tuned, out, current=path)
        assert line in (out / "production-stack-values.yaml").read_text()
        assert from_gateway(out / "production-stack-values.yaml")[1] == tuned


CHART = os.environ.get("TFANALYZE_CHART_SCHEMA", "")


@pytest.mark.skipif(
    not CHART, reason="TFANALYZE_CHART_SCHEMA names no values.schema.json of production-stack's chart"
)
@pytest.mark.parametrize("seed", range(6))
def test_helm_values_pass_the_charts_own_schema(seed: int, tmp_path: Path) -> None:
    import jsonschema

    from tfanalyze.export import yamltext

    name = run("production-stack", random_policy("production-stack", seed), tmp_path)["files"][0]
    validator = jsonschema.Draft7Validator(json.loads(Path(CHART).read_text()))
    doc = yamltext.plain(yamltext.load((tmp_path / name).read_text(), name))
    assert [error.message for error in validator.iter_errors(doc)] == []
    doc["routerSpec"]["routingLogic"] = "fastest"
    assert list(validator.iter_errors(doc))


@pytest.mark.parametrize(
    ("target", "program"),
    [("sglang", "python -m sglang_router.launch_router"), ("vllm-router", "vllm-router")],
)
def test_a_bucket_that_fills_each_second_is_read_as_no_limit_and_made_one(
    target: str, program: str, tmp_path: Path
) -> None:
    """Both let as many new requests in each second as the limit says, unless a slower rate is given."""
    path = tmp_path / "start.sh"
    path.write_text(f"{program} --policy cache_aware --max-concurrent-requests 64 --worker-urls http://a:1\n")
    _, policy = from_gateway(path, target)
    assert type(policy.admit).name == "admit_all"
    limited = replace(
        policy, admit=load_policy("router_queue", {"router_queue.max_concurrent_requests": 64}).admit
    )
    result = run(target, limited, tmp_path / "o", current=path)
    text = (tmp_path / "o" / result["files"][0]).read_text()
    assert "--rate-limit-tokens-per-second 1" in text and "--max-concurrent-requests 64" in text
    assert any("token bucket" in line for line in result["dropped"])
    assert from_gateway(tmp_path / "o" / result["files"][0], target)[1] == limited


def test_a_manifest_of_environment_variables_is_edited_in_place(tmp_path: Path) -> None:
    text = 'spec:\n  template:\n    spec:\n      containers:\n        - name: gateway  # do not rename\n          env:\n            - name: ROUTING_ALGORITHM\n              value: "prefix-cache:3,least-request:1"\n            - name: OTHER\n              value: x\n'
    path = tmp_path / "deploy.yaml"
    path.write_text(text)
    _, policy = from_gateway(path)
    assert (policy.instance.prefix_cache_weight, policy.instance.least_kv_cache_weight) == (3, 0)
    run(
        "aibrix",
        replace(policy, instance=replace(policy.instance, least_request_weight=2.0)),
        tmp_path / "o",
        current=path,
    )
    assert (tmp_path / "o" / "aibrix.env").read_text() == text.replace("least-request:1", "least-request:2")


REFUSED = [
    ("llm-d", EPP.replace("type: kv-cache-utilization-scorer", "type: session-affinity-scorer").replace("pluginRef: max-score-picker", "pluginRef: session-affinity-scorer"), "does not model"),
    ("llm-d", EPP.replace("weight: 1.5", "weight: -1"), "-1"),
    ("llm-d", EPP.replace("  - type: max-score-picker\n", "  - type: max-score-picker\n  - type: probabilistic-admitter\n", 1), "probabilistic-admitter"),
    ("llm-d", EPP.replace("  - type: max-score-picker\n", "  - type: disagg-profile-handler\n", 1), "disagg-profile-handler"),
    ("llm-d", "kind: EndpointPickerConfig\nplugins: [{type: queue-scorer}, {type: latency-scorer}]\n", "latency-scorer"),
    ("llm-d", "kind: EndpointPickerConfig\nplugins: [{type: multicluster-queue-scorer}]\n", "multicluster-queue-scorer"),
    ("llm-d", EPP.replace("{type: prefix-cache-scorer, name: \"cache\"}", "{type: queue-scorer, name: cache}"), "queue-scorer twice"),
    ("llm-d", EPP + "featureGates: [flowControl]\nflowControl: {priorityBands: [{priority: 1, orderingPolicyRef: edf-ordering-policy}]}\n", "edf-ordering-policy is not modelled"),
    ("llm-d", EPP + "featureGates: [flowControl]\nflowControl: {enableEviction: true}\n", "enableEviction"),
    ("llm-d", EPP + "featureGates: [flowControl]\nflowControl: {maxRequests: 100}\n", "maxRequests 100 over all bands"),
    ("sglang", "python -m sglang_router.launch_router --policy cache_aware --cache-threshold 2.0", "allowed: 0 to 1"),
    ("sglang", "python -m sglang_router.launch_router --policy bucket", "allowed: cache_aware"),
    ("smg", "smg launch --policy least_load --selection-temperature 0.7", "not modelled"),
    ("smg", "smg launch --tenant-rate-limit-enabled", "not modelled"),
    ("envoy", "static_resources: {listeners: [{http_filters: [{name: envoy.filters.http.adaptive_concurrency}]}]}\n", "adaptive_concurrency is not modelled"),
    ("smg", "smg launch --priority-scheduler-enabled --priority-scheduler-config gone.yaml", "not there"),
    ("dynamo", "worker_selection: {aggregated: x, instances: [{name: x, type: thunderagent}]}", "not modelled"),
    ("aibrix", "ROUTING_ALGORITHM=prefix-cache:3,vtc-basic:1\n", "vtc-basic"),
    ("aibrix", "AIBRIX_ROUTING_ALGORITHM=prefix-cache\n", "which the gateway does not read"),
    ("aibrix", "ROUTING_ALGORITHM=prefix-cache\nAIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR=0\n", "allowed: 1 to 10"),
    ("envoy", "static_resources: {clusters: []}\n", "0 clusters"),
    ("ray-serve", "a: 1\n", "request_router_config"),
    ("litellm", "model_list: []\n", "model_list"),
    ("production-stack", "a: 1\n", "routerSpec"),
    ("tokenfleet", "apiVersion: tokenfleet/v9\n", "this version reads"),
    ("tokenfleet", "just text", "mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "text", "words"), REFUSED)
def test_a_config_that_cannot_be_modelled_is_refused_in_words(
    target: str, text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ExportError, match=words):
        from_gateway(path, target)


def test_numbers_that_depend_on_the_fleet_are_not_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="tuned on 8 instances"):
        run("llm-d", load_policy("llmd"), tmp_path, evidence={"instances": 8})
    with pytest.raises(ExportError, match="each replica: tuned with 2"):
        export(
            "sglang",
            load_policy("sglang"),
            out=tmp_path,
            fleet=replace(ONE, gateway=Gateway(replicas=4)),
            classes=DEFAULT_CLASSES,
            evidence={"gateway_replicas": 2},
        )
    with pytest.raises(ExportError, match="no notion of sites"):
        export("sglang", load_policy("sglang"), out=tmp_path, fleet=TWO, classes=DEFAULT_CLASSES)


@pytest.mark.parametrize(
    ("target", "spec", "settings"),
    [
        ("llm-d", "llmd", {"llmd.queue_weight": 0, "llmd.running_weight": 1}),
        ("llm-d", "llmd+llmd_flow", {"llmd.queue_weight": 0, "llmd_flow.band0_max_requests": 300}),
        ("smg", "smg+smg_priority", {"smg_priority.bulk_queue_size": 30}),
        ("sglang", "sglang+router_queue", {"router_queue.max_concurrent_requests": 300}),
        ("envoy", "envoy_lb+envoy+envoy_breakers", {"envoy_breakers.default_max_requests": 300}),
    ],
)
def test_limits_over_the_fleet_are_for_its_size(
    target: str, spec: str, settings: dict[str, float | str], tmp_path: Path
) -> None:
    policy, size = load_policy(spec, settings), fleet_of(target).n_instances
    run(target, policy, tmp_path / "same", evidence={"instances": size})
    with pytest.raises(ExportError, match=f"tuned on {2 * size} instances"):
        run(target, policy, tmp_path / "other", evidence={"instances": 2 * size})
    if "flow" in spec or "queue" in spec:  # the default was not tuned: nothing to refuse
        untouched = load_policy(spec, {"llmd.queue_weight": 0} if "llmd" in spec else {})
        run(target, untouched, tmp_path / "default", evidence={"instances": 2 * size})


def test_reservations_that_smg_would_silently_ignore_are_refused(tmp_path: Path) -> None:
    policy = load_policy(
        "smg+smg_priority",
        {"smg_priority.interactive_reserved_per_slot": 0.8, "smg_priority.default_reserved_per_slot": 0.5},
    )
    with pytest.raises(ExportError, match="sum to"):
        run("smg", policy, tmp_path)


def test_the_models_error_must_be_accepted_and_is_then_written_down(tmp_path: Path) -> None:
    evidence = {
        "model_error": 0.4,
        "verdict": "gain",
        "holdout": {"gain_pct": 12.0, "ci_low_pct": 3.0, "ci_high_pct": 20.0},
        "trace_hash": "abc",
    }
    with pytest.raises(ExportError, match="--accept-model-error"):
        run("aibrix", load_policy("aibrix"), tmp_path / "no", evidence=evidence)
    run("aibrix", load_policy("aibrix"), tmp_path, evidence=evidence, accept_model_error=True)
    doc = json.loads((tmp_path / "evidence.json").read_text())
    assert "40%" in doc["accepted_doubts"][0]
    assert doc["trace_hash"] == "abc" and doc["holdout"]["gain_pct"] == 12.0
    page = (tmp_path / "evidence.md").read_text()
    assert "+12.0 %" in page and "+3.0 to +20.0" in page and "Accepted against the tool's advice" in page


def test_the_evidence_page_says_what_a_change_review_asks(tmp_path: Path) -> None:
    study = {
        "verdict": "keep_current", "verdict_reason": "It may be none.", "objective": "goodput", "baseline": "round_robin",
        "holdout": {"gain_pct": 1.5, "ci_low_pct": -2.0, "ci_high_pct": 4.0, "requests": 1580, "tuned": 200.0},
        "by_load": {"1.2": {"gain_pct": -0.5, "ci_low_pct": -3.0, "ci_high_pct": 2.0}},
        "baselines": {"lmetric": 210.0, "random": 150.0},
        "predicted": {"goodput": 200.0, "attainment": 0.95}, "predicted_present": {"goodput": 197.0, "attainment": 0.9},
        "changed_params": {"aibrix.prefix_cache_weight": {"from": 3, "to": 5, "unit": "weight"}},
        "canary": {"how": "switchback", "share": 0.5, "hours": 1.0, "roll_back_when": {"attainment_below": 0.88}},
        "notes": ["the profile was never validated"], "model_error": {"by": "never validated", "value": None},
        "trace_hash": "abc", "profile_hash": "def", "seed": 3, "study": "s-1",
    }  # fmt: skip
    run(
        "aibrix",
        load_policy("aibrix", {"aibrix.algorithm": "weighted", "aibrix.prefix_cache_weight": 5}),
        tmp_path,
        evidence=study,
    )
    page = (tmp_path / "evidence.md").read_text()
    for words in (
        "**keep_current**. It may be none.", "does **not** advise this change", "1,580 requests", "against `round_robin`", "-2.0 to +4.0",
        "| requests inside their SLO, % | 90.0 | 95.0 |", "| 1.2 | -0.5 %", "lmetric 210", "`aibrix.prefix_cache_weight`: 5 weight (default 3)",
        "The present config was not given", "the profile was never validated", "50% of the traffic for 1 h", "below 88.0%", "`abc`", "`def`",
        "unknown (never validated)", "source-checked only", "Roll back",
    ):  # fmt: skip
        assert words in page, words
    assert "random" not in page.split("## What changes")[0]
    json.loads((tmp_path / "evidence.json").read_text())
    again = tmp_path / "aibrix.env"
    run("aibrix", load_policy("aibrix"), tmp_path / "b", current=again, evidence=study)
    changed = (tmp_path / "b" / "evidence.md").read_text()
    assert "`aibrix.prefix_cache_weight`: 5 -> 3" in changed and "aibrix.env.before" in changed


def test_without_a_study_no_gain_is_claimed(tmp_path: Path) -> None:
    run("aibrix", load_policy("aibrix"), tmp_path)
    assert "no gain is claimed" in (tmp_path / "evidence.md").read_text()


def test_the_published_schema_is_that_of_the_declarations() -> None:
    from tfanalyze.export.tokenfleet import SCHEMA, schema

    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(schema())), (
        "run: python -m tfanalyze.export.tokenfleet"
    )


def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(ExportError, match="did you mean 'llm-d'"):
        target_module("llmd")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a100-9": "http://x:1"}, "no instance 'a100-9'.*did you mean"),
        ({"a100-0": "10.0.0.5:8000"}, "is '10.0.0.5:8000'"),
        ({"a100-0": "http://x:port"}, "give a URL"),
    ],
)
def test_addresses_must_be_urls_of_instances(given: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=words):
        run("sglang", load_policy("sglang"), tmp_path, endpoints=given)


def test_addresses_land_in_the_config_or_a_note_says_why_not(tmp_path: Path) -> None:
    urls = {f"a100-{k}": f"http://10.0.0.{k}:80/" for k in range(3)}
    result = run("sglang", load_policy("sglang"), tmp_path, endpoints=urls)
    script = tmp_path / "sglang-router.sh"
    assert "--worker-urls http://10.0.0.0:80 http://10.0.0.1:80 http://10.0.0.2:80" in script.read_text()
    assert not any("address" in note for note in result["notes"])
    again = run("sglang", load_policy("sglang"), tmp_path / "b", endpoints=urls, current=script)
    assert "the addresses given are not written: the present config keeps its own" in again["notes"]
    other = run("aibrix", load_policy("aibrix"), tmp_path / "c", endpoints=urls)
    assert "the addresses given are not written: aibrix finds its workers itself" in other["notes"]


def test_the_command_names_every_target_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    from tfanalyze.cli import run as command

    assert command(["export", "--help"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    told = [words[0] for words in lines if len(words) > 2 and words[0] in EXPORTERS]
    assert told == list(EXPORTERS)
