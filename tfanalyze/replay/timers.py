"""When what is next: timers in a heap by time, instances in an indexed heap by the end of their step."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import EPS, F_TIMERS
from tfanalyze.replay.steptime import steps_until, stretch_s


@inner
def timer_before(a, b):
    return a.t_s < b.t_s or (a.t_s == b.t_s and a.seq < b.seq)


@inner
def copy_timer(to, a):
    to.t_s = a.t_s
    to.seq = a.seq
    to.kind = a.kind
    to.arg = a.arg
    to.gen = a.gen
    to.extra = a.extra


@inner
def add_timer(en, gw, t_s, kind, arg, gen, extra):
    cf = en.cf[0]
    if cf.tm_n + 1 >= len(gw.tm):
        cf.fault = F_TIMERS
        return
    cf.seq += 1
    tm = gw.tm
    spare = tm[len(tm) - 1]
    spare.t_s = t_s
    spare.seq = cf.seq
    spare.kind = kind
    spare.arg = arg
    spare.gen = gen
    spare.extra = extra
    i = np.int64(cf.tm_n)
    cf.tm_n += 1
    while i > 0:
        up = (i - 1) >> 1
        if not timer_before(spare, tm[up]):
            break
        copy_timer(tm[i], tm[up])
        i = up
    copy_timer(tm[i], spare)


@inner
def pop_timer(en, gw, to):
    """Move the earliest timer into the record ``to``."""
    cf = en.cf[0]
    tm = gw.tm
    copy_timer(to, tm[0])
    cf.tm_n -= 1
    size = np.int64(cf.tm_n)
    last = tm[size]
    i = np.int64(0)
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and timer_before(tm[down + 1], tm[down]):
            down += 1
        if not timer_before(tm[down], last):
            break
        copy_timer(tm[i], tm[down])
        i = down
    copy_timer(tm[i], last)


@inner
def next_changed(en, gw, n):
    """Restore the heap of instances after inst[n].next_s has changed."""
    ih, inst = gw.ih, en.inst
    size = len(ih)
    key = inst[n].next_s
    i = np.int64(inst[n].heap_pos)
    while i > 0:
        up = (i - 1) >> 1
        if inst[ih[up]].next_s <= key:
            break
        ih[i] = ih[up]
        inst[ih[i]].heap_pos = i
        i = up
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and inst[ih[down + 1]].next_s < inst[ih[down]].next_s:
            down += 1
        if inst[ih[down]].next_s >= key:
            break
        ih[i] = ih[down]
        inst[ih[i]].heap_pos = i
        i = down
    ih[i] = n
    inst[n].heap_pos = i


@inner
def mark_dirty(en, gw, n):
    """The instance must plan at the end of this round; the list stays in index order."""
    cf = en.cf[0]
    if en.inst[n].dirty == 1:
        return
    en.inst[n].dirty = 1
    i = np.int64(cf.dirty_n)
    cf.dirty_n += 1
    while i > 0 and gw.dirty[i - 1] > n:
        gw.dirty[i] = gw.dirty[i - 1]
        i -= 1
    gw.dirty[i] = n


@inner
def wake(en, gw, n, now_s):
    """Something the planned stretch did not count on: let it end with the step that is running, or plan at once."""
    inst = en.inst[n]
    if inst.next_s == np.inf:
        inst.t_s = max(inst.t_s, now_s)
        mark_dirty(en, gw, n)
    elif inst.step_p == 0 and inst.k_steps > 1:
        k = steps_until(inst, inst.k_dec, inst.k_sum, inst.k_steps, now_s - EPS - inst.base_s)
        if k < inst.k_steps:
            inst.k_steps = k
            inst.next_s = inst.base_s + stretch_s(inst, inst.k_dec, inst.k_sum, k)
            next_changed(en, gw, n)
