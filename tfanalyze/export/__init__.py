"""Export: a tuned policy as the gateway's own config, as a minimal diff, with the evidence beside it.

A target is one module with ``PROOF``, ``ACCEPTS``, ``render``, ``check``, ``cannot_say``, ``parse`` and ``sniff``;
adding one is its file and one line in ``EXPORTERS``.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfanalyze.config import Fleet, SloClass
from tfanalyze.errors import ExportError, InputError
from tfanalyze.replay.policies import PolicySet

EXPORTERS: dict[str, str] = {
    "tokenfleet": "tfanalyze.export.tokenfleet",
    "llm-d": "tfanalyze.export.llmd",
    "smg": "tfanalyze.export.smg",
    "sglang": "tfanalyze.export.sglang",
    "dynamo": "tfanalyze.export.dynamo",
    "vllm-router": "tfanalyze.export.vllm_router",
    "production-stack": "tfanalyze.export.production_stack",
    "aibrix": "tfanalyze.export.aibrix",
    "litellm": "tfanalyze.export.litellm",
    "envoy": "tfanalyze.export.envoy",
    "ray-serve": "tfanalyze.export.ray_serve",
}


def target_module(target: str) -> Any:
    """The module of a target; an unknown name names the nearest."""
    if target not in EXPORTERS:
        near = difflib.get_close_matches(target, EXPORTERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(EXPORTERS)}"
        raise ExportError(f"no export target is named {target!r}", "export --target", hint)
    return importlib.import_module(EXPORTERS[target])


def read_current(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", str(path), "give the gateway's present config"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", str(path), "give the gateway's present config") from error


def from_gateway(path: str | Path, target: str = "auto") -> tuple[str, PolicySet]:
    """Read a gateway's present config as the policy it runs: (target, policy).

    Errors: ExportError when no target knows the file, or a value in it is outside what the policy can be.
    """
    path = Path(path)
    text = read_current(path)
    if target == "auto":
        found = [name for name in EXPORTERS if target_module(name).sniff(text)]
        if len(found) != 1:
            why = f"looks like {' and '.join(found)}" if found else "is no config that an export target knows"
            raise ExportError(why, str(path), f"name it with --target {'|'.join(found or EXPORTERS)}")
        target = found[0]
    policy: PolicySet = target_module(target).parse(text, str(path))
    return target, policy


def export(
    target: str,
    policy: PolicySet,
    *,
    out: str | Path,
    evidence: Mapping[str, Any] | None = None,
    fleet: Fleet,
    classes: tuple[SloClass, ...],
    current: str | Path | None = None,
    endpoints: Mapping[str, str] | None = None,
    dry_run: bool = False,
    accept_model_error: bool = False,
) -> dict[str, Any]:
    """Write a policy as the config of ``target`` into the folder ``out``, with ``evidence.json`` and ``.md`` beside it.

    ``current``: the gateway's present config; the result is a minimal diff of it. ``endpoints``: instance name -> base
    URL. ``dry_run``: write nothing, return the diff.  Returns the JSON shape of docs/exporting.md.
    Errors: ExportError for what the target cannot express, or outside the model's regime.
    """
    from tfanalyze.export import evidence as ev
    from tfanalyze.export.parts import Context, check_endpoints, same_fleet_size
    from tfanalyze.export.yamltext import diff

    module, facts = target_module(target), dict(evidence or {})
    path = Path(current) if current is not None else None
    text = read_current(path) if path else None
    ctx = Context(fleet, classes, facts, text, str(path or ""), check_endpoints(endpoints or {}, fleet))
    module.cannot_say(policy, ctx)
    same_fleet_size(policy, ctx, target)
    doubts = ev.refuse_outside_regime(facts, accept_model_error, f"export --target {target}")
    before = module.parse(text, str(path)) if text is not None else None
    rendered = module.render(policy, ctx)
    notes = rendered.notes
    if ctx.endpoints and (text is not None or not getattr(module, "WRITES_ADDRESSES", False)):
        why = "the present config keeps its own" if text is not None else f"{target} finds its workers itself"
        notes += (f"the addresses given are not written: {why}",)
    said = module.effective(policy, ctx) if hasattr(module, "effective") else policy
    _prove(module, said, rendered.files, str(path or target), text is None)
    main = next(iter(rendered.files))
    result: dict[str, Any] = {
        "schema": "tfanalyze.export/1",
        "target": target,
        "out": str(out),
        "files": list(rendered.files),
        "diff": diff(text or "", rendered.files[main], path.name if path else main),
        "changed": _changed(before, policy),
        "proof": module.PROOF,
        "doubts": doubts,
        "notes": list(notes),
        "dropped": list(rendered.dropped),
        "commands": list(rendered.commands),
        "rollback": _rollback(path, main),
        "dry_run": dry_run,
    }
    doc = ev.build(target, _version(), facts, _described(policy), result)
    files = {**rendered.files, "evidence.json": ev.as_json(doc), "evidence.md": ev.as_markdown(doc)}
    if text is not None:
        files[f"{main}.before"] = text
    result["files"] = list(files)
    if not dry_run:
        _write(Path(out), files)
    return result


def _prove(module: Any, policy: PolicySet, files: Mapping[str, str], where: str, fresh: bool) -> None:
    """What was rendered passes the target's own check, and read back it is the same policy."""
    problems = module.check(files)
    if problems:
        raise ExportError(
            problems[0],
            where,
            "mend the present config first" if len(problems) == 1 else f"and {len(problems) - 1} more",
        )
    again = module.parse(next(iter(files.values())), where, files=files)
    if again != policy:
        lost = _changed(again, policy)
        name, (found, wanted) = next(iter(lost.items()), ("policy", (again.name, policy.name)))
        raise ExportError(
            f"{name} = {wanted} would read back as {found}",
            where,
            f"this file always says it: tune with {name.partition('.')[0]} too"
            if fresh
            else "the present config overrides it: remove that, or report it",
        )


def _described(policy: PolicySet) -> dict[str, Any]:
    from tfanalyze.export.parts import params_of

    return {type(part).name: params_of(part) for part in policy.parts() if not type(part).trivial}


def _changed(before: PolicySet | None, after: PolicySet) -> dict[str, list[Any]]:
    old, new = _described(before) if before else {}, _described(after)
    found: dict[str, list[Any]] = {}
    for name in dict.fromkeys([*new, *old]):
        for key in dict.fromkeys([*new.get(name, {}), *old.get(name, {})]):
            a, b = old.get(name, {}).get(key), new.get(name, {}).get(key)
            if a != b:
                found[f"{name}.{key}"] = [a, b]
    return found


def _rollback(path: Path | None, main: str) -> str:
    if path is None:
        return "Load the config that ran before: this export was not given it, so keep a copy of it yourself."
    return f"Load `{main}.before` again: it is byte for byte the config `{path.name}` that this change was made from."


def _write(out: Path, files: Mapping[str, str]) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            temporary = out / f".{name}.tmp"
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(out / name)
    except OSError as error:
        raise ExportError(
            f"cannot write: {error.strerror}", str(out), "give --out a folder that can be written"
        ) from error


def _version() -> str:
    from importlib.metadata import version

    return version("tfanalyze")
