"""Fleet and profiles -> instance records: one record an instance, names, fleet events by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from tfanalyze.config import Fleet, Pool, Site
from tfanalyze.errors import ReplayError
from tfanalyze.models.profile import Profile
from tfanalyze.replay.layout import EVENT, INST, NONE

SCHEDULERS = {"vllm": 0, "sglang": 1, "llamacpp": 2}
CACHES = {"none": 0, "blocks": 1, "slot": 2}
ROLES = {"both": 0, "prefill": 1, "decode": 2}
STEP_FIELDS = (
    "c0_s", "c_prefill_step_s", "c_decode_step_s", "c_prefill_s", "c_prefill2_s", "c_attn_s", "c_seq_s",
    "c_seq_knee_s", "knee_seqs", "c_mem_s", "c_kv_s", "c_kv2_s", "c_long_s", "split_seqs",
    "prefill_least_s", "graph_seqs",
)  # fmt: skip
LEAST_STEP_S = 1e-6


def instance_names(fleet: Fleet) -> tuple[str, ...]:
    """``<pool>-<i>``, in pool order; a pool of one keeps the pool's name."""
    names: list[str] = []
    for pool in fleet.pools:
        names += [pool.name] if pool.count == 1 else [f"{pool.name}-{i}" for i in range(pool.count)]
    return tuple(names)


def pool_of(fleet: Fleet) -> list[Pool]:
    """The pool of every instance."""
    return [pool for pool in fleet.pools for _ in range(pool.count)]


def profile_for(pool: Pool, profiles: Mapping[str, Profile]) -> Profile:
    """The profile of a pool: by its profile name, its GPU type, or the only one there is."""
    for key in (pool.profile, pool.gpu, pool.name):
        if key and key in profiles:
            return profiles[key]
    if len(profiles) == 1:
        return next(iter(profiles.values()))
    raise ReplayError(
        f"no profile for pool '{pool.name}' (profile '{pool.profile}', gpu '{pool.gpu}')",
        "profiles",
        f"give one of: {', '.join(sorted(profiles)) or 'none given'}",
    )


def block_size_of(pool: Pool) -> int:
    """Tokens per KV block; a slot cache counts single tokens."""
    return 1 if pool.engine.cache == "slot" else pool.engine.block_size


def check_pool(pool: Pool) -> None:
    """Refuse limits that contradict each other."""
    limits = pool.engine
    where = f"pool '{pool.name}'"
    for name, table in (("scheduler", SCHEDULERS), ("cache", CACHES)):
        if getattr(limits, name) not in table:
            raise ReplayError(f"{name} '{getattr(limits, name)}' is unknown", where, f"use one of {', '.join(table)}")
    if pool.role not in ROLES:
        raise ReplayError(f"role '{pool.role}' is unknown", where, f"use one of {', '.join(ROLES)}")
    if limits.queue not in ("fcfs", "priority"):
        raise ReplayError(f"queue '{limits.queue}' is unknown", where, "use fcfs or priority")
    if limits.max_num_seqs < 1 or limits.max_num_batched_tokens < limits.max_num_seqs:
        raise ReplayError(
            f"max_num_seqs {limits.max_num_seqs} does not fit max_num_batched_tokens {limits.max_num_batched_tokens}",
            where,
            "every decoding request needs one token a step",
        )
    if limits.kv_tokens < limits.block_size or limits.block_size < 1:
        raise ReplayError(f"kv_tokens {limits.kv_tokens} is less than one block", where, "give the KV capacity in tokens")


