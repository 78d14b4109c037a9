"""Trace: requests as parallel numpy columns and prefix-block lists; checks, construction, hash.

What is done with traces (cut, split, scale, stitch, ...) is in ``traceops.py``, reading one from a workspace or a
log file in ``load.py``; both are offered here by the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfanalyze.errors import FormatError

if TYPE_CHECKING:
    from tfanalyze.config import SloClass
    from tfanalyze.workspace import Workspace

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
I16 = npt.NDArray[np.int16]
I8 = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Observed:
    """What the log saw of each request; shape (n,) each; NaN or -1 where unknown."""

    ttft_s: F64
    e2e_s: F64
    queue_s: F64
    cached_tokens: I32
    instance: I32  # index into Trace.instances, -1 unknown
    status: I8  # 0 ok, 1 error, 2 timeout, 3 cancelled, 4 rejected, -1 unknown


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests sorted by arrival; columns have shape (n,) unless said otherwise.

    Unknown is -1 (integers) or NaN (floats). `output_tokens` is what really came: only the engine sees it.
    Errors: FormatError from ``check``, which runs at construction.
    """

    arrival_s: F64  # seconds since the trace began, sorted
    input_tokens: I32  # whole prompt, cached part included
    output_tokens: I32
    max_tokens: I32  # what the client allowed, -1 unknown
    slo_class: I8  # index into classes
    tenant: I32  # index into tenants, -1 unknown
    priority: I32  # lower runs earlier
    prev: I32  # row of the session's previous turn, -1 = none
    think_s: F64  # gap from the previous turn's end to this arrival; NaN = independent
    deadline_s: F64  # seconds after arrival, NaN = none
    model: I16  # index into models, -1 = any
    site: I16  # residency pin: index into sites, -1 = anywhere
    block_off: I64  # (n+1,) request r owns block_id[block_off[r]:block_off[r+1]]
    block_id: I32  # (m,) dense ids of chained prefix hashes; those past the prompt are the answer's
    block_size: int  # tokens per block, 0 = no blocks
    classes: tuple[str, ...]
    tenants: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()  # names seen in the log
    request_ids: tuple[str, ...] = ()  # may be empty (then "r<row>")
    observed: Observed | None = None
    start_us: int = 0  # UTC epoch of arrival_s == 0, 0 = unknown
    name: str = ""
    notes: tuple[str, ...] = field(default=())  # what was assumed while loading

    def __post_init__(self) -> None:
        check(self)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last, in seconds."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self.arrival_s) else 0.0


# columns of shape (n,) and their types
COLUMNS: dict[str, type[np.generic]] = {
    "arrival_s": np.float64, "input_tokens": np.int32, "output_tokens": np.int32, "max_tokens": np.int32,
    "slo_class": np.int8, "tenant": np.int32, "priority": np.int32, "prev": np.int32, "think_s": np.float64,
    "deadline_s": np.float64, "model": np.int16, "site": np.int16,
}  # fmt: skip
OBSERVED: dict[str, type[np.generic]] = {
    "ttft_s": np.float64, "e2e_s": np.float64, "queue_s": np.float64, "cached_tokens": np.int32,
    "instance": np.int32, "status": np.int8,
}  # fmt: skip


def check(trace: Trace) -> None:
    """Refuse a trace that breaks what everyone relies on: lengths, order, offsets, indices in range.

    Errors: FormatError that names the column and the first row at fault.
    """
    n = len(trace.arrival_s)
    for name, kind in COLUMNS.items():
        _expect(getattr(trace, name), name, n, kind)
    if trace.observed is not None:
        for name, kind in OBSERVED.items():
            _expect(getattr(trace.observed, name), f"observed.{name}", n, kind)
    _expect(trace.block_off, "block_off", n + 1, np.int64)
    _expect(trace.block_id, "block_id", int(trace.block_off[-1]), np.int32)
    if not n:
        return
    arrival = trace.arrival_s
    _refuse(~np.isfinite(arrival), "arrival_s", "is not finite")
    _refuse(np.diff(arrival, prepend=arrival[0]) < 0, "arrival_s", "comes before the row above it")
    _refuse(np.diff(trace.block_off) < 0, "block_off", "decreases")
    _refuse(trace.input_tokens < 1, "input_tokens", "is less than 1")
    _refuse(trace.output_tokens < 0, "output_tokens", "is negative")
    _refuse((trace.prev < -1) | (trace.prev >= np.arange(n)), "prev", "is not an earlier row")
    _refuse(trace.think_s < 0, "think_s", "is negative")
    _refuse(trace.deadline_s < 0, "deadline_s", "is negative")
    for name, names, low in (
        ("slo_class", trace.classes, 0), ("tenant", trace.tenants, -1), ("model", trace.models, -1),
        ("site", trace.sites, -1),
    ):  # fmt: skip
        column = getattr(trace, name)
        _refuse((column < low) | (column >= len(names)), name, f"is no index into {len(names)} names")
    if trace.block_size < 0 or (len(trace.block_id) and not trace.block_size):
        raise FormatError(f"block_size is {trace.block_size}", "trace", "give the tokens a block stands for")
    if len(trace.block_id) and int(trace.block_id.min()) < 0:
        raise FormatError("a block id is negative", "trace", "give dense ids from 0")
    if trace.request_ids and len(trace.request_ids) != n:
        raise FormatError(f"{len(trace.request_ids)} request ids for {n} rows", "trace", "give one a row, or none")


