"""A request attempt from the gateway's door to its end.  Rules: docs/engine.md sections 2 and 7."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.active import count_blocks, shared_blocks, uncount_blocks
from tfanalyze.replay.engine import (
    ceil_div,
    computed_now,
)
from tfanalyze.replay.gateway import (
    APPROX,
    believed_hits,
    describe,
    expected_output,
    fill_gate,
    fill_head,
    fill_sites,
    note_sent,
    publish_queue,
    push_message,
    refresh,
    restore_ready,
    set_ready,
)
from tfanalyze.replay.jit import hash_inner, inner
from tfanalyze.replay.layout import (
    DECODE,
    F_FLIGHTS,
    F_POLICY,
    FREE,
    GATE_WAIT,
    N_WASTE,
    NONE,
    PREFILL,
    T_ARRIVE,
    T_ENGINE,
    T_TIMEOUT,
    TRANSIT,
)
from tfanalyze.replay.queues import (
    made_now,
    wait_insert,
    wait_remove,
)
from tfanalyze.replay.state import (
    ADMIT_DONE,
    ADMIT_HEAD,
    ADMIT_JOIN,
    ADMIT_NEXT,
    ERROR,
    HOLD,
    LOST,
    OK,
    PASS,
    REASON_CRASH,
    REASON_NEVER_FITS,
    REASON_NO_INSTANCE,
    REASON_NONE,
    REASON_QUEUE_FULL,
    REASON_SHED,
    REJECTED,
    SHED,
    TIMEOUT,
)
from tfanalyze.replay.timers import add_timer, wake

# --- flight records -------------------------------------------------------------------------------------------------


@inner
def new_flight(en):
    cf = en.cf[0]
    x = cf.fl_free
    if x >= 0:
        cf.fl_free = en.fl[x].next
    elif cf.fl_used < len(en.fl):
        x = cf.fl_used
        cf.fl_used += 1
    else:
        cf.fault = F_FLIGHTS
        return NONE
    f = en.fl[x]
    f.gen += 1
    f.sched_s = -1.0
    f.first_s = -1.0
    f.gpu_s = 0.0
    f.acc0_s = 0.0
    f.mark_s = 0.0
    f.waste_s = 0.0
    f.infl_tokens = 0.0
    f.infl_prefill = 0.0
    f.active = 0
    f.inst = NONE
    f.to_inst = NONE
    f.made = 0
    f.computed = 0
    f.step_m = 0
    f.shared = 0
    f.locked = 0
    f.hit = 0
    f.lost = 0
    f.preempts = 0
    f.waste = 0
    f.work = 0
    f.leave = NONE
    f.heap_pos = NONE
    f.slot = NONE
    cf.live += 1
    return x


@inner
def free_flight(en, x):
    cf = en.cf[0]
    f = en.fl[x]
    f.state = FREE
    f.gen += 1
    f.next = cf.fl_free
    cf.fl_free = x
    cf.live -= 1


@inner
def hash01(a, b, c):
    """Uniform in [0, 1) from three integers."""
    h = hash_inner(hash_inner(hash_inner(a) + np.uint64(b)) + np.uint64(c))
    return np.float64(h >> np.uint64(11)) * (1.0 / 9007199254740992.0)


# --- the gateway's door ----------------------------------------------------------------------------------------------


@inner
def begin_attempt(en, gw, row, attempt, now_s):
    """A client sends a request (again)."""
    cf = en.cf[0]
    r = en.row[row]
    o = en.out[row]
    if attempt == 0:
        o.arrival_s = now_s
    o.attempts = attempt + 1
    x = new_flight(en)
    if x < 0:
        return
    f = en.fl[x]
    f.row = row
    f.attempt = attempt
    f.begin_s = now_s
    f.gw = row % cf.n_gw
    f.queue = 0
    if cf.queue_by == 1:
        f.queue = r.slo_class
    elif cf.queue_by == 2:
        f.queue = max(r.tenant, 0)
    f.prio = r.priority
    f.target = r.input
    timeout = gw.cls[r.slo_class].timeout_s
    if timeout < np.inf:
        add_timer(en, gw, now_s + timeout, T_TIMEOUT, x, f.gen, 0)
    z = gw.gate[f.gw, f.queue]
    if attempt == 0:
        z.offered += 1
        z.offered_tokens += r.input + expected_output(en, gw, f.gw, row)
    if cf.trivial_admit == 1:
        send(en, gw, x, now_s)
        return
    gw.drain[f.gw] = 1
    describe(en, gw, f.gw, x, now_s)
    if gw.admit(ADMIT_JOIN, gw.gate[f.gw], gw.req[0], gw.p_admit, gw.m_admit[f.gw], gw.rng[f.gw]) == SHED:
        z.shed += 1
        f.state = GATE_WAIT
        end_flight(en, gw, x, REJECTED, REASON_QUEUE_FULL, now_s)
        return
    gate_insert(en, gw, x)


@inner
def edf_key(en, x):
    f = en.fl[x]
    d = en.row[f.row].deadline_s
    return en.out[f.row].arrival_s + d if d == d else np.inf


@inner
def gate_insert(en, gw, x):
    f = en.fl[x]
    q = gw.queue[f.gw, f.queue]
    f.state = GATE_WAIT
    after = q.tail
    if q.edf == 1:
        key = edf_key(en, x)
        while after >= 0 and edf_key(en, after) > key:
            after = en.fl[after].prev
    f.prev = after
    if after >= 0:
        f.next = en.fl[after].next
        en.fl[after].next = x
    else:
        f.next = q.head
        q.head = x
    if f.next >= 0:
        en.fl[f.next].prev = x
    else:
        q.tail = x
    z = gw.gate[f.gw, f.queue]
    z.queued += 1
    z.queued_tokens += en.row[f.row].input + expected_output(en, gw, f.gw, f.row)
    f.infl_tokens = en.row[f.row].input + expected_output(en, gw, f.gw, f.row)
    en.cf[0].queued += 1


@inner
def gate_remove(en, gw, x):
    f = en.fl[x]
    q = gw.queue[f.gw, f.queue]
    if f.prev >= 0:
        en.fl[f.prev].next = f.next
    else:
        q.head = f.next
    if f.next >= 0:
        en.fl[f.next].prev = f.prev
    else:
        q.tail = f.prev
    z = gw.gate[f.gw, f.queue]
    z.queued -= 1
    z.queued_tokens -= f.infl_tokens
    f.infl_tokens = 0.0
    en.cf[0].queued -= 1


@inner
def drain_gate(en, gw, g, now_s):
    """Let the admission policy look at its queues until it has nothing more to say."""
    cf = en.cf[0]
    if cf.queued == 0:
        return
    refresh(en, gw, g, now_s)
    fill_gate(en, gw, g, now_s)
    params, memory, rng = gw.p_admit, gw.m_admit[g], gw.rng[g]
    for q in range(cf.n_queue):
        gw.queue[g, q].held = 0
    rounds = cf.queued + cf.n_queue + 1
    while rounds > 0 and cf.fault == 0:
        rounds -= 1
        q = gw.admit(ADMIT_NEXT, gw.gate[g], gw.req[0], params, memory, rng)
        if q < 0:
            break
        if q >= cf.n_queue or gw.queue[g, q].head < 0 or gw.queue[g, q].held > 0:
            cf.fault = F_POLICY
            break
        x = gw.queue[g, q].head
        describe(en, gw, g, x, now_s)
        answer = gw.admit(ADMIT_HEAD, gw.gate[g], gw.req[0], params, memory, rng)
        if answer == HOLD:
            gw.queue[g, q].held = np.int32(gw.gate[g, q].queued)
            gw.gate[g, q].queued = 0.0
            continue
        gate_remove(en, gw, x)
        fill_head(en, gw, g, q, now_s)
        if answer == PASS:
            send(en, gw, x, now_s)
        else:
            gw.gate[g, q].shed += 1
            if cf.retry_at >= 0:
                en.out[en.fl[x].row].retry_after_s = memory[cf.retry_at]
            end_flight(en, gw, x, REJECTED, REASON_SHED, now_s)
    for q in range(cf.n_queue):
        if gw.queue[g, q].held > 0:
            gw.gate[g, q].queued += gw.queue[g, q].held
            gw.queue[g, q].held = 0


@inner
def send(en, gw, x, now_s):
    """Choose site and instance, and send the request there."""
    cf = en.cf[0]
    f = en.fl[x]
    g = f.gw
    row = f.row
    f.state = TRANSIT
    en.out[row].admit_s = now_s
    z = gw.gate[g, f.queue]
    f.infl_tokens = en.row[row].input + expected_output(en, gw, g, row)
    z.inflight += 1
    z.inflight_tokens += f.infl_tokens
    refresh(en, gw, g, now_s)
    believed_hits(en, gw, g, row, now_s)
    if cf.counts_blocks == 1:
        shared_blocks(en, gw, g, row)
    describe(en, gw, g, x, now_s)
    usable = 1
    if cf.pinned == 1:
        usable = set_ready(en, gw, g, row, NONE)
        if usable > 0 and cf.trivial_site == 0:
            fill_sites(en, gw, g, row)
            s = gw.site(gw.sites[g], gw.req[0], gw.p_site, gw.m_site[g], gw.rng[g], gw.scores)
            if s >= cf.n_site:
                cf.fault = F_POLICY
                return
            usable = set_ready(en, gw, g, row, s) if s >= 0 else 0
    n = NONE
    if usable > 0:
        n = gw.choose(gw.views[g], gw.req[0], gw.p_inst, gw.m_inst[g], gw.rng[g], gw.scores)
        if cf.trace_row == row and cf.traced == 0:
            keep_decision(en, gw, g, n)
        if cf.force_row == row and f.attempt == 0:
            n = cf.force_inst
        if n >= cf.n_inst or (n >= 0 and gw.views[g, n].ready == 0 and cf.force_row != row):
            cf.fault = F_POLICY
            cf.fault_row = row
            cf.fault_inst = n
            return
    if cf.pinned == 1:
        restore_ready(en, gw, g)
    if n < 0:
        end_flight(en, gw, x, REJECTED, REASON_NO_INSTANCE, now_s)
        return
    inst = en.inst[n]
    v = gw.views[g, n]
    f.inst = n
    en.out[row].instance = n
    f.infl_prefill = max(0.0, en.row[row].input - v.hit_tokens)
    v.inflight += 1
    v.inflight_tokens += f.infl_tokens
    v.inflight_prefill_tokens += f.infl_prefill
    v.assigned += 1
    if cf.counts_blocks == 1:
        count_blocks(en, gw, x)
    if cf.index == APPROX:
        note_sent(en, gw, g, n, row, now_s)
        if cf.n_gw > 1 and cf.sync_s < np.inf:
            push_message(en, gw, now_s + cf.sync_s, row, n, 0, g)
    if inst.up != 1:
        end_flight(en, gw, x, ERROR, REASON_CRASH, now_s)
        return
    way_s = inst.rtt_s * 0.5 + inst.request_s + inst.request_token_s * en.row[row].input
    if way_s <= 0.0:
        reach_engine(en, gw, x, now_s)
    else:
        add_timer(en, gw, now_s + way_s, T_ENGINE, x, f.gen, 0)


@inner
def keep_decision(en, gw, g, n):
    """Remember every candidate's score and state for `explain`."""
    cf = en.cf[0]
    cf.traced = 1
    for i in range(cf.n_inst):
        gw.trace_view[i] = gw.views[g, i]
        gw.trace_scores[i] = gw.scores[i]
    gw.trace_req[0] = gw.req[0]


