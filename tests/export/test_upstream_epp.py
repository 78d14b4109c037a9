"""llm-d's own configs through our schema and lint: set TFANALYZE_EPP_CONFIGS to a checkout of llm-d-router, or any folder.

Every YAML file, block of text in one (Helm values), fenced block of Markdown and Go string that is an EndpointPickerConfig is read.  Those of upstream's loader
test are named error... where the loader must refuse them: there the lint must find something.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfanalyze.errors import ExportError
from tfanalyze.export import yamltext
from tfanalyze.export.llmd_lint import lint

FOLDER = os.environ.get("TFANALYZE_EPP_CONFIGS", "")
KIND = "kind: EndpointPickerConfig"
GO_TEXT = re.compile(r"(\w+)\s*(?::?=|\()\s*`([^`]*)`")
NESTED = re.compile(r"^( *)\S.*: [|>]-?\n((?:\1 +.*\n|\s*\n)+)", re.MULTILINE)
FENCED = re.compile(r"^( *)```ya?ml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
# bad only by what a plugin type of the loader's own test does
NOT_OURS = ("errorBadPluginJSONText", "errorPluginsRefedInLoopText", "errorFlowControlWrongPluginTypeText")
STALE = (
    "test/testdata/configloader_1_test.yaml",
)  # nothing upstream loads it; it has a key that the API lost

pytestmark = pytest.mark.skipif(not FOLDER, reason="TFANALYZE_EPP_CONFIGS names no folder of llm-d configs")


def configs(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each whole EndpointPickerConfig below the folder; templates and excerpts are left out."""
    for path in sorted(
        p for p in folder.rglob("*") if p.suffix in (".yaml", ".yml", ".md", ".go") and p.is_file()
    ):
        text, name = path.read_text(errors="replace"), str(path.relative_to(folder))
        if path.suffix in (".yaml", ".yml"):
            found = [(name, text), *((f"{name}#{k}", m[2]) for k, m in enumerate(NESTED.finditer(text)))]
        elif path.suffix == ".md":
            found = [(f"{name}#{k}", m[2]) for k, m in enumerate(FENCED.finditer(text))]
        else:
            found = [(f"{name}:{m[1]}", m[2]) for m in GO_TEXT.finditer(text)]
        for at, body in found:
            body = textwrap.dedent(body)
            template = "{{" in body or re.search(r"%[qsvd]|^\s*- \.\.\.", body, re.MULTILINE)
            if re.search(rf"^{KIND}", body, re.MULTILINE) and not template and at not in STALE:
                yield at, body.replace("test-feature-gate", "haPopulateNonLeaderDatastore")


def problems_of(text: str) -> list[str]:
    try:
        doc = yamltext.plain(yamltext.load(text, "config"))
    except ExportError as error:
        return [str(error)]
    kinds = {str(p.get("type")) for p in doc.get("plugins") or [] if isinstance(p, dict)}
    return lint(doc, also={kind for kind in kinds if kind.startswith(("test-", "mock-"))})[0]


def test_upstreams_valid_configs_are_accepted_and_its_bad_ones_refused() -> None:
    found = {name: problems_of(text) for name, text in configs(Path(FOLDER))}
    bad = {name for name in found if ":error" in name and not name.endswith(NOT_OURS)}
    good = {name for name in found if ":error" not in name}
    assert good, f"no EndpointPickerConfig below {FOLDER}"
    refused = {name: found[name][0] for name in good if found[name]}
    missed = sorted(name for name in bad if not found[name])
    print(
        f"\naccepted {len(good) - len(refused)} of {len(good)} valid, refused {len(bad) - len(missed)} of {len(bad)} bad configs"
    )
    assert not refused, "\n".join(f"{name}: {why}" for name, why in refused.items())
    assert not missed, "\n".join(missed)
