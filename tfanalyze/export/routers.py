"""What the command-line routers of the SGLang line share: flags, the one FIFO queue, worker addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import argv
from tfanalyze.export.parts import Context, endpoint, endpoint_note, from_public, instance_names, policy_class
from tfanalyze.replay.policies import PolicySet

QUEUE_FLAGS = {
    name: argv.flag_of(name) for name in ("max_concurrent_requests", "queue_size", "queue_timeout_secs")
}
# sglang-router 0.3.2 and vllm-router 0.1.17 keep the limit as a bucket of tokens: one back for each answer, and as many a
# second as this flag says.  Unset it is the limit itself, so that a new request enters after a second whatever is in flight
# (seen: 20 of 20 at a limit of 4); 1 is the least they take.  smg 1.13 keeps the limit as it says.
RATE = "--rate-limit-tokens-per-second"
RATE_WORDS = (
    "the concurrency limit is a token bucket there: beside it one more request enters each second ("
    + RATE
    + " 1, the least)"
)
REPLICA_NOTE = "thresholds and limits hold for each router replica; they were tuned with {n} of them"


def one_model_one_site(target: str, ctx: Context) -> None:
    """These routers choose a worker, not a site."""
    if len({pool.site for pool in ctx.fleet.pools}) > 1:
        raise ExportError(
            f"{target} has no notion of sites",
            f"export --target {target}",
            "run one router for each site, with --target envoy before them, or export for one site's fleet",
        )


def same_replicas(target: str, ctx: Context) -> None:
    """A limit a replica, tuned with another number of replicas, is refused."""
    tuned = ctx.evidence.get("gateway_replicas")
    if tuned is not None and int(tuned) != ctx.fleet.gateway.replicas:
        raise ExportError(
            f"thresholds and limits hold for each replica: tuned with {tuned}, the fleet has {ctx.fleet.gateway.replicas}",
            f"export --target {target}",
            "tune with the number of replicas that will run",
        )


def workers(ctx: Context) -> list[str]:
    return ["--worker-urls " + " ".join(endpoint(ctx, name) for name in instance_names(ctx.fleet))]


def notes(ctx: Context) -> tuple[str, ...]:
    return (REPLICA_NOTE.format(n=ctx.fleet.gateway.replicas), *endpoint_note(ctx))


def queue_wanted(
    policy: PolicySet, ctx: Context, present: Mapping[str, str], *, bucket: bool = False
) -> dict[str, str]:
    if type(policy.admit).name != "router_queue":
        return {}
    found = argv.wanted(policy.admit, QUEUE_FLAGS, ctx, present)
    found.setdefault("--max-concurrent-requests", argv.word(policy.admit.max_concurrent_requests))
    if bucket and policy.admit.max_concurrent_requests > 0:
        found[RATE] = "1"
    return found


def bucket_words(policy: PolicySet) -> tuple[str, ...]:
    limited = type(policy.admit).name == "router_queue" and policy.admit.max_concurrent_requests > 0
    return (RATE_WORDS,) if limited else ()


def queue_read(found: Mapping[str, str], where: str, *, bucket: bool = False) -> Any:
    """router_queue when the command line limits concurrency, else None: a bucket that fills up each second is no limit."""
    limit = found.get("--max-concurrent-requests")
    if limit is None or (bucket and not limit.startswith("-") and found.get(RATE) != "1"):
        return None
    cls = policy_class("router_queue")
    return from_public(cls, argv.read(cls, found, QUEUE_FLAGS, where), where)


def refuse(found: Mapping[str, str], unmodelled: Mapping[str, tuple[str, str]], where: str) -> None:
    """Flags that change decisions and that replay does not model: flag -> (harmless value, nearest)."""
    for flag, (harmless, nearest) in unmodelled.items():
        if flag in found and found[flag] != harmless:
            raise ExportError(f"{flag} {found[flag]} is not modelled".rstrip(), where, nearest)
