"""Fit the shipped default profiles from published measurements: `python benchmarks/fidelity/defaults.py`.

Sources (in TFANALYZE_DATA; cited in each profile's facts):
- silicon: aiconfigurator silicon_sample.csv (ai-dynamo/aiconfigurator 0.12, Apache-2.0), measured TTFT and TPOT of runs
  in closed loop at a fixed concurrency;
- splitwise: perf_model.csv (Mutinifni/splitwise-sim, MIT), measured batch latencies on A100 and H100;
- grid: step times that aiconfigurator-core 0.12 predicts from its operator database (no end-to-end measurement).
L40S and A100 with an 8B model have no measurement here: they are the H100 profile scaled by the GPUs' published
bandwidth and BF16 rate, and say so.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from sets import data_dir

from tfanalyze.models.latency import COEFFICIENTS, Rows, bootstrap, predict, solve
from tfanalyze.models.profile import Profile, StepTime, to_json, with_coefficients

OUT = Path(__file__).resolve().parents[2] / "tfanalyze" / "models" / "defaults"
NAMES = ("c0_s", "c_prefill_step_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s")
HOST_S = 0.001  # a step's host time that kernel databases leave out: vLLM V1 on H100, lower end of what BLIS #482 reports
REQUEST_S = 0.01  # tokenizer, API server and network of one request: assumed
SPEC = {  # published: memory GB/s, dense BF16 TFLOP/s, memory GB (data sheets of NVIDIA)
    "h100": (3350, 989, 80), "a100": (2039, 312, 80), "l40s": (864, 362, 48), "h200": (4800, 989, 141), "b200": (8000, 2250, 180),
}  # fmt: skip

Step = tuple[float, float, float, float, float, float]  # steps, prefill steps, prefill tokens, attention, seq steps, KV reads


def rows_of(steps: Iterable[Step], seconds: Iterable[float]) -> Rows:
    got = np.array(list(steps), dtype=np.float64)
    n = len(got)
    work = np.zeros((n, len(COEFFICIENTS)))
    for column, name in enumerate(NAMES):
        work[:, COEFFICIENTS.index(name)] = got[:, column]
    order = np.random.default_rng(1).permutation(n)  # "time" for the block bootstrap: shapes in random order
    return Rows(work, np.array(list(seconds)), order.astype(np.float64), np.zeros(n, np.int64), np.full(n, 2, np.int8))


def fit_rows(name: str, gpu: str, model: str, rows: Rows, kv_tokens: int, facts: dict[str, object]) -> Profile:
    late = rows.at_s >= 0.75 * len(rows)
    trial = solve(rows.take(~late), NAMES)
    error = np.abs(predict(rows.take(late), trial.coefficients) / rows.seconds[late] - 1.0)
    fitted = solve(rows, NAMES)
    draws = bootstrap(rows, NAMES, count=100, blocks=20)
    low, high = np.quantile(draws, 0.05, axis=0), np.quantile(draws, 0.95, axis=0)
    value = dict.fromkeys(NAMES, 0.0) | fitted.coefficients
    return Profile(
        name=name, gpu=gpu, model=model, step=with_coefficients(StepTime(c0_s=0.0), {k: _short(v) for k, v in value.items()}),
        request_s=REQUEST_S, kv_tokens=kv_tokens, block_size=16,
        low={k: _short(v) for k, v in zip(NAMES, low, strict=True)}, high={k: _short(v) for k, v in zip(NAMES, high, strict=True)},
        held_out={"step_p50": _short(float(np.median(error))), "step_p90": _short(float(np.quantile(error, 0.9)))},
        facts=facts | {"rows": len(rows), "assumed": f"request_s {REQUEST_S}"},
    )  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def read(*parts: str) -> list[dict[str, str]]:
    with data_dir().joinpath(*parts).open(newline="") as lines:
        return list(csv.DictReader(lines))


def from_grid(name: str, gpu: str, model: str, tp: int, system: str) -> Profile:
    def mine(row: dict[str, str]) -> bool:
        return row["model"] == model and int(row["tp"]) == tp and row["system"] == system and row["backend"] == "vllm"

    steps: list[Step] = []
    seconds: list[float] = []
    for r in filter(mine, read("aiconfigurator_grid", "prefill.csv")):
        b, new, before = float(r["batch"]), float(r["new_tokens_per_req"]), float(r["prefix_tokens"])
        if b * new <= 16_384:
            steps.append((1, 1, b * new, b * (new * before + new * (new + 1) / 2), 0, 0))
            seconds.append(float(r["prefill_ms"]) / 1e3)
    for r in filter(mine, read("aiconfigurator_grid", "decode.csv")):
        b, context = float(r["batch"]), float(r["context_len"])
        steps.append((1, 0, 0, 0, b, b * (context + 1)))
        seconds.append(float(r["decode_step_ms"]) / 1e3)
    for r in filter(mine, read("aiconfigurator_grid", "mixed.csv")):
        p, b, isl, osl = (float(r[key]) for key in ("ctx_tokens", "gen_tokens", "isl", "osl"))
        steps.append((1, 1, p, p * (min(p, isl) + 1) / 2, b, b * (isl + osl / 2)))
        seconds.append(float(r["step_ms"]) / 1e3)
    capacity = next(r for r in read("aiconfigurator_grid", "kv_capacity.csv") if mine(r))
    facts = {"source": "aiconfigurator-core 0.12.0 (Apache-2.0), vLLM operator tables: predictions, not measurements", "tensor_parallel": tp, "host_s_added": HOST_S}
    profile = fit_rows(name, gpu, model, rows_of(steps, seconds), int(float(capacity["kv_tokens"])), facts)
    bound = {which: getattr(profile, which) | {"c0_s": _short(getattr(profile, which)["c0_s"] + HOST_S)} for which in ("low", "high")}
    return replace(profile, step=replace(profile.step, c0_s=_short(profile.step.c0_s + HOST_S)), **bound)


def from_silicon(name: str, gpu: str, model: str, tp: int, system: str, precision: str, kv_tokens: int, backend: str = "vllm") -> Profile:
    """Closed loop at concurrency c: while a request decodes its osl tokens, the others' prompts are computed too."""
    steps: list[Step] = []
    seconds: list[float] = []
    runs = [
        r for r in read("aiconfigurator", "silicon_sample.csv")
        if r["model_path"] == model and r["system"] == system and r["backend"] == backend and r["mode"] == "agg"
        and int(r["tp_size"] or 0) == tp and int(r["pp_size"] or 1) == 1 and int(r["attention_dp_size"] or 1) == 1
        and (r["precision"] or "bf16") == precision and r["silicon_tpot_ms"] and r["silicon_ttft_ms"]
    ]  # fmt: skip
    least: dict[float, float] = {}
    for r in runs:
        least[float(r["isl"])] = min(least.get(float(r["isl"]), np.inf), float(r["batch_size"]))
    for r in runs:
        isl, osl, c = float(r["isl"]), float(r["osl"]), float(r["batch_size"])
        ttft, decode_s = float(r["silicon_ttft_ms"]) / 1e3, (osl - 1) * float(r["silicon_tpot_ms"]) / 1e3
        share = decode_s / (decode_s + ttft)
        if c * (isl + osl / 2) > kv_tokens or osl < 32:
            continue
        prompts = (c - 1) * share  # others' prompts that fall into this request's decode
        steps.append((osl - 1, min(prompts, osl - 1), prompts * isl, prompts * isl * (isl + 1) / 2, (osl - 1) * c * share, (osl - 1) * c * share * (isl + osl / 2)))
        seconds.append(decode_s)
        if c == least[isl]:  # little queues there
            steps.append((1, 1, isl, isl * (isl + 1) / 2, c - 1, (c - 1) * (isl + osl / 2)))
            seconds.append(max(ttft - REQUEST_S, 1e-3))
    facts = {"source": "aiconfigurator silicon_sample.csv (ai-dynamo/aiconfigurator, Apache-2.0): measured medians, closed loop", "engine": backend, "precision": precision, "tensor_parallel": tp, "runs": len(runs)}
    return fit_rows(name, gpu, model, rows_of(steps, seconds), kv_tokens, facts)


