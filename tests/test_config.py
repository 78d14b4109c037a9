"""tfanalyze.toml: what it may say, and how mistakes are told."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from pathlib import Path

import numpy as np
import pytest

from tfanalyze import config, settings
from tfanalyze.classify import classifier
from tfanalyze.config import ClassRule, load_config
from tfanalyze.errors import ConfigError
from tfanalyze.settings import parse_config

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTED = (
    config.SloClass, config.ClassRule, config.EngineLimits, config.Pool, config.Site, config.FleetEvent,
    config.Gateway, config.Transfer, config.TuneSettings, config.IngestOptions,
)  # fmt: skip


def test_the_documented_example_is_valid_and_means_what_it_says() -> None:
    cfg = load_config(ROOT / "docs" / "tfanalyze.toml")
    assert [c.name for c in cfg.classes] == ["interactive", "long_context", "offline"]
    assert cfg.classes[0].max_retries == 2 and cfg.classes[2].ttft_s == inf
    assert cfg.fleet is not None and cfg.fleet.n_instances == 12
    east, west = cfg.fleet.pools
    assert east.engine.max_num_seqs == 256 and west.engine.max_num_seqs == 128
    assert west.engine.kv_tokens == 400_000  # a pool's own limits start from [engine]
    assert cfg.fleet.gateway.replicas == 2 and cfg.fleet.events[0].what == "drain"
    assert cfg.settings == {"tokenpilot.cache_weight": 1.2}
    assert cfg.tune.bounds == {"tokenpilot.cache_weight": (0.5, 2.0)} and cfg.tune.trials == 200
    assert cfg.ingest["mapping"]["input_tokens"] == "prompt_len"


def test_the_example_names_real_policies_parameters_and_constraints() -> None:
    from tfanalyze.replay.policies import load_policy
    from tfanalyze.tune.objective import parse_constraint, parse_objective
    from tfanalyze.tune.space import make_space

    cfg = load_config(ROOT / "docs" / "tfanalyze.toml")
    policy = load_policy(cfg.tune.policy, cfg.settings)
    assert policy.instance.cache_weight == 1.2
    space = make_space(cfg.tune.policy, pin=cfg.tune.pin, bounds=cfg.tune.bounds, settings=cfg.settings)
    knobs = {knob.name: knob for knob in space.knobs}
    assert (knobs["tokenpilot.cache_weight"].low, knobs["tokenpilot.cache_weight"].high) == (0.5, 2.0)
    assert "slomax.period_s" not in knobs
    assert [parse_constraint(text) for text in cfg.tune.constraints] and parse_objective(cfg.tune.objective)


@pytest.mark.parametrize("kind", DOCUMENTED, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: type) -> None:
    text = (ROOT / "docs" / "config.md").read_text()
    for f in fields(kind):
        shown = "class" if f.name == "slo_class" else f.name
        assert f"| `{shown}` |" in text, f"{kind.__name__}.{f.name} is not in docs/config.md"


def test_every_table_is_documented_and_shown() -> None:
    text = (ROOT / "docs" / "config.md").read_text()
    for name in settings.TABLES:
        assert f"[{name}" in text


def test_choices_and_ranges_name_real_fields() -> None:
    for key in (*settings.CHOICES, *settings.RANGES):
        owner, _, name = key.partition(".")
        assert name in {f.name for f in fields(getattr(config, owner))}, key


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[clases.interactive]\nttft_s = 1", ["clases", "did you mean 'classes'"]),
        ("[classes.interactive]\nttft = 1", ["classes.interactive", "'ttft'", "ttft_s"]),
        ("[classes.interactive]\nttft_s = 'fast'", ["classes.interactive.ttft_s", "'fast'", "allowed"]),
        ("[classes.interactive]\nttft_s = -1", ["classes.interactive.ttft_s", "-1", "from 0 up"]),
        ("[classes.interactive]\nttft_s = 0", ["classes.interactive.ttft_s", "above 0"]),
        ("[classes.x]\nretry_jitter = 1.5", ["retry_jitter", "1.5", "0 to 1"]),
        ("[classes.x]\nmax_retries = 1.5", ["max_retries", "whole number"]),
        ("[classes]", ["names no class"]),
        ("[engine]\nscheduler = 'vlm'", ["engine.scheduler", "vllm, sglang, llamacpp", "did you mean 'vllm'"]),
        ("[engine]\nchunked_prefill = 1", ["chunked_prefill", "true or false"]),
        ("[[pools]]\ncount = 2", ["pools[0]", "'name'"]),
        ("[[pools]]\nname = 'a'\nsite = 'moon'", ["pools[0].site", "'moon'", "site0"]),
        ("[[pools]]\nname = 'a'\n[[pools]]\nname = 'a'", ["'a' twice"]),
        ("[[sites]]\nname = 'a'", ["without pools"]),
        ("[pools]\nname = 'a'", ["not a list", "[[pools]]"]),
        ("[[class_rules]]\nclass = 'batch'", ["class_rules[0].class", "'batch'", "offline"]),
        ("[policies.tokenpilot]\ncache_weight = [1]", ["policies.tokenpilot.cache_weight"]),
        ("[tune.bounds]\n'a.b' = [2, 1]", ["tune.bounds.a.b", "low < high"]),
        ("[tune]\ntrials = 0", ["tune.trials", "a whole number 1 to 10,000,000"]),
        ("x = = 1", ["is not TOML"]),
        ("[endpoints]\na100-0 = 8000", ["endpoints.a100-0", "8000", "give a URL"]),
        ("[ingest]\ntzz = 'UTC'", ["ingest", "'tzz'", "did you mean 'tz'"]),
        ("[ingest]\ntz = 'Moon/Base'", ["ingest.tz", "'Moon/Base'", "IANA"]),
        ("[ingest]\nyear = '2025'", ["ingest.year", "'2025'", "1970 to 2100"]),
        ("[ingest]\nyear = 25", ["ingest.year", "25", "1970 to 2100"]),
        ("[ingest]\nvantage = 'proxy'", ["ingest.vantage", "client, gateway, router, engine"]),
        ("[ingest]\nkeep_tenants = 1", ["ingest.keep_tenants", "true or false"]),
        ("[ingest]\nblock_size = 0", ["ingest.block_size", "1 to 1,000,000"]),
        ("[ingest]\nblock_scope = 'all'", ["ingest.block_scope", "file, shared"]),
        ("[ingest]\nmapping = 'x'", ["ingest.mapping", "not a table"]),
    ],
)  # fmt: skip
def test_a_mistake_names_field_found_and_allowed(text: str, says: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    line = str(caught.value)
    assert "\n" not in line and line.startswith("tfanalyze.toml")
    for word in says:
        assert word in line


def test_without_a_file_the_defaults_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = load_config()
    assert cfg.fleet is None and cfg.path == ""
    assert any("interactive" in line and "2 s" in line for line in cfg.assumed)
    (tmp_path / "tfanalyze.toml").write_text("[classes.chat]\nttft_s = 1.0\n")
    assert [c.name for c in load_config().classes] == ["chat"]
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config("nowhere.toml")


def test_class_rules_first_match_wins() -> None:
    rules = (ClassRule("offline", tenant="batch-*"), ClassRule("long_context", min_input_tokens=8000), ClassRule("offline", has_deadline=True))
    classify = classifier(rules)
    assert classify is not None and classifier(()) is None
    columns = {
        "input_tokens": np.array([10.0, 9000, 9000, 10, 10]),
        "max_tokens": np.full(5, np.nan),
        "deadline_s": np.array([np.nan, np.nan, np.nan, 5.0, np.nan]),
        "tenant": np.array(["batch-1", "batch-2", None, "a", "abatch-"], object),
        "model": np.full(5, None, object),
    }
    assert classify(columns).tolist() == ["offline", "offline", "long_context", "offline", None]
