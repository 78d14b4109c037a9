"""What the end of a step does: tokens, finishes, hand-offs, removals; and fleet events.  Rules: docs/engine.md sections 2 and 8."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.active import uncount_blocks
from tfanalyze.replay.cache import cache_range, release_path
from tfanalyze.replay.engine import (
    SGLANG,
    ceil_div,
    clear_memory,
    grow_stretch,
    stop_running,
)
from tfanalyze.replay.flights import (
    end_flight,
    give_back_prefill,
    lose,
)
from tfanalyze.replay.gateway import publish, publish_queue, refresh
from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import (
    EPS,
    FREE,
    HANDED,
    HANDOFF,
    NONE,
    T_HANDOFF,
)
from tfanalyze.replay.queues import (
    join_decode,
    made_now,
    pre_remove,
    run_remove,
    wait_insert,
)
from tfanalyze.replay.state import (
    ERROR,
    OK,
    REASON_CRASH,
    REASON_NEVER_FITS,
    REASON_NO_INSTANCE,
    REASON_NONE,
    REJECTED,
)
from tfanalyze.replay.steptime import steps_until, stretch_s
from tfanalyze.replay.timers import (
    add_timer,
    mark_dirty,
    next_changed,
    wake,
)


@inner
def start_handoff(en, gw, x, now_s):
    """First token is out: send the KV over the link to a decode instance; the prefill instance keeps it until then."""
    cf = en.cf[0]
    f = en.fl[x]
    n = f.inst
    inst = en.inst[n]
    pre_remove(en, inst, x)
    run_remove(en, inst, x)
    refresh(en, gw, f.gw, now_s)
    best = NONE
    for m in range(cf.n_inst):
        v = gw.views[f.gw, m]
        if en.inst[m].role == 2 and v.ready == 1:
            if best < 0 or v.inflight_tokens < gw.views[f.gw, best].inflight_tokens:
                best = m
    if best < 0:
        inst.private -= ceil_div(np.int64(f.target), inst.block) - f.shared
        release_path(en, n, inst, f)
        end_flight(en, gw, x, REJECTED, REASON_NO_INSTANCE, now_s)
        return
    f.state = HANDOFF
    f.to_inst = best
    uncount_blocks(en, gw, x)
    v = gw.views[f.gw, n]
    v.inflight -= 1
    v.inflight_tokens -= f.infl_tokens
    v = gw.views[f.gw, best]
    v.inflight += 1
    v.inflight_tokens += f.infl_tokens
    v.assigned += 1
    tokens = en.row[f.row].input
    begin = max(now_s, cf.link_free_s)
    cf.link_free_s = begin + tokens / cf.link_tok_s
    add_timer(en, gw, begin + cf.link_latency_s + tokens / cf.link_tok_s, T_HANDOFF, x, f.gen, 0)


@inner
def end_handoff(en, gw, x, now_s):
    """The KV has moved: free it at the prefill instance, queue at the decode instance."""
    f = en.fl[x]
    row = en.row[f.row]
    n = f.inst
    inst = en.inst[n]
    inst.private -= ceil_div(np.int64(f.target), inst.block) - f.shared
    release_path(en, n, inst, f)
    inst.changed = 1
    wake(en, gw, n, now_s)
    f.inst = f.to_inst
    en.out[f.row].instance = f.inst
    to = en.inst[f.inst]
    if f.leave >= 0:
        end_flight(en, gw, x, f.leave, REASON_NONE, now_s)
        return
    if to.up == 0:
        end_flight(en, gw, x, ERROR, REASON_CRASH, now_s)
        return
    if ceil_div(np.int64(row.input) + row.output, to.block) > to.cap:
        end_flight(en, gw, x, REJECTED, REASON_NEVER_FITS, now_s)
        return
    to.orders += 1
    f.order = to.orders
    f.engine_s = now_s
    f.to_inst = HANDED
    f.target = 0
    to.arr_s = now_s
    wait_insert(en, to, x, False)
    publish_queue(en, gw, f.inst, now_s)
    if to.w_head == x and to.n_run < to.max_seqs:
        wake(en, gw, f.inst, now_s)


@inner
def finish(en, gw, n, x, now_s):
    """The engine has made the last token: cache the answer's blocks, free the rest."""
    inst = en.inst[n]
    f = en.fl[x]
    row = en.row[f.row]
    if inst.cache == 1:
        cache_range(en, n, inst, f, row.input // inst.block, (row.input + row.output - 1) // inst.block)
    stop_running(en, n, inst, x)
    end_flight(en, gw, x, OK, REASON_NONE, now_s)


@inner
def by_run_order(en, count):
    """Sort the first ``count`` flights of the scratch list by admission."""
    for i in range(1, count):
        x = en.work[i]
        key = en.fl[x].run_order
        j = i - 1
        while j >= 0 and en.fl[en.work[j]].run_order > key:
            en.work[j + 1] = en.work[j]
            j -= 1
        en.work[j + 1] = x


@inner
def end_prefills(en, gw, n, now_s, count):
    """Prompt chunks have been computed: finished prompts give a token. Returns how many flights finish or move (in work)."""
    cf = en.cf[0]
    inst = en.inst[n]
    x = inst.pre_head
    while x >= 0:
        f = en.fl[x]
        after = f.pnext
        m = f.step_m
        if m > 0:
            row = en.row[f.row]
            if inst.sched == SGLANG:
                cache_range(en, n, inst, f, f.computed // inst.block, min(f.computed + m, row.input) // inst.block)
            f.computed += m
            f.work += m
            f.gpu_s += (now_s - inst.base_s) * m / (inst.step_p + inst.k_dec)
            f.step_m = 0
            cf.computed += m
            if f.computed == f.target:
                f.made += 1
                if f.made == 1:
                    f.first_s = now_s
                    give_back_prefill(en, gw, x)
                if f.made >= row.output or (inst.role == 1 and f.leave < 0):
                    en.work[count] = x
                    count += 1
                else:
                    pre_remove(en, inst, x)
                    join_decode(en, n, inst, x)
        x = after
    return count


@inner
def finished_decodes(en, n, inst):
    """Collect into work the decodes that have made their last token; they sit together at the top of the heap."""
    work, heap = en.work, en.fheap
    count = 0
    if inst.heap_n > 0 and en.fl[heap[n, 0]].finish_step <= inst.steps:
        work[0] = 0
        count = 1
    i = 0
    while i < count:
        for child in range(2 * work[i] + 1, 2 * work[i] + 3):
            if child < inst.heap_n and en.fl[heap[n, child]].finish_step <= inst.steps:
                work[count] = child
                count += 1
        i += 1
    for i in range(count):
        work[i] = heap[n, work[i]]
    return count


@inner
def step_end(en, gw, n, now_s):
    """Effects of the step (or stretch) that has ended."""
    cf = en.cf[0]
    inst = en.inst[n]
    spent_s = now_s - inst.base_s
    if inst.ahead == 1:
        inst.lag_s = inst.base_s
        if inst.k_steps > 1:
            inst.lag_s += stretch_s(inst, inst.k_dec, inst.k_sum, inst.k_steps - 1)
        inst.gone = inst.n_run
    inst.busy_s += spent_s
    if inst.k_dec > 0:
        inst.dec_acc_s += spent_s / (inst.step_p + inst.k_dec)
    inst.t_s = now_s
    cf.steps += inst.k_steps
    count = 0
    if inst.k_dec > 0:
        grow_stretch(en, n, inst, inst.k_steps)
        inst.steps += inst.k_steps
        inst.k_sum += np.int64(inst.k_dec) * inst.k_steps
        inst.g_sum += np.int64(inst.k_dec) * inst.k_steps
        count = finished_decodes(en, n, inst)
    if inst.step_p > 0:
        count = end_prefills(en, gw, n, now_s, count)
    by_run_order(en, count)
    for i in range(count):
        x = en.work[i]
        f = en.fl[x]
        if f.leave >= 0:
            inst.leaving -= 1
        if made_now(inst, f) >= en.row[f.row].output:
            if f.leave >= 0:
                inst_finish_late(en, gw, n, x, now_s)
            else:
                finish(en, gw, n, x, now_s)
        else:
            start_handoff(en, gw, x, now_s)
    if inst.leaving > 0:
        x = inst.run_head
        while x >= 0:
            after = en.fl[x].rnext
            if en.fl[x].leave >= 0:
                inst.leaving -= 1
                stop_running(en, n, inst, x)
                end_flight(en, gw, x, en.fl[x].leave, REASON_NONE, now_s)
            x = after
    inst.gone -= inst.n_run
    inst.step_p = 0
    inst.k_dec = 0
    inst.k_steps = 0
    inst.next_s = np.inf
    next_changed(en, gw, n)
    mark_dirty(en, gw, n)


@inner
def inst_finish_late(en, gw, n, x, now_s):
    """Finished for the engine, but the client has left."""
    inst = en.inst[n]
    f = en.fl[x]
    row = en.row[f.row]
    if inst.cache == 1:
        cache_range(en, n, inst, f, row.input // inst.block, (row.input + row.output - 1) // inst.block)
    stop_running(en, n, inst, x)
    end_flight(en, gw, x, f.leave, REASON_NONE, now_s)


@inner
def crash(en, gw, n, now_s):
    """Everything at or on its way to the instance is lost, in row order."""
    cf = en.cf[0]
    inst = en.inst[n]
    if inst.next_s < np.inf:
        inst.busy_s += now_s - inst.base_s
        if inst.step_p == 0 and inst.k_steps > 1:
            k = steps_until(inst, inst.k_dec, inst.k_sum, inst.k_steps, now_s - inst.base_s)
            inst.steps += k if stretch_s(inst, inst.k_dec, inst.k_sum, k) <= now_s - inst.base_s + EPS else k - 1
    count = 0
    for x in range(cf.fl_used):
        f = en.fl[x]
        if f.state != FREE and (f.inst == n or (f.state == HANDOFF and f.to_inst == n)):
            i = count
            while i > 0 and en.fl[en.work[i - 1]].row > f.row:
                en.work[i] = en.work[i - 1]
                i -= 1
            en.work[i] = x
            count += 1
    inst.up = 0
    inst.seen = 0
    for i in range(count):
        x = en.work[i]
        f = en.fl[x]
        if f.state == HANDOFF:
            if f.inst != n:  # it was on its way here: the sender frees its copy
                source = en.inst[f.inst]
                source.private -= ceil_div(np.int64(f.target), source.block) - f.shared
                release_path(en, f.inst, source, f)
                source.changed = 1
                wake(en, gw, f.inst, now_s)
            v = gw.views[f.gw, f.to_inst]
            v.inflight -= 1
            v.inflight_tokens -= f.infl_tokens
            v = gw.views[f.gw, f.inst]
            v.inflight += 1
            v.inflight_tokens += f.infl_tokens
        lose(en, gw, x, now_s)
    clear_memory(en, n, inst)
    inst.n_run = 0
    inst.n_dec = 0
    inst.n_pre = 0
    inst.n_wait = 0
    inst.run_head = NONE
    inst.run_tail = NONE
    inst.pre_head = NONE
    inst.pre_tail = NONE
    inst.w_head = NONE
    inst.w_tail = NONE
    inst.wait_tokens = 0
    inst.rest_tokens = 0
    inst.k_sum = 0
    inst.m_sum = 0
    inst.g_sum = 0
    inst.heap_n = 0
    inst.leaving = 0
    for j in range(inst.block):
        en.phase[n, j] = 0
    inst.step_p = 0
    inst.k_dec = 0
    inst.k_steps = 0
    inst.next_s = np.inf
    next_changed(en, gw, n)
    publish(en, gw, n, now_s)


@inner
def fleet_event(en, gw, n, what, now_s):
    inst = en.inst[n]
    if what == 0:
        crash(en, gw, n, now_s)
        return
    if what == 1:
        inst.up = 1
        inst.seen = 1
    elif what == 2:
        inst.up = 2 if inst.up != 0 else 0
        inst.seen = 2 if inst.up != 0 else 0
    elif inst.up == 0:
        inst.seen = 3
    p = gw.pub[n]
    p.seen = inst.seen
    publish_queue(en, gw, n, now_s)
