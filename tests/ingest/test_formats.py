"""Every log format: recognised without a flag, read right, and sturdy against cut, packed, doubled and CRLF copies."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.ingest.samples import SAMPLES, Sample
from tfanalyze.errors import TfanalyzeError
from tfanalyze.ingest import explain_file, ingest_logs
from tfanalyze.ingest.formats import FORMATS
from tfanalyze.workspace import Workspace

IDS = [f"{sample.name}-{sample.file}" for sample in SAMPLES]


def ingest(path: Path, sample: Sample, db: Workspace) -> dict[str, Any]:
    result: dict[str, Any] = ingest_logs([path], db=db, **sample.options)["files"][0]
    return result


def write(folder: Path, sample: Sample, data: bytes | None = None, name: str = "") -> Path:
    path = folder / (name or sample.file)
    folder.mkdir(exist_ok=True)
    for other, text in sample.beside.items():
        (folder / other).write_text(text)
    path.write_bytes(sample.text.encode() if data is None else data)
    return path


def rows(db: Workspace, columns: str = "*") -> list[tuple[Any, ...]]:
    return db.con.execute(f"SELECT {columns} FROM requests ORDER BY source_line, arrival_us").fetchall()


@pytest.fixture
def db() -> Any:
    with Workspace.open(":memory:") as workspace:
        yield workspace


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_first_row(sample: Sample, db: Workspace, tmp_path: Path) -> None:
    result = ingest(write(tmp_path, sample), sample, db)
    assert (result["format"], result["taken"], result["rejected"]) == (sample.name, sample.taken, sample.rejected)
    names = list(sample.first)
    assert dict(zip(names, rows(db, ", ".join(names))[0], strict=True)) == sample.first


def test_every_format_has_a_sample() -> None:
    assert {sample.name for sample in SAMPLES} == set(FORMATS)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_again_adds_nothing(sample: Sample, db: Workspace, tmp_path: Path) -> None:
    path = write(tmp_path, sample)
    ingest(path, sample, db)
    before = rows(db)
    again = ingest(path, sample, db)
    assert again["already"] and again["taken"] == 0
    assert rows(db) == before


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_packed_and_crlf_copies_read_the_same(sample: Sample, tmp_path: Path) -> None:
    data = sample.text.encode()
    cut = data.index(b"\n") + 1
    pack = zstandard.ZstdCompressor().compress
    copies = {
        "plain": data,
        "members.gz": gzip.compress(data[:cut]) + gzip.compress(data[cut:]),
        "frames.zst": pack(data[:cut]) + pack(data[cut:]),
        "crlf": data.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + data,
        "blank": data.replace(b"\n", b"\n\n"),
    }
    columns = "request_id, arrival_us, input_tokens, cached_tokens, output_tokens, ttft_us, e2e_us, status"
    seen = {}
    for name, copy in copies.items():
        with Workspace.open(":memory:") as db:
            ingest(write(tmp_path / name, sample, copy), sample, db)
            seen[name] = rows(db, columns)
    assert all(found == seen["plain"] for found in seen.values()), seen


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_torn_copies_never_raise_and_never_invent(sample: Sample, tmp_path: Path) -> None:
    """Cut at each of the last bytes: an error of ours or fewer rows, and each row equals one of the whole file."""
    columns = "request_id, arrival_us, input_tokens, output_tokens"
    data = sample.text.encode()
    with Workspace.open(":memory:") as db:
        ingest(write(tmp_path, sample), sample, db)
        whole = {(row[0], row[1]) for row in rows(db, columns)}
    for cut in range(1, min(200, len(data) - 1), 13):
        with Workspace.open(":memory:") as db:
            path = write(tmp_path / f"cut-{cut}", sample, data[:-cut])
            try:
                result = ingest_logs([path], db=db, format=sample.name, **sample.options)["files"][0]
            except TfanalyzeError:
                continue
            assert result["taken"] + result["rejected"] == result["rows"]
            assert result["taken"] <= sample.taken
            starts = {(row[0], row[1]) for row in rows(db, columns)}
            assert sample.name == "sglang_log" or starts <= whole


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_explain_names_the_columns_and_writes_nothing(sample: Sample, tmp_path: Path) -> None:
    path = write(tmp_path, sample)
    told = explain_file(path, **sample.options)
    named = {row["column"] for row in told["columns"]}
    expected = {name for name in sample.first if name not in ("time_base", "vantage")}
    assert told["format"] == sample.name and expected <= named
    assert {found.name for found in tmp_path.iterdir()} == {sample.file, *sample.beside}


def test_two_formats_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TfanalyzeError, match="no request log format"):
        ingest_logs([write(tmp_path, SAMPLES[0], b"hello\nworld\n", "x.txt")], db=":memory:")


def test_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TfanalyzeError, match="pickle"):
        ingest_logs([write(tmp_path, SAMPLES[0], b"\x80\x04\x95abc", "dump.bin")], db=":memory:")


def test_bailian_turns_share_a_session(db: Workspace, tmp_path: Path) -> None:
    sample = next(s for s in SAMPLES if s.name == "bailian")
    ingest(write(tmp_path, sample), sample, db)
    found = rows(db, "session_id, turn")
    assert found[0][0] == found[1][0] and [turn for _, turn in found] == [0, 1]


def test_block_ids_of_two_mooncake_files_do_not_meet(db: Workspace, tmp_path: Path) -> None:
    sample = next(s for s in SAMPLES if s.name == "mooncake")
    ingest(write(tmp_path, sample), sample, db)
    ingest(write(tmp_path, sample, (sample.text + sample.text[:0]).replace("1100", "1101").encode(), "b.jsonl"), sample, db)
    sets = [set(blocks) for (blocks,) in db.con.execute("SELECT list_distinct(flatten(list(blocks))) FROM requests GROUP BY source_id").fetchall()]
    assert len(sets) == 2 and not sets[0] & sets[1]
