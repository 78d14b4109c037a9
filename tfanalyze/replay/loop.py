"""The event loop: rounds of everything that is due at one time, then planning.  Rules: docs/engine.md section 1."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.cache import available, cache_range, release_path
from tfanalyze.replay.engine import (
    SGLANG,
    SLOTS,
    ceil_div,
    clear_memory,
    grow_stretch,
    join_decode,
    made_now,
    plan,
    pre_remove,
    run_remove,
    stop_running,
    wait_insert,
    wait_remove,
)
from tfanalyze.replay.flights import (
    add_timer,
    begin_attempt,
    client_gone,
    copy_timer,
    drain_gate,
    end_flight,
    give_back_prefill,
    lose,
    mark_dirty,
    next_changed,
    pop_timer,
    reach_engine,
    wake,
)
from tfanalyze.replay.gateway import fill_gate, publish, publish_queue, refresh
from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import (
    DECODE,
    EPS,
    F_CHECK,
    F_STUCK,
    FREE,
    HANDED,
    HANDOFF,
    NONE,
    PREFILL,
    T_ARRIVE,
    T_ENGINE,
    T_HANDOFF,
    T_TICK,
    T_TIMEOUT,
    WAITING,
)
from tfanalyze.replay.steptime import steps_until, stretch_s
from tfanalyze.replay.state import (
    ADMIT_TICK,
    ERROR,
    OK,
    REASON_CRASH,
    REASON_NEVER_FITS,
    REASON_NO_INSTANCE,
    REASON_NONE,
    REASON_QUEUE_FULL,
    REJECTED,
)

IDLE_TICKS = 1000  # control ticks with nothing but held requests before they are given up


@inner
def drain_all(en, gw, now_s):
    """Run admission for every gateway where something entered or ended, until nothing changes."""
    cf = en.cf[0]
    if cf.trivial_admit == 1:
        return
    more = True
    while more and cf.fault == 0:
        more = False
        for g in range(cf.n_gw):
            if gw.drain[g] == 1:
                gw.drain[g] = 0
                drain_gate(en, gw, g, now_s)
                more = True


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
    inst.busy_s += now_s - inst.base_s
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


@inner
def control_tick(en, gw, now_s):
    """The admission policies' period is over."""
    cf = en.cf[0]
    for g in range(cf.n_gw):
        refresh(en, gw, g, now_s)
        fill_gate(en, gw, g, now_s)
        gw.admit(ADMIT_TICK, gw.gate[g], gw.req[0], gw.p_admit, gw.m_admit[g], gw.rng[g])
        gw.drain[g] = 1
    if cf.n_bin > 0:
        b = min(np.int64(now_s / cf.bin_s), cf.n_bin - 1)
        for q in range(cf.n_queue):
            gw.admitted[b, q] = gw.gate[0, q].inflight
            if cf.quota_step > 0:
                gw.quota[b, q] = gw.m_admit[0, cf.quota_at + cf.quota_step * q]
    if cf.queued > 0 and cf.queued == cf.live and cf.tm_n == 0 and cf.next_row >= cf.n:
        cf.idle_ticks += 1
        if cf.idle_ticks > IDLE_TICKS:
            give_up(en, gw, now_s)
    else:
        cf.idle_ticks = 0
    if cf.live > 0 or cf.next_row < cf.n or cf.tm_n > 0:
        add_timer(en, gw, now_s + cf.tick_s, T_TICK, 0, 0, 0)


@inner
def give_up(en, gw, now_s):
    """Admission holds requests for ever although nothing runs: reject them so that the run can end."""
    cf = en.cf[0]
    for g in range(cf.n_gw):
        for q in range(cf.n_queue):
            while gw.queue[g, q].head >= 0:
                x = gw.queue[g, q].head
                z = gw.queue[g, q]
                z.head = en.fl[x].next
                if z.head >= 0:
                    en.fl[z.head].prev = NONE
                else:
                    z.tail = NONE
                gw.gate[g, q].queued -= 1
                gw.gate[g, q].queued_tokens -= en.fl[x].infl_tokens
                en.fl[x].infl_tokens = 0.0
                cf.queued -= 1
                end_flight(en, gw, x, REJECTED, REASON_QUEUE_FULL, now_s)


@inner
def timer_due(en, gw, t, now_s):
    kind = t.kind
    if kind == T_ARRIVE:
        begin_attempt(en, gw, t.arg, t.gen, now_s)
    elif kind == T_TICK:
        control_tick(en, gw, now_s)
    elif en.fl[t.arg].gen == t.gen:
        if kind == T_ENGINE:
            reach_engine(en, gw, t.arg, now_s)
        elif kind == T_TIMEOUT:
            client_gone(en, gw, t.arg, now_s)
        elif kind == T_HANDOFF:
            end_handoff(en, gw, t.arg, now_s)


