"""The one file that names numba: options, cache key, seeded random numbers.

``cache=True`` stamps a compiled function with the hash of its own file only, so a change in another file would be
missed (numba 0.68, style measured).  The cache folder is therefore keyed on every source file under ``replay/``, the
numba version and the flags that change the code.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
KEPT_CACHES = 3


def _cache_home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("TFANALYZE_CACHE", os.path.join(base, "tfanalyze")))


def cache_key() -> str:
    """Hash of the loop's sources, of what policies share, the numba version and the flags that change compiled code.

    A policy's own file is not part of it: numba stamps that one itself, and the loop only holds a pointer to it.
    """
    from importlib.metadata import version

    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted([*here.glob("*.py"), *(here / "policies").glob("helpers*.py")]):
        if not path.exists():
            continue
        digest.update(path.relative_to(here).as_posix().encode())
        digest.update(path.read_bytes())
    digest.update(version("numba").encode())
    digest.update(sys.version.encode())
    digest.update(os.environ.get("NUMBA_BOUNDSCHECK", "").encode())
    return digest.hexdigest()[:16]


def _set_cache_dir() -> Path:
    home = _cache_home() / "numba"
    folder = home / cache_key()
    if "NUMBA_CACHE_DIR" not in os.environ:
        os.environ["NUMBA_CACHE_DIR"] = str(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder)
            _forget_old(home)
        except OSError:
            pass  # a read-only home only costs the compile time
    return Path(os.environ["NUMBA_CACHE_DIR"])


def _forget_old(home: Path) -> None:
    import shutil

    kept = sorted((p for p in home.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in kept[KEPT_CACHES:]:
        shutil.rmtree(old, ignore_errors=True)


CACHE_DIR = _set_cache_dir()

import numba  # noqa: E402  (after NUMBA_CACHE_DIR is set)
import numpy as np  # noqa: E402

JIT_OFF = bool(numba.config.DISABLE_JIT)


def helper(function: F) -> F:
    """Compile a function that kernels and policies call: no allocation, no Python object, GIL released."""
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(function)
    return compiled


def builder(function: F) -> F:
    """Compile a function that prepares data before a run: it may allocate."""
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


def inner(function: F) -> F:
    """Compile a part of the loop: like ``helper``, but only compiled code can call it, and only the whole is cached."""
    options = {} if JIT_OFF else {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: F = numba.njit(nogil=True, error_model="numpy", _nrt=False, **options)(function)
    return compiled


@contextmanager
def optimise_whole(name: str) -> Iterator[None]:
    """Within this block only the function ``name`` is optimised and turned into machine code, with all it calls inlined.

    numba does that for every function it meets, each time with everything below it: for a loop of a hundred small
    functions the same code is optimised dozens of times.  Uses numba's internals (0.61 to 0.68); where they look
    different nothing is changed and compiling takes longer.
    """
    from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
    from numba.core.compiler_lock import global_compiler_lock

    optimise = getattr(JITCodeLibrary, "_optimize_final_module", None)
    finalise = getattr(JITCodeLibrary, "_finalize_final_module", None)
    set_env = getattr(JITCPUCodegen, "set_env", None)
    if optimise is None or finalise is None or set_env is None or not hasattr(JITCodeLibrary, "_finalize_dynamic_globals"):
        yield
        return

    def is_whole(library: Any) -> bool:
        return name in library.name

    def optimise_top(library: Any) -> None:
        if is_whole(library):
            optimise(library)

    def finalise_top(library: Any) -> None:
        if is_whole(library):
            finalise(library)
        else:
            library._finalize_dynamic_globals()
            library._finalized = True

    def set_env_of_top(codegen: Any, env_name: str, env: Any) -> None:
        if name in env_name:  # the others have no machine code of their own to point at it
            set_env(codegen, env_name, env)

    with global_compiler_lock:
        JITCPUCodegen.set_env = set_env_of_top
        JITCodeLibrary._optimize_final_module = optimise_top
        JITCodeLibrary._finalize_final_module = finalise_top
        try:
            yield
        finally:
            JITCodeLibrary._optimize_final_module = optimise
            JITCodeLibrary._finalize_final_module = finalise
            JITCPUCodegen.set_env = set_env


@helper
def next_u64(rng):  # type: ignore[no-untyped-def]
    """splitmix64 (Steele, Lea, Flood 2014): advance the state rng (1,) uint64 and return 64 random bits."""
    rng[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@helper
def rand01(rng):  # type: ignore[no-untyped-def]
    """Uniform in [0, 1), 53 bits."""
    return np.float64(next_u64(rng) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


def _hash_u64(x):  # type: ignore[no-untyped-def]
    """One round of splitmix64 over an integer: a hash without state."""
    z = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


hash_u64 = helper(_hash_u64)  # for policies and Python
hash_inner = inner(_hash_u64)  # for the loop
