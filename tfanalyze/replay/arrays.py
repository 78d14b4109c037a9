"""The arrays of one replay: allocated once, reset and used again by later runs of the same thread."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tfanalyze.config import Fleet, Gateway, SloClass
from tfanalyze.replay import layout as lo
from tfanalyze.replay.options import Options
from tfanalyze.replay.state import GATE, REQUEST, SITE, VIEW


@dataclass
class Sizes:
    """Pools that grow when a run finds them too small; the run is then repeated, with the same result."""

    flights: int = 1024
    entries: int = 1 << 13
    index: int = 1
    timers: int = 1 << 12
    messages: int = 1


@dataclass(frozen=True)
class Shared:
    """What every run of a simulator shares, read only."""

    row: Any
    seg: Any  # (n_seg,) SEG
    path: Any
    poff: Any  # (n_block_sizes, n+1)
    inst: Any
    event: Any
    cls: Any
    serves: Any
    fleet: Fleet
    classes: tuple[SloClass, ...]
    n_tenants: int


def records(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """Zeroed records with attribute access (what the kernels use with the JIT off)."""
    return np.zeros(shape, dtype).view(np.recarray)


def policy_params(policy: Any) -> Any:
    """The policy's parameters as float64, in the order of its declaration; never empty."""
    values = [float(getattr(policy, f.name)) for f in fields(policy)]
    return np.array(values or [0.0], np.float64)


def n_queues(policy: Any, shared: Shared) -> int:
    """Queues at a gateway's door under this admission policy."""
    by = getattr(policy, "queue_by", "class")
    return {"class": len(shared.classes), "tenant": max(1, shared.n_tenants), "one": 1}[by]


def memory_for(policy: Any, n_gw: int, *counts: int) -> Any:
    """(G, m) zeroed memory of a policy."""
    size = getattr(policy, "memory_size", None)
    return np.zeros((n_gw, max(1, int(size(*counts)) if size else 1)), np.float64)


