"""Reading in one pass gives what the careful way gives, or leaves the file to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ingest.samples import API_KEY, CANARY, EMAIL, SAMPLES, USER, Sample
from tests.ingest.test_privacy import leaks
from tfanalyze.errors import TfanalyzeError
from tfanalyze.ingest import direct, ingest_logs
from tfanalyze.workspace import Workspace

T0 = 1764576000
MAPPING = {"arrival": "at", "input_tokens": "n", "ttft_ms": "first", "status": "code", "session_id": "who", "request_id": "id"}


def ingested(path: Path, whole: bool, **options: Any) -> tuple[Any, ...]:
    """What a file becomes, read in one pass where `whole`; and whether it was."""
    took: list[bool] = []
    real = direct.take

    def take(*args: Any) -> Any:
        found = real(*args)
        took.append(found is not None)
        return found

    with pytest.MonkeyPatch.context() as patch, Workspace.open(":memory:") as db:
        patch.setattr(direct, "MIN_BYTES", 0 if whole else 1 << 60)
        patch.setattr(direct, "take", take)
        try:
            result = ingest_logs([path], db=db, key_file=str(path.parent / "key"), **options)["files"][0]
        except TfanalyzeError as error:
            return str(error), bool(took and took[0])
        rows = db.con.execute("SELECT * FROM requests ORDER BY source_line, request_id").fetchall()
        sources = db.con.execute("SELECT * EXCLUDE torn FROM sources").fetchall()
        rejects = db.con.execute("SELECT * FROM rejects ORDER BY ALL").fetchall()
        return (result, rows, sources, rejects), bool(took and took[0])


def same(path: Path, **options: Any) -> bool:
    """Hold one pass to the careful way; gives back whether the file was read in one."""
    fast, was_direct = ingested(path, True, **options)
    assert fast == ingested(path, False, **options)[0]
    return bool(was_direct)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.name}-{s.file}")
def test_every_sample(sample: Sample, tmp_path: Path) -> None:
    for name, text in {sample.file: sample.text, **sample.beside}.items():
        (tmp_path / name).write_text(text)
    same(tmp_path / sample.file, **sample.options)


def lines(n: int = 400, **more: Any) -> list[dict[str, Any]]:
    return [
        {"request_id": f"q{i}", "arrival": T0 + i / 8, "prompt_tokens": 9 + i, "completion_tokens": 3, "ttft_ms": 20.5, "e2e_ms": 90, "status": "ok", **more}
        for i in range(n)
    ]  # fmt: skip


def write(path: Path, rows: list[Any], end: str = "\n") -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + end)
    return path


# what may stand once at the end of a long sound log, and whether the log may then still be read in one pass
ODD: dict[str, tuple[Any, bool]] = {
    "nothing": (lines(1)[0] | {"request_id": "z"}, True),
    "a field that the start has not": (lines(1, queue_ms=4)[0], False),
    "no record": ("null", False),
    "no JSON": ('{"request_id": ', False),
    "a list": ("[1]", False),
    "blank": ("   ", False),
    "two records": ('{"arrival": 1} {"arrival": 2}', False),
    "a text for a number": (lines(1)[0] | {"prompt_tokens": "many"}, False),
    "no arrival": ({"request_id": "z", "prompt_tokens": 4}, False),
    "absurd arrival": (lines(1)[0] | {"arrival": 5}, True),
    "negative tokens": (lines(1)[0] | {"prompt_tokens": -5}, True),
    "a duplicate": (lines(1)[0], True),
    "a repair": (lines(1)[0] | {"request_id": "z", "ttft_ms": 1e6}, True),
    "a negative duration": (lines(1)[0] | {"request_id": "z", "e2e_ms": -1}, True),
    "a retry": (lines(1)[0] | {"status": "timeout", "arrival": T0 + 1e3}, True),
    "not ASCII": (lines(1)[0] | {"request_id": "zé"}, True),
    "an id to hide": (lines(1)[0] | {"request_id": "ann@example.org"}, True),
    "control character": ('{"request_id": "a\x01", "arrival": 1764576000, "prompt_tokens": 3}', False),
}


@pytest.mark.parametrize("what", list(ODD))
def test_one_odd_line(what: str, tmp_path: Path) -> None:
    odd, in_one_pass = ODD[what]
    rows = [*lines(700), odd, *lines(1, request_id="last", status="error")]
    assert same(write(tmp_path / "a.jsonl", rows)) == in_one_pass


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_ends_of_files(end: str, tmp_path: Path) -> None:
    assert same(write(tmp_path / "a.jsonl", lines(), end)) == (end != "\n\n")
    cells = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"2026-01-01 00:00:{i % 60:02d}.5,{i},7" for i in range(4000))]
    assert same(write(tmp_path / "a.csv", cells, end)) == (end == "\n")


@pytest.mark.parametrize("odd", ["2026-01-01 00:00:00+02:00,1,2", "2026-01-01 00:00:00-0500,1,2", "2026-01-01 00:00:00 Europe/Berlin,1,2", "x,1,2", ",1,2", "2026-01-01,1,2,3"])
def test_odd_times_in_a_table(odd: str, tmp_path: Path) -> None:
    cells = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"2026-01-01 00:00:{i % 60:02d}.5,{i},7" for i in range(4000))]
    assert same(write(tmp_path / "a.csv", cells))
    assert not same(write(tmp_path / "b.csv", [*cells, odd]))


TIMES = (
    "2026-01-01 00:00:00", "2026-01-01T00:00:00Z", "2026-01-01 00:00:00.1234567", "2026-01-01T00:00:00.5Z", "2026-1-2 3:4:5", "26-01-01 00:00:00",
    "1600-01-01 00:00:00.5", "2026-01-01 00:00:00.12345678901", "2026-01-01", "2026-01-01 00:00", "2026/01/01 00:00:00", "2026-01-01 00:00:00+01",
    "2026-01-01 00:00:00.5-01:30", "2026-01-01T00:00:00 UTC", "infinity", "epoch", "", "x", "2026-02-30 00:00:00", "2026-01-01 24:00:00",
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(usual=st.sampled_from(TIMES[:5]), odd=st.lists(st.sampled_from(TIMES), max_size=2), tz=st.sampled_from(["UTC", "Europe/Berlin"]))
def test_any_times(usual: str, odd: list[str], tz: str, tmp_path: Path) -> None:
    """One form of time at the start, others behind it."""
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{usual},{i},7" for i in range(4000)), *(f"{text},1,2" for text in odd)]
    same(write(tmp_path / "a.csv", rows), tz=tz)


def test_the_unit_of_times_is_that_of_the_whole_file(tmp_path: Path) -> None:
    """The start looks like seconds since the trace began; most of the file says milliseconds since 1970."""
    start = [{"arrival": i, "prompt_tokens": 5} for i in range(3000)]
    rest = [{"arrival": T0 * 1000 + i, "prompt_tokens": 5} for i in range(9000)]
    assert not same(write(tmp_path / "a.jsonl", [*start, *rest]))
    assert same(write(tmp_path / "b.jsonl", [*start, *rest]), time_unit="s", time_base="relative")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_mapping(kind: str, tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / f"a.{kind}"
    form = {"jsonl": "json", "csv": "csv, HEADER", "parquet": "parquet"}[kind]
    for at in (f"{T0}.25 + i", f"to_timestamp({T0} + i)::VARCHAR", f"strftime(to_timestamp({T0} + i), '%Y-%m-%dT%H:%M:%S')", f"({T0} + i)::VARCHAR"):
        path.unlink(missing_ok=True)
        duckdb.sql(
            f"COPY (SELECT {at} AS at, i::DECIMAL(9,2) AS n, 5.125 AS first, 200 AS code, 'u' || i // 3 AS who, 'r' || i AS id FROM range(5000) t(i)) "
            f"TO '{path}' (FORMAT {form})"
        )
        assert same(path, mapping=MAPPING, instance="it's one", site="s")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 600), st.integers(2**60, 2**66), st.floats(-10, 2000), st.sampled_from(["", "7", "1.5", "ok", "x y", "a@b", [], [1], {}])
)
FIELDS = ("request_id", "prompt_tokens", "cached_tokens", "completion_tokens", "ttft_ms", "e2e_ms", "status", "session_id", "turn", "block_size", "slo_class")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd=st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), max_size=3), ends=st.sampled_from(["", "\n"]))
def test_any_records(odd: list[dict[str, Any]], ends: str, tmp_path: Path) -> None:
    rows = lines(30, session_id="s", cached_tokens=2, turn=0, slo_class="c", block_size=16)
    body = [*rows, *({"arrival": T0 + 900 + i} | row for i, row in enumerate(odd))]
    same(write(tmp_path / "a.jsonl", body, ends))


def test_line_numbers_and_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MIN_BYTES", 0)
    with Workspace.open(tmp_path / "w.duckdb") as db:
        for name in ("a", "b", "a"):
            ingest_logs([write(tmp_path / f"{name}.jsonl", [row | {"request_id": f"{name}{i}"} for i, row in enumerate(lines(50))])], db=db)
        assert db.count("requests") == 100 and db.count("parts") == 2
        found = db.con.execute("SELECT request_id, source_line FROM requests WHERE source_line % 10 = 7 ORDER BY source_id, source_line").fetchall()
        assert found == [(f"{name}{i - 1}", i) for name in ("a", "b") for i in range(7, 50, 10)]
        assert db.con.execute("SELECT count(DISTINCT row_uid), count(first_us) FROM requests JOIN sources USING (source_id)").fetchone() == (100, 100)
        again = ingest_logs([write(tmp_path / "c.jsonl", [row | {"request_id": f"a{i}"} for i, row in enumerate(lines(50))] + [{}])], db=db)
        assert again["totals"]["taken"] == 0 and again["totals"]["reasons"] == {"duplicate": 50, "no_arrival": 1}


def test_nothing_secret_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, ids that a user may have chosen and fields that nobody asked for, in the file and its log."""
    monkeypatch.setattr(direct, "MIN_BYTES", 0)
    secret = {"tenant": USER, "session_id": EMAIL, "corr_id": API_KEY, "prompt": CANARY}
    log = write(tmp_path / "a.jsonl", lines(200_000, **secret))
    work = tmp_path / "work"
    work.mkdir()
    with Workspace.open(work / "w.duckdb") as db:
        db.con.execute("PRAGMA disable_checkpoint_on_shutdown")
        ingest_logs([log], db=db)
        found = db.con.execute("SELECT count(*), any_value(tenant), count(DISTINCT corr_id), bool_and(request_id = 'q' || (source_line - 1)) FROM requests").fetchone()
        assert found is not None and found[0] == 200_000 and found[1].startswith("t-") and found[2] == 1 and found[3]
        assert db.con.execute("SELECT columns FROM parts").fetchone()[0].find("rowid") > 0
        assert leaks(work) == []
    assert leaks(work) == []
