"""Compilation of the loop and of policies: one signature for each hook, so that a policy is a pointer to the loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba import types

from tfanalyze.replay.jit import JIT_OFF, helper
from tfanalyze.replay.layout import Gates
from tfanalyze.replay.loop import run_loop
from tfanalyze.replay.state import GATE, REQUEST, SITE, VIEW


@helper
def kernel(en, a, admit, site, choose):  # type: ignore[no-untyped-def]
    """Run one replay over its arrays; returns the fault code."""
    gw = Gates(
        a.views,
        a.req,
        a.sites,
        a.gate,
        a.queue,
        a.pub,
        a.ring,
        a.learn,
        a.swing,
        a.cls,
        a.serves,
        a.tm,
        a.ih,
        a.due,
        a.dirty,
        a.ends,
        a.end_s,
        a.drain,
        a.msg,
        a.ix,
        a.ixbucket,
        a.ixhead,
        a.ixlru,
        a.event,
        a.p_admit,
        a.p_site,
        a.p_inst,
        a.m_admit,
        a.m_site,
        a.m_inst,
        a.rng,
        a.scores,
        a.series,
        a.quota,
        a.trace_view,
        a.trace_req,
        a.trace_scores,
        admit,
        site,
        choose,
    )
    return run_loop(en, gw)


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


DECISION = {"instance": "choose", "site": "choose_site", "admit": "admit"}


@functools.cache
def compile_policy(policy_class: type) -> Callable[..., int]:
    """The policy's decision function, compiled for its hook (plain Python when the JIT is off)."""
    kind: str = policy_class.kind  # type: ignore[attr-defined]
    function = getattr(policy_class, DECISION[kind])
    if JIT_OFF:
        return function  # type: ignore[no-any-return]
    plain = getattr(function, "py_func", function)
    return numba.njit([signatures()[kind]], cache=_cacheable(plain), nogil=True, error_model="numpy", _nrt=False)(plain)  # type: ignore[no-any-return]


def _cacheable(function: Callable[..., Any]) -> bool:
    return function.__module__ != "__main__"


@functools.cache
def compiled_kernel(en_type: Any, a_type: Any) -> Callable[..., int]:
    """The loop for the given array types (they are always the same but in tests)."""
    kinds = signatures()
    pointers = [types.FunctionType(kinds[k]) for k in ("admit", "site", "instance")]
    signature = types.int64(en_type, a_type, *pointers)
    return numba.njit([signature], cache=True, nogil=True, error_model="numpy", _nrt=False)(kernel.py_func)  # type: ignore[no-any-return,attr-defined]


def run_kernel(en: Any, a: Any, admit: type, site: type, choose: type) -> int:
    """Compile what is not compiled yet, and run."""
    pointers = (compile_policy(admit), compile_policy(site), compile_policy(choose))
    if JIT_OFF:
        import numpy as np

        with np.errstate(all="ignore"):
            return int(kernel(en, a, *pointers))
    loop = compiled_kernel(numba.typeof(en), numba.typeof(a))
    return int(loop(en, a, *pointers))
