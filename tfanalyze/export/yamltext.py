"""YAML that keeps what it is not asked to change: comments, order, quotes, unrelated keys, the file's indentation."""

from __future__ import annotations

import difflib
import io
from typing import Any

from tfanalyze.errors import ExportError

REMOVE = object()  # as a wanted value: take the key away
IDENTITY = ("name", "pluginRef", "type", "priority", "bucket", "tenant_key", "model_name")
INDENTS = ((2, 2, 0), (2, 4, 2), (4, 4, 0), (4, 4, 2), (4, 6, 4), (2, 3, 1))


def _yaml(indent: tuple[int, int, int] = INDENTS[0]) -> Any:
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=indent[0], sequence=indent[1], offset=indent[2])
    return yaml


def load(text: str, where: str) -> Any:
    """Parse one document, comments kept."""
    from ruamel.yaml.error import YAMLError

    try:
        found = _yaml().load(text)
    except YAMLError as error:
        line = str(error).strip().splitlines()
        raise ExportError(f"is not YAML: {line[0]}", where, line[-1].strip()) from error
    if not isinstance(found, dict):
        raise ExportError("holds no mapping", where, "give the gateway's own config file")
    return found


def plain(node: Any) -> Any:
    """The same as plain dicts, lists and scalars."""
    if isinstance(node, dict):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value) for value in node]
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def dump(node: Any, indent: tuple[int, int, int] = INDENTS[0]) -> str:
    out = io.StringIO()
    _yaml(indent).dump(node, out)
    return out.getvalue()


def indent_of(text: str) -> tuple[int, int, int]:
    """The indentation that gives the text back unchanged, or the one with the fewest changed lines."""
    best, least = INDENTS[0], None
    lines = text.splitlines()
    for indent in INDENTS:
        again = dump(_yaml().load(text), indent)
        if again == text:
            return indent
        changed = sum(line[:1] in "+-" for line in difflib.ndiff(lines, again.splitlines()))
        if least is None or changed < least:
            best, least = indent, changed
    return best


def edit(text: str, wanted: dict[str, Any], where: str) -> str:
    """Put the wanted values into the text; everything else stays as it is."""
    node = load(text, where)
    merge(node, wanted)
    return dump(node, indent_of(text))


def merge(node: Any, wanted: dict[str, Any]) -> None:
    """Set what differs. Lists of mappings are matched by their identity key; other lists are replaced whole."""
    for key, value in wanted.items():
        if value is REMOVE:
            node.pop(key, None)
        elif isinstance(value, dict) and isinstance(node.get(key), dict):
            merge(node[key], value)
        elif (
            isinstance(value, list)
            and isinstance(node.get(key), list)
            and _keyed(value)
            and _keyed(node[key])
        ):
            _merge_list(node[key], value)
        elif key not in node or not same(node[key], value):
            node[key] = strip(value)


def strip(value: Any) -> Any:
    """A value without its REMOVE marks."""
    if isinstance(value, dict):
        return {key: strip(item) for key, item in value.items() if item is not REMOVE}
    return [strip(item) for item in value] if isinstance(value, list) else value


def _identity(item: Any) -> Any:
    for key in IDENTITY:
        if key in item:
            return key, item[key]
    return None


def _keyed(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(item, dict) and _identity(item) is not None for item in items)


def _merge_list(nodes: Any, wanted: list[Any]) -> None:
    for item in wanted:
        for node in nodes:
            if _identity(node) == _identity(item):
                merge(node, item)
                break
        else:
            nodes.append(strip(item))


def same(a: Any, b: Any) -> bool:
    """Equal in value: 3 and 3.0 are the same number, so an unchanged weight keeps its spelling."""
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    return bool(plain(a) == plain(b))


def number(value: float) -> int | float:
    """Whole numbers without a point, others with all their digits."""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else float(value)


def diff(before: str, after: str, name: str) -> str:
    """Unified diff, '' when nothing changes."""
    return "".join(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}", n=2)
    )
