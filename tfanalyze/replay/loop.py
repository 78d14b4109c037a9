"""The event loop: rounds of everything that is due at one time, then planning.  Rules: docs/engine.md section 1."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.cache import available
from tfanalyze.replay.engine import (
    SLOTS,
    plan,
)
from tfanalyze.replay.flights import (
    begin_attempt,
    client_gone,
    drain_gate,
    end_flight,
    reach_engine,
)
from tfanalyze.replay.gateway import fill_gate, publish, refresh
from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import (
    EPS,
    F_CHECK,
    F_STUCK,
    NONE,
    T_ARRIVE,
    T_ENGINE,
    T_HANDOFF,
    T_TICK,
    T_TIMEOUT,
)
from tfanalyze.replay.state import (
    ADMIT_TICK,
    REASON_QUEUE_FULL,
    REJECTED,
)
from tfanalyze.replay.steps import end_handoff, fleet_event, step_end
from tfanalyze.replay.timers import (
    add_timer,
    copy_timer,
    next_changed,
    pop_timer,
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
