"""SLOMax: who may enter, and when: quotas by class, moved by what each class attains."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfanalyze.replay.jit import helper
from tfanalyze.replay.policies import param
from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, ADMIT_TICK, HOLD, PASS, SHED

# memory: a head of fleet-wide values, then one row a queue
WINDOW, NOW, SENT, RETRY, HEAD = (
    0,
    1,
    2,
    3,
    4,
)  # requests an instance may hold; time and prompt tokens of the latest releases; last Retry-After
KIND, QUOTA, RATE, LOW, SPARE, FINISHED, ATTAINED, SHEDDED, TTFT, TPOT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
# smoothed over releases: predicted time to the first token, time already waited; and what came of such predictions
ASKED, LATE, RATIO = 10, 11, 12
GAP, ROW = (
    13,
    14,
)  # the least mean token gap that was seen of the queue: what an engine that is nearly idle needs
# steps of the smoothing, the gate's own and a slow one; bound of RATIO; finished requests before it is learnt
LEARN, LEARN_RATIO, MOST, KNOWN = 0.1, 0.02, 1.5, 5.0
STRETCH = 1.5  # of the least gap: below it a smaller batch gains nothing
INTERACTIVE, LONG_CONTEXT, OFFLINE = 1.0, 2.0, 3.0  # 0 = nothing seen of this queue yet


@helper
def at(q, what):
    return HEAD + ROW * q + what


@helper
def kind_of(ttft_slo_s, tight_s):
    """A class without a first-token limit is offline, one with a tight one interactive, the rest long context."""
    if ttft_slo_s == np.inf:
        return OFFLINE
    return INTERACTIVE if ttft_slo_s <= tight_s else LONG_CONTEXT


@helper
def base_share(kind, interactive, long_context, offline):
    return interactive if kind == INTERACTIVE else (long_context if kind == LONG_CONTEXT else offline)


@helper
def share_of(gate, memory, q):
    """The queue's quota as a share of all quotas of queues that were seen."""
    total = 0.0
    for k in range(gate.size):
        total += memory[at(k, QUOTA)]
    return memory[at(q, QUOTA)] / total if total > 0.0 else 1.0


@helper
def fleet_requests(gate):
    total = 0.0
    for q in range(gate.size):
        total += gate[q].inflight
    return total


@helper
def fleet_tokens(gate):
    total = 0.0
    for q in range(gate.size):
        total += gate[q].inflight_tokens
    return total


@helper
def learn_queue(gate, request, memory, q, window, interactive, long_context, offline, tight_s):
    """First sight of a queue: its kind, its SLOs, its starting quota."""
    if memory[WINDOW] == 0.0:
        memory[WINDOW] = window
    memory[at(q, TTFT)], memory[at(q, TPOT)] = request.ttft_slo_s, request.tpot_slo_s
    if memory[at(q, KIND)] == 0.0:
        kind = kind_of(request.ttft_slo_s, tight_s)
        memory[at(q, KIND)] = kind
        memory[at(q, QUOTA)] = base_share(kind, interactive, long_context, offline)
        memory[at(q, RATE)] = 1.0


@helper
def start_wait_s(z, memory):
    """Expected wait in the best engine queue, with what has been released since it was reported."""
    sent = memory[SENT] if memory[NOW] == z.now_s else 0.0
    return z.min_wait_s + sent / max(z.prefill_tok_s, 1e-9)


@helper
def own_prefill_s(z, request):
    """The prompt on one instance of mean speed, nothing of it cached."""
    return request.input_tokens * max(z.instances, 1.0) / max(z.prefill_tok_s, 1e-9)


@helper
def note_release(memory, q, asked_s, late_s):
    """Smooth what was predicted for the requests that were released, as the gate smooths what became of them."""
    step = LEARN if memory[at(q, ASKED)] > 0.0 else 1.0
    memory[at(q, ASKED)] += step * (asked_s - memory[at(q, ASKED)])
    memory[at(q, LATE)] += step * (late_s - memory[at(q, LATE)])


@helper
def learn_ratio(z, memory, q):
    """Seen over predicted time to the first token after release: below 1 where prefixes are cached, above where decodes slow it.

    It starts at 0, so that nothing is shed on a prediction that was never put to the test.
    """
    if z.finished >= KNOWN and memory[at(q, ASKED)] > 0.0:
        seen = max(0.0, z.ttft_ewma_s - memory[at(q, LATE)]) / memory[at(q, ASKED)]
        memory[at(q, RATIO)] += LEARN_RATIO * (min(MOST, seen) - memory[at(q, RATIO)])


