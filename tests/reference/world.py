"""The event loop around engines and gateways, as docs/engine.md says it (sections 1, 2, 7, 8): the oracle's entry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isnan
from typing import Any

import numpy as np

from tests.reference.engine import Attempt, Engine, Report
from tests.reference.gateway import EPS, GatewayReplica, hash01
from tests.reference.prefix import Paths, find_paths
from tfanalyze.config import Fleet, Pool, SloClass
from tfanalyze.models.profile import Profile
from tfanalyze.replay.options import Options
from tfanalyze.replay.state import (
    ADMIT_DONE,
    ADMIT_HEAD,
    ADMIT_JOIN,
    ADMIT_NEXT,
    ADMIT_TICK,
    HOLD,
    PASS,
    SHED,
)

STATUS = {"OK": 0, "ERROR": 1, "TIMEOUT": 2, "CANCELLED": 3, "REJECTED": 4, "LOST": 5}
REASON = {"": 0, "SHED": 1, "NEVER_FITS": 2, "NO_INSTANCE": 3, "CRASH": 4, "QUEUE_FULL": 5}
WASTE = {"ERROR": "error", "TIMEOUT": "timeout", "REJECTED": "rejected", "LOST": "lost"}
FLOATS = ("arrival_s", "admit_s", "start_s", "first_token_s", "finish_s")
INTEGERS = {"status": -1, "reason": 0, "attempts": 0, "instance": -1, "hit_tokens": 0, "delivered_tokens": 0, "preemptions": 0}


def simulate(
    trace: Any,
    fleet: Fleet,
    policies: Any,
    profiles: Profile | Mapping[str, Profile],
    *,
    classes: tuple[SloClass, ...],
    seed: int = 1,
    options: Options = Options(),
) -> dict[str, Any]:
    """Columns of an Outcome by name, and waste_tokens, instance_busy_s and instance_names."""
    return World(trace, fleet, policies, profiles, classes, seed, options).run()


class World:
    def __init__(self, trace: Any, fleet: Fleet, policies: Any, profiles: Any, classes: tuple[SloClass, ...], seed: int, options: Options) -> None:
        self.trace, self.fleet, self.policies, self.seed, self.options = trace, fleet, policies, seed, options
        self.profiles = {profiles.name: profiles} if isinstance(profiles, Profile) else dict(profiles)
        known = {c.name: c for c in classes}
        self.classes = [known.get(name, SloClass(name)) for name in trace.classes]
        self.gateway = self.effective_gateway()
        self.input = [max(1, int(x)) for x in trace.input_tokens]
        self.output = [max(1, int(x)) for x in trace.output_tokens]
        self.out: dict[str, Any] = {name: np.full(len(trace), np.nan) for name in FLOATS}
        self.out |= {name: np.full(len(trace), value) for name, value in INTEGERS.items()}
        self.waste: dict[str, int] = defaultdict(int)
        self.next_turn = {int(trace.prev[r]): r for r in range(len(trace)) if self.waits(r)}
        self.paths: dict[int, Paths] = {}
        self.everywhere: dict[int, dict[int, int]] = defaultdict(dict)
        self.engines = self.build_engines()
        self.decide = {kind: decision(p) for kind, p in zip(("admit", "site", "instance"), policies.parts(), strict=True)}
        by = getattr(policies.admit, "queue_by", "class")
        self.n_queues = {"class": len(self.classes), "tenant": max(1, len(trace.tenants)), "one": 1}[by]
        self.gateways = [GatewayReplica(g, self) for g in range(self.gateway.replicas)]
        self.timers: list[tuple[float, Callable[[float], None]]] = []  # in order of creation
        self.attempts: list[Attempt] = []  # every one, ever
        self.live = 0
        self.link_free_s = 0.0
        self.notes: list[tuple[float, int, int, int]] = []  # approx: (visible from, sender, instance, row)
        self.news: dict[int, list[tuple[float, dict[int, int]]]] = defaultdict(list)  # exact: changes by instance
        self.to_come = [r for r in range(len(trace)) if not self.waits(r)]
        self.events = self.event_list()
        self.idle_ticks = 0
        self.now_s = 0.0
        if not policies.admit.trivial:
            self.tick_s = float(getattr(policies.admit, "period_s", 1.0))
            self.at(self.tick_s, self.control_tick)

    # --- construction ---

    def effective_gateway(self) -> Any:
        from tfanalyze.config import Gateway

        if self.options.perfect_signals:
            return Gateway()
        if self.fleet.gateway.index == "exact" and any(p.engine.cache == "slot" for p in self.fleet.pools):
            return replace(self.fleet.gateway, index="approx")
        return self.fleet.gateway

    def build_engines(self) -> list[Engine]:
        engines: list[Engine] = []
        first_event: dict[int, str] = {}
        self.pools: list[Pool] = [p for p in self.fleet.pools for _ in range(p.count)]
        self.names = [p.name if p.count == 1 else f"{p.name}-{i}" for p in self.fleet.pools for i in range(p.count)]
        for event in sorted(self.fleet.events, key=lambda e: e.at_s):
            for n in self.targets(event.target):
                first_event.setdefault(n, event.what)
        base = 0
        for n, pool in enumerate(self.pools):
            block = 1 if pool.engine.cache == "slot" else pool.engine.block_size
            if block not in self.paths:
                paths = find_paths(self.trace, block)
                self.paths[block] = paths
            everywhere = self.everywhere[block] if self.options.infinite_cache else None
            engine = Engine(n, pool, self.profile_of(pool), self.paths[block], everywhere, self)
            engine.state = "down" if first_event.get(n) == "start" else "up"
            engine.report = Report(seen=engine.state)
            engine.history.append((-inf, engine.report))
            engines.append(engine)
        del base
        return engines

    def profile_of(self, pool: Pool) -> Profile:
        for key in (pool.profile, pool.gpu, pool.name):
            if key and key in self.profiles:
                return self.profiles[key]
        return next(iter(self.profiles.values()))

    def targets(self, target: str) -> list[int]:
        return [n for n, name in enumerate(self.names) if target in (name, self.pools[n].name, self.pools[n].site)]

    def event_list(self) -> list[tuple[float, int, str]]:
        rows: list[tuple[float, int, str]] = []
        for event in self.fleet.events:
            for n in self.targets(event.target):
                if event.what == "start":
                    if event.warmup_s > 0:
                        rows.append((event.at_s, n, "warming"))
                    rows.append((event.at_s + event.warmup_s, n, "up"))
                else:
                    rows.append((event.at_s, n, "crash" if event.what == "crash" else "drain"))
        return sorted(rows, key=lambda row: row[0])

    def waits(self, row: int) -> bool:
        return not self.options.open_loop and self.trace.prev[row] >= 0 and not isnan(self.trace.think_s[row])

    # --- facts for the gateways ---

    def site_of(self, engine: Engine) -> int:
        return [s.name for s in self.fleet.sites].index(engine.pool.site)

    def gpu_of(self, engine: Engine) -> int:
        names: list[str] = []
        for e in self.engines:
            if e.profile.name not in names:
                names.append(e.profile.name)
        return names.index(engine.profile.name)

    def root(self, row: int) -> int:
        while self.trace.prev[row] >= 0:
            row = int(self.trace.prev[row])
        return row

    def first_paths(self) -> Paths:
        return next(iter(self.paths.values()))

    def pin(self, row: int) -> int:
        if self.trace.site[row] < 0:
            return -1
        name = self.trace.sites[self.trace.site[row]]
        for i, site in enumerate(self.fleet.sites):
            if name in (site.name, site.region):
                return i
        return -1

    def serves(self, row: int, engine: Engine) -> bool:
        if self.trace.model[row] < 0 or not engine.pool.model:
            return True
        name, _, version = self.trace.models[self.trace.model[row]].partition("@")
        return name == engine.pool.model and version in ("", engine.pool.version)

    def recorded(self, row: int) -> int:
        if self.trace.observed is None or self.trace.observed.instance[row] < 0:
            return -1
        name = self.trace.instances[self.trace.observed.instance[row]]
        return self.names.index(name) if name in self.names else -1

    def visible_held(self, engine: Engine, now_s: float) -> dict[int, int]:
        """Exact index: the instance's cache as its news say it."""
        held: dict[int, int] = {}
        for t, change in self.news[engine.index]:
            if t <= self.now_s + EPS:
                held.update(change)
        return held

    def cache_news(self, engine: Engine, change: dict[int, int], now_s: float) -> None:
        if change and self.gateway.index == "exact":
            self.news[engine.index].append((now_s + self.gateway.index_lag_s if self.gateway.index_lag_s > 0 else -inf, change))

    def read_notes(self, now_s: float) -> None:
        """Approx index: what other replicas sent and is known by now."""
        due = [note for note in self.notes if note[0] <= self.now_s + EPS]
        self.notes = [note for note in self.notes if note[0] > self.now_s + EPS]
        for t, sender, n, row in due:
            for g in self.gateways:
                if g.number != sender:
                    g.index[n].note(row, self.input[row], t)

    # --- the loop ---

    def at(self, t_s: float, what: Callable[[float], None]) -> None:
        self.timers.append((t_s, what))

    def run(self) -> dict[str, Any]:
        while True:
            times = [e.end_s for e in self.engines] + [t for t, _ in self.timers]
            times += [float(self.trace.arrival_s[r]) for r in self.to_come[:1]] + [t for t, _, _ in self.events[:1]]
            now_s = min(times, default=inf)
            if now_s == inf:
                break
            assert now_s >= self.now_s - 1e-6, "time goes back"
            self.now_s = now_s
            while self.one_pass(now_s + EPS):
                pass
            for engine in self.engines:
                if engine.awake and engine.state != "down":
                    engine.plan()
        return self.result()

    def one_pass(self, limit_s: float) -> bool:
        """Everything due by ``limit_s``, in the order of section 1; was there anything?"""
        any_due = False
        while self.events and self.events[0][0] <= limit_s:
            t, n, what = self.events.pop(0)
            self.fleet_event(n, what, t)
            self.drain_all(t)
            any_due = True
        for engine in [e for e in self.engines if e.end_s <= limit_s]:
            t = engine.end_s
            engine.end_step(t)
            self.drain_all(t)
            any_due = True
        due = [timer for timer in self.timers if timer[0] <= limit_s]
        self.timers = [timer for timer in self.timers if timer[0] > limit_s]
        for t, what_to_do in due:
            what_to_do(t)
            self.drain_all(t)
            any_due = True
        while self.to_come and self.trace.arrival_s[self.to_come[0]] <= limit_s:
            row = self.to_come.pop(0)
            t = float(self.trace.arrival_s[row])
            self.begin(row, 0, t)
            self.drain_all(t)
            any_due = True
        return any_due

    # --- a request's life ---

    def begin(self, row: int, number: int, now_s: float) -> None:
        """A client sends a request, or sends it again."""
        c = self.classes[self.trace.slo_class[row]]
        if number == 0:
            self.out["arrival_s"][row] = now_s
        self.out["attempts"][row] = number + 1
        by = getattr(self.policies.admit, "queue_by", "class")
        queue = {"one": 0, "class": int(self.trace.slo_class[row]), "tenant": max(0, int(self.trace.tenant[row]))}[by]
        priority = int(self.trace.priority[row]) or c.priority
        a = Attempt(row, number, now_s, row % len(self.gateways), queue, self.input[row], self.output[row], int(self.trace.max_tokens[row]), priority)
        a.target = a.input
        self.attempts.append(a)
        self.live += 1
        if c.timeout_s < inf:
            self.at(now_s + c.timeout_s, lambda t: self.client_gone(a, t))
        g = self.gateways[a.gateway]
        if number == 0:
            g.gate[queue].offered += 1
            g.gate[queue].offered_tokens += a.input + g.expected_output(row)
        if self.policies.admit.trivial:
            self.send(a, now_s)
            return
        g.drain_due = True
        g.describe(a, now_s)
        if g.ask(ADMIT_JOIN) == SHED:
            g.gate[queue].shed += 1
            self.end(a, "REJECTED", "QUEUE_FULL", now_s)
            return
        edf = getattr(self.policies.admit, "edf", ())
        g.join(a, edf=by == "class" and self.classes[queue].name in edf)

    def send(self, a: Attempt, now_s: float) -> None:
        """Choose a site and an instance, and send the request there."""
        g, row = self.gateways[a.gateway], a.row
        a.place = "wire"
        self.out["admit_s"][row] = now_s
        a.tokens = a.input + g.expected_output(row)
        g.gate[a.queue].inflight += 1
        g.gate[a.queue].inflight_tokens += a.tokens
        g.refresh(now_s)
        g.believe_hits(row, a.input, now_s)
        g.count_blocks(row, a.input)
        g.describe(a, now_s)
        n = self.choose(g, a)
        g.refresh(now_s)
        if n < 0:
            self.end(a, "REJECTED", "NO_INSTANCE", now_s)
            return
        engine, v = self.engines[n], g.view[n]
        a.instance = n
        self.out["instance"][row] = n
        a.prefill_tokens = max(0.0, a.input - v.hit_tokens)
        v.inflight += 1
        v.inflight_tokens += a.tokens
        v.inflight_prefill_tokens += a.prefill_tokens
        v.assigned += 1
        g.sent[n].append(a)
        if self.gateway.index == "approx":
            g.index[n].note(row, a.input, now_s)
            if len(self.gateways) > 1 and self.gateway.sync_delay_s < inf:
                self.notes.append((now_s + self.gateway.sync_delay_s, g.number, n, row))
        if engine.state != "up":
            self.end(a, "ERROR", "CRASH", now_s)
            return
        site = self.fleet.sites[self.site_of(engine)]
        way_s = site.rtt_s / 2 + engine.profile.request_s + engine.profile.request_token_s * a.input
        if way_s <= 0:
            self.reach_engine(a, now_s)
        else:
            self.at(now_s + way_s, lambda t: self.reach_engine(a, t))

    def choose(self, g: GatewayReplica, a: Attempt) -> int:
        usable = g.allow(a.row, -1)
        if usable and not self.policies.site.trivial:
            g.fill_sites(a.row)
            s = int(self.decide["site"](g.sites, g.request[0], g.params[1], g.memory[1], g.rng, g.scores))
            usable = g.allow(a.row, s) if s >= 0 else 0
        if not usable:
            return -1
        n = int(self.decide["instance"](g.view, g.request[0], g.params[2], g.memory[2], g.rng, g.scores))
        if self.options.force_row == a.row and a.number == 0:
            return self.options.force_instance
        assert n < 0 or g.view[n].ready == 1, "the policy chose what is not ready"
        return n

    def reach_engine(self, a: Attempt, now_s: float) -> None:
        if a.place != "wire":
            return
        engine = self.engines[a.instance]
        if a.leave:
            self.end(a, "TIMEOUT", "", now_s)
        elif not engine.fits(a):
            self.end(a, "REJECTED", "NEVER_FITS", now_s)
        else:
            engine.arrive(a, now_s)

    def first_token(self, a: Attempt) -> None:
        self.gateways[a.gateway].view[a.instance].inflight_prefill_tokens -= a.prefill_tokens
        a.prefill_tokens = 0.0

    def client_gone(self, a: Attempt, now_s: float) -> None:
        """Time-out: out of a queue at once, out of a batch, a hand-off or the wire when that next moves."""
        if a.place == "over":
            return
        if a.place == "gate":
            self.gateways[a.gateway].leave_queue(a)
            self.end(a, "TIMEOUT", "", now_s)
        elif a.place == "waiting":
            engine = self.engines[a.instance]
            engine.waiting.remove(a)
            engine.publish_queue(now_s)
            self.end(a, "TIMEOUT", "", now_s)
            engine.wake(now_s)
        else:
            a.leave = True

    def end(self, a: Attempt, status: str, reason: str, now_s: float) -> None:
        """The attempt is over: account for it, retry, wake the next turn."""
        g, row = self.gateways[a.gateway], a.row
        c = self.classes[self.trace.slo_class[row]]
        over_s = now_s
        if a.instance >= 0:
            g.sent[a.instance] = [other for other in g.sent[a.instance] if other is not a]
            v = g.view[a.instance]
            v.inflight_prefill_tokens -= a.prefill_tokens
            v.inflight -= 1
            v.inflight_tokens -= a.tokens
        if a.place != "gate":
            g.gate[a.queue].inflight -= 1
            g.gate[a.queue].inflight_tokens -= a.tokens
        again = False
        if status == "OK":
            engine = self.engines[a.instance]
            site = self.site_of(engine)
            late_s = engine.profile.response_s + self.fleet.sites[site].rtt_s / 2
            over_s = now_s + late_s
            self.out["start_s"][row], self.out["first_token_s"][row] = a.start_s, a.first_s + late_s
            self.out["finish_s"][row], self.out["delivered_tokens"][row] = over_s, a.output
            g.learn(a, float(self.out["arrival_s"][row]), a.first_s + late_s, over_s, site)
        else:
            self.waste[WASTE[status]] += a.work + a.made - a.again
            again = reason != "NEVER_FITS" and a.number < c.max_retries
            told = reason == "SHED" and a.told_s > 0 and c.retry_after_max_s > 0
            if told and a.told_s > c.retry_after_max_s:
                again = False
        self.waste["preempt"] += a.again
        self.out["hit_tokens"][row] = a.hit
        self.out["preemptions"][row] += a.preemptions
        if again:
            u = hash01(self.seed, row, a.number)
            wait_s = c.retry_backoff_s * 2.0**a.number * (1.0 + c.retry_jitter * (2.0 * u - 1.0))
            if told:
                wait_s = a.told_s
            self.at(now_s + wait_s, lambda t: self.begin(row, a.number + 1, t))
        else:
            self.out["status"][row], self.out["reason"][row] = STATUS[status], REASON[reason]
            if row in self.next_turn:
                turn = self.next_turn[row]
                self.at(over_s + float(self.trace.think_s[turn]), lambda t: self.begin(turn, 0, t))
        if not self.policies.admit.trivial:
            g.describe(a, now_s)
            g.ask(ADMIT_DONE)
            g.drain_due = True
        a.place = "over"
        self.live -= 1

    # --- prefill/decode hand-off ---

    def start_handoff(self, a: Attempt, now_s: float) -> None:
        g = self.gateways[a.gateway]
        g.refresh(now_s)
        ready = [n for n, e in enumerate(self.engines) if e.pool.role == "decode" and g.view[n].ready == 1]
        source = self.engines[a.instance]
        if not ready:
            source.release(a)
            source.changed = True
            self.end(a, "REJECTED", "NO_INSTANCE", now_s)
            return
        to = min(ready, key=lambda n: (g.view[n].inflight_tokens, n))
        a.place, a.to_instance = "handoff", to
        g.sent[a.instance].remove(a)
        for n, sign in ((a.instance, -1), (to, 1)):
            g.view[n].inflight += sign
            g.view[n].inflight_tokens += sign * a.tokens
        g.view[to].assigned += 1
        begin_s = max(now_s, self.link_free_s)
        busy_s = a.input / self.fleet.transfer.tok_s
        self.link_free_s = begin_s + busy_s
        self.at(begin_s + self.fleet.transfer.latency_s + busy_s, lambda t: self.end_handoff(a, t))

    def end_handoff(self, a: Attempt, now_s: float) -> None:
        if a.place != "handoff":
            return
        source, to = self.engines[a.instance], self.engines[a.to_instance]
        source.release(a)
        source.changed = True
        source.wake(now_s)
        a.instance = a.to_instance
        self.out["instance"][a.row] = a.instance
        if a.leave:
            self.end(a, "TIMEOUT", "", now_s)
        elif to.state == "down":
            self.end(a, "ERROR", "CRASH", now_s)
        elif not to.fits(a):
            self.end(a, "REJECTED", "NEVER_FITS", now_s)
        else:
            a.handed = True
            to.arrive(a, now_s)

    # --- admission ---

    def drain_all(self, now_s: float) -> None:
        while any(g.drain_due for g in self.gateways):
            for g in self.gateways:
                if g.drain_due:
                    g.drain_due = False
                    self.drain(g, now_s)

    def drain(self, g: GatewayReplica, now_s: float) -> None:
        if not any(any(other.queues) for other in self.gateways):
            return
        g.refresh(now_s)
        g.fill_gate(now_s)
        hidden: dict[int, float] = {}
        rounds = sum(len(q) for other in self.gateways for q in other.queues) + self.n_queues + 1
        for _ in range(rounds):
            q = g.ask(ADMIT_NEXT)
            if q < 0:
                break
            assert q < self.n_queues and g.queues[q] and q not in hidden, "the policy named an empty queue"
            a = g.queues[q][0]
            g.describe(a, now_s)
            answer = g.ask(ADMIT_HEAD)
            if answer == HOLD:
                hidden[q] = float(g.gate[q].queued)
                g.gate[q].queued = 0.0
                continue
            g.leave_queue(a)
            g.fill_head(q, now_s)
            if answer == PASS:
                self.send(a, now_s)
            else:
                g.gate[q].shed += 1
                if hasattr(self.policies.admit, "retry_after_at"):
                    a.told_s = float(g.memory[0][self.policies.admit.retry_after_at])
                self.end(a, "REJECTED", "SHED", now_s)
        for q, queued in hidden.items():
            g.gate[q].queued += queued

    def control_tick(self, now_s: float) -> None:
        for g in self.gateways:
            g.refresh(now_s)
            g.fill_gate(now_s)
            g.ask(ADMIT_TICK)
            g.drain_due = True
        queued = sum(len(q) for g in self.gateways for q in g.queues)
        if queued and queued == self.live and not self.timers and not self.to_come:
            self.idle_ticks += 1
            if self.idle_ticks > 1000:
                self.give_up(now_s)
        else:
            self.idle_ticks = 0
        if self.live or self.to_come or self.timers:
            self.at(now_s + self.tick_s, self.control_tick)

    def give_up(self, now_s: float) -> None:
        for g in self.gateways:
            for queue in g.queues:
                for a in list(queue):
                    g.leave_queue(a)
                    self.end(a, "REJECTED", "QUEUE_FULL", now_s)

    # --- the fleet ---

    def fleet_event(self, n: int, what: str, now_s: float) -> None:
        engine = self.engines[n]
        if what == "crash":
            self.crash(engine, now_s)
            return
        if what == "up":
            engine.state = "up"
        elif what == "drain":
            engine.state = "draining" if engine.state in ("up", "draining") else engine.state
        elif engine.state == "down":
            engine.state = "warming"
        engine.publish_queue(now_s)

    def crash(self, engine: Engine, now_s: float) -> None:
        n = engine.index
        if engine.end_s < inf:
            engine.busy_s += now_s - engine.begin_s
        there = [a for a in self.attempts if a.place not in ("gate", "over") and (a.instance == n or (a.place == "handoff" and a.to_instance == n))]
        engine.state = "down"
        engine.running, engine.waiting, engine.step, engine.end_s = [], [], [], inf
        for a in sorted(there, key=lambda a: a.row):
            g = self.gateways[a.gateway]
            if a.place == "handoff":
                if a.instance != n:
                    source = self.engines[a.instance]
                    source.release(a)
                    source.changed = True
                    source.wake(now_s)
                for k, sign in ((a.to_instance, -1), (a.instance, 1)):
                    g.view[k].inflight += sign
                    g.view[k].inflight_tokens += sign * a.tokens
            self.end(a, "LOST", "CRASH", now_s)
        engine.memory.clear()
        engine.slots = [type(slot)() for slot in engine.slots]
        engine.saved.clear()
        engine.publish(now_s)

    def result(self) -> dict[str, Any]:
        assert self.live == 0, f"{self.live} requests never ended"
        return self.out | {
            "waste_tokens": {cause: tokens for cause, tokens in self.waste.items() if tokens > 0},
            "instance_busy_s": np.array([e.busy_s for e in self.engines]),
            "instance_names": tuple(self.names),
        }


def decision(policy: Any) -> Callable[..., int]:
    """The policy's own decision: compiled as for the loop, since 64-bit hashes overflow in plain Python."""
    from tfanalyze.replay.compile import compile_policy

    return compile_policy(type(policy))