@inner
def due_timers(en, gw):
    """Handle the timers that are due now, in the order in which they were made; returns how many."""
    cf = en.cf[0]
    count = 0
    while cf.tm_n > 0 and gw.tm[0].t_s <= cf.lim_s and count < len(gw.due) - 1:
        spare = gw.due[len(gw.due) - 1]
        pop_timer(en, gw, spare)
        i = count
        while i > 0 and gw.due[i - 1].seq > spare.seq:
            copy_timer(gw.due[i], gw.due[i - 1])
            i -= 1
        copy_timer(gw.due[i], spare)
        count += 1
    for i in range(count):
        t = gw.due[i]
        timer_due(en, gw, t, t.t_s)
        drain_all(en, gw, t.t_s)
    return count


@inner
def due_steps(en, gw):
    """End the steps that are due, in index order; returns how many."""
    cf = en.cf[0]
    count = 0
    first = gw.ih[0]
    while en.inst[first].next_s <= cf.lim_s:
        # hide it from the heap while the others are found; base of the work list is the dirty scratch
        i = count
        while i > 0 and gw.ends[i - 1] > first:
            gw.ends[i] = gw.ends[i - 1]
            i -= 1
        gw.ends[i] = first
        gw.end_s[first] = en.inst[first].next_s
        en.inst[first].next_s = np.inf
        next_changed(en, gw, first)
        count += 1
        first = gw.ih[0]
    for i in range(count):
        n = gw.ends[i]
        step_end(en, gw, n, gw.end_s[n])
        drain_all(en, gw, gw.end_s[n])
    return count


@inner
def due_arrivals(en, gw):
    cf = en.cf[0]
    count = 0
    while cf.next_row < cf.n and en.row[cf.next_row].arrival_s <= cf.lim_s:
        r = cf.next_row
        cf.next_row += 1
        row = en.row[r]
        if row.last >= 0 and row.think_s == row.think_s:
            continue
        begin_attempt(en, gw, r, 0, row.arrival_s)
        drain_all(en, gw, row.arrival_s)
        count += 1
    return count


@inner
def due_events(en, gw):
    cf = en.cf[0]
    count = 0
    while cf.next_event < cf.events_n and gw.event[cf.next_event].t_s <= cf.lim_s:
        e = gw.event[cf.next_event]
        cf.next_event += 1
        fleet_event(en, gw, e.inst, e.what, e.t_s)
        drain_all(en, gw, e.t_s)
        count += 1
    return count


@inner
def skip_rows(en):
    """Move past rows that wait for an earlier turn."""
    cf = en.cf[0]
    while cf.next_row < cf.n:
        row = en.row[cf.next_row]
        if not (row.last >= 0 and row.think_s == row.think_s):
            return
        cf.next_row += 1


@inner
def earliest(en, gw):
    """Next time at which anything is due; inf = nothing ever."""
    cf = en.cf[0]
    t = en.inst[gw.ih[0]].next_s
    if cf.tm_n > 0:
        t = min(t, gw.tm[0].t_s)
    if cf.next_row < cf.n:
        t = min(t, en.row[cf.next_row].arrival_s)
    if cf.next_event < cf.events_n:
        t = min(t, gw.event[cf.next_event].t_s)
    return t


@inner
def plan_dirty(en, gw):
    cf = en.cf[0]
    for i in range(cf.dirty_n):
        n = gw.dirty[i]
        inst = en.inst[n]
        inst.dirty = 0
        if inst.up == 0:
            continue
        now_s = max(inst.t_s, inst.arr_s)
        if inst.n_run > 0 or inst.n_wait > 0:
            plan(en, n, now_s)
            next_changed(en, gw, n)
        if inst.changed == 1 or inst.step_p > 0:
            publish(en, gw, n, now_s)
        if cf.debug == 1:
            check_instance(en, n)
    cf.dirty_n = 0


@inner
def check_instance(en, n):
    """Conservation of memory, from scratch; a mismatch is a fault."""
    inst = en.inst[n]
    held, idle = 0, 0
    for x in range(1, en.ent[0].held + 1):
        e = en.ent[x]
        if e.seg >= 0 and e.inst == n:
            held += e.held
            if e.locks == 0:
                idle += e.held
    bad = held != inst.held or idle != inst.evictable or available(inst) < 0 or inst.private < 0
    if inst.cache == SLOTS:
        bad = False
    count = 0
    x = inst.run_head
    while x >= 0:
        count += 1
        x = en.fl[x].rnext
    if bad or count != inst.n_run or inst.n_run != inst.n_dec + inst.n_pre:
        en.cf[0].fault = F_CHECK
        en.cf[0].fault_inst = n


@inner
def run_loop(en, gw):
    """Run until nothing is due any more or a fault stops it."""
    cf = en.cf[0]
    if cf.trivial_admit == 0:
        add_timer(en, gw, cf.tick_s, T_TICK, 0, 0, 0)
    skip_rows(en)
    while cf.fault == 0:
        t = earliest(en, gw)
        if t == np.inf:
            break
        if t < cf.now_s - 1e-6:
            cf.fault = F_CHECK
            break
        cf.now_s = t
        cf.lim_s = t + EPS
        more = True
        while more and cf.fault == 0:
            count = due_events(en, gw)
            count += due_steps(en, gw)
            count += due_timers(en, gw)
            count += due_arrivals(en, gw)
            more = count > 0
        skip_rows(en)
        plan_dirty(en, gw)
    if cf.fault == 0 and cf.live > 0:
        cf.fault = F_STUCK
    return np.int64(cf.fault)
