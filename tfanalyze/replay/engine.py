"""One engine replica: its queue, its batch and the planning of its next step.  Rules: docs/engine.md sections 4 to 6."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.cache import (
    available,
    cache_range,
    host_hit,
    lock_path,
    match,
    note_change,
    release_path,
    take_blocks,
)
from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import DECODE, EPS, HANDED, N_WASTE, NONE, PREFILL, W_PREEMPT
from tfanalyze.replay.queues import (
    before,
    join_decode,
    leave_decode,
    made_now,
    pre_append,
    pre_remove,
    run_append,
    run_remove,
    wait_insert,
    wait_remove,
)
from tfanalyze.replay.slots import pick_slot
from tfanalyze.replay.steptime import step_s, stretch_s

VLLM, SGLANG, LLAMACPP = 0, 1, 2
BLOCKS, SLOTS = 1, 2


# --- memory of one request -------------------------------------------------------------------------------------------


@inner
def ceil_div(a, b):
    return (a + b - 1) // b


@inner
def computed_now(en, inst, f):
    if f.state == DECODE:
        return en.row[f.row].input + made_now(inst, f) - 1
    return np.int64(f.computed)


@inner
def free_memory(en, n, inst, x, tokens):
    """Give back everything a running request holds; ``tokens`` = what its blocks are allocated for."""
    f = en.fl[x]
    if inst.cache == SLOTS:
        s = en.slot[n, f.slot]
        s.busy = 0
        s.tokens = computed_now(en, inst, f)
        en.cf[0].releases += 1
        s.released = en.cf[0].releases
        inst.private -= tokens
        return
    inst.private -= ceil_div(tokens, inst.block) - f.shared
    release_path(en, n, inst, f)


@inner
def stop_running(en, n, inst, x):
    """Take a running request out of the batch and out of memory (finish, preemption, cancel, hand-off)."""
    f = en.fl[x]
    computed = computed_now(en, inst, f)
    free_memory(en, n, inst, x, computed + f.step_m)
    if f.state == DECODE:
        leave_decode(en, n, inst, x)
    else:
        pre_remove(en, inst, x)
    f.step_m = 0
    run_remove(en, inst, x)
    return computed


@inner
def preempt(en, n, inst, x):
    """Recompute later: everything it had is freed and it waits again, in front."""
    f = en.fl[x]
    f.lost = stop_running(en, n, inst, x)
    f.target = en.row[f.row].input + f.made
    f.computed = 0
    f.preempts += 1
    inst.thrash = 1
    inst.preemptions += 1
    wait_insert(en, inst, x, True)


@inner
def position_sum(first, m):
    """Sum of the positions of m tokens after ``first``."""
    return m * float(first) + m * (m + 1) / 2.0


@inner
def schedule_chunk(en, n, inst, x, m):
    """Plan m prompt tokens of a running request whose blocks are allocated; returns their position sum."""
    f = en.fl[x]
    row = en.row[f.row]
    f.step_m = m
    inst.step_p += m
    inst.rest_tokens -= m
    if inst.sched != SGLANG:
        cache_range(en, n, inst, f, f.computed // inst.block, min(f.computed + m, row.input) // inst.block)
    return position_sum(f.computed, m)


# --- planning ----------------------------------------------------------------------------------------------------------


@inner
def grow_in_order(en, n, inst):
    """Running requests take their blocks one by one, preempting from the end when memory is out: (any preempted, position sum)."""
    fl = en.fl
    paged = inst.cache != SLOTS
    any_preempted = False
    a_sum = 0.0
    x = inst.run_head
    while x >= 0:
        f = fl[x]
        done = computed_now(en, inst, f)
        if f.state == DECODE:
            m = 1
        else:
            m = min(f.target - f.computed, inst.budget - inst.n_dec - inst.step_p)
            if inst.long_prefill > 0:
                m = min(m, inst.long_prefill)
        after = f.rnext
        if m > 0:
            need = ceil_div(done + m, inst.block) - ceil_div(done, inst.block)
            gone = False
            while paged and need > available(inst):
                v = inst.run_tail
                if inst.prio_queue == 1:
                    y = fl[v].rprev
                    while y >= 0:
                        if before(fl, v, y):
                            v = y
                        y = fl[y].rprev
                after = f.rnext
                if fl[v].state == PREFILL and fl[v].step_m > 0:
                    inst.step_p -= fl[v].step_m
                    inst.rest_tokens += fl[v].step_m
                    a_sum -= position_sum(fl[v].computed, fl[v].step_m)
                preempt(en, n, inst, v)
                any_preempted = True
                if v == x:
                    gone = True
                    break
            if not gone:
                after = f.rnext
                take_blocks(en, inst, need)
                inst.private += need
                if f.state == DECODE:
                    f.step_m = 1
                else:
                    a_sum += schedule_chunk(en, n, inst, x, m)
        x = after
    for i in range(inst.heap_n):
        fl[en.fheap[n, i]].step_m = 0
    return any_preempted, a_sum


@inner
def grow_at_once(en, n, inst):
    """Blocks for everything that runs, if they are all there: (fits, position sum)."""
    fl = en.fl
    rest = inst.budget - inst.n_dec
    need = np.int64(en.phase[n, inst.steps % inst.block]) if inst.n_dec > 0 else np.int64(0)
    x = inst.pre_head
    while x >= 0:
        f = fl[x]
        m = min(f.target - f.computed, rest)
        if inst.long_prefill > 0:
            m = min(m, inst.long_prefill)
        rest -= m
        need += ceil_div(f.computed + m, inst.block) - ceil_div(f.computed, inst.block)
        x = f.pnext
    if inst.cache != SLOTS and need > available(inst):
        return False, 0.0
    if inst.cache != SLOTS:
        take_blocks(en, inst, need)
    inst.private += need
    a_sum = 0.0
    x = inst.pre_head
    while x >= 0:
        f = fl[x]
        m = min(f.target - f.computed, inst.budget - inst.n_dec - inst.step_p)
        if inst.long_prefill > 0:
            m = min(m, inst.long_prefill)
        if m > 0:
            a_sum += schedule_chunk(en, n, inst, x, m)
        x = f.pnext
    return True, a_sum


@inner
def admit_slot(en, n, inst, x, m_limit):
    """Admit into a llama.cpp slot: (tokens planned, position sum)."""
    f = en.fl[x]
    row = en.row[f.row]
    i, hit = pick_slot(en, n, inst, f.row)
    s = en.slot[n, i]
    s.busy = 1
    s.row = f.row
    s.path = en.poff[inst.e, f.row]
    s.tokens = 0
    f.slot = i
    m = min(f.target - hit, m_limit)
    start_running(en, inst, x, hit)
    inst.private += hit + m
    return m, schedule_chunk(en, n, inst, x, m)


@inner
def start_running(en, inst, x, hit_tokens):
    """Out of the queue, into the batch, with its cached tokens."""
    f = en.fl[x]
    wait_remove(en, inst, x)
    f.computed = hit_tokens
    if f.sched_s < 0:
        f.sched_s = inst.base_s
        f.hit = hit_tokens
    if f.preempts > 0:
        again = max(0, f.lost - hit_tokens)
        if f.lost > 0:
            seconds = (f.gpu_s - f.mark_s) * again / f.lost
            f.waste_s += seconds
            en.waste[N_WASTE + W_PREEMPT] += seconds
        f.mark_s = f.gpu_s
        f.waste += again
        en.waste[W_PREEMPT] += again
        f.lost = 0
    en.cf[0].reused += hit_tokens
    run_append(en, inst, x)
    pre_append(en, inst, x)


@inner
def admit_ready(en, n, inst, x):
    """Admit a hand-off: its KV is here, it only needs blocks, and decodes in this step. Returns 1 if it got them."""
    f = en.fl[x]
    tokens = np.int64(en.row[f.row].input) + f.made
    if inst.sched == SGLANG:
        tokens -= 1  # the decode step's own block is counted with the others'
    need = ceil_div(tokens, inst.block)
    floor = inst.watermark if inst.n_run > 0 else 0
    if need > available(inst) - floor:
        return 0
    take_blocks(en, inst, need)
    inst.private += need
    wait_remove(en, inst, x)
    run_append(en, inst, x)
    join_decode(en, n, inst, x)
    f.target = 0
    return 1


@inner
def admit_waiting(en, n, inst, a_sum):
    """Admit from the head of the queue while tokens, places and blocks last; returns the position sum."""
    fl = en.fl
    late_s, seats = np.inf, inst.max_seqs
    if inst.ahead == 1 and inst.n_run > 0:  # this step was planned when the last one began
        late_s, seats = inst.lag_s + EPS, inst.max_seqs - inst.gone
    while inst.n_wait > 0 and inst.n_run < inst.max_seqs:
        if inst.n_run >= seats or fl[inst.w_head].engine_s > late_s:
            inst.held_back = 1
            break
        budget = inst.budget - inst.n_dec - inst.step_p
        if inst.sched == SGLANG:
            budget = inst.budget - inst.step_p
        if budget <= 0:
            break
        x = inst.w_head
        f = fl[x]
        if f.to_inst == HANDED and f.target == 0:
            if admit_ready(en, n, inst, x) == 0:
                break
            continue
        m_limit = budget
        if inst.long_prefill > 0 and inst.sched != SGLANG:
            m_limit = min(m_limit, inst.long_prefill)
        if inst.cache == SLOTS:
            m, a = admit_slot(en, n, inst, x, m_limit)
            a_sum += a
            continue
        hit, segs, idle = np.int64(0), np.int64(0), np.int64(0)
        if inst.cache == BLOCKS and f.to_inst != HANDED:
            hit, segs, idle = match(en, n, inst, f.row, f.target)
        paid = hit if en.cf[0].infinite == 0 else np.int64(0)
        loaded = np.int64(0)
        if inst.host_cap > 0 and inst.cache == BLOCKS and f.to_inst != HANDED:
            loaded = host_hit(en, n, inst, f.row, f.target, hit)
        start = hit + loaded
        rest = f.target - start * inst.block
        m = min(np.int64(rest), np.int64(m_limit))
        if inst.chunked == 0 and rest > budget:
            if inst.n_dec > 0 and inst.sched != SGLANG or inst.step_p > 0:
                break
            m = np.int64(rest)
        need = ceil_div(start * inst.block + m, inst.block) - paid
        gate = need
        if inst.reserve_full == 1 or inst.sched == SGLANG:
            gate = ceil_div(np.int64(f.target), inst.block) - paid
        if inst.sched == SGLANG:
            gate += np.int64(np.ceil(inst.ratio * max(0, inst.m_sum - inst.g_sum) / inst.block))
        floor = inst.watermark if inst.n_run > 0 else 0
        if gate > available(inst) - idle - floor:
            break
        if en.cf[0].infinite == 0:
            lock_path(en, n, inst, f, segs)
            f.shared = hit
        take_blocks(en, inst, need)
        inst.private += need
        start_running(en, inst, x, start * inst.block)
        if loaded > 0:
            cache_range(en, n, inst, f, hit, start)
            inst.load_s += loaded * inst.block / inst.host_tok_s
        a_sum += schedule_chunk(en, n, inst, x, m)
        if inst.sched == SGLANG and m < rest:
            break
    return a_sum


@inner
def plan_decode_first(en, n, inst):
    """vLLM and llama.cpp: position sum of the planned prefill tokens."""
    for _ in range(2):
        preempted = False
        fits, a_sum = grow_at_once(en, n, inst)
        if not fits:
            preempted, a_sum = grow_in_order(en, n, inst)
        if not preempted:
            a_sum = admit_waiting(en, n, inst, a_sum)
        if inst.n_dec > 0 or inst.step_p > 0 or not preempted:
            break
    inst.k_dec = inst.n_dec
    return a_sum


@inner
def retract_victim(en, n, inst):
    """SGLang: fewest generated tokens, then longest input, then latest admitted."""
    best = en.fheap[n, 0]
    for i in range(1, inst.heap_n):
        y = en.fheap[n, i]
        a, b = en.fl[y], en.fl[best]
        ga, gb = made_now(inst, a), made_now(inst, b)
        la, lb = en.row[a.row].input, en.row[b.row].input
        if ga < gb or (ga == gb and (la > lb or (la == lb and a.run_order > b.run_order))):
            best = y
    return best


@inner
def plan_prefill_first(en, n, inst):
    """SGLang: a prefill batch if there is one, else a decode step; position sum of the planned prefill tokens."""
    fl = en.fl
    a_sum = 0.0
    blocked = False
    x = inst.pre_head
    if x >= 0:
        f = fl[x]
        m = min(f.target - f.computed, inst.budget)
        need = ceil_div(f.computed + m, inst.block) - ceil_div(f.computed, inst.block)
        if need <= available(inst):
            take_blocks(en, inst, need)
            inst.private += need
            a_sum += schedule_chunk(en, n, inst, x, m)
            blocked = f.computed + m < f.target
        else:
            blocked = True
            if inst.n_dec == 0:
                preempt(en, n, inst, x)
                blocked = False
    if not blocked:
        a_sum = admit_waiting(en, n, inst, a_sum)
    inst.k_dec = 0
    if inst.step_p == 0 or inst.mixed == 1:
        while inst.n_dec > 0:
            need = np.int64(en.phase[n, inst.steps % inst.block])
            if need <= available(inst):
                take_blocks(en, inst, need)
                inst.private += need
                inst.k_dec = inst.n_dec
                break
            if inst.step_p > 0:
                break
            preempt(en, n, inst, retract_victim(en, n, inst))
    return a_sum


@inner
def stretch_steps(en, n, inst):
    """How many decode steps go by before anything but KV size changes: first finish, or memory out."""
    if inst.held_back == 1:
        return np.int64(1)
    k = np.int64(en.fl[en.fheap[n, 0]].finish_step - inst.steps)
    if inst.cache == SLOTS or k <= 1:
        return k
    if (inst.thrash == 1 or en.cf[0].infinite == 1) and inst.n_wait > 0 and inst.n_run < inst.max_seqs:
        return np.int64(1)  # the queue must be looked at again in the next step
    if inst.sched == SGLANG and inst.block > 1 and inst.n_wait > 0 and inst.n_run < inst.max_seqs:
        return np.int64(1)
    spare = available(inst)
    b = inst.n_dec
    if b * ((k - 1) // inst.block + 1) <= spare:
        return k
    cycles = spare // b
    spare -= cycles * b
    j = 0
    while j < inst.block:
        spare -= en.phase[n, (inst.steps + 1 + j) % inst.block]
        if spare < 0:
            break
        j += 1
    return min(k, 1 + cycles * inst.block + j)


@inner
def grow_stretch(en, n, inst, k):
    """Blocks for steps 2..k of a decode stretch that has run."""
    if inst.cache == SLOTS:
        inst.private += np.int64(inst.k_dec) * (k - 1)
        return
    if k <= 1:
        return
    more = k - 1
    need = (more // inst.block) * inst.k_dec
    for j in range(more % inst.block):
        need += en.phase[n, (inst.steps + 1 + j) % inst.block]
    take_blocks(en, inst, need)
    inst.private += need


@inner
def longest(en, n, inst):
    """Tokens that the longest decoding request reads in the next step."""
    if inst.top_stale == 1:
        inst.top_key = -(1 << 62)
        for i in range(inst.heap_n):
            f = en.fl[en.fheap[n, i]]
            inst.top_key = max(inst.top_key, np.int64(en.row[f.row].input) + made_now(inst, f) - inst.steps)
        inst.top_stale = 0
    return inst.top_key + inst.steps


@inner
def plan(en, n, now_s):
    """Plan the instance's next step or stretch; sets next_s (inf when it has nothing to run)."""
    inst = en.inst[n]
    inst.base_s = max(now_s, inst.arr_s)
    inst.step_p = 0
    inst.load_s = 0.0
    inst.thrash = 0
    inst.held_back = 0
    if inst.sched == SGLANG:
        a_sum = plan_prefill_first(en, n, inst)
        if inst.step_p == 0 and inst.k_dec == 0 and inst.n_wait > 0:
            a_sum = plan_prefill_first(en, n, inst)  # everything was retracted
    else:
        a_sum = plan_decode_first(en, n, inst)
    k = np.int64(1)
    inst.k_top = longest(en, n, inst) if inst.k_dec > 0 and inst.c_long_s > 0.0 else np.int64(0)
    if inst.step_p > 0:
        read = float(inst.k_sum) if inst.k_dec > 0 else 0.0
        seconds = inst.load_s + step_s(inst, float(inst.step_p), a_sum, float(inst.k_dec), read, float(inst.k_top))
    elif inst.k_dec > 0:
        k = stretch_steps(en, n, inst)
        seconds = stretch_s(inst, inst.k_dec, inst.k_sum, k)
    else:
        inst.next_s = np.inf
        inst.k_steps = 0
        inst.lag_s = np.inf
        inst.gone = 0
        return
    inst.k_steps = k
    inst.next_s = inst.base_s + seconds


@inner
def clear_memory(en, n, inst):
    """A crash: every block is gone."""
    for seg_x in range(1, en.ent[0].held + 1):
        e = en.ent[seg_x]
        if e.inst == n and (e.held > 0 or e.locks > 0 or e.host > 0) and e.seg >= 0:
            e.held = 0
            e.locks = 0
            e.in_lru = 0
            e.host = 0
            note_change(en, inst, seg_x)
    inst.lru_head = NONE
    inst.lru_tail = NONE
    inst.held = 0
    inst.evictable = 0
    inst.private = 0
    inst.host_used = 0
    inst.hlru_head = NONE
    inst.hlru_tail = NONE
    inst.n_saved = 0
    for i in range(inst.slots):
        s = en.slot[n, i]
        s.busy = 0
        s.row = NONE
        s.tokens = 0
        s.released = 0
