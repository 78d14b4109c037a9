"""Target smg: arguments of Shepherd Model Gateway 1.13.0 and its priority scheduler's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfanalyze.errors import ExportError
from tfanalyze.export import argv, routers, yamltext
from tfanalyze.export.parts import Context, Rendered, from_public, only, params_of, policy_class, policy_set
from tfanalyze.export.schema import problems
from tfanalyze.replay.policies import PolicySet

WRITES_ADDRESSES = True
PROOF = "proven: smg 1.13.0 starts with it, routes by it and keeps its class slots (make test-gateways)"
MAIN, PRIORITY = "smg.sh", "smg-priority.yaml"
SWITCH, OFF = "--priority-scheduler-config", "--disable-worker-overload-protection"
ENABLE = "--priority-scheduler-enabled"
FLAGS = {
    name: argv.flag_of(name)
    for name in (
        "policy", "least_load_kv_pressure_weight", "least_load_default_throughput", "least_load_mean_prefill_tokens", "worker_overload_waiting_requests",
        "worker_overload_token_usage", "cache_threshold", "balance_abs_threshold", "balance_rel_threshold", "prefix_hash_load_factor",
        "prefix_hash_balance_abs_threshold",
    )
}  # fmt: skip
UNMODELLED = {
    "--rate-limit-tokens-per-second": ("never", "--max-concurrent-requests"), "--tenant-rate-limit-enabled": ("never", "classes: smg_priority"),
    "--selection-temperature": ("0", "temperature 0"), "--overlap-decay": ("0", "overlap-decay 0"),
    "--worker-overload-shed": ("never", "without it a request goes to the least bad worker"),
    "--pd-disaggregation": ("never", "export for an aggregated fleet"),
}  # fmt: skip
CLASSES = ("interactive", "default", "bulk")  # smg's names for SLO classes 0, 1 and all later ones
HEADER = "x-smg-priority"


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "smg", instance=("smg",), admit=("smg_priority", "router_queue"))
    routers.one_model_one_site("smg", ctx)
    routers.same_replicas("smg", ctx)
    if type(policy.admit).name != "smg_priority":
        return
    if len(ctx.classes) > len(CLASSES):
        raise ExportError(
            f"{len(ctx.classes)} SLO classes; {len(CLASSES)} of smg's were tuned",
            "export --target smg",
            "merge classes in tfanalyze.toml, then tune again",
        )
    shares = policy.admit.interactive_reserved_per_slot + policy.admit.default_reserved_per_slot
    if shares > 1:
        raise ExportError(
            f"reserved shares sum to {shares:g}: smg would log an error and run without classes",
            "export --target smg",
            "bound smg_priority.*_reserved_per_slot so that their sum stays below 1",
        )


def effective(policy: PolicySet, ctx: Context) -> PolicySet:
    """With the workers' slots written out where the limit was left to them: the same capacity."""
    if type(policy.admit).name != "smg_priority":
        return policy
    return replace(
        policy, admit=replace(policy.admit, max_concurrent_requests=float(_capacity(policy.admit, ctx)))
    )


def sniff(text: str) -> bool:
    return "smg launch" in text or '"smg"' in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    present = argv.flags(argv.tokens(ctx.current, ctx.current_name)) if ctx.current is not None else {}
    new: dict[str, str | None] = {**argv.wanted(policy.instance, FLAGS, ctx, present)}
    new |= routers.queue_wanted(policy, ctx, present)
    if policy.instance.worker_overload_protection < 1:
        new[OFF] = ""
    elif OFF in present:
        new[OFF] = None
    files: dict[str, str] = {}
    notes = list(routers.notes(ctx))
    if type(policy.admit).name == "smg_priority":
        new |= {ENABLE: "", SWITCH: PRIORITY, "--max-concurrent-requests": str(_capacity(policy.admit, ctx))}
        files[PRIORITY] = _priority_file(policy.admit, ctx, present)
        notes += _class_notes(ctx)
    if ctx.current is None:
        text = argv.script("smg 1.13.0", ["smg", "launch"], new, routers.workers(ctx))
    else:
        text = argv.edit(
            ctx.current, new, "--policy" if "--policy" in present else "launch", ctx.current_name
        )
    dropped = (
        "throughput is read from the workers' reports there, from the profile in replay",
        "preemption between classes is off: replay does not model it",
    )
    return Rendered({MAIN: text, **files}, tuple(notes), dropped, (f"sh {MAIN}",))


