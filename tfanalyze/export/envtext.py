"""Environment variables as configs: KEY=value lines, or the `env:` lists of a Kubernetes manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tfanalyze.export import yamltext

LINE = re.compile(
    r"(?m)^(?P<head>[ \t]*(?:export[ \t]+)?)(?P<key>[A-Z][A-Z0-9_]*)=(?P<value>.*?)(?P<tail>[ \t]*(?:#.*)?)$"
)


def is_lines(text: str) -> bool:
    return LINE.search(text) is not None


def _lists(node: Any) -> Iterator[Any]:
    """Every `env:` list of a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "env" and isinstance(value, list):
                yield value
            else:
                yield from _lists(value)
    elif isinstance(node, list):
        for item in node:
            yield from _lists(item)


def read(text: str, where: str) -> dict[str, str]:
    if is_lines(text):
        return {m["key"]: m["value"].strip().strip("\"'") for m in LINE.finditer(text)}
    node = yamltext.load(text, where)
    return {
        str(e["name"]): str(e["value"])
        for entries in _lists(node)
        for e in entries
        if "name" in e and "value" in e
    }


def edit(text: str, wanted: Mapping[str, str], where: str, prefix: str) -> str:
    """Set variables; new ones go to the end, or to the list that holds one with the prefix."""
    if is_lines(text) or not text.strip():
        for key, value in wanted.items():
            pattern = re.compile(rf"(?m)^([ \t]*(?:export[ \t]+)?{key}=)(.*?)([ \t]*(?:#.*)?)$")
            found = pattern.search(text)
            if found is None:
                text = f"{text.rstrip(chr(10))}\n{key}={value}\n".lstrip("\n")
            elif found[2].strip().strip("\"'") != value:
                text = f"{text[: found.start()]}{found[1]}{value}{found[3]}{text[found.end() :]}"
        return text
    node = yamltext.load(text, where)
    lists = list(_lists(node))
    home = next(
        (es for es in lists if any(str(e.get("name", "")).startswith(prefix) for e in es)),
        lists[0] if lists else None,
    )
    if home is None:
        home = node.setdefault("env", [])
    for key, value in wanted.items():
        entry = next((e for e in home if e.get("name") == key), None)
        if entry is None:
            from ruamel.yaml.scalarstring import DoubleQuotedScalarString as Quoted

            home.append({"name": key, "value": Quoted(value)})
        elif str(entry.get("value")) != value:
            entry["value"] = type(entry["value"])(value) if isinstance(entry.get("value"), str) else value
    return yamltext.dump(node, yamltext.indent_of(text))
