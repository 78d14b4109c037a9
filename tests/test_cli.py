"""Commands end to end on a measured run: their JSON keeps its schema, and runs repeat byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tfanalyze.cli import run

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_traces"
CONFIG = ["--config", str(SAMPLES / "tfanalyze.toml")]

Call = Callable[..., dict[str, Any]]


def hold(shape: dict[str, Any]) -> dict[str, Any]:
    """The object, if it keeps the schema that it names."""
    name = shape["schema"].split(".")[1].split("/")[0]
    schema = json.loads((ROOT / "tfanalyze" / "schemas" / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(shape)
    return shape


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        assert run([*arguments, "--json"]) == code, capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return hold(found)

    return call


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A workspace with one measured run, fitted without calibration."""
    path = str(tmp_path_factory.mktemp("cli") / "w.duckdb")
    log = next((SAMPLES / "rr-mid").glob("requests*"))
    metrics = sorted(map(str, (SAMPLES / "rr-mid").glob("metrics*")))
    assert run(["ingest", "logs", str(log), "--db", path, "-q"]) == 0
    assert run(["ingest", "metrics", *metrics, "--db", path, "-q"]) == 0
    assert run(["fit", "--db", path, "--no-calibrate", "-q"]) == 0
    yield path


def test_ingest_twice_changes_nothing(call: Call, tmp_path: Path) -> None:
    log, path = str(next((SAMPLES / "rr-low").glob("requests*"))), str(tmp_path / "w.duckdb")
    first = call("ingest", "logs", log, "--db", path)
    assert first["totals"]["taken"] == 72 and first["files"][0]["taken"] + first["files"][0]["rejected"] == first["files"][0]["rows"]
    again = call("ingest", "logs", log, "--db", path)
    assert again["files"][0]["already"]
    assert call("inspect", "--db", path)["requests"] == 72


