"""Speed and size of the replay core, beside NVIDIA Dynamo's offline replay where that is installed.

    python benchmarks/replay/run.py [--quick] [--dynamo-python PATH]

Needs the public Mooncake conversation trace under $TFANALYZE_DATA/mooncake.  Dynamo 1.6.1 installs in a venv of its own with
``pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1`` and ``pip install typing_extensions pydantic uvloop msgspec``;
give its interpreter as --dynamo-python.  Each size runs in a process of its own, so that its memory is its own.
Prints a table and rewrites RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = Path(os.environ.get("TFANALYZE_DATA", ROOT / ".." / "shared" / "data")).resolve()
TRACE = DATA / "mooncake" / "conversation_trace.jsonl"
KV_TOKENS, BLOCK = 433_000, 64


def fleet_of(instances: int) -> Any:
    from tfanalyze.config import EngineLimits, Fleet, Pool

    return Fleet((Pool("p", count=instances, engine=EngineLimits(kv_tokens=KV_TOKENS, block_size=BLOCK)),))


def one(kind: str, instances: int, copies: int, policy: str, repeats: int) -> dict[str, Any]:
    """One row of the table, measured in this process."""
    import resource

    from tfanalyze.config import SloClass
    from tfanalyze.models import load_profile
    from tfanalyze.replay import Simulator
    from tfanalyze.replay.policies import load_policy
    from tfanalyze.trace import read_trace, scale_load, stitch

    trace = read_trace(TRACE)
    small = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = stitch(trace, copies) if kind == "stitched" else scale_load(trace, copies, seed=1)
    began = time.perf_counter()
    simulator = Simulator(trace, fleet_of(instances), load_profile("h100-llama3.1-8b"), (SloClass("interactive"),))
    policies = load_policy(policy)
    prepare_s = time.perf_counter() - began
    kernel_s = []
    for _ in range(repeats + 1):
        outcome = simulator.run(policies)
        kernel_s.append(outcome.kernel_s)
    best = min(kernel_s[1:] or kernel_s)
    blocks = len(trace.block_id)
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - small) * 1024
    return {
        "workload": kind, "instances": instances, "requests": len(trace), "policy": policy, "prepare_s": prepare_s,
        "kernel_s": best, "req_s": len(trace) / best, "us_per_request": 1e6 * best / len(trace), "blocks": blocks,
        "bytes_per_request": used / len(trace), "bytes_allowed": 200 + 8 * blocks / len(trace),
        "steps": outcome.counters["steps"], "outcome_hash": outcome.outcome_hash,
    }  # fmt: skip


def two_threads() -> dict[str, Any]:
    """Wall time of the same replays in one thread and in two."""
    from concurrent.futures import ThreadPoolExecutor

    from tfanalyze.config import SloClass
    from tfanalyze.models import load_profile
    from tfanalyze.replay import Simulator
    from tfanalyze.replay.policies import load_policy
    from tfanalyze.trace import read_trace

    simulator = Simulator(read_trace(TRACE), fleet_of(16), load_profile("h100-llama3.1-8b"), (SloClass("interactive"),))
    policies = load_policy("prefix_affinity")
    simulator.run(policies)
    wall = {}
    for threads in (1, 2):
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda seed: simulator.run(policies, seed), range(threads)))
            began = time.perf_counter()
            hashes = [o.outcome_hash for o in pool.map(lambda _: simulator.run(policies, 1), range(40))]
            wall[threads] = time.perf_counter() - began
        assert len(set(hashes)) == 1, "threads changed the outcome"
    return {"one_thread_s": wall[1], "two_threads_s": wall[2], "speedup": wall[1] / wall[2]}


def dynamo(python: str, workers: int, mode: str) -> dict[str, Any]:
    """The same trace in Dynamo 1.6.1's own replay: whole call, as its users wait for it."""
    done = subprocess.run(
        [python, str(HERE / "dynamo_replay.py"), str(TRACE), str(workers), mode],
        capture_output=True, text=True, env=os.environ | {"DYN_LOG": "error"}, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measured(*arguments: Any) -> dict[str, Any]:
    """``one`` or ``two_threads`` in a fresh process."""
    done = subprocess.run([sys.executable, __file__, "--child", *map(str, arguments)], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def table(rows: list[dict[str, Any]], threads: dict[str, Any], peers: list[tuple[str, dict[str, Any]]]) -> str:
    lines = [
        "| workload | instances | requests | policy | kernel s | requests/s | us a request | bytes a request (allowed) | prepare s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        size = f"{r['bytes_per_request']:.0f} ({r['bytes_allowed']:.0f})" if r["requests"] >= 1_000_000 else "-"
        lines.append(
            f"| {r['workload']} | {r['instances']} | {r['requests']:,} | {r['policy']} | {r['kernel_s']:.3f} | {r['req_s']:,.0f} "
            f"| {r['us_per_request']:.2f} | {size} | {r['prepare_s']:.1f} |"
        )
    lines += ["", f"Two threads give {threads['speedup']:.2f} times the replays of one (40 replays: {threads['one_thread_s']:.2f} s and {threads['two_threads_s']:.2f} s)."]
    ours = {r["policy"]: r for r in rows if r["instances"] == 16 and r["requests"] < 20_000}
    for label, peer in peers:
        if "error" in peer:
            lines.append(f"Dynamo 1.6.1, {label}: {peer['error']}")
            continue
        mine = ours["prefix_affinity" if "kv" in label else "round_robin"]
        lines.append(
            f"Dynamo 1.6.1, {label}, same run: {peer['wall_s']:.2f} s, {peer['requests'] / peer['wall_s']:,.0f} requests/s; "
            f"ours is {mine['req_s'] * peer['wall_s'] / peer['requests']:,.0f} times as fast (kernel after compilation against its whole call)."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only, RESULTS.md stays")
    parser.add_argument("--dynamo-python", default="")
    parser.add_argument("--child", nargs="*")
    args = parser.parse_args()
    if args.child:
        name, *rest = args.child
        result = two_threads() if name == "threads" else one(name, int(rest[0]), int(rest[1]), rest[2], int(rest[3]))
        print(json.dumps(result))
        return
    if not TRACE.is_file():
        print(f"no trace at {TRACE}: set TFANALYZE_DATA")
        return
    sizes = [("conversation", 16, 1, p, 5) for p in ("round_robin", "prefix_affinity", "tokenpilot", "lmetric")]
    sizes += [("same load an instance", n, k, "prefix_affinity", 3) for n, k in ((4, 1), (16, 4), (64, 16))]
    if not args.quick:
        sizes += [("same load an instance", 256, 64, "prefix_affinity", 2)]
        sizes += [("stitched", 16, k, "prefix_affinity", 0) for k in (10, 84, 832)]
    rows = [measured(*size) for size in sizes]
    threads = measured("threads")
    peers = [(f"16 workers, {m}", dynamo(args.dynamo_python, 16, m)) for m in ("round_robin", "kv_router")] if args.dynamo_python else []
    text = table(rows, threads, peers)
    print(text)
    if not args.quick:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        (HERE / "RESULTS.md").write_text(
            f"# Replay core: speed and size\n\nCommand: `python benchmarks/replay/run.py{' --dynamo-python PATH' if peers else ''}` on {machine}. "
            f"Best of the repeats; the machine is shared, so compare within this table only.\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
