"""The JSON shapes: every schema is valid, documented, and belongs to a command."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = sorted((ROOT / "tfanalyze" / "schemas").glob("*.json"))


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_schema_is_valid_and_documented(path: Path) -> None:
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == f"tfanalyze.{path.stem}/1" == schema["properties"]["schema"]["const"]
    text = (ROOT / "docs" / "json.md").read_text()
    section = text.split(f"## {schema['title']}\n", 1)[1].split("\n## ", 1)[0]
    for key, body in schema["properties"].items():
        assert f"`{key}`" in section and body["description"] in section


def test_every_shape_that_the_code_names_has_a_schema() -> None:
    import re

    named = set()
    for path in (ROOT / "tfanalyze").glob("*.py"):
        named |= set(re.findall(r"tfanalyze\.(\w+)/1", path.read_text()))
    assert named == {path.stem for path in SCHEMAS}


def assert_shape(result: dict[str, object], name: str) -> None:
    schema = json.loads((ROOT / "tfanalyze" / "schemas" / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(result, allow_nan=False)))


def test_what_tune_check_plan_and_synth_return_has_its_shape(tmp_path: Path) -> None:
    from tfanalyze.ingest import ingest_logs
    from tfanalyze.studies import check_run, plan_run, synth_run, tune_run

    log, db = tmp_path / "log.jsonl", tmp_path / "w.duckdb"
    assert_shape(synth_run(log, seconds=300.0, rate=4.0, sites=2, seed=3), "synth")
    ingest_logs([ROOT / "sample_traces" / "rr-mid" / "requests.jsonl.zst", ROOT / "sample_traces" / "affinity-mid" / "requests.jsonl.zst"], db=db)
    assert_shape(plan_run(log, policy="least_requests", attainment=0.9, db=tmp_path / "none.duckdb"), "plan")
    study = tune_run(log, policy="tokenpilot+slomax", baseline="round_robin", trials=5, instances=2, db=tmp_path / "none.duckdb")
    assert_shape(study, "tune")
    saved = tmp_path / "study.json"
    saved.write_text(json.dumps(study))
    assert_shape(check_run(db, study=saved), "check")
