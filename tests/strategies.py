"""Hypothesis strategies: small fleets, traces, profiles and options with every feature of docs/engine.md mixed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from typing import Any

from hypothesis import strategies as st

from tfanalyze.config import EngineLimits, Fleet, FleetEvent, Gateway, Pool, Site, SloClass, Transfer
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay.options import Options
from tfanalyze.trace import Trace, from_columns

Draw = st.DrawFn
CLASS_NAMES = ("interactive", "long_context", "offline")
INSTANCE_POLICIES = (
    "round_robin", "random", "least_requests", "power_of_two", "session_affinity", "least_kv", "prefix_affinity",
    "sticky_least", "tokenpilot", "dynamo",
)  # fmt: skip
SITE_POLICIES = ("any_site", "fleetmind")
ADMIT_POLICIES = ("admit_all", "fcfs_queue", "concurrency_limit", "token_rate", "vtc_fair", "slomax")


@dataclass(frozen=True)
class Case:
    """Arguments of one replay. ``policy`` is what load_policy takes."""

    trace: Trace
    fleet: Fleet
    profiles: dict[str, Profile]
    classes: tuple[SloClass, ...]
    policy: str
    seed: int
    options: Options

    def policies(self) -> Any:
        from tfanalyze.replay.policies import load_policy

        return load_policy(self.policy)


@st.composite
def step_times(draw: Draw) -> StepTime:
    """Coefficients of the size real GPUs have, none a round number: times must not meet by accident."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    return StepTime(
        c0_s=pick(0.0, 0.0061234567, 0.0203111),
        c_prefill_step_s=pick(0.0, 0.0031117),
        c_decode_step_s=pick(0.0, 0.0017713),
        c_prefill_s=pick(0.00007137, 0.0003331),
        c_prefill2_s=pick(0.0, 1.3e-8),
        c_attn_s=pick(0.0, 2.17e-8),
        c_seq_s=pick(0.0, 0.00011393),
        c_seq_knee_s=pick(0.0, 0.000531),
        knee_seqs=pick(1.0, 3.0),
        c_mem_s=pick(0.0, 0.00413),
        c_kv_s=pick(1.31e-6, 2.93e-5),
        c_kv2_s=pick(0.0, 1.1e-11),
        c_long_s=pick(0.0, 0.0000473, 0.000391),
        split_seqs=pick(0.0, 2.5, 4.7, 40.3),
        prefill_least_s=pick(0.0, 0.0191931),
        graph_seqs=pick(0.0, 3.0, 8.0),
        form=pick("sum", "max"),
    )


@st.composite
def profiles(draw: Draw, name: str) -> Profile:
    far = draw(st.booleans())
    return Profile(
        name, draw(step_times()), request_s=0.00213 if far else 0.0, request_token_s=1.7e-6 if far else 0.0,
        response_s=0.00077 if far else 0.0,
    )  # fmt: skip


@st.composite
def limits(draw: Draw, schedulers: tuple[str, ...], host: bool) -> EngineLimits:
    scheduler = draw(st.sampled_from(schedulers))
    seqs = draw(st.sampled_from([1, 2, 4, 16]))
    if scheduler == "llamacpp":
        return EngineLimits(
            scheduler=scheduler, cache="slot", queue=draw(st.sampled_from(["fcfs", "priority"])), max_num_seqs=seqs,
            max_num_batched_tokens=draw(st.sampled_from([16, 64])), kv_tokens=seqs * draw(st.sampled_from([150, 400])),
            slot_similarity=draw(st.sampled_from([0.1, 0.5])),
            host_kv_tokens=draw(st.sampled_from([0, 120, 2000])) if host else 0,
        )  # fmt: skip
    block = draw(st.sampled_from([4, 8, 16]))
    chunked = draw(st.booleans()) or scheduler == "sglang"
    use_host = host and draw(st.booleans())
    return EngineLimits(
        scheduler=scheduler,
        cache=draw(st.sampled_from(["blocks", "blocks", "none"])),
        queue=draw(st.sampled_from(["fcfs", "priority"])) if scheduler == "vllm" else "fcfs",
        max_num_batched_tokens=draw(st.sampled_from([16, 48, 256])),
        max_num_seqs=seqs,
        block_size=block,
        kv_tokens=draw(st.sampled_from([96, 160, 320, 2000])),
        watermark_share=draw(st.sampled_from([0.0, 0.0, 0.05])),
        chunked_prefill=chunked,
        long_prefill_threshold=draw(st.sampled_from([0, 0, 12])) if chunked else 0,
        reserve_full_prompt=draw(st.booleans()),
        mixed_chunk=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        new_token_ratio=draw(st.sampled_from([0.1, 0.4])),
        host_kv_tokens=draw(st.sampled_from([64, 1000])) if use_host else 0,
        host_load_tok_s=7919.0 if use_host else 0.0,
    )