@inner
def reach_engine(en, gw, x, now_s):
    """The request is at its engine."""
    f = en.fl[x]
    inst = en.inst[f.inst]
    row = en.row[f.row]
    if f.leave >= 0:
        end_flight(en, gw, x, f.leave, REASON_NONE, now_s)
        return
    tokens = np.int64(row.input) + row.output
    room = np.int64(inst.slot_cap) if inst.cache == 2 else inst.cap * inst.block
    if inst.cache != 2:
        tokens = ceil_div(tokens, inst.block) * inst.block
    if tokens > room:
        end_flight(en, gw, x, REJECTED, REASON_NEVER_FITS, now_s)
        return
    inst.orders += 1
    f.order = inst.orders
    f.engine_s = now_s
    inst.arr_s = now_s
    wait_insert(en, inst, x, False)
    publish_queue(en, gw, f.inst, now_s)
    if inst.w_head == x and inst.n_run < inst.max_seqs:
        wake(en, gw, f.inst, now_s)


# --- ends -------------------------------------------------------------------------------------------------------------


@inner
def give_back_prefill(en, gw, x):
    """The gateway has seen the first token, or the end."""
    f = en.fl[x]
    if f.inst >= 0 and f.infl_prefill > 0.0:
        gw.views[f.gw, f.inst].inflight_prefill_tokens -= f.infl_prefill
        f.infl_prefill = 0.0


