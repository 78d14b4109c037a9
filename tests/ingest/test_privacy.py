"""No prompt, key, e-mail or user name of a log is found in any byte that ingest leaves behind."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.samples import API_KEY, CANARY, EMAIL, SAMPLES, SECRETS, USER, Sample
from tfanalyze.errors import TfanalyzeError
from tfanalyze.ingest import explain_file, ingest_logs, lint
from tfanalyze.ingest.blocks import hash_text, hash_tokens, pseudonym
from tfanalyze.parts import REQUEST_COLUMNS
from tfanalyze.workspace import Workspace


def leaks(folder: Path, *texts: str) -> list[str]:
    """Secrets found in the files of a folder or in texts; also with their case or spaces changed."""
    blobs = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    blobs |= {f"text {i}": text.encode() for i, text in enumerate(texts)}
    return [f"{secret} in {name}" for name, blob in blobs.items() for secret in SECRETS if re.search(re.escape(secret.encode()), blob, re.I)]


def test_the_detector_detects(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(f"before {EMAIL} after")
    assert leaks(tmp_path) == [f"{EMAIL} in {tmp_path / 'x'}"]


def test_nothing_of_any_sample_is_left(tmp_path: Path) -> None:
    """All formats into one workspace, its WAL kept; the outputs of every function searched too."""
    logs, work = tmp_path / "logs", tmp_path / "work"
    logs.mkdir()
    work.mkdir()
    outputs = []
    with Workspace.open(work / "w.duckdb") as db:
        db.con.execute("PRAGMA disable_checkpoint_on_shutdown")
        for i, sample in enumerate(SAMPLES):
            path = logs / str(i) / sample.file
            path.parent.mkdir()
            for name, text in {sample.file: sample.text, **sample.beside}.items():
                (path.parent / name).write_text(text)
            outputs.append(json.dumps(ingest_logs([path], db=db, **sample.options)))
            outputs.append(json.dumps(explain_file(path, **sample.options)))
        outputs.append(json.dumps(lint(db)))
        wal = [path.name for path in work.iterdir()]
        assert "w.duckdb.wal" in wal or (work / "w.duckdb").stat().st_size > 12_288
        assert leaks(work, *outputs) == []
    assert leaks(work, *outputs) == []


def test_nothing_of_broken_records_is_left(tmp_path: Path) -> None:
    """Rejected lines are where content slips through: reasons and line numbers only."""
    work = tmp_path / "work"
    work.mkdir()
    good = SAMPLES[0].text
    (tmp_path / "log.jsonl").write_text(good + f'{{"prompt": "{CANARY}", "user": "{EMAIL}"\n' + f"{API_KEY} {USER}\n" + f'{{"arrival": "{CANARY}"}}\n')
    result = ingest_logs([tmp_path / "log.jsonl"], db=work / "w.duckdb")
    assert result["totals"]["rejected"] == 3
    assert leaks(work, json.dumps(result)) == []


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.name}-{s.file}")
def test_errors_do_not_quote(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / sample.file
    for name, other in sample.beside.items():
        (tmp_path / name).write_text(other)
    path.write_text("\n".join(line[: len(line) // 2] for line in sample.text.splitlines()) + "\n")
    try:
        text = json.dumps(ingest_logs([path], db=":memory:", format=sample.name, **sample.options))
    except TfanalyzeError as error:
        text = str(error)
    assert leaks(tmp_path / "none", text) == []


def test_tenants_are_pseudonyms_unless_kept(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(SAMPLES[0].text)

    def tenant(**options: Any) -> str:
        with Workspace.open(":memory:") as db:
            ingest_logs([path], db=db, **options)
            row = db.con.execute("SELECT any_value(tenant) FROM requests").fetchone()
            assert row is not None
            return str(row[0])

    assert tenant(keep_tenants=True) == USER
    key_file = tmp_path / "my.key"
    first, second = tenant(key_file=str(key_file)), tenant(key_file=str(key_file))
    assert first == second == pseudonym(bytes.fromhex(key_file.read_text().strip()), USER)
    assert tenant() != first


def test_a_migrated_workspace_keeps_its_pseudonyms(tmp_path: Path) -> None:
    """Version 1 put a longer secret before a name."""
    path, key_file = tmp_path / "requests.jsonl", tmp_path / "my.key"
    path.write_text(SAMPLES[0].text)
    key_file.write_text("5a" * 32)
    with Workspace.open(tmp_path / "w.duckdb") as db:
        db.con.execute("DROP VIEW requests; DROP TABLE parts; UPDATE meta SET value = '1' WHERE key = 'schema_version'")
        db.con.execute(f"CREATE TABLE requests({', '.join(f'{name} {kind}' for name, kind in REQUEST_COLUMNS.items())})")
    with Workspace.open(tmp_path / "w.duckdb") as db:
        ingest_logs([path], db=db, key_file=str(key_file))
        secret = hmac.new(b"\x5a" * 32, b"pseudonym", "sha256").hexdigest()
        expected = "t-" + hashlib.sha256((secret + USER).encode()).hexdigest()[:12]
        assert db.con.execute("SELECT DISTINCT tenant FROM requests WHERE tenant IS NOT NULL").fetchall() == [(expected,)]


def test_the_key_is_next_to_the_workspace_and_private(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(SAMPLES[0].text)
    ingest_logs([path], db=tmp_path / "w.duckdb")
    key = tmp_path / "w.duckdb.key"
    assert key.stat().st_mode & 0o777 == 0o600
    secret = key.read_text().strip()
    assert secret.encode() not in (tmp_path / "w.duckdb").read_bytes()


def test_blocks_share_a_prefix_and_only_under_one_key() -> None:
    a, b = hash_text(b"k" * 32, "x" * 200), hash_text(b"k" * 32, "x" * 130 + "y" * 70)
    assert a[:2] == b[:2] and a[2:] != b[2:] and len(a) == 3
    assert not set(a) & set(hash_text(b"q" * 32, "x" * 200))
    assert len(hash_tokens(b"k" * 32, list(range(40)))) == 2