@st.composite
def traces(draw: Draw, max_rows: int = 18, models: bool = False, sites: tuple[str, ...] = ()) -> Trace:
    """Requests with sessions, shared prefixes (a random tree of chained ids), deadlines, tenants, ties in time."""
    n = draw(st.integers(1, max_rows))
    size = draw(st.sampled_from([4, 8, 16, 24]))
    gap = draw(st.sampled_from([0.0, 0.05, 0.4]))
    lists: list[list[int]] = []
    inputs: list[int] = []
    outputs: list[int] = []
    arrival, prev, think = [], [], []
    now, fresh, taken = 0.0, 0, set()
    for row in range(n):
        now += gap * draw(st.integers(0, 4))
        arrival.append(now)
        outputs.append(draw(st.sampled_from([1, 2, 3, 7, 20, 45])))
        link = draw(st.integers(-1, row - 1)) if draw(st.booleans()) else -1
        start = lists[link][: draw(st.integers(0, len(lists[link])))] if link >= 0 else []
        own = draw(st.integers(0, 5))
        lists.append([*start, *range(fresh, fresh + own)])
        fresh += own
        tokens = len(lists[row]) * size
        inputs.append(max(1, tokens - draw(st.integers(-3, min(tokens, 2 * size)))))
        follows = link >= 0 and link not in taken and draw(st.booleans())
        taken |= {link} if follows else set()
        prev.append(link if follows else -1)
        think.append(draw(st.sampled_from([0.0, 0.0371, 0.9113, nan])) if follows else nan)
    column = lambda *values: draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))  # noqa: E731
    return from_columns(
        arrival_s=arrival,
        input_tokens=inputs,
        output_tokens=outputs,
        max_tokens=[draw(st.sampled_from([-1, o, 2 * o])) for o in outputs],
        slo_class=column(*CLASS_NAMES),
        classes=CLASS_NAMES,
        tenant=column("a", "b", None),
        priority=column(0, 0, 1, 5),
        deadline_s=column(nan, nan, 0.731, 30.0),
        model=column("m", "other@2", None) if models else None,
        site=column(None, None, *sites) if sites else None,
        prev=prev,
        think_s=think,
        blocks=lists,
        block_size=size,
    )


@st.composite
def slo_classes(draw: Draw) -> tuple[SloClass, ...]:
    impatient = draw(st.booleans())
    out = []
    for number, name in enumerate(CLASS_NAMES):
        out.append(
            SloClass(
                name,
                ttft_s=draw(st.sampled_from([inf, 0.2137, 1.5])),
                tpot_s=draw(st.sampled_from([inf, 0.0213])),
                e2e_s=draw(st.sampled_from([inf, 3.117])),
                priority=draw(st.sampled_from([0, number])),
                timeout_s=draw(st.sampled_from([inf, 0.3313, 2.0171])) if impatient else inf,
                max_retries=draw(st.sampled_from([0, 1, 3])),
                retry_backoff_s=0.2713,
                retry_jitter=draw(st.sampled_from([0.0, 0.5])),
                retry_after_max_s=draw(st.sampled_from([0.0, 1.5, 60.0])),
            )
        )
    return tuple(out)


