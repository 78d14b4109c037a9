"""From names and settings to a PolicySet; policies in a user's file are treated exactly like ours."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from tfanalyze.errors import PolicyError
from tfanalyze.replay.policies import POLICIES, PolicySet

DEFAULTS = {"admit": "admit_all", "site": "any_site", "instance": "round_robin"}
DECISIONS = {"admit": "admit", "site": "choose_site", "instance": "choose"}
ALIASES = {"none": "admit_all", "rr": "round_robin"}


def load_policy(spec: str, settings: Mapping[str, float | str] | None = None) -> PolicySet:
    """Policies joined by "+", at most one for each hook; what is not named is admit_all, any_site, round_robin.

    ``settings`` are {"tokenpilot.cache_weight": 1.2}; the prefix may be left out where one policy only has the field.
    Errors: PolicyError for an unknown name, parameter or value, and for a file that does not keep the contract.
    """
    chosen: dict[str, type] = {}
    for name in filter(None, (part.strip() for part in spec.split("+"))):
        cls = policy_class(name)
        kind: str = cls.kind  # type: ignore[attr-defined]
        if kind in chosen:
            both = f"{chosen[kind].name} and {cls.name}"  # type: ignore[attr-defined]
            raise PolicyError(f"{both} both decide the {kind}", f"policy {spec!r}", "name one for each hook")
        chosen[kind] = cls
    if not chosen:
        raise PolicyError("no policy named", f"policy {spec!r}", f"one of {', '.join(POLICIES)}")
    for kind, name in DEFAULTS.items():
        chosen.setdefault(kind, policy_class(name))
    values = _settings_of(chosen, settings or {})
    built = {kind: cls(**values[kind]) for kind, cls in chosen.items()}
    return PolicySet(built["admit"], built["site"], built["instance"])


def policy_class(name: str) -> type:
    """The class behind a name of POLICIES or behind "path/to/file.py:Name"."""
    if ".py" in name:
        return _from_file(name)
    target = POLICIES.get(ALIASES.get(name, name))
    if target is None:
        near = difflib.get_close_matches(name, POLICIES, 3, 0.5)
        mend = (
            f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(POLICIES)}, or file.py:Name"
        )
        raise PolicyError(f"no policy is named {name!r}", mend=mend)
    module, _, attribute = target.partition(":")
    cls: type = getattr(importlib.import_module(module), attribute)
    return cls


def _from_file(name: str) -> type:
    """Load a user's policy; in sys.modules before it is compiled, or numba cannot find its cache again."""
    file, colon, attribute = name.rpartition(":")
    if not colon or not attribute.isidentifier():
        file, attribute = name, ""
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise PolicyError("no such file", file, "give path/to/file.py:ClassName")
    module_name = f"tfanalyze_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = sys.modules.get(module_name)
    stamp = hashlib.sha256(path.read_bytes()).hexdigest()
    if module is None or getattr(module, "__tfanalyze_stamp__", "") != stamp:
        module = _run_module(module_name, path)
        module.__tfanalyze_stamp__ = stamp  # type: ignore[attr-defined]
    own = [
        v
        for v in vars(module).values()
        if isinstance(v, type) and v.__module__ == module_name and hasattr(v, "kind")
    ]
    if not attribute and len(own) == 1:
        return _compiled(_checked(own[0], file), file)
    cls = getattr(module, attribute, None) if attribute else None
    if not isinstance(cls, type):
        names = ", ".join(c.__name__ for c in own) or "none"
        raise PolicyError(
            f"no policy class {attribute!r}" if attribute else "no class named",
            file,
            f"policies there: {names}",
        )
    return _compiled(_checked(cls, file), file)


def _run_module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolicyError("not a Python file", str(path), "give path/to/file.py:ClassName")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        line = getattr(error, "lineno", None) or _last_line(error, path)
        raise PolicyError(f"{type(error).__name__}: {error}", f"{path}:{line}", "mend the file") from error
    return module


def _last_line(error: Exception, path: Path) -> int:
    line, tb = 0, error.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == str(path):
            line = tb.tb_lineno
        tb = tb.tb_next
    return line


