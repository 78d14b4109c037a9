"""Compilation of the loop and of policies: one signature for each hook, so that a policy is a pointer to the loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from numba import types

import tfanalyze.replay.jit  # noqa: F401  (sets the cache folder before numba is loaded)
from tfanalyze.replay.bundle import bundle_type, opener, store_function, table_of
from tfanalyze.replay.jit import JIT_OFF, optimise_whole
from tfanalyze.replay.loop import run_loop
from tfanalyze.replay.state import GATE, REQUEST, SITE, VIEW

DECISION = {"instance": "choose", "site": "choose_site", "admit": "admit"}
HOOKS = {"admit": "admit", "site": "site", "choose": "instance"}  # name in the bundle -> kind of policy


@functools.cache
def signatures() -> dict[str, Any]:
    """Numba signature of each kind of decision function."""

    def records(dtype: Any) -> Any:
        return types.Array(numba.from_dtype(dtype), 1, "C")

    f, u = types.float64[::1], types.uint64[::1]
    request = numba.from_dtype(REQUEST)
    return {
        "instance": types.int64(records(VIEW), request, f, f, u, f),
        "site": types.int64(records(SITE), request, f, f, u, f),
        "admit": types.int64(types.int64, records(GATE), request, f, f, u),
    }


@functools.cache
def compile_policy(policy_class: type) -> Callable[..., int]:
    """The policy's decision function, compiled for its hook (plain Python when the JIT is off)."""
    kind: str = policy_class.kind  # type: ignore[attr-defined]
    function = getattr(policy_class, DECISION[kind])
    plain = getattr(function, "py_func", function)
    if JIT_OFF:
        return plain  # type: ignore[no-any-return]
    cache = plain.__module__ != "__main__"
    return numba.njit([signatures()[kind]], cache=cache, nogil=True, error_model="numpy", _nrt=False)(plain)  # type: ignore[no-any-return]


# Set before replay_kernel is compiled: globals, because numba never finds a closure in its cache again.
_open_engine: Any = None
_open_gates: Any = None


def replay_kernel(en_table, gates_table, admit, site, choose):  # type: ignore[no-untyped-def]
    """Open the bundles, put the policies' pointers in, and run."""
    en = _open_engine(en_table)
    gates = _open_gates(gates_table)
    store_function(gates, 0, admit)
    store_function(gates, 1, site)
    store_function(gates, 2, choose)
    return run_loop(en, gates)


@functools.cache
def compiled_kernel(en_type: Any, gates_type: Any) -> Callable[..., int]:
    """The loop for the given array types (they are always the same)."""
    global _open_engine, _open_gates
    _open_engine, _open_gates = opener(en_type), opener(gates_type)
    pointers = [types.FunctionType(signatures()[kind]) for kind in HOOKS.values()]
    signature = types.int64(types.int64, types.int64, *pointers)
    with optimise_whole(replay_kernel.__name__):
        return numba.njit([signature], cache=True, nogil=True, error_model="numpy", _nrt=False)(replay_kernel)  # type: ignore[no-any-return]


def run_kernel(en: Any, gates: Any, admit: type, site: type, choose: type) -> int:
    """Compile what is not compiled yet, and run; returns the fault code."""
    pointers = (compile_policy(admit), compile_policy(site), compile_policy(choose))
    if JIT_OFF:
        with np.errstate(all="ignore"):
            return int(run_loop(en, SimpleNamespace(**gates._asdict(), **dict(zip(HOOKS, pointers, strict=True)))))
    functions = {name: types.FunctionType(signatures()[kind]) for name, kind in HOOKS.items()}
    loop = compiled_kernel(bundle_type(en), bundle_type(gates, functions))
    en_table, gates_table = table_of(en), table_of(gates, len(HOOKS))
    return int(loop(en_table.ctypes.data, gates_table.ctypes.data, *pointers))
