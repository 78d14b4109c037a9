"""What a gateway replica knows, and its three decisions: admit, site, instance.  Rules: docs/engine.md section 7."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.cache import create, destroy, drop_if_empty, entry_for, find, lru_append, lru_remove
from tfanalyze.replay.jit import hash_inner, inner
from tfanalyze.replay.layout import EPS, F_INDEX, F_MESSAGES, NONE
from tfanalyze.replay.steptime import step_s

EXACT, APPROX = 1, 2


# --- reports ---------------------------------------------------------------------------------------------------------


@inner
def add_series(en, gw, n, now_s):
    """Time integrals of the published state since its last change, by bin."""
    cf = en.cf[0]
    inst = en.inst[n]
    if cf.n_bin > 0:
        t = inst.last_change_s
        p = gw.pub[n]
        while t < now_s:
            b = min(np.int64(t / cf.bin_s), cf.n_bin - 1)
            stop = now_s if b == cf.n_bin - 1 else min(now_s, (b + 1) * cf.bin_s)
            if stop <= t:
                stop = now_s
            gw.series[b, n, 0] += p.running * (stop - t)
            gw.series[b, n, 1] += p.waiting * (stop - t)
            gw.series[b, n, 2] += p.kv_used_share * (stop - t)
            t = stop
    inst.last_change_s = now_s


@inner
def show(en, gw, n, now_s):
    """Make the published state of an instance visible: at once (live), or from the next report tick on."""
    cf = en.cf[0]
    p = gw.pub[n]
    if cf.interval_s <= 0.0:
        for g in range(cf.n_gw):
            copy_report(gw.views[g, n], p)
        return
    tick = np.int64(np.ceil((now_s - EPS) / cf.interval_s))
    at = p.tick
    last = gw.ring[n, at % cf.ring]
    if last.tick != tick:
        at += 1
        p.tick = at
    r = gw.ring[n, at % cf.ring]
    r.tick = tick
    r.running = p.running
    r.waiting = p.waiting
    r.decoding = p.decoding
    r.queued_prefill_tokens = p.queued_prefill_tokens
    r.kv_used_share = p.kv_used_share
    r.kv_tokens = p.kv_tokens
    r.preemptions = p.preemptions
    r.seen = p.seen


@inner
def copy_report(v, p):
    v.running = p.running
    v.waiting = p.waiting
    v.decoding = p.decoding
    v.queued_prefill_tokens = p.queued_prefill_tokens
    v.kv_used_share = p.kv_used_share
    v.kv_tokens = p.kv_tokens
    v.preemptions = p.preemptions
    v.ready = 1 if p.seen == 1.0 else 0


@inner
def publish_queue(en, gw, n, now_s):
    """The engine's queue has changed."""
    inst = en.inst[n]
    add_series(en, gw, n, now_s)
    p = gw.pub[n]
    p.waiting = inst.n_wait
    p.queued_prefill_tokens = inst.wait_tokens + inst.rest_tokens
    show(en, gw, n, now_s)


@inner
def publish(en, gw, n, now_s):
    """The batch has changed: everything becomes public, the cache's changes too (index_lag_s later)."""
    cf = en.cf[0]
    inst = en.inst[n]
    add_series(en, gw, n, now_s)
    p = gw.pub[n]
    p.running = inst.n_run
    p.waiting = inst.n_wait
    p.decoding = inst.n_dec
    p.queued_prefill_tokens = inst.wait_tokens + inst.rest_tokens
    p.kv_used_share = (inst.private + inst.held - inst.evictable) / inst.cap
    p.kv_tokens = inst.k_sum
    p.preemptions = inst.preemptions
    p.seen = inst.seen
    show(en, gw, n, now_s)
    inst.changed = 0
    x = inst.chg_head
    while x >= 0:
        e = en.ent[x]
        after = e.cnext
        e.changed = 0
        if cf.lag_s <= 0.0:
            e.vis = e.held
        elif cf.index == EXACT:
            push_message(en, gw, now_s + cf.lag_s, e.seg, n, e.held, 0)
        drop_if_empty(en, x)
        x = after
    inst.chg_head = NONE