def _compiled(cls: type, where: str) -> type:
    """Compile a user's decision now, so that what numba refuses is told as their mistake, with its line."""
    from tfanalyze.replay.compile import compile_policy

    try:
        compile_policy(cls)
    except Exception as error:
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        line = next((x for x in reversed(said) if x.startswith("File") and "line" in x), "")
        what = next((x for x in said if not x.startswith(("Failed", "File", "-"))), type(error).__name__)
        if isinstance(error, KeyError):
            what = f"no field {what}"
        number = line.rpartition("line ")[2].rstrip(":,")
        place = f"{where}:{number}" if number.isdigit() else where
        raise PolicyError(
            f"{cls.__name__} does not compile: {what}", place, "see the rules in docs/policies.md"
        ) from error
    return cls


def _checked(cls: type, where: str) -> type:
    """Refuse a user's class that lacks what the loop needs; fill in what may be left out."""
    kind = getattr(cls, "kind", None)
    if kind not in DECISIONS:
        raise PolicyError(
            f"{cls.__name__}.kind is {kind!r}", where, "set it to 'instance', 'site' or 'admit'"
        )
    if not is_dataclass(cls):
        raise PolicyError(
            f"{cls.__name__} is not a dataclass", where, "decorate it with @dataclass(frozen=True)"
        )
    if not callable(getattr(cls, DECISIONS[kind], None)):
        raise PolicyError(
            f"{cls.__name__} has no {DECISIONS[kind]}", where, "see docs/policies.md for its arguments"
        )
    for entry in fields(cls):
        if "low" not in entry.metadata:
            raise PolicyError(
                f"{cls.__name__}.{entry.name} is not declared with param()", where, "see docs/policies.md"
            )
    for name, value in (("name", cls.__name__.lower()), ("trivial", False)):
        if not hasattr(cls, name):
            setattr(cls, name, value)
    if not hasattr(cls, "memory_size"):
        cls.memory_size = staticmethod(lambda n_instances, n_sites, n_queues: 0)  # type: ignore[attr-defined]
    return cls


def _settings_of(
    chosen: Mapping[str, type], settings: Mapping[str, float | str]
) -> dict[str, dict[str, float]]:
    """Settings by hook, checked against the declarations."""
    found: dict[str, dict[str, float]] = {kind: {} for kind in chosen}
    for key, given in settings.items():
        policy, _, name = key.rpartition(".")
        owners = [
            (kind, entry)
            for kind, cls in chosen.items()
            for entry in fields(cls)  # type: ignore[arg-type]
            if entry.name == name and policy in ("", cls.name)  # type: ignore[attr-defined]
        ]
        if len(owners) > 1:
            raise PolicyError(
                f"{key!r} is a parameter of more than one policy", "settings", "write policy.parameter"
            )
        if not owners:
            known = [f"{c.name}.{e.name}" for c in chosen.values() for e in fields(c)]  # type: ignore[attr-defined,arg-type]
            raise PolicyError(f"no parameter {key!r}", "settings", _nearest(key, known))
        kind, entry = owners[0]
        found[kind][name] = setting_value(entry, given, key)
    return found


def setting_value(entry: Field[Any], given: float | str, where: str) -> float:
    """A setting as its number: a choice by name, in range, whole where it must be."""
    meta = entry.metadata
    choices = meta["choices"]
    if isinstance(given, str) and given in choices:
        return float(choices.index(given))
    try:
        value = float(given)
    except ValueError as error:
        allowed = (
            ", ".join(choices)
            if choices
            else f"a number from {meta['low']:g} to {meta['high']:g} {meta['unit']}"
        )
        raise PolicyError(f"is {given!r}", where, f"allowed: {allowed}") from error
    if not meta["low"] <= value <= meta["high"]:
        raise PolicyError(
            f"is {value:g}", where, f"allowed: {meta['low']:g} to {meta['high']:g} {meta['unit']}"
        )
    if meta["integer"] and value != round(value):
        raise PolicyError(f"is {value:g}", where, "a whole number is needed")
    return value


def _nearest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, 3, 0.5) or difflib.get_close_matches(
        word, [k.partition(".")[2] for k in names], 3, 0.5
    )
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'none'}"