@inner
def learn_from(en, gw, x, first_s, finish_s):
    """What a gateway learns from one of its requests that ended well."""
    f = en.fl[x]
    row = en.row[f.row]
    c = gw.cls[row.slo_class]
    arrival = en.out[f.row].arrival_s
    ttft = first_s - arrival
    tpot = (finish_s - first_s) / (row.output - 1) if row.output > 1 else -1.0
    v = gw.views[f.gw, f.inst]
    v.ttft_ewma_s = ttft if v.ttft_ewma_s == 0.0 else v.ttft_ewma_s + 0.1 * (ttft - v.ttft_ewma_s)
    if tpot >= 0.0:
        v.tpot_ewma_s = tpot if v.tpot_ewma_s == 0.0 else v.tpot_ewma_s + 0.1 * (tpot - v.tpot_ewma_s)
    ln = gw.learn[f.gw, row.slo_class]
    ln.n += 1
    ln.mean_tokens += (row.output - ln.mean_tokens) / min(ln.n, 1000.0)
    good = ttft <= c.ttft_s and tpot <= c.tpot_s and finish_s - arrival <= c.e2e_s
    if row.deadline_s == row.deadline_s and finish_s > arrival + row.deadline_s:
        good = False
    z = gw.gate[f.gw, f.queue]
    z.finished += 1
    z.finished_tokens += row.output
    z.ttft_ewma_s = ttft if z.ttft_ewma_s == 0.0 else z.ttft_ewma_s + 0.1 * (ttft - z.ttft_ewma_s)
    if tpot >= 0.0:
        z.tpot_ewma_s = tpot if z.tpot_ewma_s == 0.0 else z.tpot_ewma_s + 0.1 * (tpot - z.tpot_ewma_s)
    if good:
        z.attained += 1
        z.attained_tokens += row.output
    w = gw.swing[f.gw, en.inst[f.inst].site, row.slo_class]
    w.n += 1
    share = 1.0 if good else 0.0
    if w.n == 1:
        w.ttft_s = ttft
        w.var_s2 = 0.0
        w.attained = share
    else:
        d = ttft - w.ttft_s
        w.ttft_s += 0.1 * d
        w.var_s2 = 0.9 * (w.var_s2 + 0.1 * d * d)
        w.attained += 0.1 * (share - w.attained)


