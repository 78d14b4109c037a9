"""SLO classes, fleet, engine limits, gateway and clients as frozen dataclasses.

``load_config`` (in settings.py, offered here by the same name) reads them from tfanalyze.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

UNSET = -1


@dataclass(frozen=True, slots=True)
class SloClass:
    """One SLO class. A limit of inf means "no limit of this kind"."""

    name: str
    ttft_s: float = inf  # first token, from the client's first attempt
    tpot_s: float = inf  # mean gap between tokens of one request
    e2e_s: float = inf  # last token, from the client's first attempt
    priority: int = 0  # lower runs earlier (vLLM's direction)
    timeout_s: float = inf  # the client gives up this long after an attempt began
    max_retries: int = 0
    retry_backoff_s: float = 1.0  # first back-off; doubles each time
    retry_jitter: float = 0.5  # share of the back-off drawn at random, 0..1
    retry_after_max_s: float = 120.0  # a shed client waits its Retry-After as told, gives up at a longer one; 0 = heeds none


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine replica allows. Names are vLLM's where vLLM has one."""

    scheduler: str = "vllm"  # vllm (decode first, chunked prefill) | sglang (prefill first) | llamacpp (slots)
    cache: str = "blocks"  # blocks (shared prefix blocks) | slot (llama.cpp's per-slot prefix) | none
    queue: str = "fcfs"  # fcfs | priority
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    block_size: int = 16  # tokens per KV block
    kv_tokens: int = 400_000  # KV capacity of the replica in tokens
    watermark_share: float = 0.0  # share of KV that admission leaves free
    chunked_prefill: bool = True
    long_prefill_threshold: int = 0  # 0 = none; else the longest chunk of one request in one step
    reserve_full_prompt: bool = False  # admit only when the whole prompt fits, not just its first chunk
    mixed_chunk: bool = False  # sglang: decode together with a prefill chunk
    new_token_ratio: float = 0.4  # sglang: share of the running requests' remaining max_tokens kept free at admission
    slot_similarity: float = 0.1  # llamacpp: least share of the prompt that a slot must hold to be preferred
    async_scheduling: bool = False  # plans one step ahead: a request waits out the step that runs and one more
    host_kv_tokens: int = 0  # host-memory KV tier, 0 = none
    host_load_tok_s: float = 0.0  # tokens a second loaded back from the host tier


@dataclass(frozen=True, slots=True)
class Pool:
    """Instances of one model and version at one site, all alike."""

    name: str
    site: str = "site0"
    count: int = 1
    gpu: str = "default"
    model: str = ""
    version: str = ""
    profile: str = ""  # key into the profiles given to replay; "" = the only one
    role: str = "both"  # both | prefill | decode
    engine: EngineLimits = field(default_factory=EngineLimits)
    gpus_per_instance: int = 1


@dataclass(frozen=True, slots=True)
class Site:
    name: str
    rtt_s: float = 0.0  # gateway to site and back
    region: str = ""  # for data-residency pins


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Something that happens to instances at a time. `target` is an instance, pool or site name."""

    at_s: float
    what: str  # crash | drain | start | stop
    target: str
    warmup_s: float = 0.0  # start: ready this long after at_s


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the gateway knows, and how late."""

    replicas: int = 1
    report_interval_s: float = 0.0  # 0 = live engine state
    report_delay_s: float = 0.0
    index: str = "exact"  # exact (KV events) | approx (remembers what it sent where) | none
    index_lag_s: float = 0.0
    index_tokens: int = 0  # approx: capacity per instance in tokens, 0 = the instance's KV capacity
    index_ttl_s: float = inf  # approx: an entry older than this no longer counts
    sync_delay_s: float = inf  # gateways tell each other what they sent after this delay; inf = never


