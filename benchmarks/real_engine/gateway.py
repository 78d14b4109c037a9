"""A small gateway: chooses an engine for each request by a policy of tfanalyze, sends it, logs what a gateway can see.

TokenPilot's decision is the package's own compiled function on the records it is replayed with; what those hold here is only what this
gateway knows: its own requests in flight, and what it has sent where.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.real_engine.load import Session, block_hashes, grow
from tfanalyze.config import SloClass
from tfanalyze.models.profile import Profile
from tfanalyze.replay.arrays import policy_params
from tfanalyze.replay.compile import compile_policy
from tfanalyze.replay.policies import PolicySet
from tfanalyze.replay.state import REQUEST, VIEW

STEP = ("c0_s", "c_prefill_step_s", "c_decode_step_s", "c_prefill_s", "c_prefill2_s", "c_attn_s", "c_seq_s", "c_kv_s")
KNOWN_BLOCKS = 512  # text blocks remembered an engine


@dataclass
class Flight:
    """One request on its way."""

    input_tokens: float
    expected_tokens: float
    new_tokens: float
    made: int = 0


@dataclass
class Engine:
    """What the gateway knows about one engine."""

    name: str
    host: str
    port: int
    flights: dict[str, Flight] = field(default_factory=dict)
    known: OrderedDict[str, None] = field(default_factory=OrderedDict)
    assigned: int = 0

    def hit_blocks(self, blocks: list[str]) -> int:
        count = 0
        for block in blocks:
            if block not in self.known:
                break
            count += 1
        return count

    def note(self, blocks: list[str]) -> None:
        for block in reversed(blocks):
            self.known[block] = None
            self.known.move_to_end(block)
        while len(self.known) > KNOWN_BLOCKS:
            self.known.popitem(last=False)


class Router:
    """Chooses by a policy set; `profiles[i]` and `slots`, `kv_tokens` describe engine i."""

    def __init__(
        self, policy: PolicySet, engines: list[Engine], profiles: list[Profile], classes: dict[str, SloClass], slots: int, kv_tokens: int
    ) -> None:
        self.policy, self.engines, self.classes = policy, engines, classes
        self.choose = compile_policy(type(policy.instance))
        self.params = policy_params(policy.instance)
        self.view: Any = np.zeros(len(engines), VIEW).view(np.recarray)
        self.request: Any = np.zeros(1, REQUEST).view(np.recarray)
        self.memory = np.zeros(max(1, policy.instance.memory_size(len(engines), 1, 1)))
        self.rng, self.scores = np.array([1], np.uint64), np.zeros(len(engines))
        self.mean: dict[str, tuple[float, int]] = {}
        self.last: dict[str, int] = {}
        self.tokens_a_block = 22.0  # learned from answers: prompt tokens of a text block
        self.begin_s = time.time()
        for i, profile in enumerate(profiles):
            v = self.view[i]
            v.ready, v.instance, v.max_num_seqs, v.max_batched_tokens = 1, i, slots, 512
            v.kv_capacity_tokens, v.block_size, v.request_s = kv_tokens, 1, profile.request_s + profile.response_s
            for name in STEP:
                v[name] = getattr(profile.step, name)

    def expected(self, slo_class: str, max_tokens: int) -> float:
        return min(self.mean.get(slo_class, (128.0, 0))[0], float(max_tokens))

    def learn(self, slo_class: str, tokens: int) -> None:
        mean, count = self.mean.get(slo_class, (128.0, 0))
        count = min(count + 1, 1000)
        self.mean[slo_class] = (mean + (tokens - mean) / count, count)

    def pick(self, session: str, slo_class: str, blocks: list[str], input_tokens: float, max_tokens: int) -> tuple[int, Flight]:
        """The engine's index, and the flight to be counted there."""
        now, limits = time.time() - self.begin_s, self.classes[slo_class]
        expected = self.expected(slo_class, max_tokens)
        for v, e in zip(self.view, self.engines, strict=True):
            flights = e.flights.values()
            v.inflight = len(flights)
            v.running = min(len(flights), v.max_num_seqs)
            v.waiting = len(flights) - v.running
            v.decoding = sum(f.made > 0 for f in flights)
            v.kv_tokens = sum(f.input_tokens + f.made for f in flights if f.made)
            v.inflight_tokens = sum(f.input_tokens + f.expected_tokens for f in flights)
            v.queued_prefill_tokens = v.inflight_prefill_tokens = sum(f.new_tokens for f in flights if not f.made)
            v.kv_used_share = sum(f.input_tokens + f.made for f in flights) / v.kv_capacity_tokens
            v.hit_tokens = min(input_tokens - 1.0, e.hit_blocks(blocks) * self.tokens_a_block)
            v.assigned = e.assigned
        q = self.request[0]
        q.now_s, q.arrival_s, q.input_tokens, q.max_tokens, q.expected_output_tokens = now, now, input_tokens, max_tokens, expected
        q.ttft_slo_s, q.tpot_slo_s, q.e2e_slo_s, q.deadline_s = limits.ttft_s, limits.tpot_s, limits.e2e_s, np.inf
        q.last_instance = self.last.get(session, -1)
        n = int(self.choose(self.view, q, self.params, self.memory, self.rng, self.scores))
        new = max(1.0, input_tokens - self.view[n].hit_tokens)
        self.last[session] = n
        self.engines[n].assigned += 1
        self.engines[n].note(blocks)
        return n, Flight(input_tokens, expected, new)


