"""What one gateway replica knows, and its three decisions (docs/engine.md section 7)."""

from __future__ import annotations

from collections import defaultdict
from math import floor, inf, isnan, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.reference.engine import Attempt, Engine, Report, step_s
from tfanalyze.config import SloClass
from tfanalyze.replay.state import GATE, REQUEST, SITE, VIEW

if TYPE_CHECKING:
    from tests.reference.world import World

EPS = 1e-9
MASK = (1 << 64) - 1


def hash_u64(x: int) -> int:
    """One round of splitmix64."""
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hash01(a: int, b: int, c: int) -> float:
    h = hash_u64((hash_u64((hash_u64(a & MASK) + b) & MASK) + c) & MASK)
    return float(h >> 11) / 9007199254740992.0


def smooth(old: float, new: float) -> float:
    return new if old == 0.0 else old + 0.1 * (new - old)


class ApproxIndex:
    """What this gateway sent to one instance: whole prompt segments, least recently noted first."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        self.engine = engine
        self.limit = tokens // engine.block if tokens > 0 else engine.memory.capacity
        self.noted: dict[int, float] = {}

    def size(self, s: int) -> int:
        return self.engine.paths.end[s] - self.engine.paths.start[s]

    def blocks(self) -> int:
        return sum(self.size(s) for s in self.noted)

    def note(self, row: int, prompt: int, now_s: float) -> None:
        full = prompt // self.engine.block
        path = [s for s in self.engine.paths.of[row] if self.engine.paths.end[s] <= full]
        if self.engine.limits.cache == "none":
            return
        for s in reversed(path):
            self.noted.pop(s, None)
            self.noted[s] = now_s
        while self.blocks() > self.limit:
            del self.noted[next(iter(self.noted))]


class GatewayReplica:
    """One replica: views of instances, queues, and what it has learnt."""

    def __init__(self, number: int, world: World) -> None:
        self.number, self.world = number, world
        config, n = world.gateway, len(world.engines)
        self.view = np.zeros(n, VIEW).view(np.recarray)
        self.sites = np.zeros(len(world.fleet.sites), SITE).view(np.recarray)
        self.gate = np.zeros(world.n_queues, GATE).view(np.recarray)
        self.request = np.zeros(1, REQUEST).view(np.recarray)
        self.queues: list[list[Attempt]] = [[] for _ in range(world.n_queues)]
        self.drain_due = False
        self.mean = [128.0] * len(world.classes)
        self.count = [0] * len(world.classes)
        self.swing: dict[tuple[int, int], list[float]] = {}  # (site, class) -> [ttft, variance, attained]
        self.index = [ApproxIndex(e, config.index_tokens) for e in world.engines]
        self.sent: list[list[Attempt]] = [[] for _ in world.engines]  # whose prompt blocks are active there
        seed = (world.seed * 1_000_003 + number) & MASK
        self.rng = np.array([seed], np.uint64)
        self.params = [policy_params(p) for p in world.policies.parts()]
        self.memory = [memory_for(p, n, len(world.fleet.sites), world.n_queues) for p in world.policies.parts()]
        self.scores = np.zeros(max(n, len(world.fleet.sites)), np.float64)
        self.hidden: set[int] = set()
        for i, engine in enumerate(world.engines):
            self.set_facts(i, engine)
        for q in range(world.n_queues):
            self.gate[q].queue, self.gate[q].weight = q, 1.0

    def set_facts(self, n: int, engine: Engine) -> None:
        v, limits, profile = self.view[n], engine.limits, engine.profile
        site = self.world.site_of(engine)
        v.instance, v.site, v.gpu = n, site, self.world.gpu_of(engine)
        v.max_num_seqs, v.max_batched_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        v.kv_capacity_tokens, v.block_size = engine.memory.capacity * engine.block, engine.block
        v.rtt_s = self.world.fleet.sites[site].rtt_s
        for name in ("c_prefill_step_s", "c_decode_step_s", "c_prefill_s", "c_prefill2_s", "c_attn_s", "c_seq_s", "c_kv_s"):
            v[name] = getattr(profile.step, name)
        v.c0_s = max(profile.step.c0_s, 1e-6)
        v.request_s = profile.request_s + profile.response_s

    # --- reports ---

    def refresh(self, now_s: float) -> None:
        """Reports as visible now."""
        config = self.world.gateway
        for n, engine in enumerate(self.world.engines):
            v = self.view[n]
            if config.report_interval_s <= 0:
                report, v.age_s = engine.report, 0.0
            else:
                tick = floor((now_s - config.report_delay_s + EPS) / config.report_interval_s)
                limit = tick * config.report_interval_s + EPS
                report = next((r for t, r in reversed(engine.history) if t <= limit), engine.history[0][1])
                v.age_s = now_s - tick * config.report_interval_s
            self.show(v, report)

    @staticmethod
    def show(v: Any, report: Report) -> None:
        for name in ("running", "waiting", "decoding", "queued_prefill_tokens", "kv_used_share", "kv_tokens", "preemptions"):
            v[name] = getattr(report, name)
        v.ready = 1 if report.seen == "up" else 0

    def believe_hits(self, row: int, prompt: int, now_s: float) -> None:
        world = self.world
        for n, engine in enumerate(world.engines):
            known: dict[int, int] = defaultdict(int)
            if world.gateway.index == "exact":
                known.update(world.visible_held(engine, now_s))
            elif world.gateway.index == "approx":
                world.read_notes(now_s)
                index = self.index[n]
                known.update({s: index.size(s) for s, t in index.noted.items() if now_s - t <= world.gateway.index_ttl_s})
                self.view[n].index_tokens = index.blocks() * engine.block
            if world.gateway.index != "none" and engine.memory.everywhere is not None:
                for s, held in engine.memory.everywhere.items():
                    known[s] = max(known[s], held)
            hit = 0
            for s in engine.paths.of[row] if engine.limits.cache != "none" else []:
                take = min(known[s], min((prompt - 1) // engine.block, engine.paths.end[s]) - engine.paths.start[s])
                hit += max(0, take)
                if take < engine.paths.end[s] - engine.paths.start[s]:
                    break
            self.view[n].hit_tokens = hit * engine.block

    def prompt_blocks(self, n: int, a_row: int, prompt: int) -> set[Any]:
        """KV blocks of a prompt: what its path names, and for the rest (a part of a block too) blocks of its own."""
        engine = self.world.engines[n]
        paths, full = engine.paths, prompt // engine.block
        whole = [s for s in paths.of[a_row] if paths.end[s] <= full] if engine.limits.cache == "blocks" else []
        named = {(s, j) for s in whole for j in range(paths.end[s] - paths.start[s])}
        return named | {("own", a_row, j) for j in range(len(named), -(-prompt // engine.block))}

    def count_blocks(self, row: int, prompt: int) -> None:
        """Distinct blocks in flight at each instance, and how many of them this request has too."""
        if not getattr(self.world.policies.instance, "counts_blocks", False):
            return
        for n in range(len(self.world.engines)):
            active: set[Any] = set()
            for a in self.sent[n]:
                active |= {(*block, id(a)) if block[0] == "own" else block for block in self.prompt_blocks(n, a.row, a.input)}
            self.view[n].active_blocks = len(active)
            self.view[n].active_hit_blocks = len(active & self.prompt_blocks(n, row, prompt))

    # --- what policies are told ---

    def expected_output(self, row: int) -> float:
        world = self.world
        if world.options.known_lengths:
            return float(world.output[row])
        mean = self.mean[world.trace.slo_class[row]]
        limit = int(world.trace.max_tokens[row])
        return max(1.0, min(mean, limit) if limit > 0 else mean)

    def describe(self, a: Attempt, now_s: float) -> Any:
        world, q, row = self.world, self.request[0], a.row
        limits: SloClass = world.classes[world.trace.slo_class[row]]
        q.now_s, q.arrival_s = now_s, world.out["arrival_s"][row]
        q.input_tokens, q.max_tokens = a.input, world.trace.max_tokens[row]
        q.expected_output_tokens = self.expected_output(row)
        q.slo_class, q.tenant, q.priority = world.trace.slo_class[row], world.trace.tenant[row], a.priority
        q.ttft_slo_s, q.tpot_slo_s, q.e2e_slo_s = limits.ttft_s, limits.tpot_s, limits.e2e_s
        deadline = world.trace.deadline_s[row]
        q.deadline_s = inf if isnan(deadline) else q.arrival_s + deadline
        q.session = hash_u64(world.root(row)) >> 1
        before = world.trace.prev[row]
        q.last_instance = world.out["instance"][before] if before >= 0 else -1
        q.last_site = world.site_of(world.engines[q.last_instance]) if q.last_instance >= 0 else -1
        first = world.first_paths().of[row]
        q.prefix = first[0] if first else -1
        q.region, q.model, q.attempt = world.pin(row), world.trace.model[row], a.number
        q.queued_s, q.row, q.recorded_instance = now_s - a.begin_s, row, world.recorded(row)
        return q

    def allow(self, row: int, site: int) -> int:
        """Set ready for those that may serve this request; how many there are."""
        count = 0
        for n, engine in enumerate(self.world.engines):
            v = self.view[n]
            pin = self.world.pin(row)
            good = v.ready == 1 and engine.pool.role != "decode" and self.world.serves(row, engine)
            good = good and pin in (-1, v.site) and site in (-1, v.site)
            v.ready = 1 if good else 0
            count += bool(good)
        return count

    def fill_sites(self, row: int) -> None:
        """Sums over what is ready for this request at each site."""
        for s, z in enumerate(self.sites):
            for name in SITE.names:
                z[name] = 0
            mine = [(n, e) for n, e in enumerate(self.world.engines) if self.world.site_of(e) == s]
            z.site, z.rtt_s = s, self.world.fleet.sites[s].rtt_s
            z.ttft_mean_s, z.ttft_var_s2, z.attained = self.swing.get((s, int(self.world.trace.slo_class[row])), [0.0, 0.0, 0.0])
            z.min_wait_s = inf
            for n, e in mine:
                v = self.view[n]
                z.age_s = v.age_s
                z.assigned += v.assigned
                if self.world.serves(row, e):
                    z.configured += 1
                    z.warming += e.state == "warming"
                if v.ready != 1:
                    continue
                z.ready = 1
                z.instances += 1
                for name in ("running", "waiting", "decoding", "queued_prefill_tokens", "kv_used_share", "inflight", "inflight_tokens", "inflight_prefill_tokens"):
                    z[name] += v[name]
                z.kv_used_max = max(z.kv_used_max, v.kv_used_share)
                z.hit_tokens = max(z.hit_tokens, v.hit_tokens)
                z.prefill_tok_s += prefill_tok_s(e)
                batch = max(1.0, v.decoding)
                z.decode_tok_s += batch / step_s(e.profile.step, 0.0, 0.0, batch, max(v.kv_tokens, 1.0), max(v.kv_tokens, 1.0) / batch)
                z.slots += v.max_num_seqs
                z.min_wait_s = min(z.min_wait_s, backlog_s(v, e))
            if z.instances > 0:
                z.kv_used_share /= z.instances

    def fill_gate(self, now_s: float) -> None:
        """The fleet-wide part of the queues' records, and their heads."""
        ready = [(self.view[n], e) for n, e in enumerate(self.world.engines) if self.view[n].ready == 1]
        for q, z in enumerate(self.gate):
            z.now_s, z.instances = now_s, len(ready)
            z.slots = sum(v.max_num_seqs for v, _ in ready)
            z.kv_capacity_tokens = sum(v.kv_capacity_tokens for v, _ in ready)
            z.kv_used_share = sum(v.kv_used_share for v, _ in ready) / max(1, len(ready))
            z.waiting, z.running = sum(v.waiting for v, _ in ready), sum(v.running for v, _ in ready)
            z.prefill_tok_s = sum(prefill_tok_s(e) for _, e in ready)
            z.min_wait_s = min((backlog_s(v, e) for v, e in ready), default=0.0)
            z.saturation_queue = z.waiting / max(1, len(ready))
            self.fill_head(q, now_s)

    def fill_head(self, q: int, now_s: float) -> None:
        z = self.gate[q]
        z.oldest_s, z.head_arrival_s, z.head_deadline_s = 0.0, inf, inf
        if self.queues[q]:
            a = self.queues[q][0]
            z.oldest_s, z.head_arrival_s, z.head_deadline_s = now_s - a.begin_s, a.begin_s, self.deadline(a)

    def deadline(self, a: Attempt) -> float:
        limit = self.world.trace.deadline_s[a.row]
        return inf if isnan(limit) else float(self.world.out["arrival_s"][a.row] + limit)

    # --- the door ---

    def ask(self, op: int) -> int:
        return int(self.world.decide["admit"](op, self.gate, self.request[0], self.params[0], self.memory[0], self.rng))

    def join(self, a: Attempt, *, edf: bool) -> None:
        queue = self.queues[a.queue]
        at = len(queue)
        while edf and at > 0 and self.deadline(queue[at - 1]) > self.deadline(a):
            at -= 1
        queue.insert(at, a)
        a.tokens = a.input + self.expected_output(a.row)
        self.gate[a.queue].queued += 1
        self.gate[a.queue].queued_tokens += a.tokens

    def leave_queue(self, a: Attempt) -> None:
        self.queues[a.queue].remove(a)
        self.gate[a.queue].queued -= 1
        self.gate[a.queue].queued_tokens -= a.tokens
        a.tokens = 0.0

    def learn(self, a: Attempt, arrival_s: float, first_s: float, finish_s: float, site: int) -> None:
        """From a request of its own that ended OK."""
        world, row = self.world, a.row
        c = int(world.trace.slo_class[row])
        limits = world.classes[c]
        ttft = first_s - arrival_s
        tpot = (finish_s - first_s) / (a.output - 1) if a.output > 1 else nan
        self.count[c] += 1
        self.mean[c] += (a.output - self.mean[c]) / min(self.count[c], 1000)
        deadline = world.trace.deadline_s[row]
        good = ttft <= limits.ttft_s and finish_s - arrival_s <= limits.e2e_s
        good = good and (isnan(tpot) or tpot <= limits.tpot_s)
        good = good and (isnan(deadline) or finish_s <= arrival_s + deadline)
        for record in (self.view[a.instance], self.gate[a.queue]):
            record.ttft_ewma_s = smooth(record.ttft_ewma_s, ttft)
            if not isnan(tpot):
                record.tpot_ewma_s = smooth(record.tpot_ewma_s, tpot)
        z = self.gate[a.queue]
        z.finished += 1
        z.finished_tokens += a.output
        if good:
            z.attained += 1
            z.attained_tokens += a.output
        key = (site, c)
        if key not in self.swing:
            self.swing[key] = [ttft, 0.0, float(good)]
        else:
            mean, variance, share = self.swing[key]
            d = ttft - mean
            self.swing[key] = [mean + 0.1 * d, 0.9 * (variance + 0.1 * d * d), share + 0.1 * (good - share)]


def prefill_tok_s(e: Engine) -> float:
    """Tokens a second in a full chunk at the start of a prompt."""
    chunk = float(e.limits.max_num_batched_tokens)
    return chunk / step_s(e.profile.step, chunk, chunk * (chunk + 1) / 2, 0.0, 0.0, 0.0)


def backlog_s(v: Any, e: Engine) -> float:
    return float(max(v.queued_prefill_tokens, v.inflight_prefill_tokens) / prefill_tok_s(e))


def policy_params(policy: Any) -> Any:
    from dataclasses import fields

    return np.array([float(getattr(policy, f.name)) for f in fields(policy)] or [0.0])


def memory_for(policy: Any, *counts: int) -> Any:
    size = getattr(policy, "memory_size", None)
    return np.zeros(max(1, int(size(*counts)) if size else 1))
