"""Why a request went where it went, what its time was spent on, and what the other choices would have made of it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.config import Fleet, SloClass
from tfanalyze.errors import InputError
from tfanalyze.models.profile import Profile
from tfanalyze.slo import attained, missed
from tfanalyze.trace import Trace

if TYPE_CHECKING:
    from tfanalyze.replay import Options, Outcome, Simulator
    from tfanalyze.replay.policies import PolicySet

STATUS = ("ok", "error", "timeout", "cancelled", "rejected", "lost")
REASON = ("", "shed", "never fits", "no instance", "crash", "queue full")
SHOWN = (
    "ready", "age_s", "running", "waiting", "decoding", "queued_prefill_tokens", "inflight", "inflight_prefill_tokens",
    "hit_tokens", "kv_used_share",
)  # fmt: skip
Progress = Callable[[float, str], None]


def explain(
    request_id: str,
    trace: Trace,
    fleet: Fleet,
    policies: PolicySet | str,
    profiles: Profile | Mapping[str, Profile],
    *,
    classes: tuple[SloClass, ...],
    seed: int = 1,
    options: Options | None = None,
    max_forks: int = 4,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Replay once with an eye on one request, then once more for each of up to ``max_forks`` other choices.

    Returns request_id, row, slo_class, fate (status, times, limits broken), time (its seconds by part), blame (the
    same seconds by cause, the largest first; what a better informed choice could have spared is named apart:
    cold_prefix, stale_signal), decision (each candidate's state, score and, where the policy tells, score by term)
    and regret (the run forked at that decision: what the request and the fleet would have got).
    Errors: InputError for a request that is not in the trace.
    """
    from tfanalyze.replay import Options, Simulator
    from tfanalyze.replay.policies import load_policy

    row = find_row(trace, request_id)
    chosen = load_policy(policies) if isinstance(policies, str) else policies
    watched = replace(options or Options(), trace_row=row)
    if progress:
        progress(0.0, "replay")
    simulator = Simulator(trace, fleet, profiles, classes, watched)
    outcome = simulator.run(chosen, seed)
    decision = _decision(outcome, chosen)
    time = _times(trace, outcome, row)
    fate = _fate(trace, outcome, classes, row)
    found = {
        "request_id": trace.request_ids[row] if trace.request_ids else f"r{row}",
        "row": row,
        "slo_class": trace.classes[trace.slo_class[row]],
        "input_tokens": int(trace.input_tokens[row]),
        "output_tokens": int(trace.output_tokens[row]),
        "fate": fate,
        "time": time,
        "blame": _blame(trace, outcome, decision, time, row, fate["broke"]),
        "decision": decision,
        "regret": _regret(simulator, fleet, chosen, seed, outcome, decision, row, max_forks, progress),
    }
    if progress:
        progress(1.0, "done")
    return _finite(found)  # type: ignore[no-any-return]


def find_row(trace: Trace, request_id: str) -> int:
    """Row of a request by its id in the log, "r<row>" or the bare row number.

    Errors: InputError that offers the nearest ids.
    """
    if request_id in trace.request_ids:
        return trace.request_ids.index(request_id)
    digits = request_id.removeprefix("r")
    if digits.isdigit() and int(digits) < len(trace):
        return int(digits)
    near = difflib.get_close_matches(request_id, trace.request_ids[:20_000], 3, 0.6)
    mend = (
        f"did you mean {' or '.join(near)}?" if near else f"give an id of the log, or r0 to r{len(trace) - 1}"
    )
    raise InputError(f"no request {request_id!r}", trace.name or "trace", mend)


def _fate(trace: Trace, outcome: Outcome, classes: tuple[SloClass, ...], row: int) -> dict[str, Any]:
    gaps = max(1, int(trace.output_tokens[row]) - 1)
    limits = next((c for c in classes if c.name == trace.classes[trace.slo_class[row]]), None)
    first, last, begin = (float(c[row]) for c in (outcome.first_token_s, outcome.finish_s, outcome.arrival_s))
    return {
        "attained": bool(attained(trace, outcome, classes)[row]),
        "broke": [name for name, mask in missed(trace, outcome, classes).items() if mask[row]],
        "status": STATUS[outcome.status[row]] if outcome.status[row] >= 0 else "never arrived",
        "reason": REASON[outcome.reason[row]],
        "instance": outcome.instance_names[outcome.instance[row]] if outcome.instance[row] >= 0 else None,
        "ttft_s": first - begin,
        "tpot_s": (last - first) / gaps,
        "e2e_s": last - begin,
        "hit_tokens": int(outcome.hit_tokens[row]),
        "preemptions": int(outcome.preemptions[row]),
        "attempts": int(outcome.attempts[row]),
        "slo": {name: getattr(limits, name) for name in ("ttft_s", "tpot_s", "e2e_s")} if limits else {},
    }