def _capacity(admit: Any, ctx: Context) -> int:
    """Capacity before workers register: their slots, or the tuned limit."""
    slots = sum(pool.count * pool.engine.max_num_seqs for pool in ctx.fleet.pools)
    return int(admit.max_concurrent_requests) or slots


def _class_notes(ctx: Context) -> list[str]:
    names = ", ".join(f"{entry.name} -> {CLASSES[k]}" for k, entry in enumerate(ctx.classes))
    return [
        f"requests name their class in the header {HEADER}: {names}",
        "smg counts 64 slots a worker where workers do not report max_running_requests: replay counts max_num_seqs",
        "look for 'priority scheduler enabled' in its log: with too large reservations it falls back to plain admission",
    ]


def _priority_file(admit: Any, ctx: Context, present: Mapping[str, str]) -> str:
    values = params_of(admit)
    classes: dict[str, Any] = {"system": _entry(0, 0.0, 64, 30, 5)}
    for name in CLASSES:
        share = values.get(f"{name}_reserved_per_slot", 0.0)
        starve = values["bulk_starvation_threshold_secs"] if name == "bulk" else 30
        classes[name] = _entry(
            0, share, values[f"{name}_queue_size"], values[f"{name}_queue_timeout_secs"], starve
        )
    before = _beside(present.get(SWITCH, ""), ctx.current_name)
    if before is not None:
        return yamltext.edit(before, {"classes": classes}, present[SWITCH])
    return f"# smg 1.13.0 --priority-scheduler-config; class by header {HEADER}\n" + yamltext.dump(
        {"classes": classes}
    )


def _entry(floor: int, share: Any, size: Any, timeout: Any, starve: Any) -> dict[str, Any]:
    return {
        "reserved_floor": floor, "reserved_per_slot": float(share), "queue_size": int(size),
        "queue_timeout_secs": int(timeout), "starvation_threshold_secs": int(starve), "can_preempt": False,
    }  # fmt: skip


def _beside(name: str, where: str) -> str | None:
    """Text of a file named in the command line, looked for beside it."""
    if not name:
        return None
    for path in (Path(where).parent / name, Path(name)):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


def check(files: Mapping[str, str]) -> list[str]:
    found = argv.flags(argv.tokens(files[MAIN], MAIN))
    trouble = (
        []
        if "--worker-urls" in found or "--discovery-provider" in found or "--service-discovery" in found
        else ["no --worker-urls"]
    )
    if PRIORITY in files:
        doc = yamltext.plain(yamltext.load(files[PRIORITY], PRIORITY))
        trouble += problems(doc, "smg-priority")
        if ENABLE not in found:
            trouble.append(f"{SWITCH} without {ENABLE} is ignored")
    return trouble


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    found = argv.flags(argv.tokens(text, where))
    routers.refuse(found, UNMODELLED, where)
    cls = policy_class("smg")
    values = argv.read(cls, found, FLAGS, where)
    if OFF in found:
        values["worker_overload_protection"] = "off"
    instance = from_public(cls, values, where)
    if ENABLE not in found:
        return policy_set(instance=instance, admit=routers.queue_read(found, where))
    body = (files or {}).get(PRIORITY) or _beside(found.get(SWITCH, ""), where)
    if body is None:
        raise ExportError(
            f"names {found.get(SWITCH) or 'no'} priority file, which is not there",
            where,
            "put it beside the script",
        )
    return policy_set(instance=instance, admit=_read_priority(body, found, where))


def _read_priority(body: str, found: Mapping[str, str], where: str) -> Any:
    doc = yamltext.plain(yamltext.load(body, PRIORITY))
    trouble = problems(doc, "smg-priority")
    if trouble:
        raise ExportError(trouble[0], PRIORITY, "smg would refuse it at start")
    cls = policy_class("smg_priority")
    values: dict[str, Any] = {}
    for name in CLASSES:
        entry = doc["classes"].get(name, {})
        if entry.get("reserved_floor"):
            raise ExportError(
                f"classes.{name}.reserved_floor is not modelled",
                PRIORITY,
                "say it as reserved_per_slot, a share of the slots",
            )
        for key in ("reserved_per_slot", "queue_size", "queue_timeout_secs"):
            if key in entry and f"{name}_{key}" in cls.__dataclass_fields__:
                values[f"{name}_{key}"] = entry[key]
    values["bulk_starvation_threshold_secs"] = (
        doc["classes"].get("bulk", {}).get("starvation_threshold_secs", 120)
    )
    limit = float(found.get("--max-concurrent-requests", 0))
    return from_public(cls, {**values, "max_concurrent_requests": max(0.0, limit)}, PRIORITY)
