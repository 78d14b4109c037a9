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