def _times(trace: Trace, outcome: Outcome, row: int) -> dict[str, float]:
    """Seconds by part, from the client's first attempt to its last token; NaN = did not happen."""
    begin, admit, start, first, last = (
        float(column[row])
        for column in (
            outcome.arrival_s, outcome.admit_s, outcome.start_s, outcome.first_token_s, outcome.finish_s,
        )
    )  # fmt: skip
    door = "retry_s" if outcome.attempts[row] > 1 else "gateway_s"
    return {
        "gateway_s": 0.0,
        "retry_s": 0.0,
        door: admit - begin,
        "engine_queue_s": start - admit,
        "prefill_s": first - start,
        "decode_s": last - first,
    }


def _decision(outcome: Outcome, policies: PolicySet) -> dict[str, Any] | None:
    """The kept decision with terms; None when the request never came to be routed (shed, timed out in the queue)."""
    kept = outcome.decision
    if kept is None:
        return None
    rows = [dict(c) for c in kept["candidates"]]
    terms = _terms(policies.instance, rows, kept["request"])
    candidates = []
    for index, row in enumerate(rows):
        shown = {"instance": row["instance"], "score": row["score"]} | {name: row[name] for name in SHOWN}
        if terms is not None and row["ready"]:
            shown["terms"] = terms[index]
        candidates.append(shown)
    first = outcome.instance[kept["row"]]
    chosen = (
        outcome.instance_names[first]
        if first >= 0 and outcome.attempts[kept["row"]] == 1
        else _least(candidates)
    )
    return {
        "policy": type(policies.instance).name,
        "chosen": chosen,
        "because": _because(candidates, chosen),
        "request": kept["request"],
        "candidates": candidates,
    }


def _least(candidates: list[dict[str, Any]]) -> str | None:
    ready = [c for c in candidates if c["ready"]]
    return min(ready, key=lambda c: c["score"])["instance"] if ready else None


def _terms(policy: Any, rows: list[dict[str, Any]], request: dict[str, Any]) -> list[dict[str, float]] | None:
    """Score by term where the policy has ``terms(view, request, params, scores)``."""
    if not hasattr(type(policy), "terms"):
        return None
    from tfanalyze.replay.state import REQUEST, VIEW

    view = np.zeros(len(rows), VIEW).view(np.recarray)
    for index, row in enumerate(rows):
        for name in VIEW.names or ():
            view[name][index] = index if name == "instance" else row[name]
    asked = np.zeros(1, REQUEST).view(np.recarray)
    for name in REQUEST.names or ():
        asked[name][0] = request[name]
    params = [float(getattr(policy, f.name)) for f in fields(policy)]
    found: list[dict[str, float]] = type(policy).terms(view, asked[0], params, [row["score"] for row in rows])
    return found


def _because(candidates: list[dict[str, Any]], chosen: str | None) -> str:
    """The term that sets the chosen one apart from the runner-up."""
    mine = next((c for c in candidates if c["instance"] == chosen), None)
    others = [c for c in candidates if c["instance"] != chosen and c["ready"]]
    if mine is None or not others:
        return "the only ready candidate" if mine else "none was ready"
    second = min(others, key=lambda c: c["score"])
    if "terms" not in mine or "terms" not in second:
        return f"score {mine['score']:.4g} against {second['score']:.4g} of {second['instance']}"
    apart = {name: second["terms"][name] - value for name, value in mine["terms"].items()}
    term = max(apart, key=lambda name: apart[name])
    lead = second["score"] - mine["score"]
    if apart[term] <= 0.0 or lead <= 1e-9:
        return f"a near tie with {second['instance']}: drawn by the seed, or the session's last instance"
    return f"{term} is {apart[term]:.4g} s better than on {second['instance']} (whole lead {lead:.4g} s)"