def test_ingest_explain_writes_nothing(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = call("ingest", "logs", "--explain", str(next((SAMPLES / "rr-low").glob("requests*"))))
    assert {"request_id", "arrival_us"} <= {one["column"] for one in found["columns"]}
    assert not list(tmp_path.iterdir())


def test_inspect_says_what_the_log_holds(call: Call, db: str) -> None:
    found = call("inspect", "--db", db, *CONFIG)
    assert found["requests"] == 132 and found["instances"] == {"i0": 66, "i1": 66}
    assert 0 < found["observed"]["attainment"] < 1
    assert found["prefix"]["reusable_share"] >= found["prefix"]["cached_share"] > 0
    assert sum(found["time"]["share"].values()) == pytest.approx(1.0)
    assert sum(one["requests"] for one in found["classes"].values()) == 132


def test_lint_and_doctor(call: Call, db: str) -> None:
    assert call("lint", "--db", db)["requests"] == 132
    checks = {one["name"]: one for one in call("doctor", "--db", db)["checks"]}
    assert checks["to fit"]["ok"] and "132 requests" in checks["workspace"]["found"]


def test_fit_writes_a_profile_that_replay_takes(call: Call, db: str, tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    found = call("fit", "--db", db, "--no-calibrate", "--out", str(profile))
    assert found["fleet"]["instances"] == 2 and profile.is_file()
    once = call("replay", "--db", db, "--profile", str(profile), "--instances", "2")
    assert once["requests"] == 132 and once["profile"]


def test_validate_exits_with_3_above_the_limit(call: Call, db: str) -> None:
    assert call("validate", "--db", db)["held_out"] is False
    assert call("validate", "--db", db, "--max-error", "0.0001", code=3)["ok"] is False


def test_replay_repeats_byte_for_byte(call: Call, db: str, tmp_path: Path) -> None:
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    runs = [call("replay", "--db", db, "--policy", "tokenpilot+slomax", "--out", str(path)) for path in files]
    assert runs[0]["outcome_hash"] == runs[1]["outcome_hash"]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sum(one["requests"] for one in runs[0]["metrics"]["by_class"].values()) == 132
    other = call("replay", "--db", db, "--policy", "tokenpilot+slomax", "--set", "tokenpilot.cache_weight=0")
    assert other["params"]["instance"]["params"]["cache_weight"] == 0


def test_replay_options_change_the_fleet(call: Call, db: str) -> None:
    many = call("replay", "--db", db, "--instances", "5", "--gateways", "3", "--report-interval", "2", "--load", "0.5")
    assert many["fleet"]["instances"] == 5 and many["fleet"]["gateways"] == 3 and many["fleet"]["report_interval_s"] == 2
    assert 40 <= many["requests"] <= 92
    ceiling = call("replay", "--db", db, "--infinite-cache", "--perfect-signals", "--known-lengths", "--open-loop")
    assert set(ceiling["options"]) == {"infinite_cache", "perfect_signals", "known_lengths", "open_loop"}


def test_a_log_file_replays_without_a_workspace(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"timestamp": 500 * i, "input_length": 600, "output_length": 20, "hash_ids": [0, i + 1]} for i in range(30)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = call("replay", "m.jsonl", "--policy", "round_robin")
    assert found["requests"] == 30 and found["metrics"]["attainment"] == 1.0
    assert any("shipped profile" in line and found["profile"][0] in line for line in found["assumed"])
    ceiling = call("replay", "m.jsonl", "--policy", "round_robin", "--infinite-cache")
    assert ceiling["metrics"]["prefix_hit_share"] > found["metrics"]["prefix_hit_share"]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".duckdb"] == []


def test_compare_gains_are_against_the_first(call: Call, db: str) -> None:
    found = call("compare", "--db", db, *CONFIG, "--policy", "recorded", "--policy", "tokenpilot", "--policy", "least_requests")
    assert found["baseline"] == "recorded" and list(found["runs"]) == ["recorded", "tokenpilot", "least_requests"]
    assert found["runs"]["recorded"]["gain"] is None
    gain = found["runs"]["tokenpilot"]["gain"]
    assert gain["ci_low_pct"] <= gain["pct"] <= gain["ci_high_pct"]
    wanted = 100 * (found["runs"]["tokenpilot"]["metrics"]["goodput_tok_s"] / found["runs"]["recorded"]["metrics"]["goodput_tok_s"] - 1)
    assert gain["pct"] == pytest.approx(wanted, rel=1e-6)


def test_explain_and_sql(call: Call, db: str) -> None:
    call("replay", "--db", db, "--policy", "tokenpilot")
    found = call("explain", "r5", "--db", db, *CONFIG)
    assert found["decision"]["chosen"].startswith("pool-") and found["blame"]
    counted = call("sql", "SELECT count(*) AS n FROM simulated WHERE run = 'tokenpilot'", "--db", db)
    assert counted["columns"] == ["n"] and counted["rows"] == [[132]]


def test_export_and_report(call: Call, db: str, tmp_path: Path) -> None:
    out = tmp_path / "ex"
    found = call("export", "--db", db, "--target", "tokenfleet", "--policy", "tokenpilot+slomax", "--out", str(out), "--accept-model-error")
    assert {path.name for path in out.iterdir()} == set(found["files"])
    page = call("report", "--db", db, *CONFIG, "--out", str(tmp_path / "r.html"), "--policy", "round_robin")
    assert Path(page["path"]).stat().st_size == page["bytes"] > 10_000 and page["runs"] == ["round_robin"]


def test_tables_fit_80_columns_and_quiet_says_nothing(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["inspect"], ["replay"], ["compare"], ["doctor"], ["lint"], ["sql", "SELECT slo_class, status FROM requests LIMIT 3"]):
        assert run([*command, "--db", db]) == 0
        text = capsys.readouterr().out
        assert text.strip() and "\x1b[" not in text
        assert max(map(len, text.splitlines())) <= 80, command
        assert run([*command, "--db", db, "--quiet"]) == 0
        assert capsys.readouterr().out == ""


def test_tune_starts_from_the_gateways_own_config(tmp_path: Path) -> None:
    """--gateway-config: the policy that the file describes is the one tuned, and the baseline."""
    config = tmp_path / "epp.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n- type: prefix-cache-scorer\n"
        "- type: max-score-picker\nschedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: queue-scorer\n    weight: 2\n"
        "  - pluginRef: prefix-cache-scorer\n    weight: 3\n  - pluginRef: max-score-picker\n"
    )
    from tfanalyze.studies import tune_run

    found = tune_run(ROOT / "sample_traces" / "synth-two-sites.jsonl.zst", gateway_config=config, trials=4, instances=4, db=tmp_path / "w.duckdb")
    assert found["policy"] == "llmd" and found["baseline"] == "llmd"
    assert found["recommend"]["settings"]["llmd.queue_weight"] == 2.0
