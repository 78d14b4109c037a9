"""JSON Schemas of what the targets read, in ``export/schemas/``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "schemas"


@cache
def _validator(name: str) -> Any:
    import jsonschema

    schema = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema)


def problems(doc: Any, name: str) -> list[str]:
    """What the schema has against the document, each with its place."""
    found = sorted(_validator(name).iter_errors(doc), key=lambda e: [str(p) for p in e.absolute_path])
    return [f"{'/'.join(map(str, error.absolute_path)) or '.'}: {error.message}" for error in found]
