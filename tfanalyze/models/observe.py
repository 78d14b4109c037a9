"""What a workspace holds that a fit can use: request rows as a RequestLog, engine limits from the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfanalyze.config import EngineLimits, Fleet, Pool, Site
from tfanalyze.errors import WorkspaceError
from tfanalyze.models import kv
from tfanalyze.models.timeline import RequestLog
from tfanalyze.trace import F64

if TYPE_CHECKING:
    from tfanalyze.workspace import Workspace

NO_INSTANCE = "default"
MOST_REQUESTS = 100_000  # a fit looks at the last ones: more of them tell nothing new, and engines change
LLAMACPP_SLOTS, LLAMACPP_BATCH, LLAMACPP_CONTEXT = 8, 512, 32_768  # assumed where neither config nor metrics say
LLAMACPP_HOST_TOKENS = 350_000  # the server's default prompt cache of 8 GiB at 23 kB a token (a model of 0.1 B)
LLAMACPP_SAVED = 350_000  # its host prompt cache (--cache-ram, 8 GiB by default since 2025-10), of a small model


@dataclass(frozen=True, slots=True)
class Observations:
    """The finished requests of one workspace, and what its engines said of themselves."""

    log: RequestLog  # rows with a first token and an end, the last MOST_REQUESTS of them
    sites: tuple[str, ...]  # of each instance
    models: tuple[str, ...]  # of each instance, "" = not said
    queue_known: bool  # start_s observed, not guessed
    rows: int  # all request rows of the vantage
    vantage: str
    engine: str  # vllm | sglang | llamacpp | "" = not known
    limits: EngineLimits
    assumed: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    cached_known: float = 0.0  # share of rows that say how much was cached


def observe(workspace: Workspace, fleet: Fleet | None = None, known: EngineLimits | None = None) -> Observations:
    """Read the requests of the vantage with the most timings.

    Engine limits come from `fleet`, else from the metrics, else from `known` (what an earlier fit found), else from what
    the log shows under pressure, else from defaults; `assumed` names all that nobody said.

    Errors: WorkspaceError when there are no requests, or none with timings.
    """
    con = workspace.con
    counts = con.execute(
        "SELECT coalesce(vantage, ''), count(*), count(ttft_us) FILTER (e2e_us IS NOT NULL) FROM requests GROUP BY 1 ORDER BY 3 DESC, 2 DESC"
    ).fetchall()
    if not counts:
        raise WorkspaceError("holds no requests", workspace.path, "ingest a log first: tfanalyze ingest logs PATH")
    vantage, rows, timed = counts[0]
    if not timed:
        raise WorkspaceError(
            f"none of its {rows} requests has both a time to first token and an end",
            workspace.path,
            "ingest a log with timings, or use a shipped profile: --profile NAME",
        )
    got = con.execute(
        "SELECT coalesce(instance, ?) AS instance, coalesce(site, 'site0') AS site, coalesce(model, '') AS model,"
        " arrival_us, queue_us, ttft_us, e2e_us, input_tokens, cached_tokens, output_tokens, engine_prompt_us, engine_predicted_us"
        " FROM requests WHERE coalesce(vantage, '') = ? AND ttft_us IS NOT NULL AND e2e_us IS NOT NULL AND arrival_us IS NOT NULL"
        " AND input_tokens > 0 AND output_tokens > 0 AND coalesce(status, 'ok') = 'ok' ORDER BY arrival_us DESC, row_uid DESC LIMIT ?",
        [NO_INSTANCE, vantage, MOST_REQUESTS],
    ).fetchnumpy()
    got = {name: column[::-1] for name, column in got.items()}
    if not len(got["arrival_us"]):
        raise WorkspaceError("no finished request has timings and token counts", workspace.path, "check: tfanalyze lint")
    log, names, queue_known, extra = _log(got)
    engine = _engine(workspace, extra)
    limits, assumed = _limits(workspace, engine, log, fleet, known, int(got["arrival_us"][0]))
    facts = {"origin_us": int(got["arrival_us"][0])} | extra
    sites, models = _of_instance(got, names, "site"), _of_instance(got, names, "model")
    share_known = float(np.mean(~np.isnan(log.cached_tokens)))
    return Observations(log, sites, models, queue_known, int(rows), vantage, engine, limits, assumed, facts, share_known)


def _column(got: Any, name: str, factor: float = 1.0) -> F64:
    return np.asarray(np.ma.filled(np.ma.asarray(got[name]).astype(np.float64), np.nan)) * factor


def _log(got: Any) -> tuple[RequestLog, tuple[str, ...], bool, dict[str, Any]]:
    instance = np.asarray(got["instance"]).astype(str)
    names, code = np.unique(instance, return_inverse=True)
    arrival = (got["arrival_us"] - got["arrival_us"][0]) * 1e-6
    first, finish = arrival + _column(got, "ttft_us", 1e-6), arrival + _column(got, "e2e_us", 1e-6)
    queue, prompt = _column(got, "queue_us", 1e-6), _column(got, "engine_prompt_us", 1e-6)
    extra: dict[str, Any] = {}
    start = arrival + queue
    if not np.isnan(prompt).all():
        own = first - prompt
        start = np.where(np.isnan(start), np.where(own >= arrival - 1e-3, own, arrival), start)
        waited = np.maximum(own - arrival, 0.0)[~np.isnan(own)]  # the least of it is no queue, but client and tokenizer
        extra["overhead_s"], extra["overhead_low_s"], extra["overhead_high_s"] = (float(q) for q in np.quantile(waited, (0.05, 0.01, 0.2)))
        extra["engine_timings"] = True
    log = RequestLog(
        code.astype(np.int32), arrival, start, first, np.maximum(finish, first), _column(got, "input_tokens"),
        _column(got, "cached_tokens"), _column(got, "output_tokens"), tuple(str(name) for name in names),
    )  # fmt: skip
    return log, log.instances, bool(not np.isnan(start).any()), extra


def _of_instance(got: Any, names: tuple[str, ...], column: str) -> tuple[str, ...]:
    instance, value = np.asarray(got["instance"]).astype(str), np.asarray(got[column]).astype(str)
    return tuple(str(value[np.flatnonzero(instance == name)[0]]) for name in names)


def _engine(workspace: Workspace, extra: dict[str, Any]) -> str:
    """The engine by its metrics' own names; llama.cpp also by its timings in the log."""
    for (raw,) in workspace.con.execute("SELECT DISTINCT raw_name FROM metrics WHERE raw_name IS NOT NULL").fetchall():
        for prefix in ("vllm", "sglang", "llamacpp"):
            if raw.removeprefix("ray_").startswith(prefix):
                return prefix
    return "llamacpp" if extra.get("engine_timings") else ""


