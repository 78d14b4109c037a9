"""Dynamo's own selector, given the exported file, against the simulated policy: the same costs, decision by decision."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tfanalyze.config import DEFAULT_CLASSES, Fleet, Pool
from tfanalyze.export import export
from tfanalyze.replay.policies import load_policy
from tfanalyze.testing import Decider, make_request, make_view

pytestmark = pytest.mark.gateway
WORKERS, BLOCK, ANSWER = 4, 16, 128
SETTINGS: dict[str, float | str] = {
    "dynamo.prefill_load_scale": 1.4, "dynamo.overlap_score_credit": 0.85, "dynamo.decode_active_request_weight": 0.5,
}  # fmt: skip


@dataclass
class Book:
    """What a gateway knows of one worker: the VIEW columns of the policy."""

    prompts: list[tuple[int, ...]] = field(default_factory=list)  # ever sent: its own prefix index
    inflight: dict[str, tuple[int, ...]] = field(default_factory=dict)
    prefill: dict[str, int] = field(default_factory=dict)

    def hit(self, tokens: tuple[int, ...]) -> int:
        best = 0
        for old in self.prompts:
            same = next(
                (k for k, (a, b) in enumerate(zip(old, tokens, strict=False)) if a != b),
                min(len(old), len(tokens)),
            )
            best = max(best, same // BLOCK * BLOCK)
        return best

    def active(self) -> set[tuple[int, ...]]:
        return {block for prompt in self.inflight.values() for block in blocks_of(prompt)}


def blocks_of(prompt: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Each whole block, named by everything up to its end as a KV block is; these prompts end with a block."""
    return {prompt[:end] for end in range(BLOCK, len(prompt) + 1, BLOCK)}


def steps_of(seed: int, n: int, shared: int) -> list[tuple[str, str, list[int]]]:
    """Requests of a few families with a common prefix of ``shared`` tokens; each is prefilled, then freed, some time later."""
    draw = random.Random(seed)
    steps: list[tuple[str, str, list[int]]] = []
    open_, done = [], []
    for k in range(n):
        family = draw.randrange(5)
        own = BLOCK * draw.randrange(2, 12)
        tokens = [family * 100_000 + t for t in range(shared)] + [
            10_000_000 + k * 10_000 + t for t in range(own)
        ]
        steps.append(("ask", f"r{k}", tokens))
        open_.append(f"r{k}")
        if draw.random() < 0.7:
            name = open_.pop(draw.randrange(len(open_)))
            steps.append(("prefilled", name, []))
            done.append(name)
        if len(done) > 6:
            steps.append(("free", done.pop(draw.randrange(len(done))), []))
    return steps


def asked(python: str, config: Path, steps: list[Any]) -> tuple[dict[str, int], dict[str, float]]:
    env = {
        **os.environ,
        "DYN_ROUTER_POLICY_CONFIG": str(config),
        "DYN_ROUTER_USE_KV_EVENTS": "false",
        "DYN_LOG": "info",
    }
    script = Path(__file__).with_name("dynamo_selector.py")
    argv = [python, str(script), str(WORKERS), str(BLOCK)]
    done = subprocess.run(
        argv, input=json.dumps(steps), capture_output=True, text=True, check=False, timeout=120, env=env
    )
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    chosen = dict(
        json.loads(line.removeprefix("CHOSEN ")) for line in text.splitlines() if line.startswith("CHOSEN ")
    )
    costs = {name: float(cost) for name, cost in re.findall(r'request_id="(r\d+)".*?logit=([-\d.]+)', text)}
    assert len(chosen) == sum(step[0] == "ask" for step in steps), text[-2000:]
    return chosen, costs


@pytest.mark.parametrize(("shared", "least_equal"), [(0, 1.0), (128, 0.97)])
def test_the_simulated_costs_are_those_of_dynamos_selector(
    program: Callable[[str, str], str],
    tmp_path: Path,
    shared: int,
    least_equal: float,
    record_property: Callable[[str, object], None],
) -> None:
    policy = load_policy("dynamo", SETTINGS)
    fleet = Fleet((Pool("w", count=WORKERS),))
    result = export("dynamo", policy, out=tmp_path, fleet=fleet, classes=DEFAULT_CLASSES)
    steps = steps_of(1, 150, shared)
    chosen, costs = asked(program("dynamo", "python"), tmp_path / result["files"][0], steps)
    decider = Decider(policy.instance, n_instances=WORKERS)
    books, equal, same, off = [Book() for _ in range(WORKERS)], 0, 0, []
    for what, name, tokens in steps:
        if what != "ask":
            book = books[chosen[name]]
            (book.prefill if what == "prefilled" else book.inflight).pop(name, None)
            continue
        prompt = tuple(tokens)
        hits = [book.hit(prompt) for book in books]
        view = make_view(
            WORKERS, block_size=BLOCK, hit_tokens=hits,
            inflight=[len(b.inflight) for b in books],
            inflight_tokens=[sum(len(prompt) + ANSWER for prompt in b.inflight.values()) for b in books],
            active_blocks=[len(b.active()) for b in books],
            active_hit_blocks=[len(b.active() & blocks_of(prompt)) for b in books],
            inflight_prefill_tokens=[sum(b.prefill.values()) for b in books],
        )  # fmt: skip
        decider.choose(view, make_request(input_tokens=len(prompt), expected_output_tokens=ANSWER))
        w = chosen[name]  # follow what Dynamo did, so that one difference does not make the next
        equal += abs(decider.scores[w] - costs[name]) < 1e-6 * max(1.0, costs[name])
        same += decider.scores[w] <= decider.scores.min() + 1e-9
        off.append(decider.scores[w] / costs[name] - 1)
        books[w].prompts.append(prompt)
        books[w].inflight[name] = prompt
        books[w].prefill[name] = len(prompt) - hits[w]
    asks = len(chosen)
    record_property("equal_cost_share", equal / asks)
    record_property("same_choice_share", same / asks)
    print(
        f"shared {shared}: cost equal in {equal / asks:.1%}, choice equal in {same / asks:.1%}, mean cost off by {sum(off) / asks:+.1%}"
    )
    assert same / asks >= least_equal, (equal / asks, same / asks)
