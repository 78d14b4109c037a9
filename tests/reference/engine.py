"""One engine replica, step by step (docs/engine.md sections 3 to 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor, inf
from typing import Any

from tests.reference.prefix import Memory, Paths, ceil_div
from tfanalyze.config import Pool
from tfanalyze.models.profile import Profile, StepTime


@dataclass(eq=False)
class Attempt:
    """One attempt of a request, wherever it is."""

    row: int
    number: int  # 0 = first
    begin_s: float
    gateway: int
    queue: int
    input: int
    output: int
    max_tokens: int
    priority: int
    place: str = "gate"  # gate | wire | waiting | running | handoff | over
    leave: bool = False  # the client is gone
    instance: int = -1
    to_instance: int = -1
    handed: bool = False  # its KV came from a prefill instance
    engine_s: float = 0.0
    order: int = 0
    target: int = 0
    computed: int = 0
    made: int = 0
    decoding: bool = False
    start_s: float = -1.0
    first_s: float = -1.0
    hit: int = 0
    work: int = 0  # prompt tokens computed
    again: int = 0  # of what was computed: for the second time
    lost: int = 0  # tokens that the last preemption threw away
    preemptions: int = 0
    private: int = 0
    shared: set[int] = field(default_factory=set)  # blocks of it that live in segments
    locked: list[int] = field(default_factory=list)
    slot: int = -1
    tokens: float = 0.0  # what its gateway counts for it
    told_s: float = 0.0  # the Retry-After it was shed with
    prefill_tokens: float = 0.0


@dataclass
class Slot:
    path: list[int] = field(default_factory=list)
    tokens: int = 0
    busy: bool = False
    released: int = 0  # 0 = never used


@dataclass
class Report:
    """What an instance publishes."""

    running: int = 0
    waiting: int = 0
    decoding: int = 0
    queued_prefill_tokens: int = 0
    kv_used_share: float = 0.0
    kv_tokens: int = 0
    preemptions: int = 0
    seen: str = "up"  # up | down | warming | draining


def step_s(cost: StepTime, prefill: float, attention: float, seqs: float, kv: float, longest: float) -> float:
    """Seconds of a step: models/profile.py, every step at least 1 microsecond."""
    fixed = max(cost.c0_s, 1e-6)
    if seqs > 0:
        if seqs < cost.split_seqs:
            longest = min(longest, kv / (cost.split_seqs - seqs / 2))
        fixed += cost.c_long_s * longest
    if prefill > 0:
        fixed += cost.c_prefill_step_s
    if seqs > 0:
        fixed += cost.c_decode_step_s
    if prefill == 0 and cost.graph_seqs > 0 and seqs > 1:
        seqs = 2 if seqs <= 2 else 4 if seqs <= 4 else cost.graph_seqs * ceil(seqs / cost.graph_seqs)
    compute = cost.c_prefill_s * prefill + cost.c_prefill2_s * prefill**2 + cost.c_attn_s * attention
    compute += cost.c_seq_s * seqs + cost.c_seq_knee_s * max(0.0, seqs - cost.knee_seqs)
    memory = cost.c_mem_s + cost.c_kv_s * kv + cost.c_kv2_s * kv**2
    least = cost.prefill_least_s if prefill > 0 else 0.0
    return max(fixed + (max(compute, memory) if cost.form == "max" else compute + memory), least, 1e-6)


class Engine:
    """One instance. The world calls arrive, plan and end_step, and is told of ends through ``world``."""

    def __init__(self, index: int, pool: Pool, profile: Profile, paths: Paths, everywhere: dict[int, int] | None, world: Any) -> None:
        self.index, self.pool, self.limits, self.profile, self.world = index, pool, pool.engine, profile, world
        self.slots = [Slot() for _ in range(self.limits.max_num_seqs)] if self.limits.cache == "slot" else []
        self.block = 1 if self.slots else self.limits.block_size
        host = self.limits.host_kv_tokens // self.block if self.limits.host_load_tok_s > 0 else 0
        self.memory = Memory(self.limits.kv_tokens // self.block, self.block, paths, everywhere, host)
        self.paths = paths
        self.running: list[Attempt] = []
        self.waiting: list[Attempt] = []
        self.step: list[tuple[Attempt, int]] = []
        self.end_s = inf  # of the step that runs
        self.begin_s = 0.0
        self.last_begin_s = inf  # of the step that has just ended; inf after a pause
        self.gone = 0  # requests that left with it
        self.time_s = 0.0  # own clock
        self.awake = False  # must plan at the end of this round
        self.changed = False
        self.state = "up"
        self.orders = self.releases = self.preemptions = 0
        self.busy_s = 0.0
        self.loaded_tokens = 0
        self.saved: list[tuple[list[int], int]] = []  # llama.cpp: prompts in host memory, oldest first
        self.last_running: set[int] = set()
        self.history: list[tuple[float, Report]] = []
        self.report = Report()
        self.public_held: dict[int, int] = {}

    # --- facts ---

    def path(self, a: Attempt) -> list[int]:
        if self.limits.cache == "none" or a.handed:
            return []
        return self.paths.of[a.row]

    def fits(self, a: Attempt) -> bool:
        if self.slots:
            return a.input + a.output <= self.limits.kv_tokens // self.limits.max_num_seqs
        return ceil_div(a.input + a.output, self.block) <= self.memory.capacity

    def blocks_of(self, a: Attempt) -> int:
        return a.private + len(a.shared)

    def can_grow(self, a: Attempt, tokens: int) -> bool:
        return bool(self.slots) or ceil_div(tokens, self.block) - self.blocks_of(a) <= self.memory.available()

    def grow(self, a: Attempt, tokens: int) -> None:
        if not self.slots:
            new = ceil_div(tokens, self.block) - self.blocks_of(a)
            self.memory.allocate(new)
            a.private += new

    # --- the queue ---

    def arrive(self, a: Attempt, now_s: float) -> None:
        self.orders += 1
        a.order, a.engine_s, a.place, a.instance = self.orders, now_s, "waiting", self.index
        a.target = 0 if a.handed else a.input
        self.queue_up(a, front=False)
        self.publish_queue(now_s)
        self.wake(now_s)

    def queue_up(self, a: Attempt, *, front: bool) -> None:
        if self.limits.queue == "priority":
            self.waiting.append(a)
            self.waiting.sort(key=self.rank)
        elif front:
            self.waiting.insert(0, a)
        else:
            self.waiting.append(a)

    @staticmethod
    def rank(a: Attempt) -> tuple[int, float, int]:
        return (a.priority, a.engine_s, a.order)

    def wake(self, now_s: float) -> None:
        """Something happened: an idle instance plans in this round."""
        if self.end_s == inf:
            self.time_s = max(self.time_s, now_s)
            self.awake = True

    # --- the cache ---

    def register(self, a: Attempt, first: int, stop: int) -> None:
        """Blocks first .. stop-1 of the request are full: cache those that are next in their segment."""
        if self.slots:
            return
        path = self.path(a)
        for j in range(first, stop):
            s = self.memory.segment_of(path, j)
            if s is None or j in a.shared:
                continue
            cached = self.memory.cached()
            if self.memory.everywhere is not None:
                if cached.get(s, 0) == j - self.paths.start[s]:
                    cached[s] = cached.get(s, 0) + 1
                continue
            if s not in a.locked:
                a.locked.append(s)
                self.memory.lock(s)
            if cached[s] == j - self.paths.start[s]:
                cached[s] += 1
                a.shared.add(j)
                a.private -= 1
                self.memory.private -= 1
                self.memory.touch_host(s, cached[s])

    def release(self, a: Attempt) -> None:
        """Give back all memory of the request, the deepest segment first."""
        self.memory.private -= a.private
        for s in reversed(a.locked):
            self.memory.unlock(s)
        a.private, a.shared, a.locked = 0, set(), []
        if a.slot >= 0:
            slot = self.slots[a.slot]
            self.releases += 1
            slot.path, slot.tokens, slot.busy, slot.released = self.path(a), a.computed, False, self.releases
            a.slot = -1

    def preempt(self, a: Attempt) -> None:
        self.running.remove(a)
        a.lost = a.computed
        self.release(a)
        a.computed, a.target, a.decoding, a.place = 0, a.input + a.made, False, "waiting"
        a.preemptions += 1
        self.preemptions += 1
        self.queue_up(a, front=True)

    # --- planning ---

    def plan(self) -> None:
        """Choose the next step, or stay idle; publish what changed."""
        self.awake = False
        now_s = self.time_s
        self.loaded_tokens = 0
        if self.running or self.waiting:
            for _ in range(2):
                had = bool(self.running)
                self.step = self.plan_sglang() if self.limits.scheduler == "sglang" else self.plan_vllm()
                if self.step or not had:
                    break
        else:
            self.step = []
        prefill = [(a, m) for a, m in self.step if not a.decoding]
        decodes = [a for a, _ in self.step if a.decoding]
        if self.step:
            for a, _ in self.step:
                if a.start_s < 0:
                    a.start_s = now_s
            p = sum(m for _, m in prefill)
            attention = sum(m * a.computed + m * (m + 1) / 2 for a, m in prefill)
            kv = sum(a.input + a.made for a in decodes)
            self.begin_s = now_s
            longest = max((a.input + a.made for a in decodes), default=0)
            seconds = step_s(self.profile.step, p, attention, len(decodes), kv, longest)
            if self.loaded_tokens:
                seconds += self.loaded_tokens / self.limits.host_load_tok_s
            self.end_s = now_s + seconds
        else:
            self.last_begin_s, self.gone = inf, 0
        if prefill or self.changed or {id(a) for a in self.running} != self.last_running:
            self.publish(now_s)
        self.memory.check()

    def plan_vllm(self) -> list[tuple[Attempt, int]]:
        step: list[tuple[Attempt, int]] = []
        preempted = False
        longest = self.limits.long_prefill_threshold or inf
        for a in list(self.running):
            if a not in self.running:
                continue
            if a.decoding:
                m = 1
            else:
                m = int(min(a.target - a.computed, self.budget_left(step), longest))
                if m <= 0:
                    continue
            while not self.can_grow(a, a.computed + m):
                victim = max(self.running, key=self.rank) if self.limits.queue == "priority" else self.running[-1]
                step = [(b, k) for b, k in step if b is not victim]
                self.preempt(victim)
                preempted = True
                if victim is a:
                    break
            else:
                self.schedule(a, m, step)
        if not preempted:
            self.admit_vllm(step, longest)
        return step

    def budget_left(self, step: list[tuple[Attempt, int]]) -> int:
        decoding = sum(1 for b in self.running if b.decoding)
        return self.limits.max_num_batched_tokens - decoding - sum(m for b, m in step if not b.decoding)

    def schedule(self, a: Attempt, m: int, step: list[tuple[Attempt, int]]) -> None:
        self.grow(a, a.computed + m)
        step.append((a, m))
        if not a.decoding and self.limits.scheduler != "sglang":
            self.register(a, a.computed // self.block, min(a.computed + m, a.input) // self.block)

    def admit_vllm(self, step: list[tuple[Attempt, int]], longest: float) -> None:
        budget = self.budget_left(step)
        seats, late_s = self.planned_ahead()
        while self.waiting and budget > 0 and len(self.running) < seats and self.waiting[0].engine_s <= late_s:
            a = self.waiting[0]
            if a.handed and a.target == 0:
                if not self.admit_handed(a, step):
                    return
                budget -= 1
                continue
            hit, segments, loaded, slot = self.look_up(a)
            start = hit + loaded
            m = int(min(a.target - start, budget, longest))
            if not self.limits.chunked_prefill and a.target - start > budget:
                if step:
                    return
                m = a.target - start
            reach = a.target if self.limits.reserve_full_prompt else start + m
            if not self.admissible(a, reach, hit, segments, 0):
                return
            self.enter(a, hit, segments, loaded, slot)
            self.schedule(a, m, step)
            budget -= m

    def planned_ahead(self) -> tuple[int, float]:
        """Seats, and the latest engine arrival, of who may be admitted: a step is planned when the one before it begins."""
        if not self.limits.async_scheduling or not self.running:
            return self.limits.max_num_seqs, inf
        return self.limits.max_num_seqs - self.gone, self.last_begin_s + 1e-9

    def admit_handed(self, a: Attempt, step: list[tuple[Attempt, int]]) -> bool:
        """A request whose KV has been handed over: all of it must fit, then it decodes."""
        if not self.admissible(a, a.input + a.made, 0, [], 0):
            return False
        self.waiting.pop(0)
        self.running.append(a)
        a.place, a.decoding, a.computed, a.target = "running", True, a.input + a.made - 1, a.input
        self.grow(a, a.input + a.made)
        step.append((a, 1))
        return True

    def look_up(self, a: Attempt) -> tuple[int, list[int], int, int]:
        """Hit tokens, segments hit, tokens the host tier loads, slot."""
        if self.slots:
            slot, hit = self.choose_slot(a)
            return hit, [], 0, slot
        blocks, segments = self.memory.match(self.path(a), a.target)
        loaded = self.memory.match_host(self.path(a), a.target, blocks) if self.memory.host_blocks else 0
        return blocks * self.block, segments, loaded * self.block, -1

    def admissible(self, a: Attempt, reach: int, hit: int, segments: list[int], extra: int) -> bool:
        if self.slots:
            return True
        own = hit // self.block if self.memory.everywhere is None else 0
        need = ceil_div(reach, self.block) - own + extra
        watermark = floor(self.limits.watermark_share * self.memory.capacity) if self.running else 0
        locks = self.memory.would_lock(segments) if self.memory.everywhere is None else 0
        return need <= self.memory.available() - locks - watermark

    def enter(self, a: Attempt, hit: int, segments: list[int], loaded: int, slot: int) -> None:
        """From waiting to running, with what the cache has."""
        self.waiting.remove(a)
        self.running.append(a)
        a.place = "running"
        a.computed = hit + loaded
        if a.preemptions == 0:
            a.hit = a.computed
        a.again += max(0, a.lost - a.computed)
        a.lost = 0
        if slot >= 0:
            a.slot = slot
            self.slots[slot].busy = True
            return
        if self.memory.everywhere is None:
            for s in segments:
                a.locked.append(s)
                self.memory.lock(s)
                self.memory.touch_host(s, 0)
            a.shared = set(range(hit // self.block))
        if loaded:
            self.grow(a, hit + loaded)
            self.register(a, hit // self.block, (hit + loaded) // self.block)
            self.loaded_tokens += loaded

    def choose_slot(self, a: Attempt) -> tuple[int, int]:
        """llama.cpp: the free slot with the longest common prefix if that is long enough, else the oldest."""
        free = [k for k, slot in enumerate(self.slots) if not slot.busy]
        shared = {k: self.shared_with(a, self.slots[k]) for k in free}
        best = max(free, key=lambda k: (shared[k], -k))
        oldest = shared[best] == 0 or shared[best] < self.limits.slot_similarity * a.input
        if oldest:
            best = min(free, key=lambda k: (self.slots[k].released, k))
        slot = self.slots[best]
        if self.limits.host_kv_tokens > 0 and (oldest or shared[best] < 0.5 * slot.tokens):
            self.save(slot)
            self.load(a, slot)
        return best, min(self.shared_with(a, slot), a.input - 1)

    def common(self, path: list[int], tokens: float, other: list[int], other_tokens: int) -> int:
        """Tokens that two contents share from the start."""
        same = 0
        for mine, theirs in zip(path, other, strict=False):
            if mine != theirs:
                break
            same = self.paths.end[mine]
        return int(min(same, tokens, other_tokens))

    def save(self, slot: Slot) -> None:
        """Into host memory, unless a saved prompt contains it; those that it contains go."""
        if slot.tokens == 0:
            return
        for path, tokens in list(self.saved):
            same = self.common(slot.path, slot.tokens, path, tokens)
            if same == slot.tokens:
                return
            if same == tokens:
                self.saved.remove((path, tokens))
        self.saved.append((slot.path, slot.tokens))
        while sum(tokens for _, tokens in self.saved) > self.limits.host_kv_tokens:
            self.saved.pop(0)

    def load(self, a: Attempt, slot: Slot) -> None:
        """Out of host memory, if one there serves better than the slot's own content."""
        keep = share = -1.0
        if slot.tokens > 0:
            keep, share = self.shared_with(a, slot) / slot.tokens, self.shared_with(a, slot) / a.input
        best = None
        for entry in self.saved:
            same = self.common(self.path(a), inf, *entry)
            if same / entry[1] >= 0.25 and same / entry[1] > keep and same / a.input > share:
                best, keep, share = entry, same / entry[1], same / a.input
        if best is not None:
            self.saved.remove(best)
            slot.path, slot.tokens = best

    def shared_with(self, a: Attempt, slot: Slot) -> int:
        common = 0
        for mine, theirs in zip(self.path(a), slot.path, strict=False):
            if mine != theirs:
                break
            common = self.paths.end[mine]
        return min(common, slot.tokens)

    def plan_sglang(self) -> list[tuple[Attempt, int]]:
        step: list[tuple[Attempt, int]] = []
        decodes = [a for a in self.running if a.decoding]
        half = [a for a in self.running if not a.decoding]
        assert len(half) <= 1
        budget = self.limits.max_num_batched_tokens
        blocked = False
        for a in half:
            m = min(a.target - a.computed, budget)
            if self.can_grow(a, a.computed + m):
                self.schedule(a, m, step)
                budget -= m
            else:
                blocked = True
        if not blocked:
            self.admit_sglang(step, budget, decodes)
        if step:
            if self.limits.mixed_chunk and self.all_fit(decodes):
                for a in decodes:
                    self.schedule(a, 1, step)
            return step
        while decodes and not self.all_fit(decodes):
            victim = min(decodes, key=lambda a: (a.made, -a.input, -self.running.index(a)))
            decodes.remove(victim)
            self.preempt(victim)
        for a in decodes:
            self.schedule(a, 1, step)
        if not decodes and blocked:
            self.preempt(half[0])
        return step

    def all_fit(self, decodes: list[Attempt]) -> bool:
        need = sum(ceil_div(a.computed + 1, self.block) - self.blocks_of(a) for a in decodes)
        return bool(self.slots) or need <= self.memory.available()

    def admit_sglang(self, step: list[tuple[Attempt, int]], budget: int, decodes: list[Attempt]) -> None:
        left = sum(min(a.max_tokens if a.max_tokens > 0 else 4096, 4096) - a.made for a in decodes)
        extra = ceil(self.limits.new_token_ratio * max(0, left) / self.block)
        seats, late_s = self.planned_ahead()
        while self.waiting and budget > 0 and len(self.running) < seats and self.waiting[0].engine_s <= late_s:
            a = self.waiting[0]
            hit, segments, loaded, slot = self.look_up(a)
            start = hit + loaded
            m = min(a.target - start, budget)
            if not self.admissible(a, a.target, hit, segments, extra):
                return
            self.enter(a, hit, segments, loaded, slot)
            self.schedule(a, m, step)
            budget -= m
            if a.computed + m < a.target:
                return

    # --- the end of a step ---

    def end_step(self, now_s: float) -> None:
        self.busy_s += now_s - self.begin_s
        self.last_begin_s, self.gone = self.begin_s, len(self.running)
        self.time_s, self.end_s, self.awake = now_s, inf, True
        done = self.step
        self.step = []
        for a, m in done:
            if a.decoding:
                a.computed += 1
                a.made += 1
                continue
            if self.limits.scheduler == "sglang":
                self.register(a, a.computed // self.block, min(a.computed + m, a.input) // self.block)
            a.computed += m
            a.work += m
            if a.computed == a.target:
                a.made += 1
                a.decoding = True
                if a.made == 1:
                    a.first_s = now_s
                    self.world.first_token(a)
        served = [a for a in self.running if any(a is b for b, _ in done)]
        for a in served:
            if a.made >= a.output:
                self.register(a, a.input // self.block, (a.input + a.output - 1) // self.block)
                self.stop(a)
                self.world.end(a, "TIMEOUT" if a.leave else "OK", "", now_s)
            elif self.pool.role == "prefill" and a.decoding and not a.leave:
                self.running.remove(a)
                self.world.start_handoff(a, now_s)
        for a in [a for a in self.running if a.leave]:
            self.stop(a)
            self.world.end(a, "TIMEOUT", "", now_s)
        self.gone -= len(self.running)

    def stop(self, a: Attempt) -> None:
        self.running.remove(a)
        self.release(a)
        self.changed = True

    # --- reports ---

    def figures(self) -> tuple[int, int]:
        planned = {id(a): m for a, m in self.step}
        rest = sum(a.target - a.computed - planned.get(id(a), 0) for a in self.running if not a.decoding)
        return len(self.waiting), sum(a.target for a in self.waiting) + rest

    def kv_used_share(self) -> float:
        if self.slots:
            planned = {id(a): m for a, m in self.step}
            return sum(a.computed + planned.get(id(a), 0) for a in self.running) / self.limits.kv_tokens
        return 1 - self.memory.available() / self.memory.capacity

    def publish(self, now_s: float) -> None:
        waiting, prefill = self.figures()
        decoding = [a for a in self.running if a.decoding]
        self.report = Report(
            running=len(self.running), waiting=waiting, decoding=len(decoding), queued_prefill_tokens=prefill,
            kv_used_share=self.kv_used_share(), kv_tokens=sum(a.input + a.made for a in decoding),
            preemptions=self.preemptions, seen=self.state,
        )  # fmt: skip
        self.history.append((now_s, self.report))
        self.last_running = {id(a) for a in self.running}
        self.changed = False
        now_held = {s: held for s, held in self.memory.held.items() if held > 0}
        self.world.cache_news(self, {s: now_held.get(s, 0) for s in {*now_held, *self.public_held} if now_held.get(s, 0) != self.public_held.get(s, 0)}, now_s)
        self.public_held = now_held

    def publish_queue(self, now_s: float) -> None:
        waiting, prefill = self.figures()
        old = self.report
        self.report = Report(
            old.running, waiting, old.decoding, prefill, old.kv_used_share, old.kv_tokens, old.preemptions, self.state
        )
        self.history.append((now_s, self.report))