def _expect(column: Any, name: str, length: int, kind: type[np.generic]) -> None:
    if column.shape != (length,) or column.dtype != kind:
        found = f"is {column.dtype}{list(column.shape)}, not {np.dtype(kind).name}[{length}]"
        raise FormatError(f"column {name} {found}", "trace", "build it with from_columns")


def _refuse(bad: npt.NDArray[np.bool_], name: str, why: str) -> None:
    if bad.any():
        raise FormatError(f"{name} {why}", f"trace row {int(np.argmax(bad))}", "mend or drop the row")


Names = Sequence[Any] | npt.NDArray[Any] | None


def from_columns(
    *,
    arrival_s: Sequence[float] | F64,
    input_tokens: Sequence[int] | npt.NDArray[Any],
    output_tokens: Sequence[int] | npt.NDArray[Any],
    slo_class: Names = None,
    classes: Sequence[str] = (),
    tenant: Names = None,
    model: Names = None,
    site: Names = None,
    blocks: Sequence[Sequence[int]] | None = None,
    block_off: I64 | None = None,
    block_id: npt.NDArray[Any] | None = None,
    block_size: int = 0,
    observed: dict[str, Any] | None = None,
    instance: Names = None,
    request_ids: Sequence[str] = (),
    name: str = "",
    notes: Sequence[str] = (),
    start_us: int = 0,
    **columns: Any,
) -> Trace:
    """Make a Trace from columns in any order of arrival; everything but arrival, input and output is optional.

    ``slo_class``, ``tenant``, ``model``, ``site`` and ``instance`` are names (None = unknown); ``prev`` counts rows
    as given here. Blocks come as lists or as offsets and ids; ids are made dense. ``observed`` holds columns of
    Observed but ``instance``. A request without a class is "interactive".
    Errors: FormatError as in ``check``, or for an unknown column.
    """
    arrival = np.asarray(arrival_s, np.float64)
    n = len(arrival)
    order = np.argsort(arrival, kind="stable")
    unknown = set(columns) - {"max_tokens", "priority", "prev", "think_s", "deadline_s"}
    if unknown:
        raise FormatError(f"unknown column {min(unknown)!r}", "from_columns", "see the fields of Trace")
    filled: dict[str, Any] = {"arrival_s": arrival, "input_tokens": input_tokens, "output_tokens": output_tokens}
    for column, default in (
        ("max_tokens", -1), ("priority", 0), ("prev", -1), ("think_s", np.nan), ("deadline_s", np.nan),
    ):  # fmt: skip
        given = columns.get(column)
        filled[column] = np.full(n, default) if given is None else given
    class_names = ["interactive"] * n if slo_class is None else ["interactive" if c is None else c for c in slo_class]
    filled["slo_class"], found = encode(class_names, n, classes)
    filled["tenant"], tenants = encode(tenant, n)
    filled["model"], models = encode(model, n)
    filled["site"], sites = encode(site, n)
    seen, instances = _observed(observed, instance, n, order)
    rank = np.empty(n + 1, np.int64)
    rank[order], rank[-1] = np.arange(n), -1
    filled["prev"] = rank[np.asarray(filled["prev"], np.int64)]
    off, ids = _block_arrays(blocks, block_off, block_id, n)
    off, ids = take_blocks(off, ids, order)
    return Trace(
        **{key: np.asarray(value)[order].astype(COLUMNS[key]) for key, value in filled.items()},
        block_off=off, block_id=dense_ids(ids), block_size=int(block_size) if len(ids) else 0,
        classes=found, tenants=tenants, models=models, sites=sites, instances=instances,
        request_ids=tuple(request_ids[row] for row in order) if len(request_ids) else (), observed=seen,
        start_us=start_us, name=name, notes=tuple(notes),
    )  # fmt: skip