@helper
def cannot_meet(z, request, first_s, shed_slack):
    """Even if released now: the first token, the deadline or the end comes later than `shed_slack` times its limit."""
    first = request.now_s - request.arrival_s + first_s
    if first > shed_slack * request.ttft_slo_s:
        return True
    end = min(request.e2e_slo_s, request.deadline_s - request.arrival_s)
    return first + request.expected_output_tokens * z.tpot_ewma_s > shed_slack * end


@helper
def own_window(gate, window):
    """Requests that this gateway may have in flight: the fleet's window less what reports show of other gateways'.

    When others fill the window its share of all that is in flight stays its own, so that no gateway is crowded out.
    """
    own = fleet_requests(gate)
    others = max(0.0, gate[0].running + gate[0].waiting - own)
    kept = window * own / (own + others) if others > 0.0 else window
    return max(1.0, max(window - others, kept))


@helper
def may_borrow(gate, memory, q, requests, tokens):
    """Quota left unused by the others is lent, less what those with a tighter SLO keep in reserve for their bursts.

    Nothing is lent to a looser class while a tighter one misses its target and has requests waiting here: where none
    wait, what it misses is not for want of quota.
    """
    used = fleet_requests(gate)
    used_tokens = fleet_tokens(gate)
    free = requests - used
    free_tokens = tokens - used_tokens
    for k in range(gate.size):
        if k != q and memory[at(k, KIND)] > 0.0:
            if (
                memory[at(k, KIND)] < memory[at(q, KIND)]
                and memory[at(k, LOW)] > 0.0
                and gate[k].queued > 0.0
            ):
                return False
            if memory[at(k, KIND)] < memory[at(q, KIND)] or gate[k].queued > 0.0:
                reserve = 0.5 if gate[k].queued <= 0.0 else 1.0
                share = share_of(gate, memory, k)
                free -= reserve * max(0.0, share * requests - gate[k].inflight)
                free_tokens -= reserve * max(0.0, share * tokens - gate[k].inflight_tokens)
    return free >= 1.0 and free_tokens > 0.0


@helper
def move_window(gate, memory, batch_limit, tpot_headroom):
    """Additive increase, multiplicative decrease of the batch by the worst ratio of token gap to its limit.

    The limit is a share of the SLO, but never so near to the least gap seen that no batch keeps it: then a smaller
    batch only takes from the others (as a minimum round trip bounds a window, e.g. in Envoy's adaptive concurrency).
    """
    worst = 0.0
    for q in range(gate.size):
        gap = gate[q].tpot_ewma_s
        if memory[at(q, KIND)] == 0.0 or gap <= 0.0:
            continue
        memory[at(q, GAP)] = min(memory[at(q, GAP)], gap) if memory[at(q, GAP)] > 0.0 else gap
        if memory[at(q, TPOT)] < np.inf and gate[q].inflight > 0.0:
            worst = max(worst, gap / max(tpot_headroom * memory[at(q, TPOT)], STRETCH * memory[at(q, GAP)]))
    if worst > 1.0:
        memory[WINDOW] = max(1.0, memory[WINDOW] * max(0.8, 1.0 / worst))
    elif worst < 0.9:
        memory[WINDOW] = min(batch_limit, memory[WINDOW] + 0.02 * batch_limit)


