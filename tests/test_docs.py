"""The documentation keeps its word: commands run, options and names exist, references are current."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfanalyze.cli import app, run

ROOT = Path(__file__).resolve().parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def blocks(path: Path) -> Iterator[str]:
    """Fenced and indented code blocks."""
    text = path.read_text()
    yield from re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    yield from re.findall(r"(?:^ {4}.*\n)+", plain, re.M)


def commands(path: Path, console: bool = False) -> list[list[str]]:
    """Lines `tfanalyze ...` in code blocks (or in ```console blocks alone), as argument lists; a final backslash goes on."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", path.read_text(), re.M | re.S) if console else blocks(path):
        for line in block.replace("\\\n", " ").splitlines():
            text = line.strip().removeprefix("$ ")
            if text.startswith("tfanalyze ") and "..." not in text and "|" not in text.split(" #")[0]:
                found.append(shlex.split(text, comments=True)[1:])
    return found


def command_of(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that the arguments name, and what follows its name."""
    from typer.main import get_command

    command: Any = get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    return command, rest


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_commands_in_the_docs_exist(path: Path) -> None:
    for arguments in commands(path):
        command, rest = command_of(arguments)
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in rest:
            if re.match(r"--\w|-\w$", word):
                assert word.split("=")[0] in known | {"--help", "-h"}, f"tfanalyze {' '.join(arguments)}: no option {word}"


@pytest.mark.parametrize("path", [path for path in DOCS if commands(path, console=True)], ids=lambda path: path.name)
def test_commands_in_console_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    for arguments in commands(path, console=True):
        assert run(arguments) == 0, f"tfanalyze {' '.join(arguments)}: {capsys.readouterr().err}"


def test_python_in_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "start.md").read_text(), re.M | re.S)
    assert code
    for block in code:
        exec(compile(block, "docs/start.md", "exec"), {})


@pytest.mark.parametrize("path", [*DOCS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def reference() -> str:
    """Every command with its options and defaults, as Markdown."""
    from typer.main import get_command

    def walk(command: Any, words: list[str]) -> Iterator[str]:
        if hasattr(command, "commands"):
            for name, child in sorted(command.commands.items()):
                yield from walk(child, [*words, name])
            return
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        yield f"### {' '.join([*words, *(p.metavar or p.name.upper() for p in arguments)])}\n"
        yield f"{command.help}\n"
        yield "| option | default | what |\n|---|---|---|"
        for p in command.params:
            names = ", ".join(f"`{n}`" for n in (*p.opts, *p.secondary_opts)) if p.param_type_name == "option" else p.metavar
            default = "" if p.default in (None, False, ()) or callable(p.default) else f"`{p.default}`"
            what = (p.help or "").replace("|", "\\|")
            yield f"| {names.replace('|', chr(92) + '|')} | {default} | {what} |"
        yield ""

    return "\n".join(walk(get_command(app), ["tfanalyze"]))


def test_the_command_reference_is_current() -> None:
    path = ROOT / "docs" / "cli.md"
    text = path.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    wanted = f"{head}{BEGIN}\n\n{reference()}\n{END}{tail}"
    if os.environ.get("UPDATE_DOCS"):
        path.write_text(wanted)
    assert path.read_text() == wanted, "run: UPDATE_DOCS=1 pytest tests/test_docs.py"


def test_every_policy_and_target_is_documented() -> None:
    from tfanalyze.export import EXPORTERS
    from tfanalyze.replay.policies import POLICIES

    policies, exporting = (ROOT / "docs" / "policies.md").read_text(), (ROOT / "docs" / "exporting.md").read_text()
    assert [name for name in POLICIES if f"`{name}`" not in policies] == []
    assert [name for name in EXPORTERS if f"`{name}`" not in exporting] == []
