"""Prefix cache of the instances: entries (segment x instance), locks, LRU and eviction.  Rules: docs/engine.md section 3."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import F_ENTRIES, HANDED, NONE

FREE_LIST = 0  # ent[0] is no entry: its hnext heads the free list, its held counts the records ever used


@inner
def bucket_of(seg, inst, mask):
    return (seg * 40503 + inst * 65599 + (seg >> 7)) & mask


@inner
def find(ent, bucket, seg, inst):
    """Entry of a segment at an instance, or -1."""
    x = bucket[bucket_of(seg, inst, len(bucket) - 1)]
    while x >= 0:
        e = ent[x]
        if e.seg == seg and e.inst == inst:
            return x
        x = e.hnext
    return NONE


@inner
def create(ent, bucket, seg, inst, head):
    """A new empty entry in front of ``head``, the segment's list; -1 if the pool is full."""
    pool = ent[FREE_LIST]
    x = pool.hnext
    if x >= 0:
        pool.hnext = ent[x].hnext
    else:
        pool.held += 1
        x = pool.held
        if x >= len(ent):
            pool.held -= 1
            return NONE
    e = ent[x]
    e.seg = seg
    e.inst = inst
    e.held = 0
    e.vis = 0
    e.locks = 0
    e.host = 0
    e.in_lru = 0
    e.changed = 0
    e.stamp_s = 0.0
    e.older = NONE
    e.newer = NONE
    h = bucket_of(seg, inst, len(bucket) - 1)
    e.hnext = bucket[h]
    bucket[h] = x
    e.sprev = NONE
    e.snext = head
    if head >= 0:
        ent[head].sprev = x
    return x


@inner
def destroy(ent, bucket, x):
    """Unlink an entry from its hash chain and free it; returns the next of the segment's list if x headed it, else -2."""
    e = ent[x]
    h = bucket_of(e.seg, e.inst, len(bucket) - 1)
    y = bucket[h]
    if y == x:
        bucket[h] = e.hnext
    else:
        while ent[y].hnext != x:
            y = ent[y].hnext
        ent[y].hnext = e.hnext
    head = -2
    if e.snext >= 0:
        ent[e.snext].sprev = e.sprev
    if e.sprev >= 0:
        ent[e.sprev].snext = e.snext
    else:
        head = e.snext
    e.seg = NONE
    e.hnext = ent[FREE_LIST].hnext
    ent[FREE_LIST].hnext = x
    return head


@inner
def entry_for(en, seg, n):
    """Find or make the entry; -1 (and a fault) if the pool is full."""
    x = find(en.ent, en.bucket, seg, n)
    if x < 0:
        x = create(en.ent, en.bucket, seg, n, en.head[seg])
        if x < 0:
            en.cf[0].fault = F_ENTRIES
        else:
            en.head[seg] = x
    return x


@inner
def drop_if_empty(en, x):
    e = en.ent[x]
    if e.held == 0 and e.vis == 0 and e.locks == 0 and e.changed == 0 and e.host == 0:
        seg = e.seg
        head = destroy(en.ent, en.bucket, x)
        if head != -2:
            en.head[seg] = head


@inner
def lru_append(ent, owner, x):
    """Most recent end of ``owner``'s list (a record with lru_head, lru_tail)."""
    e = ent[x]
    e.in_lru = 1
    e.newer = NONE
    e.older = owner.lru_tail
    if owner.lru_tail >= 0:
        ent[owner.lru_tail].newer = x
    else:
        owner.lru_head = x
    owner.lru_tail = x


@inner
def lru_remove(ent, owner, x):
    e = ent[x]
    e.in_lru = 0
    if e.older >= 0:
        ent[e.older].newer = e.newer
    else:
        owner.lru_head = e.newer
    if e.newer >= 0:
        ent[e.newer].older = e.older
    else:
        owner.lru_tail = e.older


@inner
def note_change(en, inst, x):
    """Remember that gateways do not know of this entry's present state yet."""
    e = en.ent[x]
    if e.changed == 0:
        e.changed = 1
        e.cnext = inst.chg_head
        inst.chg_head = x


@inner
def available(inst):
    """Blocks that can be allocated: free ones, and cached ones that nobody uses."""
    return inst.cap - inst.private - inst.held + inst.evictable


@inner
def take_blocks(en, inst, need):
    """Make ``need`` blocks free by evicting, oldest first, each segment from its end; the caller has checked available()."""
    short = need - (inst.cap - inst.private - inst.held)
    while short > 0 and inst.lru_head >= 0:
        x = inst.lru_head
        e = en.ent[x]
        cut = min(short, e.held)
        e.held -= cut
        inst.held -= cut
        inst.evictable -= cut
        short -= cut
        note_change(en, inst, x)
        if e.held == 0:
            lru_remove(en.ent, inst, x)
            drop_if_empty(en, x)


@inner
def lock(en, inst, x):
    e = en.ent[x]
    if e.in_lru == 1:
        lru_remove(en.ent, inst, x)
        inst.evictable -= e.held
    e.locks += 1


