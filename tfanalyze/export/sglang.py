"""Target sglang: arguments of sglang-router 0.3.2."""

from __future__ import annotations

from collections.abc import Mapping

from tfanalyze.export import argv, routers
from tfanalyze.export.parts import Context, Rendered, from_public, only, policy_class, policy_set
from tfanalyze.replay.policies import PolicySet

WRITES_ADDRESSES = True
PROOF = "proven: sglang-router 0.3.2 starts with it and routes by it (make test-gateways)"
MAIN = "sglang-router.sh"
PROGRAM = "sglang_router.launch_router"
FLAGS = {
    name: argv.flag_of(name)
    for name in ("policy", "cache_threshold", "balance_abs_threshold", "balance_rel_threshold")
}
UNMODELLED = {
    "--pd-disaggregation": ("never", "export for an aggregated fleet"),
    "--dp-aware": ("never", "one worker URL for each rank"),
}


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "sglang", instance=("sglang",), admit=("router_queue",))
    routers.one_model_one_site("sglang", ctx)
    routers.same_replicas("sglang", ctx)


def sniff(text: str) -> bool:
    return "sglang_router" in text or "sglang-router" in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    present = argv.flags(argv.tokens(ctx.current, ctx.current_name)) if ctx.current is not None else {}
    new = argv.wanted(policy.instance, FLAGS, ctx, present) | routers.queue_wanted(
        policy, ctx, present, bucket=True
    )
    if ctx.current is None:
        text = argv.script("sglang-router 0.3.2", ["python", "-m", PROGRAM], new, routers.workers(ctx))
    else:
        text = argv.edit(ctx.current, new, "--policy" if "--policy" in present else PROGRAM, ctx.current_name)
    dropped = (
        "prefix matches are of characters there, of token blocks in replay",
        *routers.bucket_words(policy),
    )
    return Rendered({MAIN: text}, routers.notes(ctx), dropped, (f"sh {MAIN}",))


def check(files: Mapping[str, str]) -> list[str]:
    found = argv.flags(argv.tokens(files[MAIN], MAIN))
    return (
        []
        if "--worker-urls" in found or "--service-discovery" in found
        else ["no --worker-urls: the router has nobody to send to"]
    )


def parse(text: str, where: str, files: Mapping[str, str] | None = None) -> PolicySet:
    found = argv.flags(argv.tokens(text, where))
    routers.refuse(found, UNMODELLED, where)
    cls = policy_class("sglang")
    return policy_set(
        instance=from_public(cls, argv.read(cls, found, FLAGS, where), where),
        admit=routers.queue_read(found, where, bucket=True),
    )
