"""Each option of ingest does what it says, by flag and by tfanalyze.toml, and a wrong one is one line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.samples import SAMPLES, SERVEGEN, T0, USER, VLLM_LOG, jsonl
from tests.ingest.test_metrics import SHAPED
from tfanalyze.cli import app, run
from tfanalyze.config import IngestOptions
from tfanalyze.ingest import explain_file, ingest_logs
from tfanalyze.workspace import Workspace

GATEWAY = next(sample.text for sample in SAMPLES if sample.name == "gateway")
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,812,40\n"
MOONCAKE = jsonl({"timestamp": 3000, "input_length": 1100, "output_length": 40, "hash_ids": [0, 1, 17]})
RELATIVE = 3_000_000
# option, its value, the log's name and text, SQL, what it gives without and with the option
CASES: list[tuple[str, Any, str, str, str, Any, Any]] = [
    ("tz", "Europe/Berlin", "a.csv", AZURE, "arrival_us", 1700158546500000, 1700154946500000),
    ("year", 2031, "e-20260101.log", VLLM_LOG, "year(make_timestamp(arrival_us))", 2026, 2031),
    ("time_unit", "s", "m.jsonl", MOONCAKE, "arrival_us", RELATIVE, 3_000_000_000),
    ("time_base", "monotonic", "m.jsonl", MOONCAKE, "time_base", "relative", "monotonic"),
    ("start_at", "2026-01-01T00:00:00Z", "m.jsonl", MOONCAKE, "arrival_us", RELATIVE, 1767225600000000 + RELATIVE),
    ("clock_ahead_s", 1.5, "g.jsonl", GATEWAY, "arrival_us", T0 * 10**6 + 250_000, T0 * 10**6 - 1_250_000),
    ("instance", "gpu-7", "m.jsonl", MOONCAKE, "instance", None, "gpu-7"),
    ("site", "east", "m.jsonl", MOONCAKE, "site", None, "east"),
    ("model", "m-8b", "m.jsonl", MOONCAKE, "model", None, "m-8b"),
    ("slo_class", "offline", "m.jsonl", MOONCAKE, "slo_class", None, "offline"),
    ("vantage", "client", "m.jsonl", MOONCAKE, "vantage", "gateway", "client"),
    ("block_size", 256, "m.jsonl", MOONCAKE, "block_size", 512, 256),
    ("block_scope", "shared", "m.jsonl", MOONCAKE, "blocks = [0, 1, 17]", False, True),
    ("keep_tenants", True, "g.jsonl", GATEWAY, f"tenant = '{USER}'", False, True),
    ("requests", 3, "chunk-3-trace.csv", SERVEGEN, "(SELECT count(*) FROM requests)", 40, 3),
    ("seed", 2, "chunk-3-trace.csv", SERVEGEN, "(SELECT min(arrival_us) FROM requests)", 483_250, 686_386),
]  # fmt: skip
BESIDE = next(sample.beside for sample in SAMPLES if sample.name == "servegen")
FLAGS = {"clock_ahead_s": "clock-ahead", "slo_class": "class", "wait_s": "wait"}


def flag(name: str) -> str:
    return "--" + FLAGS.get(name, name).replace("_", "-")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_an_option_by_flag_and_by_file(case: tuple[str, Any, str, str, str, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, value, file, text, sql, without, with_it = case
    for other, body in {**BESIDE, file: text}.items():
        Path(other).write_text(body)
    given = [flag(name)] if value is True else [flag(name), str(value)]
    shown = {True: "true"}.get(value, str(value) if isinstance(value, int | float) else f'"{value}"')

    def found(db: str, *arguments: str) -> Any:
        limit = [] if file != "chunk-3-trace.csv" or name == "requests" else ["--requests", "40"]
        assert run(["ingest", "logs", file, "--db", db, "-q", *limit, *arguments]) == 0
        with Workspace.open(db, read_only=True) as workspace:
            row = workspace.con.execute(f"SELECT {sql} FROM requests ORDER BY source_line LIMIT 1").fetchone()
            assert row is not None
            return row[0]

    if name != "requests":
        assert found("plain.duckdb") == without
    assert found("flag.duckdb", *given) == with_it
    Path("tfanalyze.toml").write_text(f"[ingest]\n{name} = {shown}\n")
    assert found("file.duckdb") == with_it


def test_every_option_has_a_flag_and_a_test() -> None:
    from typer.main import get_command

    command: Any = get_command(app)
    flags = {name for parameter in command.commands["ingest"].commands["logs"].params for name in parameter.opts}
    names = {field.name for field in fields(IngestOptions)} - {"mapping"}  # a table of its own
    assert {flag(name) for name in names} <= flags
    assert names - {case[0] for case in CASES} == {"key_file", "wait_s"}  # test_privacy and test_safety have these


def test_a_clock_that_is_ahead_leaves_its_trace(tmp_path: Path) -> None:
    (tmp_path / "g.jsonl").write_text(GATEWAY)
    with Workspace.open(":memory:") as db:
        result = ingest_logs([tmp_path / "g.jsonl"], db=db, clock_ahead_s=1.5)
        row = db.con.execute("SELECT provenance->>'arrival_us', (SELECT notes FROM sources) FROM requests LIMIT 1").fetchone()
    assert row is not None and row[0] == "derived" and "1.5 s taken off" in row[1]
    assert any("1.5 s taken off" in note for note in result["files"][0]["notes"])


def test_metrics_take_the_options_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.prom").write_text(SHAPED["prometheus"][1])
    Path("tfanalyze.toml").write_text("[ingest]\nclock_ahead_s = 2\nvantage = 'gateway'\n")
    assert run(["ingest", "metrics", "m.prom", "--at", "2026-01-01T00:00:02Z", "--instance", "i9", "-q"]) == 0
    with Workspace.open("tfanalyze.duckdb", read_only=True) as db:
        times = db.con.execute("SELECT DISTINCT ts_us, instance FROM metrics").fetchall()
        assert (1767225600000000, "i9") in times


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--year", "25"], "ingest.year: is 25; allowed: a whole number 1970 to 2100"),
        (["--time-base", "lunar"], "ingest.time_base: is 'lunar'; allowed: unix, monotonic, relative"),
        (["--start-at", "yesterday"], "ingest.start_at: is 'yesterday'; give an ISO time"),
        (["--tz", "Moon"], "ingest.tz: is 'Moon'; give an IANA zone"),
        (["--block-size", "0"], "ingest.block_size: is 0; allowed: a whole number 1 to 1,000,000"),
        (["--vantage", "clint"], "did you mean 'client'"),
        (["--clock-ahead", "1e12"], "ingest.clock_ahead_s: is 1000000000000.0"),
        (["--requests", "0"], "ingest.requests: is 0"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.jsonl").write_text(MOONCAKE)
    assert run(["ingest", "logs", "m.jsonl", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["m.jsonl"]


def test_an_option_without_effect_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    notes = ingest_logs([tmp_path / "a.csv"], db=":memory:", time_unit="ms")["files"][0]["notes"]
    assert any("time_unit ms was not used" in note for note in notes)


def test_explaining_makes_no_key(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    explain_file(tmp_path / "m.jsonl", key_file=str(tmp_path / "k.key"), start_at="2026-01-01T00:00:00Z")
    assert [path.name for path in tmp_path.iterdir()] == ["m.jsonl"]