def _limits(
    workspace: Workspace, engine: str, log: RequestLog, fleet: Fleet | None, known: EngineLimits | None, origin_us: int
) -> tuple[EngineLimits, tuple[str, ...]]:
    """Engine limits and what of them was assumed or inferred."""
    if fleet is not None:
        return fleet.pools[0].engine, ()
    if engine == "llamacpp":
        return known or _llamacpp(), () if known else (
            f"engine: llama.cpp server with {LLAMACPP_SLOTS} slots, batch {LLAMACPP_BATCH}, context {LLAMACPP_CONTEXT} a slot, "
            f"prompts of up to {LLAMACPP_SAVED:,} tokens saved in host memory",
        )
    assumed: list[str] = []
    most = _most_decoding(log)
    if known and most > known.max_num_seqs:
        known = replace(known, max_num_seqs=most)
        assumed.append(f"max_num_seqs {most} (as many decoded at once)")
    # both engines plan a step ahead unless told not to (vLLM since 0.14, SGLang since 0.4)
    limits = known or EngineLimits(scheduler="sglang" if engine == "sglang" else "vllm", async_scheduling=True)
    if not engine and not known:
        assumed.append("engine: vLLM's scheduler (no engine metrics)")
    capacity, block = kv.capacity_from_metrics(workspace)
    if capacity:
        limits = replace(limits, kv_tokens=capacity, block_size=block or limits.block_size)
    elif not known:
        tokens, why = _kv_tokens(workspace, log, origin_us, limits.kv_tokens)
        limits = replace(limits, kv_tokens=tokens)
        assumed.append(f"kv_tokens {tokens} ({why})")
    if not known:
        seqs = _most_running(workspace) or kv.seats(log)
        seqs = seqs or (most if most > limits.max_num_seqs else None)
        if seqs:
            limits = replace(limits, max_num_seqs=seqs)
        assumed.append(f"max_num_seqs {limits.max_num_seqs}" + (" (the most that ran while others waited)" if seqs else ""))
        assumed.append(f"max_num_batched_tokens {limits.max_num_batched_tokens}")
        assumed.append(f"async_scheduling {limits.async_scheduling}")
    return limits, tuple(assumed)


