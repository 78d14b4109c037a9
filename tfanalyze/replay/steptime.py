"""Duration of engine steps and of stretches of decode steps, in closed form.  Formula: models/profile.py StepTime."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from tfanalyze.replay.jit import inner


@inner
def fixed_s(inst, p, b):
    t = inst.c0_s
    if p > 0:
        t += inst.c_prefill_step_s
    if b > 0:
        t += inst.c_decode_step_s
    return t


@inner
def compute_s(inst, p, a, b):
    t = inst.c_prefill_s * p + inst.c_prefill2_s * p * p + inst.c_attn_s * a + inst.c_seq_s * b
    if b > inst.knee_seqs:
        t += inst.c_seq_knee_s * (b - inst.knee_seqs)
    return t


@inner
def memory_s(inst, k):
    return inst.c_mem_s + inst.c_kv_s * k + inst.c_kv2_s * k * k


@inner
def step_s(inst, p, a, b, k):
    """One step: p prefill tokens with position sum a, b decoding sequences that read k tokens."""
    c, m = compute_s(inst, p, a, b), memory_s(inst, k)
    if inst.form_max == 1:
        return max(fixed_s(inst, p, b) + max(c, m), 1e-6)
    return max(fixed_s(inst, p, b) + c + m, 1e-6)


@inner
def memory_sum_s(inst, b, k, i0, i1):
    """Sum of memory_s over steps i0 <= i < i1 with k + i b tokens read."""
    n = float(i1 - i0)
    s1 = (i0 + i1 - 1) * n / 2.0  # sum of i
    s2 = (i1 - 1.0) * i1 * (2.0 * i1 - 1.0) / 6.0 - (i0 - 1.0) * i0 * (2.0 * i0 - 1.0) / 6.0  # sum of i^2
    return (
        n * inst.c_mem_s
        + inst.c_kv_s * (n * k + b * s1)
        + inst.c_kv2_s * (n * k * k + 2.0 * k * b * s1 + b * b * s2)
    )


@inner
def stretch_s(inst, b, k, j):
    """The next j decode steps of b sequences that read k tokens in the first: one more each in every later step."""
    fb, fk = float(b), float(k)
    fixed = fixed_s(inst, 0, b)
    c = compute_s(inst, 0.0, 0.0, fb)
    if inst.form_max == 0:
        return j * (fixed + c) + memory_sum_s(inst, fb, fk, 0, j)
    lo, hi = 0, j  # first step whose memory term is the larger (it never falls)
    while lo < hi:
        mid = (lo + hi) // 2
        if memory_s(inst, fk + mid * fb) > c:
            hi = mid
        else:
            lo = mid + 1
    return j * fixed + lo * c + memory_sum_s(inst, fb, fk, lo, j)


@inner
def steps_until(inst, b, k, j, span_s):
    """Fewest of the next j steps that last at least ``span_s``."""
    lo, hi = 1, j
    while lo < hi:
        mid = (lo + hi) // 2
        if stretch_s(inst, b, k, mid) >= span_s:
            hi = mid
        else:
            lo = mid + 1
    return lo