@inner
def end_flight(en, gw, x, status, reason, now_s):
    """The attempt is over (its engine has nothing of it any more): account, retry, wake the next turn."""
    cf = en.cf[0]
    f = en.fl[x]
    row = en.row[f.row]
    o = en.out[f.row]
    g = f.gw
    c = gw.cls[row.slo_class]
    over_s = now_s
    sent = f.state != GATE_WAIT and f.infl_tokens > 0.0
    if f.inst >= 0:
        give_back_prefill(en, gw, x)
        uncount_blocks(en, gw, x)
        v = gw.views[g, f.inst]
        v.inflight -= 1
        v.inflight_tokens -= f.infl_tokens
    z = gw.gate[g, f.queue]
    if sent:
        z.inflight -= 1
        z.inflight_tokens -= f.infl_tokens
    again, told_s = False, 0.0
    if status == OK:
        inst = en.inst[f.inst]
        late_s = inst.response_s + 0.5 * inst.rtt_s
        over_s = now_s + late_s
        o.start_s = f.sched_s
        o.first_token_s = f.first_s + late_s
        o.finish_s = over_s
        o.delivered = row.output
        learn_from(en, gw, x, o.first_token_s, over_s)
        cf.made += row.output
    else:
        en.waste[status] += f.work + f.made - f.waste
        en.waste[N_WASTE + status] += f.gpu_s - f.waste_s
        again = reason != REASON_NEVER_FITS and f.attempt < c.retries
        told_s = float(o.retry_after_s) if reason == REASON_SHED and c.heed_s > 0.0 else 0.0  # NaN: told nothing
        again = again and not told_s > c.heed_s
    o.hit_tokens = f.hit
    o.preemptions += f.preempts
    if again:
        wait = c.backoff_s * 2.0**f.attempt * (1.0 + c.jitter * (2.0 * hash01(cf.seed, f.row, f.attempt) - 1.0))
        if told_s > 0.0:
            wait = told_s
        add_timer(en, gw, now_s + wait, T_ARRIVE, f.row, f.attempt + 1, 0)
    else:
        o.status = status
        o.reason = reason
        if row.succ >= 0:
            add_timer(en, gw, over_s + en.row[row.succ].think_s, T_ARRIVE, row.succ, 0, 0)
    if cf.trivial_admit == 0:
        describe(en, gw, g, x, now_s)
        gw.admit(ADMIT_DONE, gw.gate[g], gw.req[0], gw.p_admit, gw.m_admit[g], gw.rng[g])
        gw.drain[g] = 1
    free_flight(en, x)


