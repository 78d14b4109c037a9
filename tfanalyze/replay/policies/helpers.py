"""What policies compute with: predicted times of one instance, and seeded choices.  jit.py keys the compile cache on it.

All times are seconds, all counts tokens or requests; `v` is one VIEW record.  The formulas are StepTime's
(models/profile.py) with what a gateway can know put in; none allocates, raises or reads the future.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from tfanalyze.replay.jit import helper, rand01


@helper
def argmin(scores, view, rng):
    """Index of the ready record with the least score, ties broken by a seeded draw; -1 when none is ready."""
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
def argmin_within(scores, view, rng, slack, keep):
    """As argmin, but all within `slack` of the least count as equal; `keep` (-1 = none) wins when it is one of them."""
    least = np.inf
    for n in range(view.size):
        if view[n].ready == 1 and scores[n] < least:
            least = scores[n]
    best, ties = -1, 0.0
    for n in range(view.size):
        if view[n].ready != 1 or scores[n] > least + slack:
            continue
        if n == keep:
            return n
        ties += 1.0
        if rand01(rng) * ties < 1.0:
            best = n
    return best


@helper
def share_below(limit, mean, spread):
    """Probability that a quantity stays below `limit`: the normal law by its logistic fit (Bowling et al. 2009)."""
    if mean > limit and spread <= 0.0:
        return 0.0
    if spread <= 0.0:
        return 1.0
    z = (limit - mean) / spread
    if z > 8.0:
        return 1.0
    if z < -8.0:
        return 0.0
    return 1.0 / (1.0 + np.exp(-0.07056 * z * z * z - 1.5976 * z))


@helper
def decode_step_s(v, seqs, kv_tokens):
    """One decode step of `seqs` sequences that read `kv_tokens` tokens of context."""
    return v.c0_s + v.c_decode_step_s + v.c_seq_s * seqs + v.c_kv_s * kv_tokens


@helper
def prefill_time_s(v, new_tokens, hit):
    """Computing `new_tokens` behind `hit` cached ones in chunks of the token budget, alone on the engine."""
    chunk = max(1.0, v.max_batched_tokens)
    steps = max(1.0, np.ceil(new_tokens / chunk))
    attn = new_tokens * hit + 0.5 * new_tokens * (new_tokens + 1.0)
    own = (
        v.c_prefill_s * new_tokens + v.c_prefill2_s * new_tokens * min(new_tokens, chunk) + v.c_attn_s * attn
    )
    return steps * (v.c0_s + v.c_prefill_step_s) + own


@helper
def prefill_token_s(v, length):
    """One token of backlog: its share of a full chunk in which the decodes take part, in prompts of `length` tokens."""
    chunk = max(1.0, v.max_batched_tokens)
    fixed = v.c0_s + v.c_prefill_step_s + v.c_seq_s * v.decoding + v.c_kv_s * v.kv_tokens
    if v.decoding > 0.0:
        fixed += v.c_decode_step_s
    return fixed / chunk + v.c_prefill_s + v.c_prefill2_s * chunk + 0.5 * v.c_attn_s * length


@helper
def backlog_tokens(v, stale_s):
    """Prompt tokens still to be computed there.

    Own dispatches are exact but know nothing of other gateways: scaled up when the report counts more requests than
    we sent.  A report that has seen all we sent also knows how far the engine has come: the smaller of the two, and the
    less of it the older it is (at age `stale_s` half).
    """
    seen = v.running + v.waiting
    own = v.inflight_prefill_tokens
    if seen > v.inflight:
        own = max(own * seen / v.inflight, 0.0) if v.inflight > 0.0 else v.queued_prefill_tokens
    if seen < v.inflight or own <= v.queued_prefill_tokens:
        return own
    return own + (v.queued_prefill_tokens - own) * stale_s / (stale_s + v.age_s)


@helper
def expected_wait_s(v, output_tokens, stale_s):
    """From engine arrival to the first chunk: backlog, half of the step that runs, and a wait for a slot if all are taken."""
    backlog = backlog_tokens(v, stale_s)
    count = max(1.0, v.waiting + v.running - v.decoding)
    wait = backlog * prefill_token_s(v, min(backlog / count, 65536.0))
    step = decode_step_s(v, v.decoding, v.kv_tokens)
    load = max(v.inflight, v.running + v.waiting)
    if load > 0.0:
        wait += 0.5 * step
    if load >= v.max_num_seqs > 0.0:
        wait += (load - v.max_num_seqs + 1.0) * output_tokens * step / v.max_num_seqs
    return wait


@helper
def kv_after_tokens(v, new_tokens, output_tokens, stale_s):
    """KV that running requests would hold there with this one and all the backlog in memory."""
    return v.kv_used_share * v.kv_capacity_tokens + backlog_tokens(v, stale_s) + new_tokens + output_tokens


@helper
def kv_wait_s(v, kv_after, output_tokens):
    """Until decodes have freed what does not fit: they free their context once in a decode's length."""
    over = kv_after - v.kv_capacity_tokens
    if over <= 0.0:
        return 0.0
    freed_tok_s = max(v.kv_tokens, 1.0) / max(output_tokens * decode_step_s(v, v.decoding, v.kv_tokens), 1e-6)
    return min(over / freed_tok_s, 3600.0)
