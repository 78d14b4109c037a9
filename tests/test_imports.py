"""Starting fast: the command line imports nothing heavy, and `import tfanalyze` costs nothing."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numba", "polars", "duckdb", "optuna", "plotly", "scipy", "numpy", "rich.table", "ray")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_command_line_imports_nothing_heavy() -> None:
    loaded = loaded_after("import tfanalyze.cli")
    assert not loaded.intersection(HEAVY)
    assert "typer" in loaded


def test_top_level_help_imports_nothing_heavy() -> None:
    loaded = loaded_after("import os, contextlib\nfrom tfanalyze.cli import run\nwith contextlib.redirect_stdout(open(os.devnull, 'w')):\n    run(['--help'])")
    assert not loaded.intersection(HEAVY)


def test_the_package_is_lazy() -> None:
    loaded = loaded_after("import tfanalyze as tf\ntf.SloClass('x')")
    assert not loaded.intersection(HEAVY)
    assert "tfanalyze.replay" not in loaded


def test_every_public_name_resolves() -> None:
    import tfanalyze as tf

    for name in tf.__all__:
        assert getattr(tf, name) is not None
    assert set(tf.__all__) <= set(dir(tf))


def test_a_verb_stays_callable_when_its_module_was_imported_first() -> None:
    code = "import tfanalyze.replay.options, tfanalyze as tf, tfanalyze.tune\nassert callable(tf.replay) and callable(tf.tune)\nimport tfanalyze.replay.state as s\nassert s.OK == 0"
    subprocess.run([sys.executable, "-c", code], check=True)
