"""Mutated files of every format: no traceback but an error of ours, no hang, accepted + rejected = records present.

TFANALYZE_FUZZ sets the mutants a sample (default 5: over 200 in all; 10000 for a long run).
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from tests.ingest.samples import SAMPLES, Sample
from tests.ingest.test_metrics import SHAPED, T0
from tfanalyze.errors import TfanalyzeError
from tfanalyze.ingest import explain_file, ingest_logs, ingest_metrics
from tfanalyze.ingest.times import number_us
from tfanalyze.workspace import Workspace

MUTANTS = int(os.environ.get("TFANALYZE_FUZZ", "5"))
VALUES = (
    "null", "-1", "0", "1e400", "NaN", "true", '""', "[]", "{}", "18446744073709551616", "-9223372036854775809", '"\\u0000"', "1.5", '"x"',
    "[[[]]]", '{"a":{"b":[1]}}', '"2025-13-45 99:99:99"', "9" * 40, '"' + "9" * 300 + '"',
)  # fmt: skip
BYTES = (b"\x00", b"\xff\xfe", b"\n", b"\r", b'"', b"'", b"{", b"}", b",", b"\x01", b"\x02", b"\xf0\x9f\xa6\x93", b"\\", b"%s", b"\x1b[31m")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four random changes: bits, cuts, copies, bytes, values, keys, lines."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(out) + 1), rng.randrange(8)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at : at + rng.randint(1, 40)]
        elif kind == 2:
            out[at:at] = out[at : at + rng.randint(1, 200)]
        elif kind == 3:
            out[at:at] = rng.choice(BYTES)
        elif kind in (4, 5):
            spots = list(re.finditer(rb"(?<=[:=,])\s*(?:-?[\d.]+|\"[^\"\n]{0,60}\"|true|null)", bytes(out)))
            if spots:
                spot = rng.choice(spots)
                out[spot.start() : spot.end()] = rng.choice(VALUES).encode()
        elif kind == 6:
            lines = bytes(out).split(b"\n")
            rng.shuffle(lines)
            out = bytearray(b"\n".join(lines))
        else:
            out = out[: rng.randrange(len(out) + 1)]
    return bytes(out)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.name}-{s.file}")
def test_mutated_logs(sample: Sample, tmp_path: Path) -> None:
    rng = random.Random(f"{sample.name}{sample.file}")
    path = tmp_path / sample.file
    for name, text in sample.beside.items():
        (tmp_path / name).write_text(text)
    with Workspace.open(":memory:") as db:
        for turn in range(MUTANTS):
            path.write_bytes(mutate(sample.text.encode(), rng))
            before = db.count("requests"), db.count("rejects")
            try:
                result = ingest_logs([path], db=db, format=sample.name if turn % 2 else "auto", **sample.options)["files"][0]
                explain_file(path, format=sample.name, **sample.options)
            except TfanalyzeError as error:
                assert "\n" not in str(error)
                continue
            except Exception as error:
                (Path(os.environ.get("TFANALYZE_FUZZ_KEEP", str(tmp_path))) / f"fuzz-{turn}-{sample.file}").write_bytes(path.read_bytes())
                raise AssertionError(f"mutant {turn} of {sample.name}") from error
            if not result["already"]:
                after = db.count("requests"), db.count("rejects")
                assert (after[0] - before[0], after[1] - before[1]) == (result["taken"], result["rejected"])
                assert result["taken"] + result["rejected"] == result["rows"]
        bad = db.con.execute(
            "SELECT count(*) FROM requests WHERE least(input_tokens, cached_tokens, output_tokens, ttft_us, e2e_us, queue_us) < 0 "
            "OR cached_tokens > input_tokens OR ttft_us > e2e_us OR status NOT IN ('ok', 'error', 'timeout', 'cancelled', 'rejected')"
        ).fetchone()
        assert bad == (0,)


@pytest.mark.parametrize("name", list(SHAPED))
def test_mutated_metrics(name: str, tmp_path: Path) -> None:
    file, text, _, _ = SHAPED[name]
    rng = random.Random(name)
    path = tmp_path / file
    with Workspace.open(":memory:") as db:
        for turn in range(MUTANTS):
            path.write_bytes(mutate(text.encode(), rng))
            before = db.count("metrics"), db.count("rejects")
            try:
                result = ingest_metrics([path], db=db, at=T0, year=2025, format=name if turn % 2 else "auto")["files"][0]
            except TfanalyzeError as error:
                assert "\n" not in str(error)
                continue
            if not result["already"]:
                assert db.count("metrics") - before[0] == result["taken"]
                assert result["taken"] + result["rejected"] == result["rows"]


FOUND = [  # what a longer run found once: format, what in its sample, turned into what
    ("log:vllm_log", b"prompt_token_ids: [", b"prompt_token_ids: [2 9, "),
    ("log:servegen", b",", b"\r,"),
    ("met:metrics_csv", b",", b"\r,"),
    ("met:scrapes", b'"ts": ', b'"ts": 1e999, "was": '),
    ("met:scrapes", b'"instance": ', b'"instance": [1], "was": '),
    ("met:victoriametrics", b'"timestamps": [', b'"timestamps": [1e999, '),
    ("met:otlp_metrics", b'"timeUnixNano": ', b'"timeUnixNano": 1e999, "was": '),
]


@pytest.mark.parametrize(("which", "old", "new"), FOUND, ids=lambda value: value if isinstance(value, str) else "")
def test_what_the_fuzzer_found(which: str, old: bytes, new: bytes, tmp_path: Path) -> None:
    db = Workspace.open(":memory:")
    kind, name = which.split(":")
    text = b""
    if kind == "log":
        for sample in (sample for sample in SAMPLES if sample.name == name):
            for other, beside in sample.beside.items():
                (tmp_path / other).write_text(beside)
            path = tmp_path / sample.file
            text = sample.text.encode()
            path.write_bytes(text.replace(old, new))
            result = ingest_logs([path], db=db, format=name, **sample.options)["files"][0]
            assert result["taken"] + result["rejected"] == result["rows"]
            break
    else:
        file, text = SHAPED[name][0], SHAPED[name][1].encode()
        path = tmp_path / file
        path.write_bytes(text.replace(old, new))
        try:
            result = ingest_metrics([path], db=db, at=T0, year=2025, format=name)["files"][0]
            assert result["taken"] + result["rejected"] == result["rows"]
        except TfanalyzeError as error:
            assert "\n" not in str(error)
    assert old in text, "the sample has what is turned"


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 1e300, "1e999", "9" * 40])
def test_no_time_is_made_of_what_is_none(value: object) -> None:
    assert number_us(value) is None


def test_an_error_stays_one_line() -> None:
    assert str(TfanalyzeError("is\nodd", "a\r\nb", "mend\n it")) == "a b: is odd; mend it"
