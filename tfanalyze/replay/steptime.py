"""Duration of engine steps and of stretches of decode steps, in closed form.  Formula: models/profile.py StepTime."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

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
def padded(inst, b):
    """The batch of the CUDA graph that a decode step of b sequences runs in."""
    if inst.graph_seqs <= 0.0 or b <= 1:
        return b
    if b <= 4:
        return 2.0 if b <= 2 else 4.0
    return inst.graph_seqs * np.ceil(b / inst.graph_seqs)


@inner
def compute_s(inst, p, a, b):
    if p <= 0:
        b = padded(inst, float(b))
    t = inst.c_prefill_s * p + inst.c_prefill2_s * p * p + inst.c_attn_s * a + inst.c_seq_s * b
    if b > inst.knee_seqs:
        t += inst.c_seq_knee_s * (b - inst.knee_seqs)
    return t


@inner
def memory_s(inst, k):
    return inst.c_mem_s + inst.c_kv_s * k + inst.c_kv2_s * k * k


@inner
def step_s(inst, p, a, b, k, top):
    """One step: p prefill tokens with position sum a, b decoding sequences that read k tokens, the longest of them top."""
    c, m = compute_s(inst, p, a, b), memory_s(inst, k)
    m = max(c, m) if inst.form_max == 1 else c + m
    least = inst.prefill_least_s if p > 0 else 0.0
    return max(fixed_s(inst, p, b) + m + longest_s(inst, b, k, top), least, 1e-6)


@inner
def longest_s(inst, b, k, top):
    """What the longest context adds: read whole, or in parts as long as the thread blocks that are free make them."""
    if inst.c_long_s == 0.0 or b <= 0:
        return 0.0
    if b >= inst.split_seqs:
        return inst.c_long_s * top
    return inst.c_long_s * min(top, k / (inst.split_seqs - b / 2.0))


@inner
def longest_sum_s(inst, b, k, top, j):
    """Sum of longest_s over the next j steps: the longest grows by one a step, all together by b."""
    if inst.c_long_s == 0.0:
        return 0.0
    rise = j * (j - 1.0) / 2.0
    whole = j * top + rise
    if b >= inst.split_seqs:
        return inst.c_long_s * whole
    parts = inst.split_seqs - b / 2.0
    gap, slope = k / parts - top, b / parts - 1.0  # part - whole in the first step, and what it gains a step
    turn = float(j) if slope == 0.0 else -gap / slope  # where they meet
    if (gap <= 0.0 and slope <= 0.0) or (gap >= 0.0 and slope >= 0.0) or turn >= j - 1:
        return inst.c_long_s * (whole if gap > 0.0 or (gap == 0.0 and slope > 0.0) else (j * k + b * rise) / parts)
    i = np.floor(turn) + 1.0  # steps before they meet
    early = i * top + i * (i - 1.0) / 2.0 if gap > 0.0 else (i * k + b * i * (i - 1.0) / 2.0) / parts
    rest = rise - i * (i - 1.0) / 2.0
    late = ((j - i) * k + b * rest) / parts if gap > 0.0 else (j - i) * top + rest
    return inst.c_long_s * (early + late)


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
    """The next j decode steps of b sequences that read k tokens in the first: one more each in every later step.

    The longest of them reads inst.k_top tokens in the first.
    """
    fb, fk = float(b), float(k)
    fixed = fixed_s(inst, 0, b)
    c = compute_s(inst, 0.0, 0.0, fb)
    longest = longest_sum_s(inst, fb, fk, float(inst.k_top), float(j))
    if inst.form_max == 0:
        return j * (fixed + c) + memory_sum_s(inst, fb, fk, 0, j) + longest
    lo, hi = 0, j  # first step whose memory term is the larger (it never falls)
    while lo < hi:
        mid = (lo + hi) // 2
        if memory_s(inst, fk + mid * fb) > c:
            hi = mid
        else:
            lo = mid + 1
    return j * fixed + lo * c + memory_sum_s(inst, fb, fk, lo, j) + longest


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