class Arrays:
    """Engine and gateway arrays for one run at a time."""

    def __init__(self, shared: Shared, options: Options, gateway: Gateway, sizes: Sizes) -> None:
        self.shared, self.options, self.gateway, self.sizes = shared, options, gateway, sizes
        n_inst, n_gw = len(shared.inst), gateway.replicas
        self.approx = gateway.index == "approx"
        blocks = int(shared.inst["block"].max())
        seqs = int(shared.inst["max_seqs"].max())
        slots = max(1, int(shared.inst["slots"].max()))
        interval = gateway.report_interval_s
        ring = int(np.ceil(gateway.report_delay_s / interval)) + 4 if interval > 0 else 1
        bins = max(0, options.series_bins)
        n_class, n_site = len(shared.classes), len(shared.fleet.sites)
        seg_n = max(1, len(shared.seg))
        self.en = lo.Engine(
            cf=records(1, lo.CONF),
            row=shared.row,
            out=records(0, lo.OUT),
            inst=shared.inst.copy(),
            fl=records(sizes.flights, lo.FLIGHT),
            ent=records(sizes.entries, lo.ENT),
            bucket=np.full(_power(2 * sizes.entries), lo.NONE, np.int32),
            seg=shared.seg,
            head=np.full(seg_n, lo.NONE, np.int32),
            path=shared.path,
            poff=shared.poff,
            phase=np.zeros((n_inst, blocks), np.int32),
            fheap=np.zeros((n_inst, seqs), np.int32),
            slot=records((n_inst, slots), lo.SLOT),
            saved=records((n_inst, lo.SAVED if slots > 1 or shared.inst["cache"].max() == 2 else 1), lo.SLOT),
            work=np.zeros(max(sizes.flights, seqs) + 8, np.int32),
            infheld=np.zeros(seg_n if options.infinite_cache else 1, np.int32),
            waste=np.zeros(2 * lo.N_WASTE, np.float64),
        )
        self.base = {
            "views": records((n_gw, n_inst), VIEW),
            "req": records(1, REQUEST),
            "sites": records((n_gw, n_site), SITE),
            "pub": records(n_inst, lo.PUB),
            "ring": records((n_inst, ring), lo.PUB),
            "learn": records((n_gw, n_class), lo.LEARN),
            "swing": records((n_gw, n_site, n_class), lo.SWING),
            "cls": shared.cls,
            "serves": shared.serves,
            "tm": records(sizes.timers + 2, lo.TIMER),
            "ih": np.zeros(n_inst, np.int32),
            "due": records(min(sizes.timers, 1 << 14) + 2, lo.TIMER),
            "dirty": np.zeros(n_inst, np.int32),
            "ends": np.zeros(n_inst, np.int32),
            "end_s": np.zeros(n_inst, np.float64),
            "drain": np.zeros(n_gw, np.int32),
            "msg": records(max(1, sizes.messages), lo.MESSAGE),
            "ix": records(max(2, sizes.index), lo.ENT),
            "ixbucket": np.full(_power(2 * max(2, sizes.index)), lo.NONE, np.int32),
            "ixhead": np.full((n_gw, seg_n if self.approx else 1), lo.NONE, np.int32),
            "ixlru": records((n_gw, n_inst), lo.LRU),
            "event": shared.event,
            "rng": np.zeros((n_gw, 1), np.uint64),
            "scores": np.zeros(max(n_inst, n_site), np.float64),
            "series": np.zeros((max(1, bins), n_inst, 3), np.float64),
            "trace_view": records(n_inst, VIEW),
            "trace_req": records(1, REQUEST),
            "trace_scores": np.zeros(n_inst, np.float64),
        }
        self.base["sites"]["site"] = np.arange(n_site)
        self.base["sites"]["rtt_s"] = [site.rtt_s for site in shared.fleet.sites]

    def reset(self, admit: Any, site: Any, choose: Any, seed: int) -> tuple[lo.Engine, lo.GateArrays]:
        """Bring everything to the state before the first event."""
        shared, options, gateway = self.shared, self.options, self.gateway
        self.en = self.en._replace(out=records(len(shared.row), lo.OUT))  # the last run's outcome holds the old one
        en, base = self.en, self.base
        n_inst, n_gw = len(shared.inst), gateway.replicas
        n_queue = n_queues(admit, shared)
        en.inst[:] = shared.inst
        en.fl["gen"][:] = 0
        en.ent[0] = np.zeros(1, lo.ENT)[0]
        en.ent["hnext"][0] = lo.NONE
        en.bucket[:] = lo.NONE
        en.head[:] = lo.NONE
        en.phase[:] = 0
        en.waste[:] = 0.0
        en.infheld[:] = 0
        en.slot[...] = np.zeros(1, lo.SLOT)[0]
        en.slot["row"] = lo.NONE
        _reset_out(en.out)
        self._reset_conf(admit, site, seed, n_queue)
        en.cf[0]["counts_blocks"] = bool(getattr(choose, "counts_blocks", False))
        en.cf[0]["retry_at"] = getattr(admit, "retry_after_at", lo.NONE)
        en.cf[0]["quota_at"], en.cf[0]["quota_step"] = getattr(admit, "quota_at", (0, 0))
        for name in ("pub", "ring", "swing", "ixlru"):
            base[name][...] = np.zeros(1, base[name].dtype)[0]
        base["ixlru"]["lru_head"] = lo.NONE
        base["ixlru"]["lru_tail"] = lo.NONE
        base["ring"]["tick"] = -(1 << 60)
        base["pub"]["seen"] = shared.inst["seen"]
        base["ring"]["seen"] = shared.inst["seen"][:, None]
        base["learn"]["mean_tokens"] = 128.0
        base["learn"]["n"] = 0.0
        base["ih"][:] = np.arange(n_inst)
        base["drain"][:] = 0
        base["ix"][0] = np.zeros(1, lo.ENT)[0]
        base["ix"]["hnext"][0] = lo.NONE
        base["ixbucket"][:] = lo.NONE
        base["ixhead"][:] = lo.NONE
        base["series"][:] = 0.0
        base["rng"][:, 0] = np.uint64(seed) * np.uint64(1_000_003) + np.arange(n_gw, dtype=np.uint64)
        _reset_view(base["views"], shared)
        gate, queue = records((n_gw, n_queue), GATE), records((n_gw, n_queue), lo.QUEUE)
        gate["queue"] = np.arange(n_queue)
        gate["weight"] = 1.0
        queue["head"] = lo.NONE
        queue["tail"] = lo.NONE
        edf = getattr(admit, "edf", ())
        if getattr(admit, "queue_by", "class") == "class":
            queue["edf"] = np.array([c.name in edf for c in shared.classes], np.int32)
        n_site = len(shared.fleet.sites)
        arrays = lo.GateArrays(
            gate=gate,
            queue=queue,
            p_admit=policy_params(admit),
            p_site=policy_params(site),
            p_inst=policy_params(choose),
            m_admit=memory_for(admit, n_gw, n_inst, n_site, n_queue),
            m_site=memory_for(site, n_gw, n_inst, n_site, n_queue),
            m_inst=memory_for(choose, n_gw, n_inst, n_site, n_queue),
            admitted=np.zeros((max(1, options.series_bins), n_queue), np.float64),
            quota=np.zeros((max(1, options.series_bins), n_queue), np.float64),
            **base,
        )
        return en, arrays

    def _reset_conf(self, admit: Any, site: Any, seed: int, n_queue: int) -> None:
        shared, options, gateway = self.shared, self.options, self.gateway
        cf, inst, fleet = self.en.cf[0], shared.inst, shared.fleet
        for name in lo.CONF.names or ():
            cf[name] = 0
        cf["n"], cf["seed"] = len(shared.row), seed
        cf["n_inst"], cf["n_site"], cf["n_gw"] = len(inst), len(fleet.sites), gateway.replicas
        cf["n_class"], cf["n_queue"] = len(shared.classes), n_queue
        cf["queue_by"] = {"one": 0, "class": 1, "tenant": 2}[getattr(admit, "queue_by", "class")]
        cf["trivial_admit"], cf["trivial_site"] = bool(admit.trivial), bool(site.trivial)
        pinned = len(fleet.sites) > 1 or bool((inst["role"] != 0).any()) or bool((shared.serves == 0).any())
        cf["pinned"] = pinned or not site.trivial
        cf["interval_s"], cf["delay_s"] = gateway.report_interval_s, gateway.report_delay_s
        cf["ring"] = self.base["ring"].shape[1]
        cf["index"] = {"none": 0, "exact": 1, "approx": 2}[gateway.index]
        cf["lag_s"], cf["ttl_s"], cf["sync_s"] = gateway.index_lag_s, gateway.index_ttl_s, gateway.sync_delay_s
        cf["index_blocks"] = gateway.index_tokens
        cf["tick_s"] = float(getattr(admit, "period_s", 1.0))
        cf["open_loop"], cf["infinite"] = options.open_loop, options.infinite_cache
        cf["known_lengths"], cf["debug"] = options.known_lengths, options.debug
        cf["split"] = bool((inst["role"] == 1).any())
        cf["link_tok_s"], cf["link_latency_s"] = fleet.transfer.tok_s, fleet.transfer.latency_s
        cf["trace_row"], cf["force_row"], cf["force_inst"] = options.trace_row, options.force_row, options.force_instance
        span = float(shared.row["arrival_s"].max()) if len(shared.row) else 0.0
        cf["n_bin"] = options.series_bins
        cf["bin_s"] = max(span * 1.02, 1e-3) / max(1, options.series_bins)
        cf["fl_free"] = lo.NONE
        cf["events_n"] = len(shared.event)


def _power(n: int) -> int:
    return 1 << max(4, int(n - 1).bit_length())


def _reset_out(out: Any) -> None:
    for name in ("arrival_s", "admit_s", "start_s", "first_token_s", "finish_s", "retry_after_s"):
        out[name] = np.nan
    out["instance"] = lo.NONE
    out["status"] = -1
    for name in ("hit_tokens", "delivered", "preemptions", "reason", "attempts"):
        out[name] = 0


def _reset_view(view: Any, shared: Shared) -> None:
    inst = shared.inst
    view[...] = np.zeros(1, VIEW)[0]
    view["instance"] = np.arange(len(inst))
    view["ready"] = inst["seen"] == 1
    view["max_num_seqs"], view["max_batched_tokens"] = inst["max_seqs"], inst["budget"]
    view["kv_capacity_tokens"], view["block_size"] = inst["cap"] * inst["block"], inst["block"]
    view["request_s"] = inst["request_s"] + inst["response_s"]
    for name in ("site", "gpu", "rtt_s", "c0_s", "c_prefill_step_s", "c_decode_step_s", "c_prefill_s", "c_prefill2_s", "c_attn_s", "c_seq_s", "c_kv_s"):
        view[name] = inst[name]