@helper
def move_quotas(gate, memory, target, patience, gain, floor, ceiling, interactive, long_context, offline):
    """One control period: raise the quota of classes that stay low, take it from those that do not need it."""
    size = gate.size
    asked, spare = 0.0, 0.0
    for q in range(size):
        if memory[at(q, KIND)] == 0.0:
            continue
        z = gate[q]
        done = z.finished - memory[at(q, FINISHED)] + z.shed - memory[at(q, SHEDDED)]
        good = z.attained - memory[at(q, ATTAINED)]
        memory[at(q, FINISHED)], memory[at(q, ATTAINED)], memory[at(q, SHEDDED)] = (
            z.finished,
            z.attained,
            z.shed,
        )
        if done > 0.0:
            memory[at(q, RATE)] += 0.3 * (good / done - memory[at(q, RATE)])
        needs = z.queued > 0.0 or done > 0.0
        low = memory[at(q, RATE)] < target and needs
        memory[at(q, LOW)] = memory[at(q, LOW)] + 1.0 if low else 0.0
        memory[at(q, SPARE)] = 0.0 if low else memory[at(q, SPARE)] + 1.0
        if memory[at(q, LOW)] >= patience:
            asked += gain * (target - memory[at(q, RATE)]) * memory[at(q, QUOTA)]
    for q in range(size):
        if memory[at(q, KIND)] > 0.0 and memory[at(q, SPARE)] >= patience:
            spare += max(0.0, memory[at(q, QUOTA)] - floor)
    given = min(asked, 0.5 * gain * spare)
    for q in range(size):
        kind = memory[at(q, KIND)]
        if kind == 0.0:
            continue
        quota = memory[at(q, QUOTA)]
        if memory[at(q, LOW)] >= patience and asked > 0.0:
            quota += given * gain * (target - memory[at(q, RATE)]) * quota / asked
        elif memory[at(q, SPARE)] >= patience:
            if spare > 0.0:
                quota -= given * max(0.0, quota - floor) / spare
            if asked <= 0.0:  # nobody asks: drift back to where it started
                quota += 0.1 * gain * (base_share(kind, interactive, long_context, offline) - quota)
        memory[at(q, QUOTA)] = min(ceiling, max(floor, quota))


