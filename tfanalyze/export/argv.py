"""Command lines as configs: a shell script or a JSON array, edited in place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import yamltext
from tfanalyze.export.parts import Context, params_of


def tokens(text: str, where: str) -> list[str]:
    """The words of a shell script or of a JSON array."""
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ExportError(f"is no JSON array: {error}", where, "give the argument list") from error
        return [str(item) for item in found]
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ExportError(
            f"cannot be read as a command line: {error}", where, "give the start script"
        ) from error


def flags(words: list[str]) -> dict[str, str]:
    """Flag -> its value ('' for a switch); the last one wins, as the programs have it."""
    found: dict[str, str] = {}
    for k, word in enumerate(words):
        if word.startswith("--"):
            name, given, value = word.partition("=")
            after = words[k + 1] if k + 1 < len(words) and not words[k + 1].startswith("--") else ""
            found[name] = value if given else after
    return found


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def read(cls: Any, found: Mapping[str, str], names: Mapping[str, str], where: str) -> dict[str, Any]:
    """Named values of a policy from flags; ``names``: parameter -> flag."""
    values: dict[str, Any] = {}
    for entry in fields(cls):
        flag = names.get(entry.name)
        if flag is None or flag not in found:
            continue
        text = found[flag]
        if entry.metadata["choices"]:
            values[entry.name] = text
            continue
        try:
            values[entry.name] = float(text)
        except ValueError as error:
            raise ExportError(f"{flag} is {text!r}", where, "a number is needed") from error
    return values


def word(value: Any) -> str:
    return value if isinstance(value, str) else repr(yamltext.number(float(value)))


def wanted(policy: Any, names: Mapping[str, str], ctx: Context, present: Mapping[str, str]) -> dict[str, str]:
    """Flags to set: all of them in a new file; in a present one those that it names or that are not the default."""
    values, found = params_of(policy), {}
    for entry in fields(policy):
        flag = names.get(entry.name)
        if flag is None:
            continue
        if ctx.current is None or flag in present or getattr(policy, entry.name) != entry.default:
            found[flag] = word(values[entry.name])
    return found


def edit(text: str, new: Mapping[str, str | None], after: str, where: str) -> str:
    """Set flags in a script or JSON array; None removes a switch. New ones go behind the flag or word ``after``."""
    if text.lstrip().startswith("["):
        return _edit_json(tokens(text, where), new)
    for flag, value in new.items():
        pattern = re.compile(rf"(?<!\S){re.escape(flag)}(?![\w-])(?:(=|\s+)(?!--)([^\s\\]+))?")
        match = None
        for match in pattern.finditer(text):  # noqa: B007  (the last one wins)
            pass
        if value is None:
            text = re.sub(rf"[ \t]*{re.escape(flag)}(?![\w-])(?: *\\\n)?", " ", text) if match else text
        elif match is None:
            text = _insert(
                text,
                f"{flag} {shlex.quote(value)}".rstrip(" '")
                if value == ""
                else f"{flag} {shlex.quote(value)}",
                after,
            )
        elif value != "" and not _same(match[2], value):
            text = f"{text[: match.start()]}{flag}{match[1] or ' '}{shlex.quote(value)}{text[match.end() :]}"
    return text


def _same(a: str | None, b: str) -> bool:
    if a is None:
        return False
    try:
        return float(shlex.split(a)[0]) == float(b)
    except (ValueError, IndexError):
        return a.strip("'\"") == b


def _insert(text: str, words: str, after: str) -> str:
    """Behind the first line that holds ``after`` if lines are continued, else behind the word."""
    at = (
        re.search(rf"(?<!\S){re.escape(after)}(?:(?:=|[ \t]+)(?!--)[^\s\\]+)?", text)
        if after.startswith("--")
        else re.search(rf"(?<!\S){re.escape(after)}(?!\S)", text)
    )
    if at is None:
        at = re.search(r"(?m)^(?!\s*#)\s*\S+", text)
    if at is None:
        return f"{text}{words}\n"
    joint = " \\\n  " if "\\\n" in text else " "
    return f"{text[: at.end()]}{joint}{words}{text[at.end() :]}"


def _edit_json(words: list[str], new: Mapping[str, str | None]) -> str:
    for flag, value in new.items():
        at = next(
            (k for k in reversed(range(len(words))) if words[k] == flag or words[k].startswith(flag + "=")),
            None,
        )
        if value is None:
            words = [item for item in words if item != flag]
        elif at is None:
            words += [flag] if value == "" else [flag, value]
        elif value != "" and "=" in words[at]:
            words[at] = f"{flag}={value}"
        elif value != "" and not _same(words[at + 1], value):
            words[at + 1] = value
    return json.dumps(words, indent=1) + "\n"


def script(comment: str, command: list[str], new: Mapping[str, str | None], rest: list[str]) -> str:
    """A new start script, one flag a line."""
    lines = [
        f"{flag} {shlex.quote(value)}" if value else flag for flag, value in new.items() if value is not None
    ]
    body = " \\\n  ".join([" ".join(command), *lines, *rest])
    return f"#!/bin/sh\n# {comment}\nexec {body}\n"
