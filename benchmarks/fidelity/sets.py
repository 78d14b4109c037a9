"""The real sets of the fidelity benchmark, brought into workspaces through the ordinary ingest (gateway JSON lines)."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfanalyze.config import EngineLimits, Fleet, Pool
from tfanalyze.ingest import ingest_logs
from tfanalyze.models.latency import Rows, rows_from_steps
from tfanalyze.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]


def data_dir() -> Path:
    return Path(os.environ.get("TFANALYZE_DATA", ROOT / ".." / "shared" / "data")).resolve()


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run: a workspace in memory and the fleet that it ran on."""

    name: str
    workspace: Workspace
    fleet: Fleet | None  # None: as the log shows it
    counted_hit_share: float | None = None  # by the engine's own counters


def _workspace(rows: Iterable[dict[str, Any]]) -> Workspace:
    workspace = Workspace.open(":memory:")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        ingest_logs([path], db=workspace, format="gateway")
    return workspace


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def llamacpp(name: str) -> Run:
    """Two llama.cpp servers, measured by us; README there."""
    workspace = Workspace.open(":memory:")
    folder = data_dir() / "llamacpp_two_instances" / name
    ingest_logs([folder / "requests.jsonl"], db=workspace)
    try:
        from tfanalyze.ingest import ingest_metrics

        ingest_metrics(sorted(folder.glob("metrics-*.prom.jsonl")), db=workspace)
    except ImportError:
        pass
    return Run(name, workspace, None)


SWEEP = "inferencex/llama70b_fp4_b200_sweep"
SWEEP_LIMITS = EngineLimits(kv_tokens=782_160, block_size=16, max_num_batched_tokens=8192, async_scheduling=True)  # server.log of each run


def sweep(*names: str) -> Run:
    """Runs of the InferenceX sweep, each as a pool of one: vLLM 0.15, Llama-3.3-70B FP4, B200.

    N clients in closed loop, each sends its next turn when the answer is there. All pools share one profile.
    """
    rows: list[dict[str, Any]] = []
    pools: list[Pool] = []
    hits = queries = 0.0
    for name in names:
        folder = data_dir() / SWEEP / name
        rows += _sweep_rows(folder, name)
        server = _read_csv(folder, "metrics_server_metrics.csv")
        queries += float(server[-1]["prefix_cache_queries"]) - float(server[0]["prefix_cache_queries"])
        hits += float(server[-1]["prefix_cache_hits"]) - float(server[0]["prefix_cache_hits"])
        limits = replace(SWEEP_LIMITS, max_num_seqs=int(name.split("_bs")[1].split("_")[0]), kv_tokens=_kv_tokens(folder))
        pools.append(Pool(name, engine=limits, profile="b200"))
    return Run("+".join(names), _workspace(rows), Fleet(tuple(pools)), hits / queries if queries else None)