def instance_records(fleet: Fleet, profiles: Mapping[str, Profile]) -> tuple[Any, tuple[int, ...]]:
    """(N,) INST, idle and empty, and the block sizes of the fleet in order of first use."""
    sites = {site.name: i for i, site in enumerate(fleet.sites)}
    inst = np.zeros(fleet.n_instances, INST).view(np.recarray)
    sizes: list[int] = []
    gpus: list[str] = []
    first_event: dict[int, str] = {}
    for event in sorted(fleet.events, key=lambda e: e.at_s):
        for n in targets(fleet, event.target):
            first_event.setdefault(n, event.what)
    for n, pool in enumerate(pool_of(fleet)):
        check_pool(pool)
        if pool.site not in sites:
            raise ReplayError(f"site '{pool.site}' of pool '{pool.name}' is not declared", "fleet", f"sites: {', '.join(sites)}")
        site: Site = fleet.sites[sites[pool.site]]
        profile = profile_for(pool, profiles)
        limits = pool.engine
        block = block_size_of(pool)
        if block not in sizes:
            sizes.append(block)
        if profile.name not in gpus:
            gpus.append(profile.name)
        r = inst[n]
        for name in STEP_FIELDS:
            r[name] = getattr(profile.step, name)
        r["c0_s"] = max(profile.step.c0_s, LEAST_STEP_S)
        r["form_max"] = profile.step.form == "max"
        r["request_s"], r["request_token_s"], r["response_s"] = profile.request_s, profile.request_token_s, profile.response_s
        r["sched"], r["cache"] = SCHEDULERS[limits.scheduler], CACHES[limits.cache]
        r["prio_queue"] = limits.queue == "priority"
        r["budget"], r["max_seqs"], r["block"] = limits.max_num_batched_tokens, limits.max_num_seqs, block
        r["cap"] = limits.kv_tokens // block
        r["watermark"] = int(limits.watermark_share * r["cap"])
        r["long_prefill"], r["chunked"] = limits.long_prefill_threshold, limits.chunked_prefill
        r["ahead"], r["lag_s"] = limits.async_scheduling, np.inf
        r["reserve_full"], r["mixed"] = limits.reserve_full_prompt, limits.mixed_chunk
        r["ratio"], r["similarity"] = limits.new_token_ratio, limits.slot_similarity
        r["slot_cap"] = limits.kv_tokens // limits.max_num_seqs
        r["slots"] = limits.max_num_seqs if limits.cache == "slot" else 0
        r["host_cap"] = limits.host_kv_tokens // block if limits.host_load_tok_s > 0 or limits.cache == "slot" else 0
        r["host_tok_s"] = limits.host_load_tok_s
        r["role"], r["site"], r["gpu"] = ROLES[pool.role], sites[pool.site], gpus.index(profile.name)
        r["e"], r["rtt_s"] = sizes.index(block), site.rtt_s
        r["up"] = 0 if first_event.get(n) == "start" else 1
        r["seen"] = r["up"]
        r["next_s"] = np.inf
        for name in ("run_head", "run_tail", "pre_head", "pre_tail", "w_head", "w_tail", "lru_head", "lru_tail", "chg_head", "hlru_head", "hlru_tail"):
            r[name] = NONE
        r["heap_pos"] = n
        chunk = float(limits.max_num_batched_tokens)
        r["prefill_tok_s"] = chunk / full_chunk_s(r, chunk)
    return inst, tuple(sizes)


def full_chunk_s(r: Any, chunk: float) -> float:
    """Seconds of a step that is one full prefill chunk at the start of a prompt."""
    compute = r["c_prefill_s"] * chunk + r["c_prefill2_s"] * chunk * chunk + r["c_attn_s"] * chunk * (chunk + 1) / 2
    work = max(compute, r["c_mem_s"]) if r["form_max"] else compute + r["c_mem_s"]
    return float(max(r["c0_s"] + r["c_prefill_step_s"] + work, r["prefill_least_s"], LEAST_STEP_S))


def targets(fleet: Fleet, target: str) -> list[int]:
    """Instances that a fleet event names: an instance, a pool, or a site."""
    names = instance_names(fleet)
    pools = pool_of(fleet)
    hits = [n for n, name in enumerate(names) if target in (name, pools[n].name, pools[n].site)]
    if not hits:
        raise ReplayError(f"fleet event names '{target}', which is no instance, pool or site", "events", f"instances: {', '.join(names[:8])}")
    return hits


def serves(pool: Pool, model: str) -> bool:
    """May the pool serve a request for ``model`` ("name" or "name@version")? A pool without a model serves any."""
    if not pool.model:
        return True
    name, _, version = model.partition("@")
    return name == pool.model and (not version or version == pool.version)


def event_records(fleet: Fleet) -> Any:
    """(E,) EVENT sorted by time: crash 0, up 1, drain 2, warming 3."""
    rows: list[tuple[float, int, int]] = []
    for event in fleet.events:
        for n in targets(fleet, event.target):
            if event.what == "start":
                if event.warmup_s > 0:
                    rows.append((event.at_s, n, 3))
                rows.append((event.at_s + event.warmup_s, n, 1))
            elif event.what in ("crash", "drain", "stop"):
                rows.append((event.at_s, n, 0 if event.what == "crash" else 2))
            else:
                raise ReplayError(f"fleet event '{event.what}' is unknown", "events", "use crash, start, drain or stop")
    rows.sort(key=lambda row: row[0])
    return np.array(rows, dtype=EVENT).view(np.recarray) if rows else np.zeros(0, EVENT).view(np.recarray)


def profile_hash(profiles: Mapping[str, Profile]) -> str:
    """Hash of everything about the profiles that changes a replay."""
    import hashlib
    import json

    content = {
        name: {"step": asdict(p.step), "request_s": p.request_s, "request_token_s": p.request_token_s, "response_s": p.response_s}
        for name, p in sorted(profiles.items())
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
