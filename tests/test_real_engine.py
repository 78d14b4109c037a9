"""The real-engine benchmark's own parts: its traffic, and its gateway in front of engines that only pretend."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from benchmarks.real_engine.gateway import Engine, Flight, Router, play
from benchmarks.real_engine.load import BLOCK_WORDS, Session, Turn, block_hashes, prompts, sessions
from tfanalyze.config import SloClass
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay.policies import load_policy

PROFILE = Profile("cpu", StepTime(c0_s=0.005, c_prefill_s=0.006, c_seq_s=0.02, c_kv_s=1e-6))
CLASSES = {"interactive": SloClass("interactive", ttft_s=2.0, tpot_s=0.2), "offline": SloClass("offline", e2e_s=30.0)}


def router(policy: str = "tokenpilot", ports: tuple[int, int] = (0, 0)) -> Router:
    engines = [Engine(f"i{n}", "127.0.0.1", port) for n, port in enumerate(ports)]
    return Router(load_policy(policy), engines, [PROFILE] * 2, CLASSES, slots=8, kv_tokens=32768)


def test_traffic_is_the_same_for_the_same_seed_and_shares_its_system_prompts() -> None:
    assert sessions(3, 100.0, 0.5) == sessions(3, 100.0, 0.5) != sessions(4, 100.0, 0.5)
    chats = [s for s in sessions(3, 400.0, 0.5) if s.slo_class == "interactive"]
    assert {s.system for s in chats} == {s.system for s in sessions(4, 400.0, 0.5) if s.slo_class == "interactive"}
    assert len({s.system for s in chats}) == 3 and all(2 <= len(s.turns) <= 5 for s in chats)


def test_block_hashes_are_equal_as_far_as_the_text_is() -> None:
    session = Session("s", 0.0, "interactive", " ".join(["a"] * 40), (Turn("b " * 20, 5, 0.0), Turn("c " * 20, 5, 0.0)))
    first, second = prompts(session, iter(["an answer", "another"]))
    shared = len(first.split()) // BLOCK_WORDS
    assert block_hashes(second)[:shared] == block_hashes(first) and len(block_hashes(second)) > shared
    changed = second.replace("a", "z", 1)
    assert not set(block_hashes(changed)) & set(block_hashes(second)), "a chained hash depends on all before it"


def test_a_turn_follows_its_prefix_until_its_engine_is_too_busy() -> None:
    gate = router()
    blocks = block_hashes(" ".join(["word"] * 320))
    home, _ = gate.pick("s", "interactive", blocks, 440.0, 16)
    again, flight = gate.pick("s", "interactive", blocks, 440.0, 16)
    assert again == home and flight.new_tokens < 60
    for k in range(4):
        gate.engines[home].flights[f"x{k}"] = Flight(800.0, 30.0, 800.0)
    elsewhere, flight = gate.pick("s", "interactive", blocks, 440.0, 16)
    assert elsewhere != home and flight.new_tokens > 400


def test_round_robin_takes_turns() -> None:
    gate = router("round_robin")
    picked = [gate.pick("s", "interactive", [], 100.0, 16)[0] for _ in range(6)]
    assert picked in ([0, 1] * 3, [1, 0] * 3)


async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """llama.cpp's stream of a completion: one event a token, the timings in the last."""
    size = 0
    while (line := await reader.readline()).strip():
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    asked = json.loads(await reader.readexactly(size))
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    for k in range(asked["n_predict"]):
        event: dict[str, Any] = {"content": f" t{k}", "stop": False}
        writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    times = {"prompt_n": 7, "cache_n": 3, "prompt_ms": 1.0, "predicted_n": asked["n_predict"], "predicted_ms": 2.0}
    writer.write(b"data: " + json.dumps({"content": "", "stop": True, "timings": times}).encode() + b"\n\n")
    await writer.drain()
    writer.close()


def test_the_log_is_one_that_tfanalyze_reads(tmp_path: Any) -> None:
    async def run() -> list[dict[str, Any]]:
        hosts = [await asyncio.start_server(pretend, "127.0.0.1", 0) for _ in range(2)]
        ports = [host.sockets[0].getsockname()[1] for host in hosts]
        gate, log = router("round_robin", (ports[0], ports[1])), []
        turns = (Turn("one two", 4, 0.0), Turn("three", 6, 0.0))
        await play(gate, [Session(f"s{k}", 0.01 * k, "interactive", "sys " * 40, turns) for k in range(3)], log)
        assert not any(engine.flights for engine in gate.engines)
        for host in hosts:
            host.close()
        return log

    log = asyncio.run(run())
    assert len(log) == 6 and {row["completion_tokens"] for row in log} == {4, 6}
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in log))
    from tfanalyze.ingest.logs import ingest_logs

    result = ingest_logs([path], db=tmp_path / "w.duckdb")["files"][0]
    assert (result["format"], result["taken"], result["rejected"]) == ("gateway", 6, 0)


def test_an_engine_that_fails_is_an_error_that_names_it() -> None:
    async def run() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1 << 16)
            writer.write(b"HTTP/1.1 503 Busy\r\n\r\n")
            await writer.drain()
            writer.close()

        host = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = host.sockets[0].getsockname()[1]
        await play(router("round_robin", (port, port)), [Session("s", 0.0, "interactive", "a", (Turn("b", 1, 0.0),))], [])

    with pytest.raises(ConnectionError, match="i0 answered HTTP/1.1 503"):
        asyncio.run(run())
