"""Killed at any moment, run twice, run at once, out of disk: the workspace stays whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfanalyze.errors import InputError, TfanalyzeError, WorkspaceError
from tfanalyze.ingest import ingest_logs, ingest_metrics
from tfanalyze.workspace import Workspace

RUN = "import sys\nfrom tfanalyze.ingest import direct, ingest_logs\ndirect.MIN_BYTES = {least}\nprint(ingest_logs(sys.argv[2:], db=sys.argv[1], wait_s=float({wait}))['totals']['taken'])\n"


def write_logs(folder: Path, files: int, rows: int) -> list[Path]:
    paths = []
    for f in range(files):
        path = folder / f"log-{f}.jsonl"
        lines = (
            {"request_id": f"f{f}-{r}", "arrival": 1764576000 + r * 0.1, "prompt_tokens": 100 + r % 7, "completion_tokens": 5, "status": "ok"}
            for r in range(rows)
        )
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        paths.append(path)
    return paths


def start(db: Path, paths: list[Path], wait: float = 0.0, least: int = 1 << 60) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN.replace("{wait}", str(wait)).replace("{least}", str(least)), str(db), *map(str, paths)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def counts(db: Path) -> tuple[int, int, int]:
    """Requests, distinct uids, and the rows that the sources say were taken."""
    with Workspace.open(db) as workspace:
        row = workspace.con.execute(
            "SELECT count(*), count(DISTINCT row_uid), (SELECT coalesce(sum(taken), 0) FROM sources) FROM requests"
        ).fetchone()
        assert row is not None
        return int(row[0]), int(row[1]), int(row[2])


@pytest.mark.parametrize("least", [0, 1 << 60], ids=["in one pass", "staged"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("TFANALYZE_KILLS", "3"))))
def test_killed_at_a_random_moment(tmp_path: Path, seed: int, least: int) -> None:
    paths = write_logs(tmp_path, 6, 4000)
    db = tmp_path / "w.duckdb"
    process = start(db, paths, least=least)
    while not db.exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(random.Random(seed).uniform(0.0, 0.8))
    process.send_signal(signal.SIGKILL)
    process.wait()
    if db.exists():
        have, distinct, said = counts(db)
        assert have == distinct == said and have % 4000 == 0
    ingest_logs(paths, db=db)
    assert counts(db) == (24000, 24000, 24000)


def test_the_second_process_waits(tmp_path: Path) -> None:
    paths = write_logs(tmp_path, 2, 500)
    db = tmp_path / "w.duckdb"
    with Workspace.open(db):
        process = start(db, paths, wait=30)
        time.sleep(1.0)
        assert process.poll() is None
    out, error = process.communicate(timeout=60)
    assert (out.strip(), process.returncode) == ("1000", 0), error


def test_the_second_process_says_who_holds_it(tmp_path: Path) -> None:
    db = tmp_path / "w.duckdb"
    with Workspace.open(db):
        process = start(db, write_logs(tmp_path, 1, 5), wait=0)
        _, error = process.communicate(timeout=60)
    assert process.returncode != 0 and f"held by process {os.getpid()}" in error


def test_a_bad_file_undoes_nothing_of_the_others(tmp_path: Path) -> None:
    paths = write_logs(tmp_path, 2, 50)
    bad = tmp_path / "zz.bin"
    bad.write_bytes(bytes(range(256)) * 10)
    result = ingest_logs([*paths, bad], db=tmp_path / "w.duckdb")
    assert result["totals"]["taken"] == 100 and [s["path"] for s in result["skipped"]] == [str(bad)]


def test_full_disk_leaves_the_workspace_as_it_was(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk."""
    (tmp_path / "large").mkdir()
    paths = [*write_logs(tmp_path, 1, 3_000), *write_logs(tmp_path / "large", 2, 120_000)[1:]]
    db = tmp_path / "w.duckdb"
    ingest_logs(paths[:1], db=db)
    code = (
        "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from tfanalyze.ingest import ingest_logs\nfrom tfanalyze.errors import TfanalyzeError\n"
        f"size = {db.stat().st_size} + 20000\nresource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
        "try:\n    ingest_logs(sys.argv[2:], db=sys.argv[1])\nexcept TfanalyzeError as error:\n    print(error)\n    sys.exit(2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(db), str(paths[1])], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "disk space" in done.stdout, (done.stdout, done.stderr[-800:])
    assert counts(db)[0] == 3_000
    ingest_logs(paths, db=db)
    assert counts(db) == (123_000, 123_000, 123_000)


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("missing.jsonl", None, "no such file"),
        ("empty.jsonl", b"", "is empty"),
        ("blank.jsonl", b"\n  \n\n", "is empty"),
        ("text.txt", b"hello\nworld\n", "no request log format known"),
        ("no-time.jsonl", b'{"arrival": null, "prompt_tokens": 3}\n{"arrival": null, "prompt_tokens": 4}\n', "no timestamps"),
        ("scrape.prom", b"# TYPE a gauge\na 1\n", "tfanalyze ingest metrics"),
    ],
)
def test_one_clear_line(tmp_path: Path, name: str, data: bytes | None, what: str) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(TfanalyzeError) as caught:
        ingest_logs([path], db=tmp_path / "w.duckdb")
    assert what in str(caught.value) and name in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(InputError, match="cannot be read"):
        ingest_logs([path], db=tmp_path / "w.duckdb")


def test_bad_options(tmp_path: Path) -> None:
    paths = write_logs(tmp_path, 1, 2)
    for options in ({"timezone": "UTC"}, {"tz": "Mars/Base"}, {"time_unit": "h"}, {"mapping": {"arival": "x"}}, {"format": "gatewy"}):
        with pytest.raises(TfanalyzeError) as caught:
            ingest_logs(paths, db=tmp_path / "w.duckdb", **options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_metrics_twice_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    path.write_text("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n")
    db = tmp_path / "w.duckdb"
    first, second = (ingest_metrics([path], db=db, at=1764576000)["totals"] for _ in range(2))
    assert (first["taken"], second["taken"], second["already"]) == (1, 0, 1)


def test_no_second_key_is_made(tmp_path: Path) -> None:
    db = tmp_path / "w.duckdb"
    ingest_logs(write_logs(tmp_path, 1, 2), db=db)
    key = Path(f"{db}.key").read_text()
    ingest_logs(write_logs(tmp_path, 2, 3), db=db)
    assert Path(f"{db}.key").read_text() == key
    Path(f"{db}.key").write_text("junk")
    with pytest.raises(TfanalyzeError, match="holds no key"):
        ingest_logs(write_logs(tmp_path, 3, 4), db=db)


def test_a_workspace_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    db = tmp_path / "w.duckdb"
    with Workspace.open(db) as workspace:
        workspace.con.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    with pytest.raises(WorkspaceError, match="version 999"):
        ingest_logs(write_logs(tmp_path, 1, 2), db=db)