@inner
def client_gone(en, gw, x, now_s):
    """Time-out: leave a queue at once; leave a batch, a hand-off or the wire when that next moves."""
    f = en.fl[x]
    if f.state == GATE_WAIT:
        gate_remove(en, gw, x)
        end_flight(en, gw, x, TIMEOUT, REASON_NONE, now_s)
        return
    f.leave = TIMEOUT
    if f.state == PREFILL or f.state == DECODE:
        en.inst[f.inst].leaving += 1
        wake(en, gw, f.inst, now_s)
    elif f.state == 3:  # WAITING
        inst = en.inst[f.inst]
        n = f.inst
        wait_remove(en, inst, x)
        publish_queue(en, gw, n, now_s)
        end_flight(en, gw, x, TIMEOUT, REASON_NONE, now_s)
        if inst.n_wait > 0 and inst.n_run < inst.max_seqs:
            wake(en, gw, n, now_s)


@inner
def lose(en, gw, x, now_s):
    """A crash took the attempt with it: nothing to free, memory is gone as a whole."""
    f = en.fl[x]
    inst = en.inst[f.inst]
    f.computed = computed_now(en, inst, f)
    f.made = made_now(inst, f)
    if f.state == DECODE:
        f.gpu_s += inst.dec_acc_s - f.acc0_s
    end_flight(en, gw, x, LOST, REASON_CRASH, now_s)
