"""One direction: a module imports only from before it in this order, counting imports inside functions too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "tfanalyze"

ORDER = [
    ["errors"],
    ["config", "settings"],
    ["trace", "traceops", "sessionblocks", "load", "classify", "slo", "workspace", "parts", "ingest", "synth", "views", "sql"],
    ["models"],
    ["replay", "explain"],
    ["tune", "plan"],
    ["export"],
    ["report"],
    ["frames", "runs", "inspect", "studies", "doctor", "render", "demo", "testing"],
    ["cliparts", "cli", "__main__"],
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}

# what needs the other side gets it inside one function, for a reason
ALLOWED = {
    ("models", "replay"): "calibration and validation replay the recorded routing",
    ("config", "settings"): "load_config is offered where its result is defined",
}


def parts_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Top parts of tfanalyze that a file imports at run time (not under TYPE_CHECKING)."""
    tree = ast.parse(path.read_text())
    hidden: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            hidden.update(child for stmt in node.body for child in ast.walk(stmt))
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tfanalyze":
            names = node.module.split(".")[1:]
            found.update([names[0]] if names else [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tfanalyze."))
    return {name for name in found if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()}


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_every_module_has_its_place() -> None:
    missing = sorted({parts_of(path) for path in FILES} - set(RANK))
    assert not missing, f"give these a place in ORDER: {missing}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    mine = parts_of(path)
    for other in imports_of(path) - {mine}:
        upwards = RANK[other] > RANK[mine]
        assert not upwards or (mine, other) in ALLOWED, f"{mine} imports {other}, which comes after it"


def test_heavy_packages_are_imported_inside_functions() -> None:
    heavy = {"numba", "polars", "duckdb", "optuna", "plotly", "scipy", "ray"}
    allowed = {"replay/jit.py", "replay/compile.py", "replay/bundle.py"}
    for path in FILES:
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text())
        top = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        found = {
            part.split(".")[0]
            for n in top
            for part in ([a.name for a in n.names] if isinstance(n, ast.Import) else [n.module or ""])
        }
        assert not found & heavy or name in allowed, f"{name} imports {found & heavy} at its top"


# the compiled loop: its helpers stand in the order of a request's life, and splitting them again would scatter that
LONG = {"replay/engine.py": 750, "replay/flights.py": 700, "replay/loop.py": 700}


def test_no_file_is_too_long() -> None:
    long = {path.relative_to(PACKAGE).as_posix(): n for path in FILES if (n := len(path.read_text().splitlines())) > LONG.get(path.relative_to(PACKAGE).as_posix(), 550)}
    assert not long, f"split these: {long}"
