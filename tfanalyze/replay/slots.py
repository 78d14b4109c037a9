"""llama.cpp's per-slot prefix cache, and the prompts it keeps in host memory.  Rules: docs/engine.md section 4."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.jit import inner
from tfanalyze.replay.layout import NONE

KEEP_SHARE = 0.5  # a slot that would lose more than this share of its content saves it first
LOAD_SHARE = 0.25  # a saved prompt is worth loading only if at least this share of it is wanted


@inner
def common_tokens(en, inst, row, tokens, path, other_row, other_tokens):
    """Tokens that two contents share from the start: ``path`` is where other_row's path begins."""
    p, stop = en.poff[inst.e, row], en.poff[inst.e, row + 1]
    q, end = path, en.poff[inst.e, other_row + 1]
    limit = min(np.int64(tokens), np.int64(other_tokens))
    common = np.int64(0)
    while p < stop and q < end and en.path[p] == en.path[q]:
        common = np.int64(en.seg[en.path[p]].end) * inst.block
        if common >= limit:
            break
        p += 1
        q += 1
    return min(common, limit)


@inner
def shared_with(en, inst, row, s):
    """Tokens of the prompt (all of it) that a content starts with."""
    if s.row < 0:
        return np.int64(0)
    return common_tokens(en, inst, row, 1 << 40, s.path, s.row, s.tokens)


@inner
def copy_content(to, s):
    to.row = s.row
    to.path = s.path
    to.tokens = s.tokens


@inner
def forget_saved(en, n, inst, i):
    """Drop the i-th saved prompt; the others keep their order."""
    inst.n_saved -= 1
    for j in range(i, inst.n_saved):
        copy_content(en.saved[n, j], en.saved[n, j + 1])


@inner
def save_slot(en, n, inst, s):
    """Keep a slot's content in host memory, unless one there has it whole; what it has whole itself is dropped."""
    if s.row < 0 or s.tokens == 0:
        return
    i = 0
    total = np.int64(s.tokens)
    while i < inst.n_saved:
        o = en.saved[n, i]
        common = common_tokens(en, inst, s.row, s.tokens, o.path, o.row, o.tokens)
        if common == s.tokens:
            return
        if common == o.tokens:
            forget_saved(en, n, inst, i)
        else:
            total += o.tokens
            i += 1
    while inst.n_saved > 0 and (total > inst.host_cap or inst.n_saved == en.saved.shape[1]):
        total -= en.saved[n, 0].tokens
        forget_saved(en, n, inst, 0)
    if total <= inst.host_cap:
        copy_content(en.saved[n, inst.n_saved], s)
        inst.n_saved += 1


@inner
def load_saved(en, n, inst, row, s):
    """Move the saved prompt that serves better than the slot's own content into the slot."""
    prompt = float(en.row[row].input)
    best = NONE
    keep, share = -1.0, -1.0
    if s.row >= 0 and s.tokens > 0:
        common = shared_with(en, inst, row, s)
        keep, share = common / s.tokens, common / prompt
    for i in range(inst.n_saved):
        o = en.saved[n, i]
        common = shared_with(en, inst, row, o)
        if common / o.tokens >= LOAD_SHARE and common / o.tokens > keep and common / prompt > share:
            best, keep, share = i, common / o.tokens, common / prompt
    if best >= 0:
        copy_content(s, en.saved[n, best])
        forget_saved(en, n, inst, best)


@inner
def pick_slot(en, n, inst, row):
    """The free slot with the longest common prefix if long enough, else the least recently released: (slot, hit tokens)."""
    best, best_tokens = NONE, np.int64(0)
    oldest = NONE
    for i in range(inst.slots):
        s = en.slot[n, i]
        if s.busy == 1:
            continue
        if oldest == NONE or s.released < en.slot[n, oldest].released:
            oldest = i
        tokens = shared_with(en, inst, row, s)
        if tokens > best_tokens and tokens >= inst.similarity * en.row[row].input:
            best, best_tokens = i, tokens
    i = best if best >= 0 else oldest
    s = en.slot[n, i]
    if inst.host_cap > 0 and (best < 0 or best_tokens < KEEP_SHARE * s.tokens):
        save_slot(en, n, inst, s)
        load_saved(en, n, inst, row, s)
    return i, min(shared_with(en, inst, row, s), np.int64(en.row[row].input) - 1)
