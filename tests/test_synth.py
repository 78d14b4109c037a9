"""Synthetic traces: the statistics they promise come out, and the file says the same as the trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfanalyze.errors import ConfigError
from tfanalyze.synth import CLIENT_CV, KINDS, synth
from tfanalyze.trace import COLUMNS, Trace, read_trace, trace_hash

RATE = 12.0
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def long() -> Trace:
    return synth(seconds=3600, rate=RATE, seed=5)


def of(trace: Trace, name: str) -> np.ndarray:
    return np.flatnonzero(trace.slo_class == trace.classes.index(name))


def reuse_share(trace: Trace, rows: np.ndarray) -> float:
    """Share of prompt blocks that an earlier request of the class had."""
    seen: set[int] = set()
    hits = total = 0
    for r in rows:
        ids = trace.block_id[trace.block_off[r] :][: trace.input_tokens[r] // trace.block_size].tolist()
        hits += sum(b in seen for b in ids)
        total += len(ids)
        seen.update(ids)
    return hits / total


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_lengths_and_shares_are_the_published_ones(long: Trace, kind: object) -> None:
    rows = of(long, kind.name)
    assert len(rows) == round(kind.share * RATE * 3600)
    for column, table in ((long.input_tokens, kind.input_tokens), (long.output_tokens, kind.output_tokens)):
        p50, p90, p99 = np.percentile(column[rows], [50, 90, 99])
        assert p50 == pytest.approx(table[1], rel=0.12)
        assert p90 == pytest.approx(table[2], rel=0.12)
        assert p99 == pytest.approx(table[3], rel=0.25)


def test_long_context_reuses_prefixes_as_mooncake_does(long: Trace) -> None:
    assert reuse_share(long, of(long, "long_context")) == pytest.approx(0.366, abs=0.06)


def test_arrivals_are_bursty_and_clients_unequal(long: Trace) -> None:
    offline = np.diff(long.arrival_s[of(long, "offline")])
    assert offline.std() / offline.mean() > 5  # Azure code: 13
    counts = np.sort(np.bincount(long.tenant))[::-1]
    assert counts[:4].sum() / counts.sum() > 0.4
    busiest = of(long, "interactive")
    starts = long.arrival_s[busiest[(long.tenant[busiest] == np.argmax(np.bincount(long.tenant))) & (long.prev[busiest] < 0)]]
    gaps = np.diff(starts)
    assert CLIENT_CV / 2 < gaps.std() / gaps.mean() < CLIENT_CV * 1.5


def test_sites_swing_out_of_phase(long: Trace) -> None:
    counts = np.array([np.histogram(long.arrival_s[long.tenant % 2 == s], 8, (0, 3600))[0] for s in (0, 1)])
    assert np.corrcoef(counts)[0, 1] < 0.5
    assert (long.arrival_s < 3600).all()


def test_a_turn_begins_with_all_that_was_said(long: Trace) -> None:
    for r in np.flatnonzero(long.prev >= 0)[:500]:
        p = long.prev[r]
        assert long.tenant[r] == long.tenant[p] and long.input_tokens[r] > long.input_tokens[p] + long.output_tokens[p]
        before = long.block_id[long.block_off[p] : long.block_off[p + 1]]
        assert np.array_equal(long.block_id[long.block_off[r] :][: len(before)], before)
        assert long.think_s[r] > 0 and long.arrival_s[r] > long.arrival_s[p]
    offline = of(long, "offline")
    assert ((long.deadline_s[offline] >= 600) & (long.deadline_s[offline] <= 3600)).all()


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_the_file_says_what_the_trace_says(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"log{ending}"
    made = synth(path, seconds=120, rate=2, seed=3)
    read = read_trace(path)
    assert read.classes == made.classes and read.start_us == pytest.approx(made.start_us + made.arrival_s[0] * 1e6, abs=2)
    for name in set(COLUMNS) - {"arrival_s", "tenant"}:
        assert np.allclose(getattr(read, name), getattr(made, name), atol=1e-3, equal_nan=True), name
    assert np.allclose(read.arrival_s, made.arrival_s - made.arrival_s[0], atol=1e-5)
    for r in range(len(made)):  # the log holds no answer blocks: the prompt's are the same
        full = made.input_tokens[r] // made.block_size
        assert read.block_off[r + 1] - read.block_off[r] >= full
    assert read.tenants != made.tenants  # pseudonyms


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    first, second = synth(tmp_path / "a.jsonl.zst", seconds=60, rate=2, seed=9), synth(tmp_path / "b.jsonl.zst", seconds=60, rate=2, seed=9)
    assert trace_hash(first) == trace_hash(second) != trace_hash(synth(seconds=60, rate=2, seed=10))
    assert (tmp_path / "a.jsonl.zst").read_bytes() == (tmp_path / "b.jsonl.zst").read_bytes()


def test_the_committed_sample_is_what_its_command_makes(tmp_path: Path) -> None:
    made = tmp_path / "again.jsonl"
    synth(made, seconds=300, rate=2, seed=1, sites=2)
    import zstandard

    kept = (ROOT / "sample_traces" / "synth-two-sites.jsonl.zst").read_bytes()
    assert zstandard.ZstdDecompressor().decompress(kept, max_output_size=1 << 26) == made.read_bytes()


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        synth(seconds=0, rate=1, seed=1)


@pytest.mark.parametrize("run", ["rr-low", "rr-mid", "affinity-mid"])
def test_measured_samples_load(run: str) -> None:
    trace = read_trace(ROOT / "sample_traces" / run / "requests.jsonl.zst")
    assert len(trace) > 50 and trace.observed is not None and trace.block_size > 0
    assert trace.instances == ("i0", "i1") and set(trace.classes) == {"interactive", "long_context", "offline"}