def _llamacpp() -> EngineLimits:
    return EngineLimits(
        scheduler="llamacpp", cache="slot", max_num_seqs=LLAMACPP_SLOTS, max_num_batched_tokens=LLAMACPP_BATCH,
        block_size=1, kv_tokens=LLAMACPP_SLOTS * LLAMACPP_CONTEXT, host_kv_tokens=LLAMACPP_SAVED,
    )  # fmt: skip


def _kv_tokens(workspace: Workspace, log: RequestLog, origin_us: int, default: int) -> tuple[int, str]:
    found = kv.capacity_from_use(workspace, log, 0, origin_us)
    if found:
        return found["kv_tokens"], "inferred: tokens in flight over the engine's KV use"
    full = kv.tokens_under_pressure(log)
    if full:
        return full, "inferred: the most tokens in flight while requests waited"
    return default, "no metric says it"


def _most_running(workspace: Workspace) -> int | None:
    """Requests that ran on one instance while at least five waited there: the engine's limit, if it was ever reached."""
    row = workspace.con.execute(
        "SELECT max(r.value), count(*) FROM metrics r JOIN metrics w ON w.name = 'waiting' AND w.ts_us = r.ts_us"
        " AND w.instance IS NOT DISTINCT FROM r.instance AND w.value >= 5 WHERE r.name = 'running'"
    ).fetchone()
    return int(row[0]) if row and row[0] and row[1] >= 10 else None


def _most_decoding(log: RequestLog) -> int:
    """Requests that decoded on one instance at once, at most."""
    most = 0
    for code in range(len(log.instances)):
        mine = log.instance == code
        times = np.concatenate([log.finish_s[mine], log.first_s[mine]])
        change = np.where(np.arange(len(times)) < mine.sum(), -1, 1)[np.argsort(times, kind="stable")]  # an end before a start
        most = max(most, int(np.cumsum(change).max(initial=0)))
    return most


def infer_fleet(seen: Observations, fleet: Fleet | None = None) -> Fleet:
    """The fleet as the log shows it: one pool for every (site, model), its instances in the order of their names."""
    if fleet is not None:
        return fleet
    groups: dict[tuple[str, str], list[str]] = {}
    for name, site, model in zip(seen.log.instances, seen.sites, seen.models, strict=True):
        groups.setdefault((site, model), []).append(name)
    many = len(groups) > 1
    pools = tuple(
        Pool(
            name=f"{site}-{i}" if many else "pool", site=site, count=len(names), model=model if many else "", engine=seen.limits
        )
        for i, ((site, model), names) in enumerate(groups.items())
    )
    sites = tuple(Site(site) for site in dict.fromkeys(seen.sites))
    return Fleet(pools, sites)


def open_for_reading(db: str | Path | Workspace) -> Any:
    """A context manager: the workspace given, or the one at the path, read only."""
    from contextlib import nullcontext

    from tfanalyze.workspace import Workspace

    return nullcontext(db) if isinstance(db, Workspace) else Workspace.open(db, read_only=True)