def _observed(
    given: dict[str, Any] | None, instance: Names, n: int, order: npt.NDArray[np.int64]
) -> tuple[Observed | None, tuple[str, ...]]:
    if given is None and instance is None:
        return None, ()
    values = dict(given or {})
    unknown = set(values) - {column.name for column in fields(Observed)}
    if unknown:
        raise FormatError(f"unknown column {min(unknown)!r}", "observed", "see the fields of Observed")
    codes, names = encode(instance, n)
    values["instance"] = codes
    columns: dict[str, Any] = {}
    for key, kind in OBSERVED.items():
        default = np.nan if kind is np.float64 else -1
        columns[key] = np.asarray(values.get(key, np.full(n, default)))[order].astype(kind)
    return Observed(**columns), names


def encode(values: Names, n: int, first: Sequence[str] = ()) -> tuple[I32, tuple[str, ...]]:
    """Names -> indices; None -> -1. ``first`` are numbered first whether they occur or not, the others by name."""
    if values is None:
        return np.full(n, -1, np.int32), tuple(first)
    seen = {str(value) for value in values if value is not None}
    names = (*first, *sorted(seen.difference(first)))
    index = {name: i for i, name in enumerate(names)}
    return np.array([-1 if v is None else index[str(v)] for v in values], np.int32).reshape(n), names


def _block_arrays(
    blocks: Sequence[Sequence[int]] | None, off: I64 | None, ids: npt.NDArray[Any] | None, n: int
) -> tuple[I64, npt.NDArray[Any]]:
    if blocks is not None:
        counts = np.array([len(b) for b in blocks], np.int64)
        flat = np.concatenate([np.asarray(b, np.uint64) for b in blocks]) if len(blocks) else np.zeros(0, np.uint64)
        return offsets(counts), flat
    if off is None or ids is None:
        return np.zeros(n + 1, np.int64), np.zeros(0, np.int64)
    return np.asarray(off, np.int64), np.asarray(ids)


def offsets(counts: npt.NDArray[Any]) -> I64:
    """(n,) counts -> (n+1,) offsets."""
    off = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=off[1:])
    return off


def take_blocks(off: I64, ids: npt.NDArray[Any], rows: npt.NDArray[Any]) -> tuple[I64, npt.NDArray[Any]]:
    """Block lists of ``rows`` in that order, as offsets and ids."""
    counts = np.diff(off)[rows]
    new = offsets(counts)
    where = np.arange(new[-1]) + np.repeat(off[:-1][rows] - new[:-1], counts)
    return new, ids[where]


def dense_ids(ids: npt.NDArray[Any]) -> I32:
    """Any integers -> 0..k-1, in order of value."""
    if not len(ids):
        return np.zeros(0, np.int32)
    return np.unique(ids, return_inverse=True)[1].astype(np.int32)


def trace_hash(trace: Trace) -> str:
    """16 hex digits over every column and name that a replay or a comparison reads; not over name, notes, ids."""
    import xxhash

    digest = xxhash.xxh3_64()
    for key in COLUMNS:
        digest.update(np.ascontiguousarray(getattr(trace, key)).data)
    digest.update(np.ascontiguousarray(trace.block_off).data)
    digest.update(np.ascontiguousarray(trace.block_id).data)
    if trace.observed is not None:
        for key in OBSERVED:
            digest.update(np.ascontiguousarray(getattr(trace.observed, key)).tobytes())
    names = (trace.classes, trace.tenants, trace.models, trace.sites, trace.instances)
    digest.update(repr((trace.block_size, names)).encode())
    return str(digest.hexdigest())


Classify = Callable[[dict[str, Any]], Any]


def load_trace(
    db: str | Path | Workspace,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    classes: Sequence[SloClass | str] | None = None,
    classify: Classify | None = None,
) -> Trace:
    """Requests of a workspace as a Trace, see ``tfanalyze.load``."""
    from tfanalyze import load

    return load.load_trace(db, since_s=since_s, until_s=until_s, classes=classes, classify=classify)


def read_trace(
    path: str | Path,
    *,
    classes: Sequence[SloClass | str] | None = None,
    classify: Classify | None = None,
    **options: Any,
) -> Trace:
    """Any log file straight into a Trace, see ``tfanalyze.load``."""
    from tfanalyze import load

    return load.read_trace(path, classes=classes, classify=classify, **options)


def __getattr__(name: str) -> Any:
    """Operations on traces live in traceops.py, which imports this module; offered here by the same name."""
    if name in {"anonymise", "chain", "cut", "dequantise", "scale_load", "split", "stitch", "take"}:
        from tfanalyze import traceops

        return getattr(traceops, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
