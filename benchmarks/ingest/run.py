"""Ingest against bare DuckDB reading the same file into a table, and polars and pandas doing the same mapping.

    python benchmarks/ingest/run.py [--rows 1000000] [--kinds jsonl csv parquet] [--repeat 3] [--folder /tmp]

Writes RESULTS.md next to itself, from this run and what ingest-bench.json in the folder holds of earlier ones. The files
are generated, one format at a time, and removed. Each measurement is a process of its own: seconds include opening and
closing. Bare DuckDB keeps the file's order and uses all cores, as tfanalyze does: both are its defaults.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

KINDS = {"jsonl": "gateway log", "csv": "Azure trace", "parquet": "mapped Parquet"}
MAPPING = {
    "request_id": "request_id", "arrival": "arrival", "instance": "instance", "session_id": "session_id", "slo_class": "slo_class",
    "input_tokens": "prompt_tokens", "cached_tokens": "cached_tokens", "output_tokens": "completion_tokens", "max_tokens": "max_tokens",
    "ttft_ms": "ttft_ms", "e2e_ms": "e2e_ms", "status": "status",
}  # fmt: skip
MAKE = """SELECT 'r' || i AS request_id, 1796093009.0 + i * 0.01 AS arrival, 'i' || (i % 8) AS instance, 's' || (i // 5) AS session_id,
 (i % 5)::INTEGER AS turn, 'interactive' AS slo_class, 100 + (hash(i) % 4000)::INTEGER AS prompt_tokens, 64 AS cached_tokens,
 (hash(i + 1) % 400)::INTEGER + 1 AS completion_tokens, 512 AS max_tokens, 100.0 + (i % 1000) AS ttft_ms, 2000.0 + (i % 1000) AS e2e_ms,
 'ok' AS status FROM range({rows}) t(i)"""
AZURE = """SELECT strftime(TIMESTAMP '2026-01-01' + INTERVAL (i * 10) MILLISECOND, '%Y-%m-%d %H:%M:%S.%f0') AS "TIMESTAMP",
 100 + (hash(i) % 4000)::INTEGER AS "ContextTokens", (hash(i + 1) % 400)::INTEGER + 1 AS "GeneratedTokens" FROM range({rows}) t(i)"""
PANDAS_JSON_ROWS = 2_000_000  # it takes about 3 GB a million rows
READERS = {"jsonl": "read_json('{path}')", "csv": "read_csv('{path}')", "parquet": "read_parquet('{path}')"}


def make(kind: str, rows: int, folder: Path) -> Path:
    import duckdb

    path = folder / f"ingest-bench-{rows}.{kind}"
    if not path.exists():
        query = (AZURE if kind == "csv" else MAKE).format(rows=rows)
        form = {"jsonl": "json", "csv": "csv, HEADER", "parquet": "parquet"}[kind]
        duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT {form})")
    return path


def duckdb_bare(kind: str, path: Path, db: Path) -> None:
    import duckdb

    with duckdb.connect(str(db)) as con:
        con.execute(f"CREATE TABLE requests AS FROM {READERS[kind].format(path=path)}")


def tfanalyze(kind: str, path: Path, db: Path) -> None:
    from tfanalyze.ingest import ingest_logs

    options = {"mapping": MAPPING} if kind == "parquet" else {}
    totals = ingest_logs([path], db=db, **options)["totals"]
    assert totals["rejected"] == 0, totals


def polars(kind: str, path: Path, db: Path) -> None:
    import polars as pl

    frame = {"jsonl": pl.scan_ndjson, "csv": pl.scan_csv, "parquet": pl.scan_parquet}[kind](path)
    if kind == "csv":
        frame = frame.select(
            pl.col("TIMESTAMP").str.to_datetime("%Y-%m-%d %H:%M:%S%.f").dt.epoch("us").alias("arrival_us"),
            pl.col("ContextTokens").alias("input_tokens"), pl.col("GeneratedTokens").alias("output_tokens"),
        )  # fmt: skip
    else:
        frame = frame.select(
            "request_id", (pl.col("arrival") * 1e6).round().cast(pl.Int64).alias("arrival_us"), "instance", "session_id", "slo_class",
            pl.col("prompt_tokens").alias("input_tokens"), "cached_tokens", pl.col("completion_tokens").alias("output_tokens"), "max_tokens",
            (pl.col("ttft_ms") * 1e3).round().cast(pl.Int64).alias("ttft_us"), (pl.col("e2e_ms") * 1e3).round().cast(pl.Int64).alias("e2e_us"),
            "status",
        )  # fmt: skip
    frame.collect().write_parquet(db)


def pandas(kind: str, path: Path, db: Path) -> None:
    import pandas as pd

    frame = pd.read_csv(path) if kind == "csv" else pd.read_json(path, lines=True) if kind == "jsonl" else pd.read_parquet(path)
    if kind == "csv":
        frame["arrival_us"] = pd.to_datetime(frame.pop("TIMESTAMP")).dt.as_unit("us").astype("int64")
    else:
        frame["arrival_us"] = (frame.pop("arrival").astype("float64") * 1e6).round().astype("int64")
    frame.to_pickle(db)


TOOLS = {"duckdb": duckdb_bare, "tfanalyze": tfanalyze, "polars": polars, "pandas": pandas}


def one(tool: str, kind: str, path: Path, db: Path) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak MiB of one run in a process of its own."""
    for left in db.parent.glob(db.name + "*"):
        left.unlink() if left.is_file() else None
    command = [sys.executable, __file__, "--one", tool, kind, str(path), str(db)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, cpu, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, cpu, peak


def run_one(tool: str, kind: str, path: str, db: str) -> None:
    import resource
    import time

    for module in ("duckdb", "polars") if tool != "pandas" else ("pandas",):
        importlib.import_module(module)
    start, used = time.perf_counter(), time.process_time()
    TOOLS[tool](kind, Path(path), Path(db))
    print(json.dumps([time.perf_counter() - start, time.process_time() - used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def measured(kind: str, rows: int, repeat: int, folder: Path) -> dict[str, Any]:
    """Best seconds and CPU seconds, highest peak of each tool on one generated file."""
    tools = [tool for tool in TOOLS if tool in ("tfanalyze", "duckdb") or importlib.util.find_spec(tool)]
    if kind == "jsonl" and rows > PANDAS_JSON_ROWS:
        tools = [tool for tool in tools if tool != "pandas"]
    path, db = make(kind, rows, folder), folder / "ingest-bench.db"
    best: dict[str, tuple[float, float, float]] = {}
    for _ in range(repeat):  # interleaved, so that a busy moment hits all tools alike
        for tool in tools:
            seconds, cpu, peak = one(tool, kind, path, db)
            old = best.get(tool, (float("inf"), float("inf"), 0.0))
            best[tool] = (min(old[0], seconds), min(old[1], cpu), max(old[2], peak))
    size = path.stat().st_size
    for left in (path, *folder.glob(db.name + "*")):
        left.unlink()
    return {"kind": kind, "rows": rows, "repeat": repeat, "bytes": size, "best": best}


def table(results: list[dict[str, Any]]) -> str:
    lines = ["| file | tool | best s | rows/s | times bare DuckDB | CPU s | times its CPU | peak MiB |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for result in results:
        best = result["best"]
        for tool, (seconds, cpu, peak) in best.items():
            ratio, cpu_ratio = seconds / best["duckdb"][0], cpu / best["duckdb"][1]
            what = f"{KINDS[result['kind']]} ({result['bytes'] / 1e6:,.0f} MB)"
            lines.append(f"| {what} | {tool} | {seconds:.2f} | {result['rows'] / seconds:,.0f} | {ratio:.2f} | {cpu:.2f} | {cpu_ratio:.2f} | {peak:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--one", nargs=4)
    args = parser.parse_args()
    if args.one:
        run_one(*args.one)
        return
    import duckdb

    kept = args.folder / "ingest-bench.json"
    known = {(r["rows"], r["kind"]): r for r in (json.loads(kept.read_text()) if kept.exists() else [])}
    for kind in args.kinds:
        known[args.rows, kind] = measured(kind, args.rows, args.repeat, args.folder)
        kept.write_text(json.dumps(list(known.values())))
    here = Path(__file__)
    text = f"# Ingest speed\n\n{os.cpu_count()} cores, Python {platform.python_version()}, DuckDB {duckdb.__version__}.\n{here.with_name('NOTES.md').read_text()}"
    for rows in sorted({rows for rows, _ in known}, reverse=True):
        results = [known[rows, kind] for kind in KINDS if (rows, kind) in known]
        text += f"\n## {rows:,} rows, best of {min(r['repeat'] for r in results)} interleaved runs\n\n{table(results)}\n"
    here.with_name("RESULTS.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
