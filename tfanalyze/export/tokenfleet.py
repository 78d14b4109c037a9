"""Target tokenfleet: scoring weights, site rules, class quotas and controller settings as one versioned YAML file.

The parameters are those the policies declare; the published JSON Schema is made of the same declarations
(``python -m tfanalyze.export.tokenfleet`` writes it to ``export/schemas/tokenfleet.schema.json``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import yamltext
from tfanalyze.export.parts import (
    Context,
    Rendered,
    from_public,
    only,
    params_of,
    policy_class,
    policy_set,
    trivial,
)
from tfanalyze.replay.policies import PolicySet

PROOF = "schema-checked (JSON Schema published with this tool)"
API = "tokenfleet/v1"
ACCEPTS = {"instance": ("tokenpilot",), "site": ("fleetmind",), "admit": ("slomax",)}
SECTIONS = {"instance": "routing", "site": "sites", "admit": "admission"}  # hook -> section of the file
SCHEMA = Path(__file__).parent / "schemas" / "tokenfleet.schema.json"


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "tokenfleet", instance=ACCEPTS["instance"], site=ACCEPTS["site"], admit=ACCEPTS["admit"])


def sniff(text: str) -> bool:
    return "apiVersion: tokenfleet/" in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    wanted = _document(policy, ctx)
    if ctx.current is not None:
        text = yamltext.edit(ctx.current, wanted, ctx.current_name)
    else:
        text = "# TokenFleet policy. Units are in the names or behind the values.\n" + yamltext.dump(
            _commented(policy, wanted)
        )
    return Rendered(
        {"tokenfleet.yaml": text}, commands=("load tokenfleet.yaml in the TokenFleet control plane",)
    )


def _document(policy: PolicySet, ctx: Context) -> dict[str, Any]:
    doc: dict[str, Any] = {"apiVersion": API, "kind": "PolicyConfig"}
    doc["classes"] = [_slo(entry) for entry in ctx.classes]
    for kind, section in SECTIONS.items():
        part = getattr(policy, kind)
        doc[section] = {"policy": type(part).name, "parameters": params_of(part)}
    return doc


def _slo(entry: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": entry.name, "priority": entry.priority}
    for key in ("ttft_s", "tpot_s", "e2e_s"):
        if math.isfinite(getattr(entry, key)):
            found[key] = getattr(entry, key)
    return found


def _commented(policy: PolicySet, doc: dict[str, Any]) -> Any:
    """The document with each parameter's unit and meaning behind its value."""
    from ruamel.yaml.comments import CommentedMap

    root = CommentedMap(doc)
    for kind, section in SECTIONS.items():
        part = getattr(policy, kind)
        values = CommentedMap(doc[section]["parameters"])
        for entry in fields(part):
            if entry.name in values:
                values.yaml_add_eol_comment(f"{entry.metadata['unit']}: {entry.metadata['doc']}", entry.name)
        root[section] = CommentedMap({"policy": doc[section]["policy"], "parameters": values})
    return root


def check(files: Mapping[str, str]) -> list[str]:
    """Problems found by the published schema."""
    import jsonschema

    doc = yamltext.plain(yamltext.load(files["tokenfleet.yaml"], "tokenfleet.yaml"))
    validator = jsonschema.Draft202012Validator(schema())
    return [f"{'/'.join(map(str, e.absolute_path)) or '.'}: {e.message}" for e in validator.iter_errors(doc)]


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    doc = yamltext.plain(yamltext.load(text, where))
    if doc.get("apiVersion") != API:
        raise ExportError(f"apiVersion is {doc.get('apiVersion')!r}", where, f"this version reads {API}")
    parts: dict[str, Any] = {}
    for kind, section in SECTIONS.items():
        entry = doc.get(section) or {}
        name = entry.get("policy", type(trivial(kind)).name)
        if name not in _names(kind):
            raise ExportError(f"{section}.policy is {name!r}", where, f"allowed: {', '.join(_names(kind))}")
        parts[kind] = from_public(
            policy_class(name), entry.get("parameters") or {}, f"{where}: {section}.parameters"
        )
    return policy_set(**parts)


def _names(kind: str) -> list[str]:
    return [*ACCEPTS[kind], type(trivial(kind)).name]


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the file, from the parameter declarations."""
    limits = {
        key: {"type": "number", "exclusiveMinimum": 0, "description": "seconds; absent = no limit"}
        for key in ("ttft_s", "tpot_s", "e2e_s")
    }
    slo = {
        "type": "object",
        "additionalProperties": False,
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "priority": {"type": "integer"}, **limits},
    }
    sections = {
        SECTIONS[kind]: {"oneOf": [_policy_schema(policy_class(name)) for name in _names(kind)]}
        for kind in SECTIONS
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:tfanalyze:tokenfleet:v1",
        "title": "TokenFleet policy",
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", *sections],
        "properties": {
            "apiVersion": {"const": API},
            "kind": {"const": "PolicyConfig"},
            "classes": {"type": "array", "items": slo},
            **sections,
        },
    }


def _policy_schema(cls: Any) -> dict[str, Any]:
    properties = {entry.name: _param_schema(entry.metadata) for entry in fields(cls) if entry.metadata}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["policy"],
        "properties": {
            "policy": {"const": cls.name},
            "parameters": {"type": "object", "additionalProperties": False, "properties": properties},
        },
    }


def _param_schema(meta: Mapping[str, Any]) -> dict[str, Any]:
    doc = {"description": f"{meta['doc']} [{meta['unit']}]"}
    if meta["choices"]:
        return {"enum": list(meta["choices"]), **doc}
    kind = "integer" if meta["integer"] else "number"
    bounds = {
        key: meta[low] for key, low in (("minimum", "low"), ("maximum", "high")) if math.isfinite(meta[low])
    }
    return {"type": kind, **bounds, **doc}


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
