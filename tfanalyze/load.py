"""From the workspace's table `requests` to a Trace: one row a logical request, sessions linked, blocks dense.

What the log does not say is assumed in one place each and named in ``Trace.notes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfanalyze.errors import FormatError, WorkspaceError
from tfanalyze.sessionblocks import with_session_blocks
from tfanalyze.trace import F64, I32, I64, Classify, Observed, Trace, dense_ids, offsets, take_blocks
from tfanalyze.traceops import chain, cut

if TYPE_CHECKING:
    from tfanalyze.config import SloClass
    from tfanalyze.workspace import Workspace

VANTAGES = ("client", "gateway", "router", "engine")
STATUSES = ("ok", "error", "timeout", "cancelled", "rejected")
LONG_INPUT_TOKENS = 8192  # a request without a class and a longer prompt than this is taken as long_context
NAMED = ("slo_class", "tenant", "model", "instance")

# one row a logical request: the first attempt's arrival, the last attempt's end
PICKED = """
CREATE OR REPLACE TEMP TABLE picked AS
WITH own AS (
  SELECT *, arrival_us + e2e_us AS end_us, arrival_us + ttft_us AS token_us,
    coalesce(retry_of, request_id) AS logical, coalesce(attempt_no, CASE WHEN retry_of IS NULL THEN 0 ELSE 1 END) AS att
  FROM requests WHERE coalesce(vantage, '') = ?),
tried AS (SELECT DISTINCT logical FROM own WHERE logical IS NOT NULL AND (retry_of IS NOT NULL OR att > 0)),
ends AS (
  SELECT logical, min(arrival_us) AS arrival_us, arg_max(status, att) AS status, arg_max(end_us, att) AS end_us,
    arg_max(token_us, att) AS token_us, max(output_tokens) AS output_tokens, arg_max(instance, att) AS instance,
    arg_max(cached_tokens, att) AS cached_tokens, min(att) AS att
  FROM own WHERE logical IN (SELECT logical FROM tried) GROUP BY logical),
whole AS (
  SELECT own.* REPLACE (e.arrival_us AS arrival_us, e.status AS status, e.end_us AS end_us, e.token_us AS token_us,
      e.output_tokens AS output_tokens, e.instance AS instance, e.cached_tokens AS cached_tokens)
  FROM own JOIN ends e ON own.logical = e.logical AND own.att = e.att
  UNION ALL SELECT * FROM own WHERE logical IS NULL OR logical NOT IN (SELECT logical FROM tried))
SELECT row_number() OVER (ORDER BY source_id, source_line, row_uid) - 1 AS k, source_id, time_base, request_id, corr_id,
  arrival_us, (token_us - arrival_us) / 1e6 AS ttft_s, (end_us - arrival_us) / 1e6 AS e2e_s, queue_us / 1e6 AS queue_s,
  input_tokens, cached_tokens, output_tokens, max_tokens, slo_class, tenant, priority, session_id, turn, status, instance,
  delay_us / 1e6 AS delay_s, deadline_us / 1e6 AS deadline_s, block_size, blocks,
  CASE WHEN model_version IS NULL OR model IS NULL THEN model ELSE model || '@' || model_version END AS model
FROM whole QUALIFY row_number() OVER (PARTITION BY row_uid) = 1
"""
# what another vantage saw of the same request and this one did not
FILL = """
UPDATE picked SET instance = coalesce(picked.instance, other.instance), queue_s = coalesce(picked.queue_s, other.queue_s),
  cached_tokens = coalesce(picked.cached_tokens, other.cached_tokens),
  input_tokens = coalesce(picked.input_tokens, other.input_tokens),
  output_tokens = coalesce(picked.output_tokens, other.output_tokens)
