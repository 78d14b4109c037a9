"""Target vllm-router: arguments of vllm-router 0.1.17 (the Rust router of the vLLM project)."""

from __future__ import annotations

from collections.abc import Mapping

from tfanalyze.export import argv, routers
from tfanalyze.export.parts import Context, Rendered, from_public, only, params_of, policy_class, policy_set
from tfanalyze.replay.policies import PolicySet

WRITES_ADDRESSES = True
PROOF = "proven: vllm-router 0.1.17 starts with it and routes by it (make test-gateways)"
MAIN = "vllm-router.sh"
PROGRAM = "vllm-router"
FLAGS = {
    name: argv.flag_of(name)
    for name in ("policy", "cache_threshold", "balance_abs_threshold", "balance_rel_threshold")
}
RENDER_NOTE = (
    "cache_aware matches the tokens that workers answer at /v1/chat/completions/render: check that yours have this route, "
    "without it every request goes to the least loaded"
)
UNMODELLED = {
    "--program-scheduling-config-json": ("never", "kv_aware without it"),
    "--vllm-pd-disaggregation": ("never", "export for an aggregated fleet"),
}


def cannot_say(policy: PolicySet, ctx: Context) -> None:
    only(policy, "vllm-router", instance=("vllm_router",), admit=("router_queue",))
    routers.one_model_one_site("vllm-router", ctx)
    routers.same_replicas("vllm-router", ctx)


def sniff(text: str) -> bool:
    return "vllm-router" in text


def render(policy: PolicySet, ctx: Context) -> Rendered:
    present = argv.flags(argv.tokens(ctx.current, ctx.current_name)) if ctx.current is not None else {}
    new = argv.wanted(policy.instance, FLAGS, ctx, present) | routers.queue_wanted(
        policy, ctx, present, bucket=True
    )
    if ctx.current is None:
        text = argv.script("vllm-router 0.1.17", [PROGRAM], new, routers.workers(ctx))
    else:
        text = argv.edit(ctx.current, new, "--policy" if "--policy" in present else PROGRAM, ctx.current_name)
    dropped = (
        "prefix matches are of single tokens there, of whole blocks in replay",
        *routers.bucket_words(policy),
    )
    notes = routers.notes(ctx)
    if params_of(policy.instance)["policy"] == "cache_aware":
        notes += (RENDER_NOTE,)
    return Rendered({MAIN: text}, notes, dropped, (f"sh {MAIN}",))


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
    cls = policy_class("vllm_router")
    return policy_set(
        instance=from_public(cls, argv.read(cls, found, FLAGS, where), where),
        admit=routers.queue_read(found, where, bucket=True),
    )
