"""Compiled helpers that several gateways' policies share; jit.py keys the compile cache on this file."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.jit import hash_u64, helper, rand01


@helper
def least(scores, view, rng):
    """The ready record with the least score, seeded ties; -1 when none is ready."""
    best, ties = -1, 0.0
    for n in range(view.size):
        if view[n].ready != 1:
            continue
        if best < 0 or scores[n] < scores[best]:
            best, ties = n, 1.0
        elif scores[n] == scores[best]:
            ties += 1.0
            if rand01(rng) * ties < 1.0:
                best = n
    return best


@helper
def next_in_turn(view, memory, at):
    """The ready instance after the last one chosen; memory[at] holds the turn."""
    start = np.int64(memory[at])
    for k in range(view.size):
        n = (start + k) % view.size
        if view[n].ready == 1:
            memory[at] = n + 1
            return n
    return -1


@helper
def any_ready(view, rng, but):
    """A ready instance drawn at random, other than `but` (-1: any); -1 when there is none."""
    found, seen = -1, 0.0
    for n in range(view.size):
        if view[n].ready == 1 and n != but:
            seen += 1.0
            if rand01(rng) * seen < 1.0:
                found = n
    return found


@helper
def two_choices(view, rng):
    """The one with fewer requests in flight of two different random instances."""
    a = any_ready(view, rng, -1)
    b = any_ready(view, rng, a)
    return a if b < 0 or (a >= 0 and view[a].inflight <= view[b].inflight) else b


@helper
def least_loaded(view, rng, scores):
    """Fewest requests in flight from this gateway."""
    for n in range(view.size):
        scores[n] = view[n].inflight
    return least(scores, view, rng)


@helper
def longest_match(view, rng, scores):
    """Longest prefix believed cached."""
    for n in range(view.size):
        scores[n] = -view[n].hit_tokens
    return least(scores, view, rng)


@helper
def longest_match_least_loaded(view, rng, scores):
    """Of those with the longest prefix believed cached, the one with the fewest requests in flight."""
    best = 0.0
    for n in range(view.size):
        if view[n].ready == 1:
            best = max(best, view[n].hit_tokens)
    for n in range(view.size):
        scores[n] = view[n].inflight if view[n].hit_tokens == best else np.inf
    return least(scores, view, rng)


@helper
def imbalanced(view, absolute, relative):
    """max - min > absolute AND max > relative * min of requests in flight at this router."""
    low, high = np.inf, 0.0
    for n in range(view.size):
        if view[n].ready == 1:
            low, high = min(low, view[n].inflight), max(high, view[n].inflight)
    return high - low > absolute and high > relative * low


@helper
def by_hash(view, key):
    """Rendezvous hashing: a key keeps its instance, and one instance less moves only its own keys."""
    best = -1
    for n in range(view.size):
        if view[n].ready != 1:
            continue
        if best < 0 or hash_u64(hash_u64(key) + np.uint64(n)) > hash_u64(hash_u64(key) + np.uint64(best)):
            best = n
    return best
