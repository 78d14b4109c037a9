"""Routers of the SGLang line, given the exported command line, against the simulated policy: choice by choice."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.gateways.engines import Engine, chat, free_port, running, started
from tests.gateways.held import Book, held, steps_of
from tests.gateways.test_real_gateways import SMG_EXTRA, command, warm, written
from tfanalyze.replay.policies import load_policy
from tfanalyze.testing import Decider, make_request, make_view

pytestmark = pytest.mark.gateway
Find = Callable[[str, str], str]
WORKERS, REQUESTS = 4, 200
BLOCK = 64  # characters: 16 tokens of about four, what replay's index sees
OFFLINE = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}


def possible(decider: Decider, view: Any, request: Any) -> dict[int, Any]:
    """Every choice the policy may make here (ties are drawn): instance -> its memory after it."""
    before, found = decider.memory.copy(), {}
    for seed in range(24):
        decider.memory[:], decider.rng[0] = before, seed
        found.setdefault(decider.choose(view, request), decider.memory.copy())
    decider.memory[:] = before
    return found


def compare(url: str, engines: Any, policy: Any, unit: int, block: int) -> tuple[float, list[str]]:
    """Share of requests that went where the policy may send them, and the others; ``unit``: characters a token."""
    decider = Decider(policy, n_instances=len(engines))
    books, same, asks, others = [Book() for _ in engines], 0, 0, []
    with held(url, engines) as gateway:
        for what, name, text in steps_of(1, REQUESTS):
            if what == "free":
                gateway.free(name)
                books[gateway.landed[name]].inflight.discard(name)
                continue
            whole = f"{text}#{name}#"
            while time.monotonic() - max(engine.polled_s for engine in engines) < 0.15:
                time.sleep(0.05)  # the last report has arrived
            now_s = time.monotonic()
            hits = [book.hit(whole) // unit // block * block for book in books]
            loads = [len(book.inflight) for book in books]
            view = make_view(
                len(engines), hit_tokens=hits, inflight=loads, block_size=block,
                running=[engine.reported for engine in engines], waiting=[engine.waiting for engine in engines],
                age_s=[now_s - engine.polled_s for engine in engines], kv_used_share=[e.kv_used_share for e in engines],
            )  # fmt: skip
            may = possible(decider, view, make_request(input_tokens=-(-len(whole) // unit), now_s=now_s))
            n = gateway.ask(name, text)  # follow what it did, so that one difference does not make the next
            last_s = max(engine.polled_s for engine in engines)
            if last_s < now_s:  # no poll came between: it knew what we know
                asks += 1
                same += n in may
                if n not in may:
                    others.append(
                        f"{name}: {n} not in {sorted(may)}; hits {hits} of {len(whole)}, in flight {loads}"
                    )
            ours = n if n in may else min(may)
            decider.memory[:] = may[ours]
            if type(policy).name == "smg":  # it counts what it has sent: to n, whatever we would have done
                decider.memory[ours] -= 1.0
                decider.memory[n] += 1.0
            books[n].texts.append(whole)
            books[n].inflight.add(name)
    return same / asks, others


THRESHOLDS = {"cache_threshold": 0.5, "balance_abs_threshold": 3, "balance_rel_threshold": 1.1}
POLL_S = "3"  # so that few decisions fall together with a poll
# target, policy and its settings, characters that are one of its tokens
CASES: list[tuple[str, str, dict[str, float | str], int]] = [
    ("sglang", "sglang", THRESHOLDS, 1),
    ("vllm-router", "vllm_router", THRESHOLDS, 4),
    ("smg", "smg", {"policy": "cache_aware", **THRESHOLDS}, 1),
    ("smg", "smg", {"policy": "power_of_two"}, 1),
]


def argv_of(program: Find, target: str, script: Path, port: int) -> list[str]:
    if target == "smg":
        at = SMG_EXTRA.index("--load-monitor-interval") + 1
        extra = [*SMG_EXTRA[:at], POLL_S, *SMG_EXTRA[at + 1 :]]
        return command(script, program("smg", "smg"), port, 1, extra)
    if target == "vllm-router":
        return command(script, program("vllm-router", "vllm-router"), port, 1)
    argv = command(script, program("sglang", "python"), port, 3, ["--worker-startup-timeout-secs", "20"])
    return [argv[0], "-m", "sglang_router.launch_router", *argv[1:]]


@pytest.mark.parametrize(("target", "spec", "given", "unit"), CASES)
@pytest.mark.parametrize("blocks", [False, True])
def test_the_router_chooses_as_the_simulated_policy(
    program: Find,
    tmp_path: Path,
    target: str,
    spec: str,
    given: dict[str, float | str],
    unit: int,
    blocks: bool,
    record_property: Any,
) -> None:
    settings = {f"{spec}.{name}": value for name, value in given.items()}
    workers = 2 if given.get("policy") == "power_of_two" else WORKERS  # of two, both are always looked at
    with running([Engine(f"e{k}", waiting=k % 3) for k in range(workers)]) as engines:
        script, port = written(target, spec, settings, engines, tmp_path), free_port()
        url = f"http://127.0.0.1:{port}"
        with started(argv_of(program, target, script, port), tmp_path / "log", url + "/health", env=OFFLINE):
            warm(url)
            time.sleep(float(POLL_S) + 1)  # its first poll of the load has been
            block = BLOCK // unit if blocks else 1
            share, others = compare(url, engines, load_policy(spec, settings).instance, unit, block)
    record_property("same_choice_share", share)
    words = f"blocks of {BLOCK} characters" if blocks else "its own tokens"
    print(
        f"\n{target} {given.get('policy', 'cache_aware')}, {words}: same choice in {share:.1%} of {REQUESTS}"
    )
    print("\n".join(others[:12]))
    assert share > (0.85 if blocks else 0.97)


@pytest.mark.parametrize(
    ("target", "spec", "unlimited", "most"),
    [("sglang", "sglang", True, 9), ("vllm-router", "vllm_router", True, 10), ("smg", "smg", False, 4)],
)
@pytest.mark.parametrize("rate", [True, False])
def test_the_concurrency_limit_is_one(
    program: Find, tmp_path: Path, target: str, spec: str, unlimited: bool, most: int, rate: bool
) -> None:
    """Twelve requests in four seconds at a limit of four: without the exported rate, two of the routers let all of them in."""
    settings: dict[str, float | str] = {
        "router_queue.max_concurrent_requests": 4,
        "router_queue.queue_size": 50,
    }
    with running([Engine("a")]) as engines:
        script, port = written(target, f"{spec}+router_queue", settings, engines, tmp_path), free_port()
        if not rate:
            script.write_text(script.read_text().replace("--rate-limit-tokens-per-second 1", ""))
        url = f"http://127.0.0.1:{port}"
        with started(argv_of(program, target, script, port), tmp_path / "log", url + "/health", env=OFFLINE):
            warm(url)
            time.sleep(5.0)  # the bucket is full again
            engines[0].delay_s = 8.0
            for k in range(12):
                threading.Thread(target=quiet_chat, args=(url, f"x{k}"), daemon=True).start()
                time.sleep(0.33)
            time.sleep(0.3)
            inside = engines[0].running
    assert inside >= 4
    assert inside <= (most if rate or not unlimited else 12)
    if unlimited and not rate:
        assert inside == 12


def quiet_chat(url: str, text: str) -> None:
    with contextlib.suppress(OSError, HTTPException):  # the gateway is stopped before it answers
        chat(url, text, timeout_s=30.0)
