"""Regression: exact on exact data, robust, non-negative, honest about what it cannot tell apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfanalyze.models.latency import (
    COEFFICIENTS,
    FORMS,
    Rows,
    bootstrap,
    choose_form,
    identifiability,
    rows_from_steps,
    solve,
)

NAMES = ("c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s")
TRUE = {"c0_s": 0.006, "c_prefill_s": 4e-5, "c_attn_s": 3e-9, "c_seq_s": 1e-4, "c_kv_s": 6e-8}


def steps(n: int = 400, seed: int = 1, noise: float = 0.0, seqs: int | None = None) -> Rows:
    rng = np.random.default_rng(seed)
    p = np.where(rng.random(n) < 0.5, rng.integers(1, 4096, n), 0).astype(float)
    a = p * rng.integers(1, 8000, n)
    b = rng.integers(0, 128, n).astype(float) if seqs is None else np.full(n, float(seqs))
    k = b * rng.integers(100, 8000, n)
    seconds = TRUE["c0_s"] + TRUE["c_prefill_s"] * p + TRUE["c_attn_s"] * a + TRUE["c_seq_s"] * b + TRUE["c_kv_s"] * k
    return rows_from_steps(p, a, b, k, seconds * rng.lognormal(0, noise, n), np.arange(n, dtype=float))


def test_exact_steps_give_exact_coefficients() -> None:
    found = solve(steps(), NAMES).coefficients
    for name, value in TRUE.items():
        assert found[name] == pytest.approx(value, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-3, 1e3))
def test_scaling_seconds_scales_coefficients(factor: float) -> None:
    rows = steps(noise=0.05)
    scaled = Rows(rows.work, rows.seconds * factor, rows.at_s, rows.instance, rows.kind)
    one, other = solve(rows, NAMES).coefficients, solve(scaled, NAMES).coefficients
    for name in one:
        assert other[name] == pytest.approx(one[name] * factor, rel=1e-3, abs=1e-12 * factor)


def test_coefficients_are_never_negative() -> None:
    rng = np.random.default_rng(3)
    rows = steps()
    rows = Rows(rows.work, rng.random(len(rows)) + 0.01, rows.at_s, rows.instance, rows.kind)
    assert min(solve(rows, NAMES).coefficients.values()) >= 0


def test_a_tenth_of_stalled_steps_does_not_move_the_fit() -> None:
    rows = steps(noise=0.02)
    seconds = rows.seconds.copy()
    seconds[::10] *= 20
    found = solve(Rows(rows.work, seconds, rows.at_s, rows.instance, rows.kind), NAMES).coefficients
    for name in ("c0_s", "c_prefill_s", "c_kv_s"):
        assert found[name] == pytest.approx(TRUE[name], rel=0.1)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    inside = total = 0
    for seed in range(12):
        rows = steps(n=300, seed=seed, noise=0.1)
        draws = bootstrap(rows, NAMES, count=60, seed=seed)
        low, high = np.quantile(draws, 0.05, axis=0), np.quantile(draws, 0.95, axis=0)
        inside += int(sum(a <= TRUE[n] <= b for n, a, b in zip(NAMES, low, high, strict=True)))
        total += len(NAMES)
    assert 0.75 <= inside / total <= 1.0


def test_the_shortest_form_that_predicts_as_well_is_chosen() -> None:
    rng = np.random.default_rng(5)
    n = 400
    p, b = np.where(rng.random(n) < 0.5, rng.integers(1, 4096, n), 0).astype(float), rng.integers(1, 64, n).astype(float)
    plain = rows_from_steps(p, p * 100, b, b * 1000 * rng.random(n), 0.01 + 1e-4 * p + 2e-4 * b, np.arange(n, dtype=float))
    assert choose_form(plain)[0].form == next(iter(FORMS))
    table = choose_form(steps(noise=0.01))[1]
    assert table[2]["held_out_relative_error"] < table[0]["held_out_relative_error"] - 0.01


def test_a_constant_batch_cannot_split_step_from_sequence_cost_and_says_so() -> None:
    rows = steps(seqs=32, noise=0.03)
    names = ("c0_s", "c_prefill_s", "c_attn_s", "c_seq_s", "c_kv_s")
    found = identifiability(bootstrap(rows, names, count=60), names, rows)
    touched = {name for item in found for name in item["coefficients"]}
    assert touched & {"c0_s", "c_seq_s"}
    assert all(item["needs"] for item in found)


def test_the_same_input_gives_the_same_draws() -> None:
    rows = steps(noise=0.05)
    assert (bootstrap(rows, NAMES, count=5, seed=7) == bootstrap(rows, NAMES, count=5, seed=7)).all()
    assert len(COEFFICIENTS) == rows.work.shape[1]