FROM (SELECT coalesce(corr_id, request_id) AS key, any_value(instance) AS instance, any_value(queue_us) / 1e6 AS queue_s,
        any_value(cached_tokens) AS cached_tokens, any_value(input_tokens) AS input_tokens,
        any_value(output_tokens) AS output_tokens
      FROM requests WHERE coalesce(vantage, '') <> ? AND coalesce(corr_id, request_id) IS NOT NULL
      GROUP BY 1 HAVING count(*) = 1) AS other
WHERE coalesce(picked.corr_id, picked.request_id) = other.key
"""


def load_trace(
    db: str | Path | Workspace,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    classes: Sequence[SloClass | str] | None = None,
    classify: Classify | None = None,
) -> Trace:
    """The requests of a workspace as a Trace, from ``since_s`` to ``until_s`` seconds after the first arrival.

    ``classes`` fixes the order of Trace.classes. ``classify`` gets columns by name (input_tokens, max_tokens,
    deadline_s, priority, tenant, model: numpy arrays, shape (n,)) and returns a class name or None a row, for rows
    without a class; without it a long prompt is long_context and everything else interactive.
    Errors: WorkspaceError when there is no request with an arrival and a length.
    """
    from tfanalyze.workspace import Workspace

    names = [c if isinstance(c, str) else c.name for c in classes or ()]
    if isinstance(db, Workspace):
        trace = _load(db, names, classify)
    else:
        with Workspace.open(db, read_only=True) as workspace:
            trace = _load(workspace, names, classify)
    if since_s is None and until_s is None:
        return trace
    return cut(trace, since_s or 0.0, float("inf") if until_s is None else until_s)


def read_trace(
    path: str | Path,
    *,
    classes: Sequence[SloClass | str] | None = None,
    classify: Classify | None = None,
    **options: Any,
) -> Trace:
    """Any log file straight into a Trace, through a workspace in memory; ``options`` are those of ingest_logs.

    Errors: InputError and FormatError as ``ingest_logs``; WorkspaceError when no row can be replayed.
    """
    from tfanalyze.ingest import ingest_logs
    from tfanalyze.workspace import Workspace

    with Workspace.open(":memory:") as workspace:
        ingest_logs([path], db=workspace, **options)
        return replace(load_trace(workspace, classes=classes, classify=classify), name=_stem(path))


def _stem(path: str | Path) -> str:
    return Path(path).name.split(".")[0]


def _load(workspace: Workspace, names: list[str], classify: Classify | None) -> Trace:
    con = workspace.con
    notes: list[str] = []
    vantage = _main_vantage(workspace, notes)
    con.execute(PICKED, [vantage])
    con.execute(FILL, [vantage])
    try:
        found = {name: _codes(con, name) for name in NAMED}
        raw = _fetch(con, "SELECT * EXCLUDE (blocks, slo_class, tenant, model, instance, session_id, corr_id) FROM picked ORDER BY k")
        session = _codes(con, "session_id")[0]
        off, flat = _blocks(con, raw, notes)
        sources = dict(con.execute("SELECT source_id, path FROM sources WHERE kind = 'log'").fetchall())
    finally:
        con.execute("DROP TABLE IF EXISTS picked")
    return with_session_blocks(_build(raw, found, session, off, flat, names, classify, notes, sources))


def _main_vantage(workspace: Workspace, notes: list[str]) -> str:
    rows = workspace.con.execute("SELECT coalesce(vantage, ''), count(*) FROM requests GROUP BY 1").fetchall()
    if not rows:
        raise WorkspaceError("holds no requests", workspace.path, "ingest a log first: tfanalyze ingest logs PATH")
    rank = {name: -i for i, name in enumerate(VANTAGES)}
    best = max(rows, key=lambda row: (row[1], rank.get(row[0], -9)))
    if len(rows) > 1:
        notes.append(f"requests as the {best[0] or 'unnamed'} vantage saw them; what only others saw was filled in by id")
    return str(best[0])


def _codes(con: Any, name: str) -> tuple[I32, tuple[str, ...]]:
    """Column of picked as indices into its distinct names in order; -1 = NULL."""
    values = [row[0] for row in con.execute(f"SELECT DISTINCT {name} FROM picked WHERE {name} IS NOT NULL ORDER BY 1").fetchall()]
    if not values:
        return np.full(con.execute("SELECT count(*) FROM picked").fetchone()[0], -1, np.int32), ()
    column = _fetch(
        con,
        f"SELECT coalesce(d.i, -1)::INTEGER AS i FROM picked LEFT JOIN (SELECT {name} AS v, row_number() OVER (ORDER BY {name})"
        f" - 1 AS i FROM (SELECT DISTINCT {name} FROM picked WHERE {name} IS NOT NULL)) d ON picked.{name} = d.v ORDER BY k",
    )
    return column["i"].astype(np.int32), tuple(str(value) for value in values)


def _fetch(con: Any, sql: str) -> dict[str, Any]:
    """Columns as numpy arrays: NULL is NaN in a float or an integer column, None in a text column."""
    columns: dict[str, Any] = {}
    for name, column in con.execute(sql).fetchnumpy().items():
        data = np.ma.getdata(column)
        if isinstance(column, np.ma.MaskedArray) and column.mask is not np.ma.nomask and np.any(column.mask):
            data = data.astype(object if data.dtype == object else np.float64)
            data[np.ma.getmaskarray(column)] = None if data.dtype == object else np.nan
        columns[name] = data
    return columns


def _blocks(con: Any, raw: dict[str, Any], notes: list[str]) -> tuple[I64, npt.NDArray[Any]]:
    """Block lists of picked; rows whose blocks have another size than most are left without."""
    size = np.nan_to_num(raw["block_size"].astype(np.float64), nan=0).astype(np.int64)
    counts = _fetch(con, "SELECT coalesce(len(blocks), 0)::BIGINT AS c FROM picked ORDER BY k")["c"].astype(np.int64)
    if not counts.any():
        return offsets(counts), np.zeros(0, np.uint64)
    flat = _fetch(con, "SELECT unnest(blocks) AS b FROM (SELECT k, blocks FROM picked ORDER BY k)")["b"]
    known = np.unique(size[counts > 0])
    weight = [int(counts[size == s].sum()) if s > 0 else 0 for s in known]
    best = int(known[int(np.argmax(weight))])
    odd = (counts > 0) & (size != best)
    if odd.any() or best < 1:
        notes.append(f"{int(odd.sum())} requests have prefix blocks of another or unknown size: their blocks were left out")
    kept = ~odd & (best > 0)
    raw["block_size_used"] = best
    return offsets(np.where(kept, counts, 0)), flat[np.repeat(kept, counts)]


def _build(
    raw: dict[str, Any],
    found: dict[str, tuple[I32, tuple[str, ...]]],
    session: I32,
    off: I64,
    flat: npt.NDArray[Any],
    names: list[str],
    classify: Classify | None,
    notes: list[str],
    sources: dict[int, str],
) -> Trace:
    arrival_us = _arrivals(raw, session, notes)
    good = np.isfinite(arrival_us) & (_number(raw, "input_tokens") >= 1)
    if not good.any():
        raise WorkspaceError("no request has both an arrival and an input length", "requests", "see tfanalyze lint")
    if not good.all():
        notes.append(f"{int((~good).sum())} requests without an arrival or an input length were left out")
    turn = np.nan_to_num(_number(raw, "turn"), nan=-1.0)
    rows = np.flatnonzero(good)
    rows = rows[np.lexsort((raw["k"][rows], turn[rows], arrival_us[rows]))]
    start_us = float(arrival_us[rows[0]])
    arrival_s = (arrival_us[rows] - start_us) / 1e6
    pick = {key: value[rows] for key, value in raw.items() if isinstance(value, np.ndarray)}
    slo_class, class_names = _classes(pick, {k: (v[0][rows], v[1]) for k, v in found.items()}, names, classify, notes)
    prev, think_s = _turns(session[rows], turn[rows], arrival_s, _number(pick, "e2e_s"), _number(pick, "delay_s"), notes)
    inputs = _number(pick, "input_tokens").astype(np.int32)
    output = _outputs(_number(pick, "output_tokens"), _number(pick, "max_tokens"), slo_class, notes)
    off, flat = take_blocks(off, flat, rows)
    size = int(raw.get("block_size_used", 0))
    cached = _number(pick, "cached_tokens")
    off, ids = _block_ids(off, flat, size, inputs, output, prev, cached, notes)
    unix = all(base in (None, "unix") for base in set(pick["time_base"].tolist()))
    ids_text = pick["request_id"]
    return Trace(
        arrival_s=arrival_s, input_tokens=inputs, output_tokens=output, max_tokens=_integer(pick, "max_tokens", np.int32),
        slo_class=slo_class, tenant=found["tenant"][0][rows], priority=_integer(pick, "priority", np.int32, 0), prev=prev,
        think_s=think_s, deadline_s=_number(pick, "deadline_s"), model=found["model"][0][rows].astype(np.int16),
        site=np.full(len(rows), -1, np.int16), block_off=off, block_id=ids, block_size=size if len(ids) else 0,
        classes=class_names, tenants=found["tenant"][1], models=found["model"][1], instances=found["instance"][1],
        request_ids=_request_ids(ids_text), observed=_observed(pick, found["instance"][0][rows]),
        start_us=int(start_us) if unix else 0, name=" ".join(sorted({_stem(path) for path in sources.values()})),
        notes=tuple(notes),
    )  # fmt: skip


def _number(columns: dict[str, Any], name: str) -> F64:
    out: F64 = np.asarray(columns[name], np.float64)
    return out


def _integer(columns: dict[str, Any], name: str, kind: type[np.generic], unknown: int = -1) -> Any:
    return np.nan_to_num(_number(columns, name), nan=unknown).astype(kind)


def _request_ids(column: Any) -> tuple[str, ...]:
    if all(value is None for value in column):
        return ()
    return tuple(f"r{row}" if value is None else str(value) for row, value in enumerate(column))


def _observed(pick: dict[str, Any], instance: I32) -> Observed | None:
    codes = {name: code for code, name in enumerate(STATUSES)}
    status = np.array([codes.get(value, -1) for value in pick["status"]], np.int8)
    seen = Observed(
        ttft_s=_number(pick, "ttft_s"), e2e_s=_number(pick, "e2e_s"), queue_s=_number(pick, "queue_s"),
        cached_tokens=_integer(pick, "cached_tokens", np.int32), instance=instance, status=status,
    )  # fmt: skip
    empty = np.isnan(seen.ttft_s).all() and np.isnan(seen.e2e_s).all() and (instance < 0).all() and (status < 0).all()
    return None if empty else seen


def _arrivals(raw: dict[str, Any], session: I32, notes: list[str]) -> F64:
    """Arrivals in microseconds; sources on their own clock begin together; a later turn without one follows its delay."""
    arrival = _number(raw, "arrival_us").copy()
    bases = raw["time_base"]
    own = np.array([base in ("relative", "monotonic") for base in bases], np.bool_)
    if own.any() and (not own.all() or len(np.unique(raw["source_id"])) > 1):
        zero = np.nanmin(arrival[~own]) if (~own).any() else 0.0
        for source in np.unique(raw["source_id"][own]):
            rows = own & (raw["source_id"] == source)
            arrival[rows] += zero - np.nanmin(arrival[rows])
        notes.append("sources that count time from their own start were laid over each other, first arrivals together")
    lost = np.flatnonzero(np.isnan(arrival) & (session >= 0))
    if len(lost):
        delay_us = np.nan_to_num(_number(raw, "delay_s"), nan=0.0) * 1e6
        last: dict[int, int] = {}
        for row in np.lexsort((raw["k"], session)):
            before = last.get(int(session[row]))
            if np.isnan(arrival[row]) and session[row] >= 0 and before is not None:
                arrival[row] = arrival[before] + delay_us[row]
            last[int(session[row])] = int(row)
        notes.append(f"{len(lost)} later turns came without an arrival: taken as the previous turn's plus its delay")
    return arrival


def _classes(
    pick: dict[str, Any],
    found: dict[str, tuple[I32, tuple[str, ...]]],
    names: list[str],
    classify: Classify | None,
    notes: list[str],
) -> tuple[Any, tuple[str, ...]]:
    """Class of every row as index, and the names: those asked for first, then those seen."""
    from tfanalyze.config import DEFAULT_CLASSES

    codes, seen = found["slo_class"]
    blank = codes < 0
    given: Any = np.array([*seen, None], object)[codes]
    if blank.any():
        given[blank] = _guess(pick, found, classify)[blank]
        how = "the class rules" if classify else f"input length (over {LONG_INPUT_TOKENS} tokens: long_context)"
        notes.append(f"{int(blank.sum())} requests without an SLO class got one by {how}")
    present = set(given.tolist())
    known = names or [c.name for c in DEFAULT_CLASSES if c.name in present]
    order = (*known, *sorted(present.difference(known)))
    if len(order) > 127:
        raise FormatError(f"{len(order)} SLO classes", "slo_class", "at most 127; map them with class rules")
    index = {name: i for i, name in enumerate(order)}
    return np.array([index[name] for name in given], np.int8), order


def _guess(pick: dict[str, Any], found: dict[str, tuple[I32, tuple[str, ...]]], classify: Classify | None) -> Any:
    inputs = _number(pick, "input_tokens")
    guess: Any = np.where(inputs > LONG_INPUT_TOKENS, "long_context", "interactive").astype(object)
    if classify is None:
        return guess
    columns: dict[str, Any] = {name: _number(pick, name) for name in ("input_tokens", "max_tokens", "deadline_s", "priority")}
    for name in ("tenant", "model"):
        columns[name] = np.array([*found[name][1], None], object)[found[name][0]]
    named = np.asarray(classify(columns), object)
    blank = np.array([name is None for name in named], np.bool_)
    return np.where(blank, guess, named)


def _turns(session: I32, turn: F64, arrival_s: F64, e2e_s: F64, delay_s: F64, notes: list[str]) -> tuple[I32, F64]:
    """Previous turn and think time of every row (rows sorted by arrival).

    Think time = arrival - end of the previous turn as the log saw it, else the log's own delay. A turn that was sent
    before the previous answer was there does not wait for it: NaN.
    """
    n = len(session)
    prev = np.full(n, -1, np.int32)
    order = np.lexsort((np.arange(n), session))
    same = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    prev[order[1:][same]] = order[:-1][same]
    think = np.full(n, np.nan)
    has = prev >= 0
    gap = arrival_s[has] - (arrival_s + e2e_s)[prev[has]]
    gap = np.where(np.isnan(gap), delay_s[has], gap)
    early = gap < -1e-3
    gap[early] = np.nan
    think[has] = np.maximum(gap, 0.0)
    if early.any():
        notes.append(f"{int(early.sum())} turns were sent before the previous answer ended: they do not wait for it")
    unknown = int(np.isnan(gap).sum() - early.sum())
    if unknown:
        notes.append(f"{unknown} turns have no known think time: they arrive when the log says")
    return prev, think


def _outputs(output: F64, max_tokens: F64, slo_class: Any, notes: list[str]) -> I32:
    """Output lengths; an unknown one is taken as the median of its class, at most its max_tokens."""
    bad = np.isnan(output) | (output < 1)
    if bad.any():
        median = float(np.median(output[~bad])) if (~bad).any() else 1.0
        for c in np.unique(slo_class[bad]):
            of_class = output[~bad & (slo_class == c)]
            output[bad & (slo_class == c)] = np.median(of_class) if len(of_class) else median
        output[bad] = np.fmin(output[bad], np.where(max_tokens[bad] >= 1, max_tokens[bad], np.inf))
        notes.append(f"{int(bad.sum())} requests without output got the median output length of their class")
    return np.maximum(np.rint(output), 1).astype(np.int32)


def _block_ids(
    off: I64, flat: npt.NDArray[Any], size: int, inputs: I32, output: I32, prev: I32, cached: F64, notes: list[str]
) -> tuple[I64, I32]:
    """Dense chained ids, cut at the prompt's end, with the answer blocks that the session's next turn shows."""
    if not len(flat):
        return np.zeros(len(inputs) + 1, np.int64), np.zeros(0, np.int32)
    reach = np.minimum(np.diff(off), -(-inputs.astype(np.int64) // size))
    keep = _lead(off, reach)
    ids, made = chain(offsets(reach), dense_ids(flat[keep]))
    if made:
        notes.append("block hashes covered single blocks: they were chained to stand for whole prefixes")
    if answers_recomputed(size, inputs, output, prev, cached):
        notes.append("cached tokens of later turns end with the previous prompt: answers are not taken as reusable")
        return offsets(reach), dense_ids(ids)
    off, ids = with_answers(offsets(reach), ids, size, inputs, output, prev)
    return off, dense_ids(ids)


def answers_recomputed(size: int, inputs: I32, output: I32, prev: I32, cached: F64) -> bool:
    """Does the log show that an answer is not reused by the next turn (it comes back as other tokens)?

    True where at least five later turns hit the previous prompt as a whole, its answer filled a block or more, and
    none of them hit any of that answer.
    """
    turn = np.flatnonzero((prev >= 0) & ~np.isnan(cached))
    before = prev[turn]
    whole = (inputs[before] // size) * size
    told = (cached[turn] >= whole - size) & (inputs[before] + output[before] >= whole + size) & (inputs[turn] > whole + size)
    return bool(told.sum() >= 5 and not (cached[turn][told] >= whole[told] + size).any())


def _lead(off: I64, counts: I64) -> I64:
    """Positions of the first ``counts`` entries of every list."""
    new = offsets(counts)
    return np.arange(new[-1]) + np.repeat(off[:-1] - new[:-1], counts)


def with_answers(off: I64, ids: I32, size: int, inputs: I32, output: I32, prev: I32) -> tuple[I64, I32]:
    """Append to a turn's blocks those of the session's next turn that its own answer fills.

    Only where the next turn starts with all full blocks of this prompt, and only blocks that lie whole inside
    input + output tokens. A partial last block of the prompt is replaced by what it became.
    """
    counts = np.diff(off)
    full = inputs.astype(np.int64) // size
    grown = (inputs.astype(np.int64) + output) // size
    nxt = np.full(len(inputs), -1, np.int64)
    later = np.flatnonzero(prev >= 0)[::-1]
    nxt[prev[later]] = later  # the earliest next turn
    rows = np.flatnonzero((nxt >= 0) & (counts >= full) & (grown > full))
    rows = rows[counts[nxt[rows]] > full[rows]]
    same = (full[rows] == 0) | (ids[off[:-1][rows] + np.maximum(full[rows] - 1, 0)] == ids[off[:-1][nxt[rows]] + np.maximum(full[rows] - 1, 0)])
    rows = rows[same & (full[rows] > 0)]
    take_n = np.minimum(grown, np.where(nxt >= 0, counts[nxt], 0))
    new_counts = counts.copy()
    new_counts[rows] = np.maximum(take_n[rows], full[rows])
    source = np.arange(len(inputs))
    source[rows] = nxt[rows]
    new = offsets(new_counts)
    where = np.arange(new[-1]) + np.repeat(off[:-1][source] - new[:-1], new_counts)
    return new, ids[where]

