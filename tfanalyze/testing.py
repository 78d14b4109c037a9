"""Conformance checks for one's own policies, and hand-made records to test a decision on: public, used by our tests too."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfanalyze.errors import PolicyError
from tfanalyze.models.profile import StepTime

HOOKS = {"instance": "choose", "site": "choose_site", "admit": "admit"}
ARGUMENTS = {
    "instance": ("view", "request", "params", "memory", "rng", "scores"),
    "site": ("sites", "request", "params", "memory", "rng", "scores"),
    "admit": ("op", "gate", "request", "params", "memory", "rng"),
}
STEP = StepTime(c0_s=0.005, c_prefill_s=5e-5, c_attn_s=1e-9, c_seq_s=2e-5, c_kv_s=2e-8)


def _records(dtype: Any, n: int, base: Mapping[str, Any], columns: Mapping[str, Any]) -> Any:
    made = np.zeros(n, dtype).view(np.recarray)
    for name, value in {**base, **columns}.items():
        if name not in (dtype.names or ()):
            raise PolicyError(f"no field {name!r}", "record", f"there are {', '.join(dtype.names or ())}")
        made[name] = value
    return made


def make_view(n: int, *, step: StepTime = STEP, **columns: Any) -> Any:
    """(n,) VIEW records of idle ready instances, with columns (scalar or (n,)) set as given."""
    from tfanalyze.replay.state import VIEW

    base = {
        "ready": 1, "instance": np.arange(n), "max_num_seqs": 256, "max_batched_tokens": 8192,
        "kv_capacity_tokens": 400_000, "block_size": 16,
    }  # fmt: skip
    names = (
        "c0_s",
        "c_prefill_step_s",
        "c_decode_step_s",
        "c_prefill_s",
        "c_prefill2_s",
        "c_attn_s",
        "c_seq_s",
        "c_kv_s",
    )
    return _records(VIEW, n, base | {name: getattr(step, name) for name in names}, columns)


def make_request(**values: Any) -> Any:
    """One REQUEST record as an array of shape (1,): 2,000 prompt tokens, no SLO, no history."""
    from tfanalyze.replay.state import REQUEST

    base = {
        "input_tokens": 2000, "max_tokens": -1, "expected_output_tokens": 128, "ttft_slo_s": np.inf, "tpot_slo_s": np.inf,
        "e2e_slo_s": np.inf, "deadline_s": np.inf, "session": 1, "last_instance": -1, "last_site": -1, "prefix": -1,
        "region": -1, "model": -1, "recorded_instance": -1,
    }  # fmt: skip
    return _records(REQUEST, 1, base, values)


def make_sites(n: int, **columns: Any) -> Any:
    """(n,) SITE records: four idle ready instances each."""
    from tfanalyze.replay.state import SITE

    base = {
        "ready": 1, "site": np.arange(n), "instances": 4, "configured": 4, "slots": 1024, "prefill_tok_s": 80_000,
        "decode_tok_s": 4000,
    }  # fmt: skip
    return _records(SITE, n, base, columns)


def make_gate(n: int, **columns: Any) -> Any:
    """(n,) GATE records of empty queues before four idle instances."""
    from tfanalyze.replay.state import GATE

    base = {
        "queue": np.arange(n), "weight": 1, "instances": 4, "slots": 1024, "kv_capacity_tokens": 1_600_000,
        "prefill_tok_s": 80_000, "head_deadline_s": np.inf, "head_arrival_s": np.inf,
    }  # fmt: skip
    return _records(GATE, n, base, columns)


@dataclass
class Decider:
    """One policy with its memory and random state, asked directly: compiled, or as plain Python with the JIT off."""

    policy: Any
    n_instances: int = 16
    n_sites: int = 2
    n_queues: int = 3
    seed: int = 1

    def __post_init__(self) -> None:
        size = type(self.policy).memory_size(self.n_instances, self.n_sites, self.n_queues)
        self.memory = np.zeros(max(1, size))
        self.rng = np.array([self.seed], np.uint64)
        self.params = np.array([float(getattr(self.policy, f.name)) for f in fields(self.policy)] or [0.0])
        self.scores = np.zeros(max(self.n_instances, self.n_sites))

    def choose(self, records: Any, request: Any) -> int:
        """Index of the instance or site among VIEW or SITE ``records``; ``scores`` keeps what each was worth."""
        assert len(records) <= max(self.n_instances, self.n_sites), (
            f"{len(records)} records: raise n_instances"
        )
        self.scores = np.zeros(len(records))
        return self._call(
            _plain(records), _plain(request)[0], self.params, self.memory, self.rng, self.scores
        )

    def admit(self, op: int, gate: Any, request: Any) -> int:
        """The answer to one question of replay/state.py (ADMIT_HEAD, ...)."""
        return self._call(op, _plain(gate), _plain(request)[0], self.params, self.memory, self.rng)

    def _call(self, *arguments: Any) -> int:
        from tfanalyze.replay.compile import compile_policy
        from tfanalyze.replay.jit import JIT_OFF

        if JIT_OFF:
            arguments = tuple(
                a.view(np.recarray) if isinstance(a, np.ndarray) and a.dtype.names else a for a in arguments
            )
            arguments = tuple(_record(a) if isinstance(a, np.void) else a for a in arguments)
        decision: Any = compile_policy(type(self.policy))  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            return int(decision(*arguments))


def _plain(records: Any) -> Any:
    return np.ascontiguousarray(records).view(np.ndarray)


def _record(value: Any) -> Any:
    return np.array([value], value.dtype).view(np.recarray)[0]


def check_policy(policy_class: type, *, seed: int = 1, decisions: int = 200) -> None:
    """Assert that a policy keeps the contract: declaration, unpack order, ready respected, the seed decides alone.

    Errors: AssertionError with what is wrong.
    """
    kind = getattr(policy_class, "kind", None)
    assert kind in HOOKS, f"kind is {kind!r}, not one of {', '.join(HOOKS)}"
    assert is_dataclass(policy_class), "not a dataclass"
    assert policy_class.__dataclass_params__.frozen, "not frozen: write @dataclass(frozen=True)"  # type: ignore[attr-defined]
    for entry in fields(policy_class):
        meta = entry.metadata
        assert "low" in meta, f"{entry.name} is not declared with param()"
        assert meta["low"] <= entry.default <= meta["high"], (
            f"{entry.name}: default {entry.default} outside its range"
        )
        assert meta["unit"] and meta["doc"], f"{entry.name} has no unit or no meaning"
    check_unpacking(policy_class)
    first = decide_many(policy_class, seed, decisions)
    assert first == decide_many(policy_class, seed, decisions), "the same seed gave another decision"


def check_unpacking(policy_class: type) -> None:
    """Assert that the decision takes the agreed arguments and unpacks params in the order of the dataclass."""
    kind: str = policy_class.kind  # type: ignore[attr-defined]
    function = getattr(policy_class, HOOKS[kind])
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(function, "py_func", function)))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    found = tuple(a.arg for a in tree.args.args)
    assert found == ARGUMENTS[kind], f"takes {found}, must take {ARGUMENTS[kind]}"
    declared = [f.name for f in fields(policy_class)]
    for name, index in _unpacked(tree):
        assert index < len(declared) and declared[index] == name, (
            f"params[{index}] is unpacked as {name!r}, the dataclass declares {declared[index : index + 1]}"
        )
    if kind != "admit":
        wrong = [i for i, (_, index) in enumerate(_unpacked(tree)) if i != index]
        assert not wrong, f"unpacks {[n for n, _ in _unpacked(tree)]}, the dataclass declares {declared}"


def _unpacked(tree: ast.FunctionDef) -> list[tuple[str, int]]:
    """(name, index) of every ``name = params[index]`` in the decision."""
    pairs: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        for name, item in zip(names, values, strict=False):
            if not (isinstance(name, ast.Name) and isinstance(item, ast.Subscript)):
                continue
            source, index = item.value, item.slice
            if isinstance(source, ast.Name) and source.id == "params" and isinstance(index, ast.Constant):
                pairs.append((name.id, int(str(index.value))))
    return pairs


def decide_many(policy_class: type, seed: int = 1, decisions: int = 200) -> list[int]:
    """Decisions on random records with a fixed seed; asserts that each is a ready candidate, or an allowed answer."""
    kind: str = policy_class.kind  # type: ignore[attr-defined]
    draw = np.random.default_rng(seed)
    decider = Decider(policy_class(), seed=seed)
    return [
        _admit_once(decider, draw) if kind == "admit" else _choose_once(decider, draw, kind, i)
        for i in range(decisions)
    ]


def _random_request(draw: Any) -> Any:
    arrival = float(draw.uniform(0, 100))
    return make_request(
        now_s=arrival + draw.uniform(0, 2), arrival_s=arrival, input_tokens=int(draw.integers(1, 30_000)),
        expected_output_tokens=draw.uniform(1, 1000), slo_class=int(draw.integers(0, 3)), tenant=int(draw.integers(0, 3)),
        ttft_slo_s=draw.choice([1.0, 15.0, np.inf]), tpot_slo_s=0.1, e2e_slo_s=draw.choice([60.0, np.inf]),
        session=int(draw.integers(0, 1 << 62)), last_instance=int(draw.integers(-1, 8)), last_site=int(draw.integers(-1, 2)),
        queued_s=draw.uniform(0, 2), row=int(draw.integers(0, 1000)), recorded_instance=int(draw.integers(-1, 8)),
    )  # fmt: skip


def _choose_once(decider: Decider, draw: Any, kind: str, turn: int) -> int:
    n = decider.n_instances if kind == "instance" else decider.n_sites
    ready = draw.integers(0, 2, n) if turn % 5 else np.zeros(n)
    request = _random_request(draw)
    load: dict[str, Any] = {
        "ready": ready, "running": draw.integers(0, 300, n), "waiting": draw.integers(0, 30, n), "inflight": draw.integers(0, 300, n),
        "queued_prefill_tokens": draw.integers(0, 50_000, n), "inflight_prefill_tokens": draw.integers(0, 50_000, n),
        "inflight_tokens": draw.integers(0, 500_000, n), "kv_used_share": draw.uniform(0, 1, n), "age_s": draw.uniform(0, 5),
        "hit_tokens": np.minimum(draw.integers(0, 30_000, n), request["input_tokens"] - 1),
    }  # fmt: skip
    records = (
        make_view(n, **load) if kind == "instance" else make_sites(n, **load, rtt_s=draw.uniform(0, 0.3, n))
    )
    chosen = decider.choose(records, request)
    if chosen < 0:
        assert not ready.any() or kind == "site", f"chose none of ready {ready.tolist()}"
    else:
        assert chosen < n and ready[chosen] == 1, f"chose {chosen}, ready are {ready.tolist()}"
    return chosen


def _admit_once(decider: Decider, draw: Any) -> int:
    from tfanalyze.replay.state import ADMIT_HEAD, ADMIT_NEXT, ADMIT_TICK, HOLD, PASS, SHED

    n = {"one": 1}.get(getattr(decider.policy, "queue_by", "class"), 3)
    queued = draw.integers(0, 3, n)
    gate = make_gate(
        n, queued=queued, inflight=draw.integers(0, 400, n), inflight_tokens=draw.integers(0, 2_000_000, n),
        finished=draw.integers(0, 100, n), min_wait_s=draw.uniform(0, 3), now_s=draw.uniform(0, 100), waiting=draw.integers(0, 40),
        kv_used_share=draw.uniform(0, 1), ttft_ewma_s=draw.uniform(0, 3, n), tpot_ewma_s=draw.uniform(0, 0.2, n),
        saturation_queue=draw.uniform(0, 10), head_arrival_s=draw.uniform(0, 100, n),
    )  # fmt: skip
    request = _random_request(draw)
    head = decider.admit(ADMIT_HEAD, gate, request)
    assert head in (PASS, HOLD, SHED), f"ADMIT_HEAD answered {head}"
    chosen = decider.admit(ADMIT_NEXT, gate, request)
    assert chosen < n, f"ADMIT_NEXT chose queue {chosen} of {n}"
    assert chosen < 0 or queued[chosen] > 0, f"ADMIT_NEXT chose the empty queue {chosen}"
    decider.admit(ADMIT_TICK, gate, request)
    assert not np.isnan(decider.memory).any(), f"memory is {decider.memory.tolist()}"
    return 10 * head + chosen


def decide_without_jit(names: Sequence[str], seed: int = 1, decisions: int = 50) -> dict[str, list[int]]:
    """The same decisions as ``decide_many`` in a process with NUMBA_DISABLE_JIT=1: what plain Python says."""
    import json

    code = (
        "import json, sys\n"
        "from tfanalyze.replay.policies.loading import policy_class\n"
        "from tfanalyze.testing import decide_many\n"
        "names, seed, count = json.loads(sys.argv[1])\n"
        "print(json.dumps({n: decide_many(policy_class(n), seed, count) for n in names}))\n"
    )
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([list(names), seed, decisions])],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found