@st.composite
def gateways(draw: Draw) -> Gateway:
    late = draw(st.booleans())
    return Gateway(
        replicas=draw(st.sampled_from([1, 1, 2, 3])),
        report_interval_s=draw(st.sampled_from([0.0537, 0.7131])) if late else 0.0,
        report_delay_s=draw(st.sampled_from([0.0, 0.0219])) if late else 0.0,
        index=draw(st.sampled_from(["exact", "approx", "none"])),
        index_lag_s=draw(st.sampled_from([0.0, 0.1117])),
        index_tokens=draw(st.sampled_from([0, 64])),
        index_ttl_s=draw(st.sampled_from([inf, 0.5171])),
        sync_delay_s=draw(st.sampled_from([inf, 0.0, 0.1931])),
    )


@st.composite
def fleets(
    draw: Draw, schedulers: tuple[str, ...] = ("vllm", "sglang", "llamacpp"), host: bool = True, split: bool = True,
    events: bool = True, profile_names: tuple[str, ...] = ("fast", "slow"),
) -> Fleet:  # fmt: skip
    n_site = draw(st.sampled_from([1, 1, 2]))
    sites = tuple(Site(f"site{s}", draw(st.sampled_from([0.0, 0.00731, 0.0411])), f"region{s}") for s in range(n_site))
    pools = []
    roles = ["both"]
    if split and draw(st.integers(0, 4)) == 0:
        roles, schedulers, host = ["prefill", "decode"], ("vllm",), False
    for number in range(len(roles) if len(roles) > 1 else draw(st.integers(1, 2))):
        pools.append(
            Pool(
                f"pool{number}",
                site=draw(st.sampled_from(sites)).name,
                count=draw(st.integers(1, 3)),
                model=draw(st.sampled_from(["", "m"])) if len(roles) == 1 else "",
                profile=draw(st.sampled_from(profile_names)),
                role=roles[number % len(roles)],
                engine=draw(limits(schedulers, host)),
            )
        )
    names = [f"{p.name}-{i}" if p.count > 1 else p.name for p in pools for i in range(p.count)]
    happen: list[FleetEvent] = []
    if events and draw(st.integers(0, 2)) == 0:
        for _ in range(draw(st.integers(1, 3))):
            what = draw(st.sampled_from(["crash", "drain", "start", "stop"]))
            at_s = draw(st.sampled_from([0.1013, 0.5171, 1.3337, 2.7713])) + 0.000317 * len(happen)
            target = draw(st.sampled_from([*names, pools[0].name]))
            happen.append(FleetEvent(at_s, what, target, warmup_s=draw(st.sampled_from([0.0, 0.4113]))))
    transfer = Transfer(tok_s=draw(st.sampled_from([inf, 3989.0])), latency_s=draw(st.sampled_from([0.0, 0.00351])))
    return Fleet(tuple(pools), sites, draw(gateways()), transfer, tuple(happen))


@st.composite
def cases(
    draw: Draw, instance: tuple[str, ...] = INSTANCE_POLICIES, site: tuple[str, ...] = SITE_POLICIES,
    admit: tuple[str, ...] = ADMIT_POLICIES, options: bool = True, max_rows: int = 18, **fleet: Any,
) -> Case:  # fmt: skip
    """Everything at once. Narrow it by naming the policies, schedulers or features that may occur."""
    where = draw(fleets(**fleet))
    pins = tuple(s.name for s in where.sites) if draw(st.booleans()) else ()
    trace = draw(traces(max_rows=max_rows, models=draw(st.booleans()), sites=pins))
    flags = st.booleans() if options else st.just(False)
    return Case(
        trace=trace,
        fleet=where,
        profiles={name: draw(profiles(name)) for name in ("fast", "slow")},
        classes=draw(slo_classes()),
        policy="+".join((draw(st.sampled_from(instance)), draw(st.sampled_from(site)), draw(st.sampled_from(admit)))),
        seed=draw(st.integers(1, 1000)),
        options=Options(
            open_loop=draw(flags), infinite_cache=draw(flags) and draw(flags), perfect_signals=draw(flags) and draw(flags),
            known_lengths=draw(flags) and draw(flags), debug=True,
        ),
    )  # fmt: skip