@inner
def push_message(en, gw, t_s, seg, n, held, g):
    cf = en.cf[0]
    if cf.msg_tail - cf.msg_head >= len(gw.msg):
        cf.fault = F_MESSAGES
        return
    m = gw.msg[cf.msg_tail % len(gw.msg)]
    m.t_s = t_s
    m.seg = seg
    m.inst = n
    m.held = held
    m.gw = g
    cf.msg_tail += 1


@inner
def read_messages(en, gw):
    """Index news that is due."""
    cf = en.cf[0]
    while cf.msg_head < cf.msg_tail:
        m = gw.msg[cf.msg_head % len(gw.msg)]
        if m.t_s > cf.lim_s:
            return
        cf.msg_head += 1
        if cf.index == EXACT:
            x = entry_for(en, m.seg, m.inst)
            if x < 0:
                return
            en.ent[x].vis = m.held
            drop_if_empty(en, x)
        else:
            for g in range(cf.n_gw):
                if g != m.gw:
                    note_sent(en, gw, g, m.inst, m.seg, m.t_s)


@inner
def refresh(en, gw, g, now_s):
    """Bring the gateway's view up to its last visible report tick."""
    cf = en.cf[0]
    if cf.interval_s <= 0.0:
        return
    tick = np.int64(np.floor((now_s - cf.delay_s + EPS) / cf.interval_s))
    for n in range(cf.n_inst):
        at = gw.pub[n].tick
        while gw.ring[n, at % cf.ring].tick > tick:
            at -= 1
        v = gw.views[g, n]
        copy_report(v, gw.ring[n, at % cf.ring])
        v.age_s = now_s - tick * cf.interval_s


# --- prefix index ------------------------------------------------------------------------------------------------------


@inner
def note_sent(en, gw, g, n, row, now_s):
    """approx index: the instance will soon hold this prompt, if it has a prefix cache."""
    cf = en.cf[0]
    if en.inst[n].cache == 0:
        return
    e = en.inst[n].e
    who = g * cf.n_inst + n
    lru = gw.ixlru[g, n]
    full = en.row[row].input // en.inst[n].block
    base = en.poff[e, row]
    stop = base
    while stop < en.poff[e, row + 1] and en.seg[en.path[stop]].end <= full:
        seg = en.path[stop]
        x = find(gw.ix, gw.ixbucket, seg, who)
        if x < 0:
            x = create(gw.ix, gw.ixbucket, seg, who, gw.ixhead[g, seg])
            if x < 0:
                cf.fault = F_INDEX
                return
            gw.ixhead[g, seg] = x
            gw.ix[x].held = en.seg[seg].end - en.seg[seg].start
            lru.blocks += gw.ix[x].held
        else:
            lru_remove(gw.ix, lru, x)
        gw.ix[x].stamp_s = now_s
        stop += 1
    for p in range(stop - 1, base - 1, -1):
        lru_append(gw.ix, lru, find(gw.ix, gw.ixbucket, en.path[p], who))
    limit = cf.index_blocks // en.inst[n].block if cf.index_blocks > 0 else en.inst[n].cap
    while lru.blocks > limit:
        x = lru.lru_head
        lru_remove(gw.ix, lru, x)
        lru.blocks -= gw.ix[x].held
        seg = gw.ix[x].seg
        head = destroy(gw.ix, gw.ixbucket, x)
        if head != -2:
            gw.ixhead[g, seg] = head
    gw.views[g, n].index_tokens = lru.blocks * en.inst[n].block