@inner
def unlock(en, inst, x):
    e = en.ent[x]
    e.locks -= 1
    if e.locks == 0:
        if e.held > 0:
            lru_append(en.ent, inst, x)
            inst.evictable += e.held
        else:
            drop_if_empty(en, x)


@inner
def match(en, n, inst, row, target):
    """Blocks of a request that the instance has: (hit blocks, segments touched, evictable blocks among those)."""
    eligible = (target - 1) // inst.block
    hit = 0
    segs = 0
    idle = 0
    for p in range(en.poff[inst.e, row], en.poff[inst.e, row + 1]):
        seg = en.path[p]
        s = en.seg[seg]
        if s.start >= eligible:
            break
        if en.cf[0].infinite == 1:
            held = en.infheld[seg]
            x = NONE
        else:
            x = find(en.ent, en.bucket, seg, n)
            held = en.ent[x].held if x >= 0 else 0
        take = min(held, min(s.end, eligible) - s.start)
        if take <= 0:
            break
        hit += take
        segs += 1
        if x >= 0 and en.ent[x].in_lru == 1:
            idle += held
        if take < s.end - s.start:
            break
    return hit, segs, idle


@inner
def host_unlink(en, inst, x):
    """Take a segment out of the host tier's list."""
    e = en.ent[x]
    if e.holder >= 0:
        en.ent[e.holder].hnewer = e.hnewer
    else:
        inst.hlru_head = e.hnewer
    if e.hnewer >= 0:
        en.ent[e.hnewer].holder = e.holder
    else:
        inst.hlru_tail = e.holder


@inner
def touch_host(en, inst, x, blocks):
    """The host tier has at least so many blocks of the segment now, and has just used it; the oldest go if it is full."""
    if inst.host_cap == 0:
        return
    e = en.ent[x]
    if e.host > 0:
        host_unlink(en, inst, x)
    elif blocks == 0:
        return
    inst.host_used += max(0, blocks - e.host)
    e.host = max(e.host, blocks)
    e.hnewer = NONE
    e.holder = inst.hlru_tail
    if inst.hlru_tail >= 0:
        en.ent[inst.hlru_tail].hnewer = x
    else:
        inst.hlru_head = x
    inst.hlru_tail = x
    while inst.host_used > inst.host_cap:
        y = inst.hlru_head
        o = en.ent[y]
        cut = min(np.int64(o.host), inst.host_used - inst.host_cap)
        o.host -= cut
        inst.host_used -= cut
        if o.host == 0:
            host_unlink(en, inst, y)
            drop_if_empty(en, y)


@inner
def host_hit(en, n, inst, row, target, hit):
    """Blocks right after the ``hit`` ones on the GPU that the host tier holds."""
    limit = (target - 1) // inst.block
    more = np.int64(0)
    for p in range(en.poff[inst.e, row], en.poff[inst.e, row + 1]):
        seg = en.path[p]
        s = en.seg[seg]
        if s.end <= hit + more:
            continue
        x = find(en.ent, en.bucket, seg, n)
        held = en.ent[x].host if x >= 0 else 0
        reach = min(np.int64(limit), np.int64(s.start) + held)
        if reach <= hit + more:
            break
        more = reach - hit
        if reach < s.end:
            break
    return more


@inner
def lock_path(en, n, inst, f, segs):
    """Lock the first ``segs`` segments of the request's path."""
    base = en.poff[inst.e, f.row]
    for p in range(base, base + segs):
        x = find(en.ent, en.bucket, en.path[p], n)
        lock(en, inst, x)
        touch_host(en, inst, x, 0)
    f.locked = segs


@inner
def cache_range(en, n, inst, f, first, last):
    """Blocks [first, last) of the request have just been filled: register those that are next in their segment."""
    if last <= first or inst.cache != 1 or f.to_inst == HANDED:
        return
    base = en.poff[inst.e, f.row]
    stop = en.poff[inst.e, f.row + 1]
    p = base + max(0, f.locked - 1)
    while p < stop:
        seg = en.path[p]
        s = en.seg[seg]
        if s.start >= last:
            break
        lo = max(first, s.start) - s.start
        hi = min(last, s.end) - s.start
        if hi > lo:
            if en.cf[0].infinite == 1:
                if en.infheld[seg] >= lo:
                    en.infheld[seg] = max(en.infheld[seg], hi)
            else:
                x = entry_for(en, seg, n)
                if x < 0:
                    return
                if p - base >= f.locked:
                    lock(en, inst, x)
                    f.locked = p - base + 1
                e = en.ent[x]
                new = hi - e.held
                if e.held >= lo and new > 0:
                    e.held += new
                    inst.held += new
                    inst.private -= new
                    f.shared += new
                    note_change(en, inst, x)
                    touch_host(en, inst, x, e.held)
        p += 1


@inner
def release_path(en, n, inst, f):
    """Unlock everything the request holds, the end of its prompt first."""
    if f.locked > 0:
        base = en.poff[inst.e, f.row]
        for p in range(base + f.locked - 1, base - 1, -1):
            unlock(en, inst, find(en.ent, en.bucket, en.path[p], n))
    f.locked = 0
    f.shared = 0
