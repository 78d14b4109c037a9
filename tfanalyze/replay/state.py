"""Record layouts the compiled loop and the policies share.  A record is what one event touches."""

from __future__ import annotations

import numpy as np

# What a gateway last heard about one instance, and what it knows from its own dispatches. One record a candidate.
# A reported field is as old as `age_s` says; with report_interval_s = 0 it is the engine's state at its last
# change of batch (KV growth inside a decode stretch shows at the next change).
VIEW = np.dtype(
    [
        ("ready", "i8"),  # 1 = may be chosen (up, reports it is serving this model and version, right site)
        ("instance", "i8"),  # own index
        ("site", "i8"),
        ("gpu", "i8"),  # index of the GPU type / profile
        ("age_s", "f8"),  # age of the report
        ("running", "f8"),  # reported: requests in the batch (prefilling ones too)
        ("waiting", "f8"),  # reported: requests in the engine's queue
        ("decoding", "f8"),  # reported: sequences in decode
        ("queued_prefill_tokens", "f8"),  # reported: prompt tokens not computed yet: whole prompts waiting + rest of running
        ("kv_used_share", "f8"),  # reported: KV held by running requests / capacity (cached idle blocks are free)
        ("kv_tokens", "f8"),  # reported: tokens of context held by decoding sequences
        ("preemptions", "f8"),  # reported: total so far
        ("inflight", "f8"),  # own: requests this gateway sent there that are not finished
        ("inflight_tokens", "f8"),  # own: their input + expected output tokens
        ("inflight_prefill_tokens", "f8"),  # own: uncached (by its own index) prompt tokens sent, first token not yet seen
        ("active_blocks", "f8"),  # own: distinct prompt KV blocks of the requests in flight; 0 unless the policy has counts_blocks
        ("active_hit_blocks", "f8"),  # own: prompt blocks of THIS request among those
        ("hit_tokens", "f8"),  # own index: prefix of THIS request believed cached there
        ("assigned", "f8"),  # own: requests ever sent there
        ("ttft_ewma_s", "f8"),  # own: smoothed TTFT of finished requests (0 = none yet)
        ("tpot_ewma_s", "f8"),
        ("index_tokens", "f8"),  # own index: tokens believed cached there (tree size)
        # static facts: what the profile and config of this instance say
        ("max_num_seqs", "f8"),
        ("max_batched_tokens", "f8"),
        ("kv_capacity_tokens", "f8"),
        ("block_size", "f8"),
        ("rtt_s", "f8"),
        # step-time profile (models/profile.py StepTime), seconds
        ("c0_s", "f8"),
        ("c_prefill_step_s", "f8"),
        ("c_decode_step_s", "f8"),
        ("c_prefill_s", "f8"),
        ("c_prefill2_s", "f8"),
        ("c_attn_s", "f8"),
        ("c_seq_s", "f8"),
        ("c_kv_s", "f8"),
        ("request_s", "f8"),  # fixed overhead a request, client to engine and back
    ],
    align=True,
)

# What the gateway knows about one request. No true output length in it.
REQUEST = np.dtype(
    [
        ("now_s", "f8"),
        ("arrival_s", "f8"),  # first attempt
        ("input_tokens", "f8"),
        ("max_tokens", "f8"),  # -1 unknown
        ("expected_output_tokens", "f8"),  # learned mean of finished requests of the class (the oracle ceiling: the truth)
        ("slo_class", "i8"),
        ("tenant", "i8"),
        ("priority", "f8"),
        ("ttft_slo_s", "f8"),  # inf = none
        ("tpot_slo_s", "f8"),
        ("e2e_slo_s", "f8"),
        ("deadline_s", "f8"),  # absolute, inf = none
        ("session", "i8"),  # hash of the session, of the request itself when it has none
        ("last_instance", "i8"),  # where the session's previous turn went, -1 = none
        ("last_site", "i8"),
        ("prefix", "i8"),  # id of the first prefix block, -1 none
        ("region", "i8"),  # residency pin: site index, -1 anywhere
        ("model", "i8"),  # -1 any
        ("attempt", "i8"),  # 0 first
        ("queued_s", "f8"),  # time it has waited at the gateway
        ("row", "i8"),  # row of the trace, for tie-free identification only
        ("recorded_instance", "i8"),  # where the log says it went (used by policy `recorded` only), -1 unknown
    ],
    align=True,
)