def _sweep_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    rows = sorted(_read_csv(folder, "metrics_client_metrics.csv"), key=lambda r: float(r["start_time_ms"]))
    origin_ms = float(rows[0]["start_time_ms"])
    turns: dict[str, int] = {}
    out = []
    for i, r in enumerate(rows):
        client, conversation = r["client_id"], r["conversation_id"]
        turns[client] = turns.get(client, -1) + 1
        tokens, made = max(int(float(r["input_num_tokens"])), 1), max(int(float(r["output_num_tokens"])), 1)
        out.append(
            {
                "request_id": f"{name}-{i}", "arrival_us": round(1.7e15 + (float(r["start_time_ms"]) - origin_ms) * 1e3),
                "instance": name, "session_id": f"{name}-{client}", "turn": turns[client], "input_tokens": tokens,
                "output_tokens": made, "ttft_us": round(float(r["ttft_ms"]) * 1e3), "e2e_us": round(float(r["latency_ms"]) * 1e3),
                "status": "ok", "slo_class": "interactive", "block_size": 16,
                "blocks": [_hash(conversation, j) for j in range(tokens // 16)],
            }
        )  # fmt: skip
    return out


def sweep_raw(name: str) -> Workspace:
    """The client and server files of one sweep run as the ordinary ingest takes them, no configuration."""
    from tfanalyze.ingest import ingest_metrics

    folder = data_dir() / SWEEP / name
    workspace = Workspace.open(":memory:")
    ingest_logs(sorted(folder.glob("metrics_client_metrics.csv*")), db=workspace)
    ingest_metrics(sorted(folder.glob("metrics_server_metrics.csv*")), db=workspace)
    return workspace


def blis_steps(model: str) -> Rows:
    """Step samples of BLIS (inference-sim, Apache-2.0): vLLM on H100; cycle times below 3 ms are artefacts of matching."""
    import polars as pl

    steps = pl.read_parquet(data_dir() / "blis" / "steps" / "enriched_steps.parquet")
    steps = steps.filter((pl.col("model") == model) & (pl.col("cycle_time_us") > 3000)).sort("step.ts_start_ns")
    column = {name: steps[name].to_numpy().astype(float) for name in steps.columns if steps[name].dtype.is_numeric()}
    prefill, seqs = column["batch.prefill_tokens"], column["batch.decode_tokens"]
    kv_tokens = 16.0 * (column["kv.blocks_total_gpu"] - column["kv.blocks_free_gpu"])
    at_s = (column["step.ts_start_ns"] - column["step.ts_start_ns"].min()) * 1e-9
    return rows_from_steps(prefill, prefill * (prefill + 1) / 2, seqs, kv_tokens, column["cycle_time_us"] * 1e-6, at_s)


def _kv_tokens(folder: Path) -> int:
    """KV cache size as the server logged it; TP8 of the same model where the log is missing."""
    for path in folder.glob("server*.log*"):
        opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", errors="replace") as lines:
            for line in lines:
                if "GPU KV cache size:" in line:
                    return int(line.split("GPU KV cache size:")[1].split("tokens")[0].replace(",", ""))
    return SWEEP_LIMITS.kv_tokens * 10


def _read_csv(folder: Path, name: str) -> list[dict[str, str]]:
    path = next(p for p in (folder / name, folder / f"{name}.gz") if p.is_file())
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as lines:
        return list(csv.DictReader(lines))


LSS = "llmservingsim/bench"


def llmservingsim(name: str, blocks: str = "sharegpt-llama-3.1-8b-300-sps10.stripped.jsonl") -> Run:
    """One vLLM 0.19 run with scheduler stamps; Poisson arrivals for 29 s, then drain."""
    folder = data_dir() / LSS / name / "vllm"
    meta = json.loads((folder / "meta.json").read_text())
    kwargs = meta["engine_kwargs"]
    chains = {}
    path = data_dir() / "llmservingsim" / "workloads" / blocks
    if "Llama" in name and path.is_file():
        for i, line in enumerate(path.read_text().splitlines()):
            row = json.loads(line)
            chains[row.get("request_id", f"bench-{i}")] = row["prefix_chain_hashes"]
    out = []
    for r in map(json.loads, (folder / "requests.jsonl").read_text().splitlines()):
        row = {
            "request_id": r["request_id"], "arrival_us": round(1.7e15 + r["queued_ts"] * 1e6), "instance": "pool",
            "input_tokens": r["input_toks"], "output_tokens": r["output_toks"], "status": "ok", "slo_class": "interactive",
            "queue_us": round((r["scheduled_ts"] - r["queued_ts"]) * 1e6), "ttft_us": round((r["first_token_ts"] - r["queued_ts"]) * 1e6),
            "e2e_us": round((r["last_token_ts"] - r["queued_ts"]) * 1e6),
        }  # fmt: skip
        if r["request_id"] in chains:
            row |= {"blocks": [_hash(h) for h in chains[r["request_id"]]][: r["input_toks"] // 16], "block_size": 16}
        out.append(row)
    copies = int(kwargs.get("data_parallel_size", 1))
    kv_tokens = (meta.get("kv_cache") or {}).get("num_kv_tokens") or 10_000_000
    limits = EngineLimits(
        max_num_seqs=kwargs["max_num_seqs"] * copies, max_num_batched_tokens=kwargs["max_num_batched_tokens"] * copies, kv_tokens=kv_tokens,
        async_scheduling=bool(meta.get("resolved_config", {}).get("scheduler_config", {}).get("async_scheduling", False)),
    )
    return Run(name, _workspace(out), Fleet((Pool("pool", engine=limits),)))
