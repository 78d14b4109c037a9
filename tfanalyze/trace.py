"""Trace: requests as parallel numpy columns and prefix-block lists."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

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

    def __len__(self) -> int:
        return len(self.arrival_s)
