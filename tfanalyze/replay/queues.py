"""The lists of one engine: waiting, running, prefilling, and its decodes in a heap by the step in which they finish."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import DECODE, NONE, PREFILL, WAITING

# --- lists of one instance -------------------------------------------------------------------------------------------


@inner
def before(fl, x, y):
    """Does x go before y in a priority queue?"""
    a, b = fl[x], fl[y]
    if a.prio != b.prio:
        return a.prio < b.prio
    if a.engine_s != b.engine_s:
        return a.engine_s < b.engine_s
    return a.order < b.order


@inner
def wait_insert(en, inst, x, front):
    """Put a request into the engine's queue: by key where it is a priority queue, else at the front or back."""
    fl = en.fl
    f = fl[x]
    f.state = WAITING
    inst.n_wait += 1
    inst.wait_tokens += f.target
    after = inst.w_tail
    if inst.prio_queue == 1:
        while after >= 0 and before(fl, x, after):
            after = fl[after].prev
    elif front:
        after = NONE
    f.prev = after
    if after >= 0:
        f.next = fl[after].next
        fl[after].next = x
    else:
        f.next = inst.w_head
        inst.w_head = x
    if f.next >= 0:
        fl[f.next].prev = x
    else:
        inst.w_tail = x


@inner
def wait_remove(en, inst, x):
    fl = en.fl
    f = fl[x]
    if f.prev >= 0:
        fl[f.prev].next = f.next
    else:
        inst.w_head = f.next
    if f.next >= 0:
        fl[f.next].prev = f.prev
    else:
        inst.w_tail = f.prev
    inst.n_wait -= 1
    inst.wait_tokens -= f.target


@inner
def run_append(en, inst, x):
    f = en.fl[x]
    inst.run_orders += 1
    f.run_order = inst.run_orders
    f.rprev = inst.run_tail
    f.rnext = NONE
    if inst.run_tail >= 0:
        en.fl[inst.run_tail].rnext = x
    else:
        inst.run_head = x
    inst.run_tail = x
    inst.n_run += 1
    inst.changed = 1


@inner
def run_remove(en, inst, x):
    f = en.fl[x]
    if f.rprev >= 0:
        en.fl[f.rprev].rnext = f.rnext
    else:
        inst.run_head = f.rnext
    if f.rnext >= 0:
        en.fl[f.rnext].rprev = f.rprev
    else:
        inst.run_tail = f.rprev
    inst.n_run -= 1
    inst.changed = 1


@inner
def pre_append(en, inst, x):
    f = en.fl[x]
    f.state = PREFILL
    f.pprev = inst.pre_tail
    f.pnext = NONE
    if inst.pre_tail >= 0:
        en.fl[inst.pre_tail].pnext = x
    else:
        inst.pre_head = x
    inst.pre_tail = x
    inst.n_pre += 1
    inst.rest_tokens += f.target - f.computed


@inner
def pre_remove(en, inst, x):
    f = en.fl[x]
    if f.pprev >= 0:
        en.fl[f.pprev].pnext = f.pnext
    else:
        inst.pre_head = f.pnext
    if f.pnext >= 0:
        en.fl[f.pnext].pprev = f.pprev
    else:
        inst.pre_tail = f.pprev
    inst.n_pre -= 1
    inst.rest_tokens -= f.target - f.computed


# --- decoding requests: a heap by the step in which they finish -----------------------------------------------------


@inner
def heap_place(en, n, i, x):
    en.fheap[n, i] = x
    en.fl[x].heap_pos = i


@inner
def heap_sift(en, n, i, size):
    """Restore the order after the entry at position i has changed."""
    heap, fl = en.fheap, en.fl
    x = heap[n, i]
    key = fl[x].finish_step
    while i > 0:
        up = (i - 1) >> 1
        if fl[heap[n, up]].finish_step <= key:
            break
        heap_place(en, n, i, heap[n, up])
        i = up
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and fl[heap[n, down + 1]].finish_step < fl[heap[n, down]].finish_step:
            down += 1
        if fl[heap[n, down]].finish_step >= key:
            break
        heap_place(en, n, i, heap[n, down])
        i = down
    heap_place(en, n, i, x)


@inner
def made_now(inst, f):
    """Output tokens made so far."""
    if f.state == DECODE:
        return f.made + (inst.steps - f.join_step)
    return np.int64(f.made)


@inner
def join_decode(en, n, inst, x):
    """From now on the request makes one token a step."""
    f = en.fl[x]
    row = en.row[f.row]
    f.state = DECODE
    f.join_step = inst.steps
    f.acc0_s = inst.dec_acc_s
    f.finish_step = inst.steps + (row.output - f.made)
    inst.k_sum += row.input + f.made
    key = np.int64(row.input + f.made) - inst.steps
    if inst.n_dec == 0 or key > inst.top_key:
        inst.top_key = key
        inst.top_stale = 0
    inst.n_dec += 1
    inst.m_sum += bounded(row.max_tokens)
    inst.g_sum += f.made
    en.phase[n, (inst.steps - (row.input + f.made - 1)) % inst.block] += 1
    heap_place(en, n, inst.heap_n, x)
    inst.heap_n += 1
    heap_sift(en, n, inst.heap_n - 1, inst.heap_n)


@inner
def leave_decode(en, n, inst, x):
    f = en.fl[x]
    row = en.row[f.row]
    made = made_now(inst, f)
    f.gpu_s += inst.dec_acc_s - f.acc0_s
    en.phase[n, (f.join_step - (row.input + f.made - 1)) % inst.block] -= 1
    inst.n_dec -= 1
    if np.int64(row.input + made) - inst.steps == inst.top_key:
        inst.top_stale = 1
    inst.k_sum -= row.input + made
    inst.m_sum -= bounded(row.max_tokens)
    inst.g_sum -= made
    f.made = made
    inst.heap_n -= 1
    at = f.heap_pos
    f.heap_pos = NONE
    if at < inst.heap_n:
        heap_place(en, n, at, en.fheap[n, inst.heap_n])
        heap_sift(en, n, at, inst.heap_n)


@inner
def bounded(max_tokens):
    return min(max_tokens, 4096) if max_tokens > 0 else 4096