# What the gateway last heard about one site (aggregate of its instances' reports and its own dispatches).
SITE = np.dtype(
    [
        ("ready", "i8"),  # 1 = at least one ready instance with this model and version there, pins honoured
        ("site", "i8"),
        ("rtt_s", "f8"),
        ("age_s", "f8"),
        ("instances", "f8"),  # ready instances
        ("configured", "f8"),  # instances that exist there for this model, ready or not
        ("warming", "f8"),
        ("running", "f8"),
        ("waiting", "f8"),
        ("decoding", "f8"),
        ("queued_prefill_tokens", "f8"),
        ("kv_used_share", "f8"),  # mean over ready instances
        ("kv_used_max", "f8"),
        ("inflight", "f8"),
        ("inflight_tokens", "f8"),
        ("inflight_prefill_tokens", "f8"),
        ("hit_tokens", "f8"),  # best over the site's ready instances
        ("prefill_tok_s", "f8"),  # sum over ready instances, from profiles, at a full chunk
        ("decode_tok_s", "f8"),  # sum over ready instances, from profiles, at the present batch
        ("slots", "f8"),  # sum of max_num_seqs of ready instances
        ("ttft_mean_s", "f8"),  # own: smoothed TTFT of what finished there, this class
        ("ttft_var_s2", "f8"),  # own: smoothed variance of it (load swing)
        ("attained", "f8"),  # own: smoothed share of this class's requests there that met their SLO
        ("assigned", "f8"),
        ("min_wait_s", "f8"),  # smallest expected wait over its ready instances: prefill backlog / prefill rate
    ],
    align=True,
)

# One queue at the gateway's door: a class, or a tenant where the policy queues by tenant.
GATE = np.dtype(
    [
        ("queue", "i8"),  # own index
        ("queued", "f8"),  # requests waiting at the gateway
        ("queued_tokens", "f8"),  # their input + expected output tokens
        ("oldest_s", "f8"),  # how long the head has waited
        ("head_arrival_s", "f8"),
        ("head_deadline_s", "f8"),
        ("inflight", "f8"),  # admitted, not finished
        ("inflight_tokens", "f8"),
        ("offered", "f8"),  # arrivals so far
        ("offered_tokens", "f8"),  # their input + expected output
        ("finished", "f8"),
        ("finished_tokens", "f8"),  # output tokens delivered
        ("attained", "f8"),  # finished inside the SLO
        ("attained_tokens", "f8"),
        ("shed", "f8"),
        ("ttft_ewma_s", "f8"),
        ("tpot_ewma_s", "f8"),
        ("weight", "f8"),
        # the whole fleet, the same in every record
        ("now_s", "f8"),
        ("instances", "f8"),  # ready
        ("slots", "f8"),
        ("kv_capacity_tokens", "f8"),
        ("kv_used_share", "f8"),  # mean over ready instances, as reported
        ("waiting", "f8"),  # engine queues, sum, as reported
        ("running", "f8"),
        ("prefill_tok_s", "f8"),
        ("min_wait_s", "f8"),  # smallest expected wait over ready instances
        ("saturation_queue", "f8"),  # mean over ready instances of waiting
    ],
    align=True,
)

# admit(op, gate, request, params, memory, rng) -> int
ADMIT_HEAD = 0  # may this request enter now?  -> PASS, HOLD or SHED (REQUEST.queued_s > 0: it has waited)
ADMIT_NEXT = 1  # whose head is to be looked at now?  -> queue index or -1; asked again after every PASS or SHED,
#                 and never twice for a queue that answered HOLD in the same round (its `queued` reads 0 then)
ADMIT_TICK = 2  # the control period is over: move quotas in `memory`  -> ignored
ADMIT_DONE = 3  # a request of gate[request.slo_class]'s queue left the fleet -> ignored
ADMIT_JOIN = 4  # asked once when a request arrives, before it joins its queue: SHED = the queue is full, else it joins
PASS, HOLD, SHED = 0, 1, 2

# ends of a request
OK, ERROR, TIMEOUT, CANCELLED, REJECTED, LOST = 0, 1, 2, 3, 4, 5
# why it was not served
REASON_NONE, REASON_SHED, REASON_NEVER_FITS, REASON_NO_INSTANCE, REASON_CRASH, REASON_QUEUE_FULL = 0, 1, 2, 3, 4, 5
