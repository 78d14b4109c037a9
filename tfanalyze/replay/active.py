"""Distinct prompt blocks in flight at an instance, as one gateway counts them.  Rules: docs/engine.md section 7.

Kept only for a policy that asks for it (``counts_blocks``).  The entries share the pool of the approximate index, under
numbers of their own: `held` is the segment's blocks, `locks` how many requests in flight have it.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.cache import create, destroy, find
from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import F_INDEX, NONE


@inner
def whole_blocks(en, n, row):
    """Blocks of this prompt that its path names; none where the engine shares none."""
    return en.row[row].input // en.inst[n].block if en.inst[n].cache == 1 else 0


@inner
def count_blocks(en, gw, x):
    """A request goes to its instance: its prompt blocks that no other one there has are new."""
    cf = en.cf[0]
    f = en.fl[x]
    n = f.inst
    who = (cf.n_gw + f.gw) * cf.n_inst + n
    e, block = en.inst[n].e, en.inst[n].block
    full = whole_blocks(en, n, f.row)
    new = (en.row[f.row].input + block - 1) // block
    for p in range(en.poff[e, f.row], en.poff[e, f.row + 1]):
        seg = en.path[p]
        s = en.seg[seg]
        if s.end > full:
            break
        y = find(gw.ix, gw.ixbucket, seg, who)
        if y >= 0:
            new -= s.end - s.start
        else:
            y = create(gw.ix, gw.ixbucket, seg, who, NONE)
            if y < 0:
                cf.fault = F_INDEX
                return
            gw.ix[y].held = s.end - s.start
        gw.ix[y].locks += 1
    gw.views[f.gw, n].active_blocks += new
    f.active = 1


@inner
def uncount_blocks(en, gw, x):
    """It has left the instance: what it alone had is not active any more."""
    cf = en.cf[0]
    f = en.fl[x]
    if f.active == 0:
        return
    n = f.inst
    who = (cf.n_gw + f.gw) * cf.n_inst + n
    e, block = en.inst[n].e, en.inst[n].block
    full = whole_blocks(en, n, f.row)
    gone = (en.row[f.row].input + block - 1) // block
    for p in range(en.poff[e, f.row], en.poff[e, f.row + 1]):
        seg = en.path[p]
        s = en.seg[seg]
        if s.end > full:
            break
        y = find(gw.ix, gw.ixbucket, seg, who)
        gw.ix[y].locks -= 1
        if gw.ix[y].locks > 0:
            gone -= s.end - s.start
        else:
            destroy(gw.ix, gw.ixbucket, y)
    gw.views[f.gw, n].active_blocks -= gone
    f.active = 0


@inner
def shared_blocks(en, gw, g, row):
    """active_hit_blocks of every instance: prompt blocks of this request that a request in flight there has."""
    cf = en.cf[0]
    for n in range(cf.n_inst):
        v = gw.views[g, n]
        v.active_hit_blocks = 0.0
        if v.active_blocks <= 0.0:
            continue
        who = (cf.n_gw + g) * cf.n_inst + n
        e = en.inst[n].e
        full = whole_blocks(en, n, row)
        have = np.int64(0)
        for p in range(en.poff[e, row], en.poff[e, row + 1]):
            s = en.seg[en.path[p]]
            if s.end > full or find(gw.ix, gw.ixbucket, en.path[p], who) < 0:
                break
            have += s.end - s.start
        v.active_hit_blocks = have
