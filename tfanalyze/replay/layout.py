"""Record layouts of the compiled loop alone (what policies share is in state.py), and the tuples that carry the arrays.

Rule: what is scanned across requests is a column of the outcome; what one event touches is one record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

EPS = 1e-9
NONE = -1

# one row of the trace, packed so that one request is one cache line or two
ROW = np.dtype(
    [
        ("arrival_s", "f8"),
        ("think_s", "f8"),  # NaN = does not wait for an earlier turn
        ("deadline_s", "f8"),  # after arrival, NaN = none
        ("path_off", "i8"),  # where its path starts, for the first block size
        ("input", "i4"),
        ("output", "i4"),  # >= 1
        ("max_tokens", "i4"),
        ("tenant", "i4"),
        ("succ", "i4"),  # the session's next turn, -1 = none
        ("last", "i4"),  # the session's previous turn, -1 = none
        ("priority", "i4"),
        ("recorded", "i4"),
        ("session", "i4"),
        ("model", "i2"),
        ("region", "i2"),
        ("slo_class", "i1"),
    ],
    align=True,
)

OUT = np.dtype(
    [
        ("arrival_s", "f8"),
        ("admit_s", "f8"),
        ("start_s", "f8"),
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("instance", "i4"),
        ("retry_after_s", "f4"),  # what a shed client is told, NaN = nothing
        ("hit_tokens", "i4"),
        ("delivered", "i4"),
        ("preemptions", "i2"),
        ("status", "i1"),  # -1 while not ended
        ("reason", "i1"),
        ("attempts", "i1"),
    ],
    align=True,
)

SEG = np.dtype([("start", "i4"), ("end", "i4")])  # engine blocks [start, end)

# one segment held by one instance (or noted for one instance by one gateway)
ENT = np.dtype(
    [
        ("seg", "i4"),
        ("inst", "i4"),
        ("held", "i4"),  # blocks in memory
        ("vis", "i4"),  # blocks the gateways may know of
        ("locks", "i4"),
        ("host", "i4"),  # blocks in the host tier
        ("holder", "i4"),  # links of the host tier's LRU list
        ("hnewer", "i4"),
        ("older", "i4"),  # LRU links
        ("newer", "i4"),
        ("in_lru", "i4"),
        ("sprev", "i4"),  # list of entries of the same segment
        ("snext", "i4"),
        ("hnext", "i4"),  # hash chain; free list
        ("cnext", "i4"),  # changed since the last publication
        ("changed", "i4"),
        ("stamp_s", "f8"),  # approx index: when last noted
    ],
    align=True,
)

# a request attempt that is somewhere in the fleet
FLIGHT = np.dtype(
    [
        ("begin_s", "f8"),  # the attempt began
        ("engine_s", "f8"),  # engine arrival
        ("sched_s", "f8"),  # first scheduled
        ("first_s", "f8"),  # first token, engine time
        ("gpu_s", "f8"),  # its share, by tokens, of the steps it took part in; of decode steps once it leaves decode
        ("acc0_s", "f8"),  # the instance's dec_acc_s when it joined decode
        ("mark_s", "f8"),  # gpu_s at its last preemption that has been charged
        ("waste_s", "f8"),  # charged to preemptions so far
        ("infl_tokens", "f8"),
        ("infl_prefill", "f8"),
        ("order", "i8"),  # engine arrival order
        ("run_order", "i8"),  # admission order
        ("join_step", "i8"),
        ("finish_step", "i8"),
        ("row", "i4"),
        ("attempt", "i4"),
        ("gen", "i4"),  # life number of this record, so that an old timer knows it is stale
        ("state", "i4"),
        ("inst", "i4"),
        ("gw", "i4"),
        ("queue", "i4"),
        ("prev", "i4"),  # waiting list at an engine or at a gate; free list
        ("next", "i4"),
        ("rprev", "i4"),  # running list
        ("rnext", "i4"),
        ("pprev", "i4"),  # prefilling list
        ("pnext", "i4"),
        ("heap_pos", "i4"),
        ("target", "i4"),  # tokens to compute before the next token comes
        ("computed", "i4"),  # while prefilling
        ("made", "i4"),  # output tokens made when it joined decode, or in all while it does not decode
        ("step_m", "i4"),  # tokens scheduled in the planned step
        ("shared", "i4"),  # blocks of it that live in segments
        ("locked", "i4"),  # segments of its path it has locked
        ("hit", "i4"),  # hit tokens at first scheduling
        ("lost", "i4"),  # tokens computed before a preemption, for waste
        ("preempts", "i4"),
        ("waste", "i4"),  # tokens computed again after preemptions
        ("work", "i4"),  # prompt tokens computed
        ("prio", "i4"),
        ("leave", "i4"),  # status to end with at the next step end, -1 = none
        ("to_inst", "i4"),  # decode instance of a hand-off
        ("slot", "i4"),
        ("active", "i4"),  # its prompt blocks are counted at its instance
    ],
    align=True,
)

INST = np.dtype(
    [
        ("next_s", "f8"),  # end of the planned step or stretch, inf = idle
        ("t_s", "f8"),  # end of the last step
        ("arr_s", "f8"),  # last engine arrival
        ("base_s", "f8"),  # start of the planned step
        ("busy_s", "f8"),
        ("dec_acc_s", "f8"),  # seconds that one decode which was always there would have been charged
        ("lag_s", "f8"),  # start of the step that has just ended, inf after a pause: who came later than that waits (ahead)
        ("k_sum", "i8"),  # sum over decoding of input + made
        ("top_key", "i8"),  # largest over decoding of input + made, less `steps`: it does not move while they decode
        ("k_top", "i8"),  # input + made of the longest decode in the first step planned
        ("steps", "i8"),  # decode steps so far
        ("private", "i8"),  # blocks
        ("held", "i8"),
        ("evictable", "i8"),
        ("cap", "i8"),
        ("watermark", "i8"),
        ("wait_tokens", "i8"),  # sum of targets of the waiting
        ("rest_tokens", "i8"),  # prompt tokens of running requests not yet planned
        ("m_sum", "i8"),  # sglang: sum over decoding of min(max_tokens, 4096)
        ("g_sum", "i8"),  # sglang: sum over decoding of made
        ("orders", "i8"),
        ("run_orders", "i8"),
        ("preemptions", "i8"),
        ("pub_running", "i8"),
        ("last_change_s", "f8"),
        ("sched", "i4"),  # 0 vllm, 1 sglang, 2 llamacpp
        ("cache", "i4"),  # 0 none, 1 blocks, 2 slot
        ("prio_queue", "i4"),
        ("budget", "i4"),
        ("max_seqs", "i4"),
        ("block", "i4"),
        ("long_prefill", "i4"),
        ("chunked", "i4"),
        ("reserve_full", "i4"),
        ("mixed", "i4"),
        ("ahead", "i4"),  # plans one step ahead (asynchronous scheduling)
        ("held_back", "i4"),  # the head of the queue waits for the next step because of that
        ("gone", "i4"),  # requests that left with the step that has just ended: their seats are free one step later (ahead)
        ("top_stale", "i4"),  # top_key is to be found again
        ("role", "i4"),  # 0 both, 1 prefill, 2 decode
        ("site", "i4"),
        ("gpu", "i4"),
        ("e", "i4"),  # index of its block size among the fleet's
        ("up", "i4"),  # 0 down, 1 up, 2 draining
        ("seen", "i4"),  # what gateways may know of `up` (3 = warming)
        ("n_run", "i4"),
        ("n_dec", "i4"),
        ("n_pre", "i4"),
        ("n_wait", "i4"),
        ("run_head", "i4"),
        ("run_tail", "i4"),
        ("pre_head", "i4"),
        ("pre_tail", "i4"),
        ("w_head", "i4"),
        ("w_tail", "i4"),
        ("lru_head", "i4"),
        ("lru_tail", "i4"),
        ("chg_head", "i4"),
        ("heap_n", "i4"),
        ("heap_pos", "i4"),
        ("k_steps", "i4"),  # steps of the planned stretch
        ("k_dec", "i4"),  # decodes that take part in the planned step
        ("step_p", "i4"),  # prefill tokens in the planned step
        ("dirty", "i4"),
        ("changed", "i4"),
        ("thrash", "i4"),  # something was preempted while the step was planned: the queue is looked at again in the next one
        ("leaving", "i4"),  # running requests whose client has left
        ("slot_cap", "i4"),
        ("slots", "i4"),
        ("similarity", "f8"),
        ("ratio", "f8"),
        ("host_cap", "i8"),
        ("host_used", "i8"),
        ("host_tok_s", "f8"),
        ("n_saved", "i4"),
        ("hlru_head", "i4"),
        ("hlru_tail", "i4"),
        ("load_s", "f8"),  # host loads to be added to the planned step
        ("rtt_s", "f8"),
        ("request_s", "f8"),
        ("request_token_s", "f8"),
        ("response_s", "f8"),
        ("c0_s", "f8"),
        ("c_prefill_step_s", "f8"),
        ("c_decode_step_s", "f8"),
        ("c_prefill_s", "f8"),
        ("c_prefill2_s", "f8"),
        ("c_attn_s", "f8"),
        ("c_seq_s", "f8"),
        ("c_seq_knee_s", "f8"),
        ("knee_seqs", "f8"),
        ("c_mem_s", "f8"),
        ("c_kv_s", "f8"),
        ("c_kv2_s", "f8"),
        ("c_long_s", "f8"),
        ("split_seqs", "f8"),
        ("prefill_least_s", "f8"),
        ("graph_seqs", "f8"),
        ("form_max", "i4"),
        ("prefill_tok_s", "f8"),  # at a full chunk, nothing else running
    ],
    align=True,
)

# published state of an instance, and the same as of a report tick
PUB = np.dtype(
    [
        ("tick", "i8"),  # ring: first report tick at which this state was the last one
        ("running", "f8"),
        ("waiting", "f8"),
        ("decoding", "f8"),
        ("queued_prefill_tokens", "f8"),
        ("kv_used_share", "f8"),
        ("kv_tokens", "f8"),
        ("preemptions", "f8"),
        ("seen", "f8"),
    ],
    align=True,
)

SLOT = np.dtype([("path", "i8"), ("row", "i4"), ("tokens", "i4"), ("busy", "i4"), ("released", "i8")], align=True)
TIMER = np.dtype([("t_s", "f8"), ("seq", "i8"), ("kind", "i4"), ("arg", "i4"), ("gen", "i4"), ("extra", "i4")], align=True)
MESSAGE = np.dtype([("t_s", "f8"), ("seg", "i4"), ("inst", "i4"), ("held", "i4"), ("gw", "i4")], align=True)
LEARN = np.dtype([("mean_tokens", "f8"), ("n", "f8")])  # expected output of a class at a gateway
SWING = np.dtype([("n", "f8"), ("ttft_s", "f8"), ("var_s2", "f8"), ("attained", "f8")])  # class at a site, per gateway
QUEUE = np.dtype([("head", "i4"), ("tail", "i4"), ("edf", "i4"), ("held", "i4")])
LRU = np.dtype([("lru_head", "i4"), ("lru_tail", "i4"), ("blocks", "i8")])
CLASS = np.dtype(
    [
        ("ttft_s", "f8"), ("tpot_s", "f8"), ("e2e_s", "f8"), ("timeout_s", "f8"), ("backoff_s", "f8"),
        ("jitter", "f8"), ("heed_s", "f8"), ("retries", "i4"), ("priority", "i4"),
    ],
    align=True,
)  # fmt: skip
EVENT = np.dtype([("t_s", "f8"), ("inst", "i4"), ("what", "i4")], align=True)  # what: 0 crash, 1 up, 2 drain, 3 warming

CONF = np.dtype(
    [
        ("n", "i8"), ("seed", "i8"), ("n_inst", "i4"), ("n_site", "i4"), ("n_gw", "i4"), ("n_class", "i4"),
        ("n_queue", "i4"), ("quota_at", "i4"), ("retry_at", "i4"), ("quota_step", "i4"), ("queue_by", "i4"), ("trivial_admit", "i4"), ("trivial_site", "i4"), ("pinned", "i4"),
        ("interval_s", "f8"), ("delay_s", "f8"), ("ring", "i4"), ("pad", "i4"), ("index", "i4"), ("lag_s", "f8"),
        ("index_blocks", "i8"), ("ttl_s", "f8"), ("sync_s", "f8"), ("tick_s", "f8"), ("open_loop", "i4"),
        ("infinite", "i4"), ("known_lengths", "i4"), ("counts_blocks", "i4"), ("debug", "i4"), ("split", "i4"), ("link_tok_s", "f8"),
        ("link_latency_s", "f8"), ("trace_row", "i8"), ("force_row", "i8"), ("force_inst", "i4"), ("bin_s", "f8"),
        ("n_bin", "i4"), ("block_max", "i4"), ("seqs_max", "i4"), ("n_rows_e", "i8"), ("host", "i4"),
        # state of the run
        ("lim_s", "f8"), ("now_s", "f8"), ("seq", "i8"), ("tm_n", "i4"), ("ih_n", "i4"), ("dirty_n", "i4"), ("fl_free", "i4"),
        ("fl_used", "i4"), ("ent_free", "i4"), ("ent_used", "i4"), ("ix_free", "i4"), ("ix_used", "i4"),
        ("msg_head", "i8"), ("msg_tail", "i8"), ("link_free_s", "f8"), ("live", "i8"), ("queued", "i8"),
        ("events_n", "i8"), ("next_row", "i8"), ("next_event", "i8"), ("traced", "i4"), ("tick_on", "i4"),
        ("releases", "i8"), ("fault", "i4"), ("fault_row", "i8"), ("fault_inst", "i4"), ("idle_ticks", "i4"), ("steps", "i8"), ("computed", "i8"),
        ("made", "i8"), ("reused", "i8"),
    ],
    align=True,
)  # fmt: skip

# where an attempt is
FREE, GATE_WAIT, TRANSIT, WAITING, PREFILL, DECODE, HANDOFF = 0, 1, 2, 3, 4, 5, 6
SAVED = 64  # most prompts kept in host memory by one llama.cpp server
HANDED = -2  # to_inst of a request whose KV has been handed over
# kinds of timers
T_ARRIVE, T_ENGINE, T_TIMEOUT, T_HANDOFF, T_TICK = 0, 1, 2, 3, 4
# causes of waste: index = status of the attempt, and these
W_PREEMPT = 6
N_WASTE = 8  # tokens by cause; seconds by cause follow
# faults
F_NONE, F_FLIGHTS, F_ENTRIES, F_INDEX, F_TIMERS, F_MESSAGES, F_STUCK, F_POLICY, F_CHECK = 0, 1, 2, 3, 4, 5, 6, 7, 8


class Engine(NamedTuple):
    """Arrays the engine side touches."""

    cf: Any  # (1,) CONF
    row: Any  # (n,) ROW, shared between runs
    out: Any  # (n,) OUT
    inst: Any  # (N,) INST
    fl: Any  # (F,) FLIGHT
    ent: Any  # (M,) ENT
    bucket: Any  # (2^b,) int32
    seg: Any  # (n_seg,) SEG, shared between runs
    head: Any  # (n_seg,) int32: list of the segment's cache entries
    path: Any  # (n_path,) int32 segment ids
    poff: Any  # (n_block_sizes, n+1) int64
    phase: Any  # (N, block_max) int32: decoding requests that need a block at step % block
    fheap: Any  # (N, seqs_max) int32 flights by finish step
    slot: Any  # (N, seqs_max) SLOT
    saved: Any  # (N, SAVED) SLOT: prompts that llama.cpp keeps in host memory, oldest first
    work: Any  # (w,) int32 scratch
    infheld: Any  # (n_seg,) int32 held anywhere, option infinite_cache
    waste: Any  # (2 * N_WASTE,) float64: tokens by cause, then GPU seconds


class GateArrays(NamedTuple):
    """Arrays the gateway side touches."""

    views: Any  # (G, N) VIEW
    req: Any  # (1,) REQUEST
    sites: Any  # (G, S) SITE
    gate: Any  # (G, Q) GATE
    queue: Any  # (G, Q) QUEUE
    pub: Any  # (N,) PUB
    ring: Any  # (N, R) PUB
    learn: Any  # (G, C) LEARN
    swing: Any  # (G, S, C) SWING
    cls: Any  # (C,) CLASS
    serves: Any  # (M, N) int8: may this instance serve a request for this model
    tm: Any  # (T,) TIMER
    ih: Any  # (N,) int32 heap of instances by next_s
    due: Any  # (T,) TIMER scratch: timers of one round
    dirty: Any  # (N,) int32
    ends: Any  # (N,) int32 scratch: instances whose step ends in this round
    end_s: Any  # (N,) float64
    drain: Any  # (G,) int32: admission must be run again
    msg: Any  # (m,) MESSAGE
    ix: Any  # (M2,) ENT: approx index
    ixbucket: Any
    ixhead: Any  # (G, n_seg) int32
    ixlru: Any  # (G, N) LRU of the approx index
    event: Any  # (E,) EVENT
    p_admit: Any
    p_site: Any
    p_inst: Any
    m_admit: Any  # (G, .) float64
    m_site: Any
    m_inst: Any
    rng: Any  # (G, 1) uint64
    scores: Any  # (max(N, S),) float64
    series: Any  # (bins, N, 3) float64: time integrals of running, waiting, kv
    admitted: Any  # (bins, Q) float64: in flight by queue at the bin's last control tick
    quota: Any  # (bins, Q) float64: what the admission policy calls its quota, then
    trace_view: Any  # (N,) VIEW, the decision asked for
    trace_req: Any  # (1,) REQUEST
    trace_scores: Any  # (N,) float64