def from_splitwise(name: str, gpu: str, model: str, tp: int, hardware: str, kv_tokens: int) -> Profile:
    steps: list[Step] = []
    seconds: list[float] = []
    for r in read("splitwise", "perf_model.csv"):
        if r["model"] != model or r["hardware"] != hardware or int(r["tensor_parallel"]) != tp:
            continue
        b, prompt, made = float(r["batch_size"]), float(r["prompt_size"]), float(r["token_size"])
        steps.append((1, 1, b * prompt, b * prompt * (prompt + 1) / 2, 0, 0))
        seconds.append(float(r["prompt_time"]) / 1e3)
        steps.append((1, 0, 0, 0, b, b * (prompt + made / 2)))
        seconds.append(float(r["token_time"]) / 1e3)
    facts = {"source": "splitwise-sim data/perf_model.csv (Mutinifni/splitwise-sim 8f99e7d, MIT): measured batches", "tensor_parallel": tp}
    return fit_rows(name, gpu, model, rows_of(steps, seconds), kv_tokens, facts)


def scaled(profile: Profile, name: str, gpu: str) -> Profile:
    """By the GPUs' data sheets: memory-bound terms by bandwidth, compute-bound by BF16 rate; 35 % either way."""
    (band, rate, memory), (band0, rate0, memory0) = SPEC[gpu], SPEC[profile.gpu]
    factor = {"c0_s": band0 / band, "c_prefill_step_s": 1.0, "c_prefill_s": rate0 / rate, "c_attn_s": rate0 / rate, "c_seq_s": rate0 / rate, "c_kv_s": band0 / band}
    step = {k: _short(getattr(profile.step, k) * factor[k]) for k in NAMES}
    weights_gb = 16.1  # 8.03 billion parameters in BF16
    kv_tokens = int((profile.kv_tokens or 0) * (0.9 * memory - weights_gb) / (0.9 * memory0 - weights_gb))
    return replace(
        profile, name=name, gpu=gpu, step=with_coefficients(profile.step, step), kv_tokens=kv_tokens,
        low={k: _short(v * 0.65) for k, v in step.items()}, high={k: _short(v * 1.35) for k, v in step.items()}, held_out={},
        facts={"source": f"scaled from {profile.name} by memory bandwidth and BF16 rate of the data sheets; not measured", "scaled_from": profile.name},
    )  # fmt: skip


