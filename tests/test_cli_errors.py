"""What a user can get wrong: one clear line on stderr, exit code 2, never a traceback, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tfanalyze.cli import run

ROOT = Path(__file__).resolve().parents[1]
LOG = next((ROOT / "sample_traces" / "rr-low").glob("requests*"))

Fails = Callable[..., str]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fails:
    monkeypatch.chdir(tmp_path)

    def fails(*arguments: str) -> str:
        assert run(list(arguments)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("tfanalyze: ") and err.count("\n") == 1, err
        return err

    return fails


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = str(tmp_path / "w.duckdb")
    assert run(["ingest", "logs", str(LOG), "--db", path, "-q"]) == 0
    return path


def test_missing_file(fails: Fails) -> None:
    assert "nowhere.jsonl" in fails("ingest", "logs", "nowhere.jsonl")


def test_unknown_format(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("what is this\n" * 5)
    assert "x.log" in fails("ingest", "logs", "x.log")
    assert "mooncake" in fails("ingest", "logs", str(LOG), "--format", "moonkake")


def test_empty_log(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("")
    assert "x.jsonl" in fails("ingest", "logs", "x.jsonl")


def test_log_without_timestamps(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"input_length": 5, "output_length": 3, "hash_ids": [1]}) + "\n")
    fails("replay", "x.jsonl")


def test_workspace_of_a_newer_version(fails: Fails, db: str) -> None:
    import duckdb

    with duckdb.connect(db) as con:
        con.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    assert "999" in fails("inspect", "--db", db)


def test_no_workspace(fails: Fails) -> None:
    line = fails("inspect", "--db", "none.duckdb")
    assert "none.duckdb" in line and "ingest" in line
    assert not Path("none.duckdb").exists()


def test_locked_workspace_says_who_holds_it(fails: Fails, db: str) -> None:
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.readline()"
    holder = subprocess.Popen([sys.executable, "-c", code, db], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        line = fails("inspect", "--db", db)
        assert str(holder.pid) in line
    finally:
        holder.communicate("\n", timeout=30)
    assert run(["inspect", "--db", db, "-q"]) == 0  # nothing lost


def test_bad_settings_name_the_nearest(fails: Fails, db: str) -> None:
    assert "cache_weight" in fails("replay", "--db", db, "--set", "tokenpilot.cash_weight=1")
    assert "tokenpilot" in fails("replay", "--db", db, "--policy", "tokenpilto")
    assert "NAME.PARAM=VALUE" in fails("replay", "--db", db, "--set", "tokenpilot.cache_weight")
    assert "twice" in fails("replay", "--db", db, "--set", "tokenpilot.cache_weight=1", "--set", "tokenpilot.cache_weight=2")
    assert "no effect" in fails("compare", "--db", db, "--policy", "round_robin", "--policy", "least_requests", "--set", "tokenpilot.cache_weight=1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay", "--load", "0"], "--load"),
        (["replay", "--instances", "0"], "--instances"),
        (["replay", "--gateways", "0"], "--gateways"),
        (["replay", "--report-interval", "-1"], "--report-interval"),
        (["replay", "--profile", "h100-lama"], "h100"),
        (["replay", "--out", "x.csv"], ".parquet"),
        (["compare", "--policy", "round_robin"], "--policy"),
        (["export", "--target", "tokenflet"], "tokenfleet"),
        (["export", "--target", "tokenfleet"], "tune"),
        (["explain", "no-such-request"], "no-such-request"),
        (["validate", "--max-error", "0"], "--max-error"),
        (["sql", "SELECT nothing FROM nowhere"], "nowhere"),
        (["sql", "DROP TABLE requests"], ""),
        (["check"], "study"),
        (["tune", "--bound", "tokenpilot.cache_weight=2:1"], "--bound"),
    ],
)  # fmt: skip
def test_bad_options_say_what_and_how(fails: Fails, db: str, arguments: list[str], says: str) -> None:
    assert says in fails(*arguments, "--db", db)


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--polcy", "x"]) == 2
    assert "--polcy" in capsys.readouterr().err
    assert run(["replay", "--seed", "soon"]) == 2
    assert run(["nonsense"]) == 2


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import tfanalyze.doctor

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tfanalyze.doctor, "doctor", interrupted)
    assert run(["doctor"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    import tfanalyze.doctor

    monkeypatch.setattr(tfanalyze.doctor, "doctor", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(["doctor"])


def test_a_reader_that_leaves_early_is_no_error(db: str) -> None:
    script = f"{sys.executable} -m tfanalyze inspect --json --db {db} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "{\n0\n" and done.stderr == ""


def test_version_help_and_completion() -> None:
    from tfanalyze import __version__

    def out(*arguments: str, **env: str) -> str:
        import os

        done = subprocess.run(
            [sys.executable, "-m", "tfanalyze", *arguments], capture_output=True, text=True, check=True, env={**os.environ, **env}
        )
        return done.stdout

    assert out("--version") == f"tfanalyze {__version__}\n"
    assert "replay" in out("--help")
    script = textwrap.dedent("""
        import sys
        from typer.testing import CliRunner
        from tfanalyze.cli import app
        sys.stdout.write(CliRunner().invoke(app, [], env={"_TFANALYZE_COMPLETE": "source_bash"}, prog_name="tfanalyze").output)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "complete" in done.stdout
