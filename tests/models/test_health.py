"""Health: what is wrong is found and named, what is right is not."""

from __future__ import annotations

import numpy as np

from tests.models import truth
from tests.models.test_latency import steps
from tfanalyze.models import fit
from tfanalyze.models.health import coverage, residual_health
from tfanalyze.models.kv import capacity_from_metrics, counter_growth, pressure
from tfanalyze.models.latency import Rows
from tfanalyze.models.observe import observe
from tfanalyze.workspace import Workspace

ORIGIN = 1_700_000_000_000_000


def metric(workspace: Workspace, name: str, values: list[float], instance: str = "pool", labels: str = "MAP {}") -> None:
    rows = ", ".join(f"({ORIGIN + i * 1_000_000}, '{instance}', '{name}', {labels}, {value!r})" for i, value in enumerate(values))
    workspace.con.execute(f"INSERT INTO metrics(ts_us, instance, name, labels, value) VALUES {rows}")


def test_a_steady_run_is_healthy_and_a_slowdown_is_found_with_its_time() -> None:
    rows = steps(n=800, noise=0.05)
    rng = np.random.default_rng(1)
    residuals = rng.normal(0, 0.03, len(rows))
    assert residual_health(rows, residuals, ("a",)) == []
    slowed = residuals - np.where(rows.at_s > 500, 0.3, 0.0)
    kinds = {f["kind"]: f for f in residual_health(rows, slowed, ("a",))}
    assert set(kinds) == {"drift", "change_point"}
    assert 450 < kinds["change_point"]["time_s"] < 550
    assert "slower" in kinds["change_point"]["text"]


def test_the_slow_instance_is_named() -> None:
    rows = steps(n=600, noise=0.05)
    rows.instance[::3] = 1
    rows.instance[1::3] = 2
    residuals = np.random.default_rng(1).normal(0, 0.02, 600) - np.where(rows.instance == 2, 0.25, 0.0)
    (found,) = [f for f in residual_health(rows, residuals, ("a", "b", "c")) if f["kind"] == "outlier_instance"]
    assert found["instance"] == "c"
    assert "slower" in found["text"]


def test_instances_that_slow_each_other_down_are_told_from_a_machine_that_drifts() -> None:
    rng = np.random.default_rng(4)
    n = 1200
    at_s, span = np.sort(rng.uniform(0, 1200, n)), rng.uniform(1.0, 4.0, n)
    at_s = np.where((at_s // 20) % 2 == 0, at_s, at_s - 20.0 * (rng.random(n) < 0.7))  # busy and quiet spells in turn
    instance = rng.integers(0, 2, n)
    rows = Rows(np.ones((n, steps(n=1).work.shape[1])), span, at_s, instance.astype(np.int64), np.ones(n, np.int8))
    edges = [(at_s[instance == i], (at_s + span)[instance == i]) for i in (0, 1)]
    middle = at_s + span / 2
    other = np.array([((edges[1 - i][0] <= m) & (edges[1 - i][1] > m)).any() for i, m in zip(instance, middle, strict=True)])
    noise = rng.normal(0, 0.05, n)
    slowed = residual_health(rows, noise - 0.3 * other, ("a", "b"))
    (found,) = [f for f in slowed if f["kind"] == "contention"]
    assert 0.1 < found["slowdown"] < 0.4 and found["low"] > 0
    drifting = residual_health(rows, noise - 0.4 * (at_s > 600), ("a", "b"))
    assert "contention" not in {f["kind"] for f in drifting}


def test_a_second_client_shows_in_the_counters() -> None:
    workspace = truth.made(n=100)
    log = observe(workspace).log
    total = float(log.output_tokens.sum())
    metric(workspace, "generation_tokens_total", [0.0, total / 2, total])
    assert coverage(workspace, "gateway") == []
    workspace.con.execute("DELETE FROM metrics")
    metric(workspace, "generation_tokens_total", [0.0, total, 1.9 * total])
    (found,) = coverage(workspace, "gateway")
    assert "another client" in found["text"]
    assert fit(workspace, calibrate=False, draws=5).report["health"]


def test_counters_survive_a_restart() -> None:
    workspace = Workspace.open(":memory:")
    metric(workspace, "preemptions_total", [5.0, 9.0, 2.0, 4.0])
    assert counter_growth(workspace, "preemptions_total") == {"pool": 8.0}
    assert pressure(workspace)["preemptions"] == 8


def test_capacity_is_read_from_the_engines_own_words() -> None:
    workspace = Workspace.open(":memory:")
    assert capacity_from_metrics(workspace) == (None, None)
    metric(workspace, "kv_config", [1.0], labels="MAP {'num_gpu_blocks': '2588', 'block_size': '16'}")
    assert capacity_from_metrics(workspace) == (41_408, 16)


def test_metrics_alone_give_the_step_times() -> None:
    """Scrapes every second of an engine whose steps are known exactly."""
    rng = np.random.default_rng(1)
    workspace = Workspace.open(":memory:")
    made = computed = finished = 0.0
    columns: dict[str, list[float]] = {"running": [], "generation_tokens_total": [], "computed_prompt_tokens_total": [], "requests_finished_total": [], "kv_usage": []}
    seqs, use = 10.0, 0.1
    for _ in range(120):
        seqs = float(np.clip(seqs + rng.integers(-3, 4), 2, 60))
        use = float(np.clip(use + rng.normal(0, 0.03), 0.02, 0.9))
        prompts = float(rng.integers(0, 4000))
        step_s = 0.01 + 1e-4 * seqs + 5e-8 * use * 400_000
        steps = (1.0 - 5e-5 * prompts) / step_s
        made += steps * seqs
        computed += prompts
        finished += float(rng.poisson(3))
        for name, value in zip(columns, (seqs, made, computed, finished, use), strict=True):
            columns[name].append(value)
    for name, values in columns.items():
        metric(workspace, name, values)
    result = fit(workspace, draws=20)
    profile = result.profiles["pool"]
    step_s = profile.step.c0_s + 30 * profile.step.c_seq_s + 100_000 * profile.step.c_kv_s
    assert abs(step_s / (0.01 + 30e-4 + 5e-3) - 1) < 0.1
    assert abs(profile.step.c_prefill_s / 5e-5 - 1) < 0.25
    assert profile.facts["sources"] == "engine metrics alone"