@dataclass(frozen=True, slots=True)
class Transfer:
    """Prefill/decode hand-off link, shared by the whole pool pair."""

    tok_s: float = inf  # tokens of KV moved a second
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fleet:
    pools: tuple[Pool, ...]
    sites: tuple[Site, ...] = (Site("site0"),)
    gateway: Gateway = Gateway()
    transfer: Transfer = Transfer()
    events: tuple[FleetEvent, ...] = ()

    @property
    def n_instances(self) -> int:
        return sum(pool.count for pool in self.pools)


DEFAULT_CLASSES: tuple[SloClass, ...] = (
    SloClass("interactive", ttft_s=2.0, tpot_s=0.1, priority=0),
    SloClass("long_context", ttft_s=15.0, tpot_s=0.2, priority=1),
    SloClass("offline", e2e_s=600.0, priority=2),
)


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Gives requests an SLO class that their log does not name. The first rule whose every condition holds wins."""

    slo_class: str
    tenant: str = ""  # pattern with * and ?, as in a shell; "" = any
    model: str = ""  # the same
    min_input_tokens: int = 0
    max_input_tokens: int = 0  # 0 = no upper end
    min_max_tokens: int = 0  # least output budget that the client asked for
    has_deadline: bool = False  # only requests that carry a deadline


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """What tune takes unless the command line says otherwise."""

    policy: str = "tokenpilot+slomax"
    baseline: str = "recorded"
    objective: str = "goodput"
    trials: int = 100
    seed: int = 1
    timeout_s: float = inf
    constraints: tuple[str, ...] = ()  # such as "attainment:interactive >= 0.95"
    pin: Mapping[str, float | str] = field(default_factory=dict)  # parameter -> value that is not searched
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # parameter -> (low, high)


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What the user can say about a log or a metrics file that it does not say itself."""

    tz: str = "UTC"  # zone of times that name none
    year: int | None = None  # year of times that name none
    time_unit: str | None = None  # s | ms | us | ns: unit of numeric arrivals, in place of what was detected
    time_base: str | None = None  # unix | monotonic | relative
    start_at: str | float | None = None  # when a trace with relative times began: ISO time, or epoch
    clock_ahead_s: float | None = None  # the file's clock is so far ahead of the others': taken off its times
    instance: str | None = None  # where the log does not say
    site: str | None = None
    model: str | None = None
    slo_class: str | None = None
    vantage: str | None = None  # client | gateway | router | engine, in place of the format's
    block_size: int | None = None  # tokens a block, in place of what the format says
    block_scope: str = "file"  # file | shared: are numbered block ids of two files the same blocks?
    keep_tenants: bool = False
    mapping: Mapping[str, Any] | None = None  # column = expression, for formats of your own
    key_file: str | None = None  # key of the block hashes and pseudonyms; default: next to the workspace
    seed: int = 1  # for formats that describe a load instead of listing requests
    requests: int | None = None  # how many of them to draw
    wait_s: float = 10.0  # how long to wait for a workspace that another process holds


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that tfanalyze.toml can say. ``assumed`` lists what was not said and is taken by default."""

    classes: tuple[SloClass, ...] = DEFAULT_CLASSES
    class_rules: tuple[ClassRule, ...] = ()
    fleet: Fleet | None = None  # None = as fitted, or as many instances as the log names
    engine: EngineLimits | None = None  # limits of pools that do not give their own; None = as fitted
    gateway: Gateway | None = None
    settings: Mapping[str, float | str] = field(default_factory=dict)  # "tokenpilot.cache_weight" -> value
    ingest: Mapping[str, Any] = field(default_factory=dict)  # options of ingest; "mapping" = column -> expression
    tune: TuneSettings = TuneSettings()
    endpoints: Mapping[str, str] = field(default_factory=dict)  # instance -> base URL, for exported configs
    assumed: tuple[str, ...] = ()
    path: str = ""  # the file that was read, "" = none


def load_config(path: str | Path | None = None) -> Config:
    """Read ``path``; without one ./tfanalyze.toml if it is there, else the defaults. See ``tfanalyze.settings``."""
    from tfanalyze.settings import load_config as load

    return load(path)