@dataclass(frozen=True)
class SloMax:
    """Hold requests at the gateway so that the next one to enter an engine is the one whose SLO needs it most.

    Each class has a queue and a quota of the fleet's window, in requests and in tokens.  The window is `batch_limit` requests an
    instance, smaller while token gaps come near their SLO (or near the least gap seen, if no batch can keep the SLO).  A class inside its quota enters when the best engine's prefill backlog leaves its first token time
    (offline work: when there is nearly no backlog); quota that others leave is lent, but half of what a tighter class
    does not use stays free for its next burst.  Inside offline the earliest deadline goes first.  A class that has waited
    longer gets a larger share (aging), so none starves.
    What cannot meet its SLO any more is shed at once, with a Retry-After (in memory at `retry_after_at`; the outcome's
    column `retry_after_s`): once the backlog leaves its first token time.  What can be met is judged by backlog and prompt
    as the profile times them, corrected by what became of such predictions, since a cached prefix makes them too long;
    a class with nothing in flight may always try one, so that a wrong prediction is found out.
    Each period the feedback moves quota to classes below the attainment target from those above it, in bounds, damped by `gain`.
    Classes are told apart by their SLOs: no first-token limit = offline, a tight one = interactive, else long context.
    Source: TokenFleet's published rule (quotas by class with feedback on SLO-attaining throughput); the law is ours.
    """

    name: ClassVar[str] = "slomax"
    kind: ClassVar[str] = "admit"
    trivial: ClassVar[bool] = False
    queue_by: ClassVar[str] = "class"
    edf: ClassVar[tuple[str, ...]] = ("offline",)
    retry_after_at: ClassVar[int] = RETRY  # where in memory a shed request's Retry-After is
    quota_at: ClassVar[tuple[int, int]] = (
        HEAD + QUOTA,
        ROW,
    )  # where in memory the quotas are, for the report

    interactive_share: float = param(
        0.5, "share", 0.05, 0.9, "quota of interactive classes at the start", simplex="quota"
    )
    long_context_share: float = param(
        0.25, "share", 0.05, 0.9, "quota of long-context classes at the start", simplex="quota"
    )
    offline_share: float = param(
        0.25, "share", 0.05, 0.9, "quota of offline classes at the start", simplex="quota"
    )
    batch_limit: float = param(
        64,
        "requests/instance",
        4,
        512,
        "largest window: requests in flight for each ready instance",
        log=True,
    )
    token_limit: float = param(
        1.0,
        "share",
        0.1,
        4.0,
        "window in tokens: input and expected output in flight, over the fleet's KV capacity",
    )
    tpot_headroom: float = param(
        0.85, "share", 0.3, 1.0, "token gap, as a share of its SLO, at which the window shrinks"
    )
    wait_share: float = param(
        0.4,
        "share",
        0.02,
        1.0,
        "engine backlog, as a share of the first-token SLO, up to which a class may enter",
    )
    offline_wait_s: float = param(
        0.3, "s", 0.01, 10.0, "engine backlog up to which offline work may enter", log=True
    )
    shed_slack: float = param(
        0.8,
        "share",
        0.3,
        4.0,
        "shed when the predicted time is beyond this share of the SLO; 4 = hardly ever",
    )
    aging_s: float = param(60.0, "s", 1.0, 3600.0, "waiting time that doubles what a queue may do", log=True)
    target: float = param(0.9, "share", 0.5, 1.0, "attainment below which a class is given more quota")
    patience: float = param(3, "periods", 1, 20, "periods in a row before quota moves", integer=True)
    gain: float = param(0.3, "share", 0.0, 1.0, "share of the gap closed in one period; 0 = fixed quotas")
    floor: float = param(0.05, "share", 0.01, 0.3, "least quota of a class", tune=False)
    ceiling: float = param(0.8, "share", 0.3, 1.0, "largest quota of a class", tune=False)
    tight_s: float = param(5.0, "s", 0.1, 60.0, "a first-token SLO up to this is interactive", tune=False)
    period_s: float = param(2.0, "s", 0.1, 60.0, "control period", tune=False)

    @staticmethod
    def memory_size(n_instances: int, n_sites: int, n_queues: int) -> int:
        return HEAD + ROW * n_queues

    @staticmethod
    def admit(op, gate, request, params, memory, rng):
        interactive_share, long_context_share, offline_share = params[0], params[1], params[2]
        batch_limit, token_limit, tpot_headroom, wait_share = params[3], params[4], params[5], params[6]
        offline_wait_s, shed_slack, aging_s, target = params[7], params[8], params[9], params[10]
        patience, gain, floor, ceiling, tight_s = params[11], params[12], params[13], params[14], params[15]
        if op == ADMIT_NEXT:
            best, least = -1, np.inf
            for q in range(gate.size):
                if gate[q].queued > 0.0:
                    used = gate[q].inflight / max(1e-9, share_of(gate, memory, q))
                    slots = max(1.0, memory[WINDOW] * gate[q].instances)
                    rank = memory[at(q, KIND)] + min(1.0, used / slots) - gate[q].oldest_s / aging_s
                    if rank < least:
                        best, least = q, rank
            return best
        if op == ADMIT_TICK:
            for q in range(gate.size):
                learn_ratio(gate[q], memory, q)
            if memory[WINDOW] > 0.0:
                move_window(gate, memory, batch_limit, tpot_headroom)
                move_quotas(
                    gate,
                    memory,
                    target,
                    patience,
                    gain,
                    floor,
                    ceiling,
                    interactive_share,
                    long_context_share,
                    offline_share,
                )
            return 0
        if op != ADMIT_HEAD:
            return PASS
        q = request.slo_class % gate.size
        z = gate[q]
        learn_queue(
            gate,
            request,
            memory,
            q,
            batch_limit,
            interactive_share,
            long_context_share,
            offline_share,
            tight_s,
        )
        wait = start_wait_s(z, memory)
        asked = wait + own_prefill_s(z, request)
        bound = offline_wait_s if memory[at(q, KIND)] == OFFLINE else wait_share * request.ttft_slo_s
        alone = z.inflight <= 0.0 and wait <= bound
        if not alone and cannot_meet(z, request, memory[at(q, RATIO)] * asked, shed_slack):
            memory[RETRY] = max(1.0, np.ceil(z.min_wait_s - bound))
            return SHED
        older = 1.0 + request.queued_s / aging_s
        if wait > bound * older and fleet_requests(gate) > 0.0:
            return HOLD
        requests = own_window(gate, memory[WINDOW] * max(1.0, z.instances))
        tokens = max(1.0, token_limit * z.kv_capacity_tokens)
        share = min(1.0, share_of(gate, memory, q) * older)
        need = request.input_tokens + request.expected_output_tokens
        inside = z.inflight < share * requests and (
            z.inflight_tokens + need <= share * tokens or z.inflight <= 0.0
        )
        if not inside and not may_borrow(gate, memory, q, requests, tokens):
            return HOLD
        if memory[NOW] != z.now_s:
            memory[NOW], memory[SENT] = z.now_s, 0.0
        memory[SENT] += request.input_tokens
        note_release(memory, q, asked, request.now_s - request.arrival_s)
        return PASS