async def complete(engine: Engine, prompt: str, tokens: int, flight: Flight) -> dict[str, Any]:
    """One streamed completion of llama.cpp's server; times in seconds since it was sent, text, and the server's own timings."""
    body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "stream": True, "cache_prompt": True, "temperature": 0}
    data = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: {engine.host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    sent = time.time()
    reader, writer = await asyncio.open_connection(engine.host, engine.port, limit=1 << 22)
    writer.write(head.encode() + data)
    first, pieces, last = 0.0, [], {}
    status = (await reader.readline()).split()
    while line := await reader.readline():
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if event.get("content") or event.get("tokens"):
                first = first or time.time() - sent
                flight.made += 1
            pieces.append(event.get("content", ""))
            if event.get("stop"):
                last = event
    writer.close()
    if status[1:2] != [b"200"] or "timings" not in last:
        raise ConnectionError(f"{engine.name} answered {b' '.join(status).decode()}")
    return {"sent": sent, "ttft_s": first, "e2e_s": time.time() - sent, "text": "".join(pieces), "timings": last["timings"]}


async def play(router: Router, played: list[Session], log: list[dict[str, Any]]) -> None:
    """Play all sessions, each turn after the answer to the one before and a pause; one log record a finished request."""
    begin = time.time()

    async def one(session: Session) -> None:
        await asyncio.sleep(max(0.0, begin + session.start_s - time.time()))
        prompt = session.system
        for number, turn in enumerate(session.turns):
            if number:
                await asyncio.sleep(turn.think_s)
            prompt = grow(prompt, turn)
            blocks = block_hashes(prompt)
            guess = max(1.0, len(prompt.split()) / 16 * router.tokens_a_block)
            n, flight = router.pick(session.name, session.slo_class, blocks, guess, turn.answer_tokens)
            engine, request_id = router.engines[n], f"{session.name}.{number}"
            engine.flights[request_id] = flight
            try:
                done = await complete(engine, prompt, turn.answer_tokens, flight)
            finally:
                del engine.flights[request_id]
            times = done["timings"]
            tokens = int(times["prompt_n"]) + int(times.get("cache_n", 0))
            router.tokens_a_block += 0.05 * (tokens / len(prompt.split()) * 16 - router.tokens_a_block)
            router.learn(session.slo_class, int(times["predicted_n"]))
            log.append(
                {
                    "request_id": request_id, "arrival": done["sent"], "instance": engine.name, "session_id": session.name, "turn": number,
                    "slo_class": session.slo_class, "block_hashes": blocks, "prompt_tokens": tokens, "cached_tokens": int(times.get("cache_n", 0)),
                    "completion_tokens": int(times["predicted_n"]), "max_tokens": turn.answer_tokens,
                    "ttft_ms": round(1e3 * done["ttft_s"], 3), "e2e_ms": round(1e3 * done["e2e_s"], 3),
                    "engine_prompt_ms": times["prompt_ms"], "engine_predicted_ms": times["predicted_ms"], "status": "ok",
                }
            )  # fmt: skip
            prompt = f"{prompt} {done['text'].strip()}"

    await asyncio.gather(*(one(s) for s in played))