def _blame(
    trace: Trace,
    outcome: Outcome,
    decision: dict[str, Any] | None,
    time: dict[str, float],
    row: int,
    broke: list[str],
) -> list[dict[str, Any]]:
    """Seconds by cause, the largest first; of what broke the limit: up to the first token, or after it.

    cold_prefix: the share of prefill that another ready candidate had cached.  stale_signal: the part of the engine
    queue beyond what an old report let the gateway expect.  preemption: decode time when the request was preempted.
    """
    parts = {
        name.removesuffix("_s"): value for name, value in time.items() if np.isfinite(value) and value > 0.0
    }
    if broke == ["ttft"]:
        parts.pop("decode", None)
    elif broke == ["tpot"]:
        parts = {name: value for name, value in parts.items() if name == "decode"}
    mine = (
        next((c for c in decision["candidates"] if c["instance"] == decision["chosen"]), None)
        if decision
        else None
    )
    if decision and mine:
        best = max((c["hit_tokens"] for c in decision["candidates"] if c["ready"]), default=0.0)
        new = max(1.0, float(trace.input_tokens[row]) - float(outcome.hit_tokens[row]))
        cold = min(1.0, max(0.0, best - float(outcome.hit_tokens[row])) / new)
        if cold > 0.0 and "prefill" in parts:
            parts["cold_prefix"] = parts["prefill"] * cold
            parts["prefill"] -= parts["cold_prefix"]
        expected = mine.get("terms", {}).get("wait_s")
        if expected is not None and mine["age_s"] > 0.0 and parts.get("engine_queue", 0.0) > expected:
            parts["stale_signal"] = parts["engine_queue"] - expected
            parts["engine_queue"] = expected
    if outcome.preemptions[row] > 0 and "decode" in parts:
        parts["preemption"] = parts.pop("decode")
    if decision and "engine_queue" in parts:
        network = _network_s(outcome, decision)
        parts["network"] = min(network, parts["engine_queue"])
        parts["engine_queue"] -= parts["network"]
    total = sum(parts.values())
    order = sorted(parts, key=lambda name: -parts[name])
    return [{"cause": c, "seconds": parts[c], "share": parts[c] / total} for c in order if parts[c] > 1e-8]


def _network_s(outcome: Outcome, decision: dict[str, Any]) -> float:
    """The way to the engine: half a round trip and the fixed part of the request."""
    kept = outcome.decision or {"candidates": []}
    for candidate in kept["candidates"]:
        if candidate["instance"] == decision["chosen"]:
            return float(0.5 * candidate["rtt_s"] + candidate["request_s"])
    return 0.0


def _regret(
    simulator: Simulator,
    fleet: Fleet,
    policies: PolicySet,
    seed: int,
    outcome: Outcome,
    decision: dict[str, Any] | None,
    row: int,
    max_forks: int,
    progress: Progress | None,
) -> dict[str, Any] | None:
    """The run forked at the decision: every branch has the same past and the same random numbers."""
    if decision is None:
        return None
    from tfanalyze.replay import Simulator

    order = sorted(
        (c for c in decision["candidates"] if c["ready"] and c["instance"] != decision["chosen"]),
        key=lambda c: c["score"],
    )
    hottest = sorted(order, key=lambda c: -c["hit_tokens"])[:1]
    picked = list({c["instance"]: c for c in [*order[: max(0, max_forks - 1)], *hottest, *order]}.values())[
        :max_forks
    ]
    branches = [_branch(simulator, outcome, outcome, row, decision["chosen"])]
    for turn, candidate in enumerate(picked):
        if progress:
            progress((turn + 1) / (len(picked) + 1), f"fork to {candidate['instance']}")
        index = simulator.names.index(candidate["instance"])
        forced = replace(simulator.options, force_row=row, force_instance=index)
        fork = Simulator(simulator.trace, fleet, simulator.profiles, simulator.classes, forced).run(
            policies, seed
        )
        branches.append(_branch(simulator, fork, outcome, row, candidate["instance"]))
    best = max(branches, key=lambda b: (b["attained"], -(b["ttft_s"] if np.isfinite(b["ttft_s"]) else 1e18)))
    own = branches[0]
    return {
        "branches": branches,
        "best": best["instance"],
        "ttft_regret_s": own["ttft_s"]
        - min((b["ttft_s"] for b in branches if np.isfinite(b["ttft_s"])), default=np.nan),
        "fleet_regret_tokens": max(b["fleet_effective_tokens"] for b in branches)
        - own["fleet_effective_tokens"],
    }


def _branch(
    simulator: Simulator, fork: Outcome, base: Outcome, row: int, instance: str | None
) -> dict[str, Any]:
    trace, classes = simulator.trace, simulator.classes
    met = attained(trace, fork, classes)
    moved = np.nan_to_num(fork.first_token_s - base.first_token_s, nan=0.0)
    return {
        "instance": instance,
        "ttft_s": float(fork.first_token_s[row] - fork.arrival_s[row]),
        "e2e_s": float(fork.finish_s[row] - fork.arrival_s[row]),
        "attained": bool(met[row]),
        "hit_tokens": int(fork.hit_tokens[row]),
        "fleet_effective_tokens": int(trace.output_tokens[met].sum(dtype=np.int64)),
        "first_tokens_later_s": float(moved[moved > 0.0].sum()),
        "first_tokens_sooner_s": float(-moved[moved < 0.0].sum()),
    }


def _finite(value: Any) -> Any:
    """NaN and infinity become None, numpy scalars plain ones."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