@inner
def believed_hits(en, gw, g, row, now_s):
    """hit_tokens of every instance, as this gateway believes."""
    cf = en.cf[0]
    view = gw.views[g]
    for n in range(cf.n_inst):
        view[n].hit_tokens = 0.0
    if cf.index == 0:
        return
    read_messages(en, gw)
    prompt = en.row[row].input
    for e in range(en.poff.shape[0]):
        for p in range(en.poff[e, row], en.poff[e, row + 1]):
            seg = en.path[p]
            s = en.seg[seg]
            grown = False
            x = en.head[seg] if cf.index == EXACT else gw.ixhead[g, seg]
            while x >= 0:
                if cf.index == EXACT:
                    entry = en.ent[x]
                    n = entry.inst
                    held = entry.vis
                else:
                    entry = gw.ix[x]
                    n = entry.inst - g * cf.n_inst
                    held = entry.held if now_s - entry.stamp_s <= cf.ttl_s else 0
                block = en.inst[n].block
                take = min(held, min(np.int64(s.end), np.int64((prompt - 1) // block)) - s.start)
                if take > 0 and view[n].hit_tokens == float(s.start) * block:
                    view[n].hit_tokens += take * block
                    grown = True
                x = entry.snext
            if cf.infinite == 1 and en.infheld[seg] > 0:
                for n in range(cf.n_inst):
                    if en.inst[n].e == e and en.inst[n].cache != 0 and view[n].hit_tokens == float(s.start) * en.inst[n].block:
                        take = min(np.int64(en.infheld[seg]), min(np.int64(s.end), np.int64((prompt - 1) // en.inst[n].block)) - s.start)
                        if take > 0:
                            view[n].hit_tokens += take * en.inst[n].block
                            grown = True
            if not grown:
                break


# --- what policies are told ------------------------------------------------------------------------------------------


@inner
def expected_output(en, gw, g, row):
    """Learned mean of the class, within max_tokens; the truth only under known_lengths."""
    r = en.row[row]
    if en.cf[0].known_lengths == 1:
        return float(r.output)
    mean = gw.learn[g, r.slo_class].mean_tokens
    if r.max_tokens > 0:
        mean = min(mean, float(r.max_tokens))
    return max(mean, 1.0)


@inner
def describe(en, gw, g, x, now_s):
    """Fill the request record for a flight."""
    f = en.fl[x]
    r = en.row[f.row]
    c = gw.cls[r.slo_class]
    q = gw.req[0]
    q.now_s = now_s
    q.arrival_s = en.out[f.row].arrival_s
    q.input_tokens = r.input
    q.max_tokens = r.max_tokens
    q.expected_output_tokens = expected_output(en, gw, g, f.row)
    q.slo_class = r.slo_class
    q.tenant = r.tenant
    q.priority = r.priority
    q.ttft_slo_s = c.ttft_s
    q.tpot_slo_s = c.tpot_s
    q.e2e_slo_s = c.e2e_s
    q.deadline_s = q.arrival_s + r.deadline_s if r.deadline_s == r.deadline_s else np.inf
    q.session = np.int64(hash_inner(r.session) >> np.uint64(1))
    q.last_instance = en.out[r.last].instance if r.last >= 0 else NONE
    q.last_site = en.inst[q.last_instance].site if q.last_instance >= 0 else NONE
    q.prefix = NONE
    if en.poff[0, f.row + 1] > en.poff[0, f.row]:
        q.prefix = en.path[en.poff[0, f.row]]
    q.region = r.region
    q.model = r.model
    q.attempt = f.attempt
    q.queued_s = now_s - f.begin_s
    q.row = f.row
    q.recorded_instance = r.recorded


@inner
def set_ready(en, gw, g, row, site):
    """Mark who may be chosen: seen as up, role, model, residency, site; returns how many."""
    cf = en.cf[0]
    r = en.row[row]
    count = 0
    for n in range(cf.n_inst):
        v = gw.views[g, n]
        inst = en.inst[n]
        ok = v.ready == 1 and inst.role != 2
        if ok and r.model >= 0 and gw.serves[r.model, n] == 0:
            ok = False
        if ok and r.region >= 0 and inst.site != r.region:
            ok = False
        if ok and site >= 0 and inst.site != site:
            ok = False
        v.ready = 1 if ok else 0
        if ok:
            count += 1
    return count


@inner
def restore_ready(en, gw, g):
    """Undo set_ready: in live mode nothing else would."""
    cf = en.cf[0]
    for n in range(cf.n_inst):
        if cf.interval_s <= 0.0:
            gw.views[g, n].ready = 1 if gw.pub[n].seen == 1.0 else 0


@inner
def wait_s(v, inst):
    """Prefill backlog over prefill rate."""
    return max(v.queued_prefill_tokens, v.inflight_prefill_tokens) / inst.prefill_tok_s


@inner
def fill_sites(en, gw, g, row):
    """SITE records for one request: sums over what is ready there for it (set_ready has run with no site)."""
    cf = en.cf[0]
    r = en.row[row]
    for s in range(cf.n_site):
        z = gw.sites[g, s]
        z.ready = 0
        z.instances = 0.0
        z.configured = 0.0
        z.warming = 0.0
        z.running = 0.0
        z.waiting = 0.0
        z.decoding = 0.0
        z.queued_prefill_tokens = 0.0
        z.kv_used_share = 0.0
        z.kv_used_max = 0.0
        z.inflight = 0.0
        z.inflight_tokens = 0.0
        z.inflight_prefill_tokens = 0.0
        z.hit_tokens = 0.0
        z.prefill_tok_s = 0.0
        z.decode_tok_s = 0.0
        z.slots = 0.0
        z.assigned = 0.0
        z.min_wait_s = np.inf
        w = gw.swing[g, s, r.slo_class]
        z.ttft_mean_s = w.ttft_s
        z.ttft_var_s2 = w.var_s2
        z.attained = w.attained
    for n in range(cf.n_inst):
        inst = en.inst[n]
        z = gw.sites[g, inst.site]
        if r.model < 0 or gw.serves[r.model, n] == 1:
            z.configured += 1
            if inst.seen == 3:
                z.warming += 1
        v = gw.views[g, n]
        z.assigned += v.assigned
        z.age_s = v.age_s
        if v.ready == 0:
            continue
        z.ready = 1
        z.instances += 1
        z.running += v.running
        z.waiting += v.waiting
        z.decoding += v.decoding
        z.queued_prefill_tokens += v.queued_prefill_tokens
        z.kv_used_share += v.kv_used_share
        z.kv_used_max = max(z.kv_used_max, v.kv_used_share)
        z.inflight += v.inflight
        z.inflight_tokens += v.inflight_tokens
        z.inflight_prefill_tokens += v.inflight_prefill_tokens
        z.hit_tokens = max(z.hit_tokens, v.hit_tokens)
        z.prefill_tok_s += inst.prefill_tok_s
        b = max(1.0, v.decoding)
        z.decode_tok_s += b / step_s(inst, 0.0, 0.0, b, max(v.kv_tokens, 1.0), max(v.kv_tokens, 1.0) / b)
        z.slots += v.max_num_seqs
        z.min_wait_s = min(z.min_wait_s, wait_s(v, inst))
    for s in range(cf.n_site):
        z = gw.sites[g, s]
        if z.instances > 0:
            z.kv_used_share /= z.instances


@inner
def fill_gate(en, gw, g, now_s):
    """The fleet-wide part of the GATE records, the same in each."""
    cf = en.cf[0]
    instances, slots, cap, kv, waiting, running, rate = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    least = np.inf
    for n in range(cf.n_inst):
        v = gw.views[g, n]
        if v.ready == 0:
            continue
        instances += 1
        slots += v.max_num_seqs
        cap += v.kv_capacity_tokens
        kv += v.kv_used_share
        waiting += v.waiting
        running += v.running
        rate += en.inst[n].prefill_tok_s
        least = min(least, wait_s(v, en.inst[n]))
    for q in range(cf.n_queue):
        z = gw.gate[g, q]
        z.now_s = now_s
        z.instances = instances
        z.slots = slots
        z.kv_capacity_tokens = cap
        z.kv_used_share = kv / max(instances, 1.0)
        z.waiting = waiting
        z.running = running
        z.prefill_tok_s = rate
        z.min_wait_s = least if instances > 0 else 0.0
        z.saturation_queue = waiting / max(instances, 1.0)
        fill_head(en, gw, g, q, now_s)


@inner
def fill_head(en, gw, g, q, now_s):
    """What the head of one queue looks like."""
    z = gw.gate[g, q]
    z.oldest_s = 0.0
    z.head_arrival_s = np.inf
    z.head_deadline_s = np.inf
    head = gw.queue[g, q].head
    if head >= 0:
        f = en.fl[head]
        z.oldest_s = now_s - f.begin_s
        z.head_arrival_s = f.begin_s
        d = en.row[f.row].deadline_s
        if d == d:
            z.head_deadline_s = en.out[f.row].arrival_s + d