def dense_kv(gpu: str, gpus: int, weights_gb: float, bytes_per_token: int) -> int:
    """KV tokens at 90 % of memory, less weights and 4 GB a GPU of activations and graphs."""
    return int((SPEC[gpu][2] * 0.9 * gpus - weights_gb - 4.0 * gpus) * 1e9 / bytes_per_token)


LLAMA70B_KV = 80 * 8 * 128 * 2 * 2  # layers x KV heads x head size x (K and V) x 2 bytes


def all_profiles() -> list[Profile]:
    small, large = "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B"
    h100 = from_grid("h100-llama3.1-8b", "h100", small, 1, "h100_sxm")
    found = [h100, scaled(h100, "a100-llama3.1-8b", "a100"), scaled(h100, "l40s-llama3.1-8b", "l40s")]
    for gpu in ("h100", "h200"):
        system = f"{gpu}_sxm"
        if gpu == "h200":
            found.append(from_grid("h200-llama3.1-8b", gpu, small, 1, system))
        found.append(from_grid(f"{gpu}-llama3.1-70b-tp4", gpu, large, 4, system))
        found.append(from_grid(f"{gpu}-qwen3-30b-a3b", gpu, "Qwen/Qwen3-30B-A3B", 1, system))
        found.append(from_grid(f"{gpu}-qwen3-32b-tp2", gpu, "Qwen/Qwen3-32B", 2, system))
    model = "meta-llama/Llama-3.1-70B"
    for gpu, tp, precision in (("h200", 2, "fp8"), ("b200", 1, "fp4"), ("b200", 2, "fp8")):
        kv_tokens = dense_kv(gpu, tp, 70.6 * (0.55 if precision == "fp4" else 1.0), LLAMA70B_KV // 2)
        found.append(from_silicon(f"{gpu}-llama3.1-70b-{precision}-tp{tp}", gpu, model, tp, f"{gpu}_sxm", precision, kv_tokens))
    for gpu, hardware in (("a100", "a100-80gb"), ("h100", "h100-80gb")):
        kv_tokens = dense_kv(gpu, 4, 141.0, LLAMA70B_KV)
        found.append(from_splitwise(f"{gpu}-llama2-70b-tp4", gpu, "llama2-70b", 4, hardware, kv_tokens))
    return found


def main() -> None:
    OUT.mkdir(exist_ok=True)
    print(f"{'profile':30} {'rows':>5} {'err p50':>8} {'err p90':>8} {'1 seq ms':>9} {'prefill tok/s':>13} {'KV tokens':>10}")
    for p in all_profiles():
        (OUT / f"{p.name}.json").write_text(json.dumps(to_json(p), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        s = p.step
        decode_ms = 1e3 * (s.c0_s + s.c_seq_s + s.c_kv_s * 1024)
        prefill_s = s.c0_s + s.c_prefill_step_s + s.c_prefill_s * 8192 + s.c_attn_s * 8192 * 8193 / 2
        error = [f"{p.held_out[k]:8.1%}" if k in p.held_out else "       -" for k in ("step_p50", "step_p90")]
        print(f"{p.name:30} {p.facts.get('rows', 0):5} {error[0]} {error[1]} {decode_ms:9.2f} {8192 / prefill_s:13.0f} {p.kv_tokens:10}")


if __name__ == "__main__":
    main()
