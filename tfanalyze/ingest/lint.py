"""What is wrong with a trace, said before anyone trusts it. Each check is one function; none changes anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfanalyze.errors import WorkspaceError
from tfanalyze.workspace import Workspace

Finding = dict[str, Any]
GRIDS_US = (60_000_000, 10_000_000, 5_000_000, 3_000_000, 2_000_000, 1_000_000, 500_000, 100_000)
BENCHMARKS = {"aiperf", "guidellm", "vllm_bench", "inference_perf", "perf_analyzer", "inferencex"}
TTFT_MEANS = {
    "otlp": "arrival at the engine's front end to first token", "vllm_log": "not in the log", "envoy": "the gateway's own latency field",
    "litellm": "proxy start to first chunk", "aiperf": "client send to first token", "guidellm": "client send to first token",
    "vllm_bench": "client send to first chunk", "inference_perf": "client send to first chunk", "gateway": "gateway arrival to first token",
    "llmservingsim": "queue entry to first token", "sglang_log": "tokenizer arrival to first token", "inferencex": "client send to first chunk",
    "lmbench": "client send to first chunk", "apisix": "proxy start to first token", "dynamo": "front-end arrival to first token",
    "vtc": "client send to first token", "aibrix": "gateway arrival to first token", "langfuse": "span start to first token",
    "helicone": "proxy start to first token", "kong": "proxy start to first token", "perf_analyzer": "client send to first response",
    "blis": "client send to first chunk",
}  # fmt: skip


def lint(db: str | Path | Workspace) -> dict[str, Any]:
    """Look at all that was ingested.

    Returns {"requests": n, "findings": [{"check", "level" (error | warn | info), "count", "what", "mend"}]}, worst first.
    Errors: WorkspaceError for a workspace without requests and metrics.
    """
    if isinstance(db, Workspace):
        return _lint(db)
    with Workspace.open(db, read_only=True) as workspace:
        return _lint(workspace)


def _lint(workspace: Workspace) -> dict[str, Any]:
    total = workspace.count("requests")
    if not total and not workspace.count("metrics"):
        raise WorkspaceError("holds nothing to look at", workspace.path, "ingest a log first: tfanalyze ingest logs PATH")
    found: list[Finding] = []
    for check in CHECKS:
        found += check(workspace)
    order = {"error": 0, "warn": 1, "info": 2}
    return {"requests": total, "findings": sorted(found, key=lambda f: order[f["level"]])}


def _rows(workspace: Workspace, sql: str) -> list[tuple[Any, ...]]:
    return workspace.con.execute(sql).fetchall()


def _finding(check: str, level: str, count: int, what: str, mend: str) -> Finding:
    return {"check": check, "level": level, "count": int(count), "what": what, "mend": mend}


def attempts(workspace: Workspace) -> list[Finding]:
    """Gateways retry by themselves: attempts are not requests."""
    out = []
    marked, logical = _rows(
        workspace, "SELECT count(*), count(DISTINCT coalesce(retry_of, request_id)) FROM requests WHERE retry_of IS NOT NULL"
    )[0]
    if marked:
        what = f"{marked} rows are further attempts at {logical} requests"
        out.append(_finding("attempts", "warn", marked, what, "rates count requests: retry_of joins the attempts"))
    hidden = _rows(workspace, "SELECT count(*) FROM requests WHERE attempt_no > 0 AND retry_of IS NULL")[0][0]
    if hidden:
        what = f"{hidden} rows took more than one attempt, of which the log shows only the last"
        out.append(_finding("hidden_attempts", "warn", hidden, what, "the load on the engines was higher than the rows show"))
    same = _rows(
        workspace,
        "SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM requests WHERE corr_id IS NOT NULL AND retry_of IS NULL "
        "GROUP BY vantage, corr_id HAVING n > 1)",
    )[0][0]
    if same:
        what = f"{same} rows share their x-request-id with another row of the same vantage"
        out.append(_finding("shared_ids", "warn", same, what, "attempts, hedges, or prefill and decode legs of one request"))
    return out


def clocks(workspace: Workspace) -> list[Finding]:
    """Several time bases, or sources far apart, in one workspace."""
    out = []
    bases = _rows(workspace, "SELECT time_base, count(*) FROM requests GROUP BY 1 ORDER BY 1")
    if len(bases) > 1:
        what = "times on several bases: " + ", ".join(f"{base} {n}" for base, n in bases)
        out.append(_finding("mixed_clocks", "error", bases[0][1], what, "use one workspace for each, or --start-at to place them"))
    spans = _rows(
        workspace,
        "SELECT path, first_us, last_us FROM sources WHERE kind = 'log' AND first_us IS NOT NULL AND first_us > 1e15 ORDER BY first_us",
    )
    for before, after in zip(spans, spans[1:], strict=False):
        gap_days = (after[1] - before[2]) / 86_400e6
        if gap_days > 7:
            what = f"{gap_days:.0f} days without requests between {before[0]} and {after[0]}"
            out.append(_finding("far_apart", "warn", 1, what, "a wrong unit or year, or two traces: use one workspace for each"))
    vague = _rows(workspace, "SELECT count(*), max(arrival_unc_us) FROM requests WHERE arrival_unc_us >= 100000")[0]
    if vague[0]:
        what = f"{vague[0]} arrivals are known only to +- {vague[1] / 1e6:g} s"
        out.append(_finding("coarse_times", "warn", vague[0], what, "do not read gaps or latencies below that"))
    return out


def quantised(workspace: Workspace) -> list[Finding]:
    """Arrivals on a grid (the public Mooncake conversation trace: 3 s)."""
    out = []
    for source_id, path in _rows(workspace, "SELECT source_id, path FROM sources WHERE kind = 'log' AND taken >= 50"):
        for grid in GRIDS_US:
            share, ties = _rows(
                workspace,
                f"WITH a AS (SELECT arrival_us AS t, count(*) AS n FROM requests WHERE source_id = {source_id} AND arrival_us IS NOT NULL "
                f"GROUP BY 1), o AS (SELECT t % {grid} AS r, sum(n) AS n FROM a GROUP BY 1) "
                f"SELECT (SELECT sum(n) FROM (SELECT n FROM o ORDER BY n DESC LIMIT 3)) / (SELECT sum(n) FROM a), (SELECT max(n) FROM a)",
            )[0]
            if share is not None and share > 0.98 and ties > 1:
                what = f"{path}: arrivals sit on a grid of {grid / 1e6:g} s, up to {ties} at one instant"
                out.append(_finding("quantised", "warn", ties, what, "dequantise(trace, seed) spreads them; report both"))
                break
    return out


def definitions(workspace: Workspace) -> list[Finding]:
    """Sources that call different things TTFT, and rows seen from several vantages."""
    out = []
    seen = _rows(
        workspace,
        "SELECT s.format, count(*) FROM requests r JOIN sources s USING (source_id) WHERE ttft_us IS NOT NULL GROUP BY 1 ORDER BY 1",
    )
    means = {TTFT_MEANS.get(form, form) for form, _ in seen}
    if len(means) > 1:
        what = "TTFT means different things: " + "; ".join(f"{form}: {TTFT_MEANS.get(form, 'unknown')}" for form, _ in seen)
        out.append(_finding("ttft_definitions", "warn", len(means), what, "compare only rows of one format"))
    views = _rows(workspace, "SELECT vantage, count(*) FROM requests GROUP BY 1 ORDER BY 1")
    if len(views) > 1:
        what = "the same requests may be there several times: " + ", ".join(f"{view} {n}" for view, n in views)
        out.append(_finding("vantages", "info", len(views), what, "loading takes the fullest vantage and joins others by id"))
    return out


def duplicates(workspace: Workspace) -> list[Finding]:
    count = _rows(
        workspace,
        "SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM requests WHERE request_id IS NOT NULL AND retry_of IS NULL "
        "AND corr_id IS NULL GROUP BY vantage, source_id, request_id HAVING n > 1)",
    )[0][0]
    if not count:
        return []
    return [_finding("duplicate_ids", "warn", count, f"{count} rows reuse a request id", "ids are not unique in this log: join by id and time")]


def hidden_demand(workspace: Workspace) -> list[Finding]:
    """Rejected, timed-out and cancelled requests are demand too."""
    out = []
    for status, count, known in _rows(
        workspace,
        "SELECT status, count(*), count(output_tokens) FROM requests WHERE status IN ('rejected', 'timeout', 'cancelled') GROUP BY 1 ORDER BY 1",
    ):
        what = f"{count} requests were {status}; for {count - known} of them the log has no output length"
        out.append(_finding(f"hidden_demand_{status}", "warn", count, what, "replay needs a length for them: it is drawn from served ones"))
    return out


def closed_loop(workspace: Workspace) -> list[Finding]:
    found = _rows(workspace, "SELECT s.format, count(*) FROM requests r JOIN sources s USING (source_id) GROUP BY 1")
    count = sum(n for form, n in found if form in BENCHMARKS)
    if not count:
        return []
    what = f"{count} rows come from a benchmark client, which may wait for answers before it sends the next request"
    return [_finding("closed_loop", "info", count, what, "arrivals then depend on the engine: replay with closed loop")]


def gaps_in_metrics(workspace: Workspace) -> list[Finding]:
    """Scrape outages: gaps of more than three times the usual interval."""
    out = []
    for instance, gaps, longest, usual in _rows(
        workspace,
        "WITH t AS (SELECT DISTINCT instance, source_id, ts_us FROM metrics), d AS (SELECT instance, ts_us - lag(ts_us) OVER "
        "(PARTITION BY instance, source_id ORDER BY ts_us) AS gap FROM t), m AS (SELECT instance, median(gap) AS usual FROM d GROUP BY 1) "
        "SELECT d.instance, count(*), max(gap), any_value(usual) FROM d JOIN m ON d.instance IS NOT DISTINCT FROM m.instance "
        "WHERE gap > 3 * usual AND gap > 1000000 GROUP BY 1 ORDER BY 1",
    ):
        what = f"{instance}: {gaps} gaps in the metrics, the longest {longest / 1e6:.0f} s where {usual / 1e6:g} s is usual"
        out.append(_finding("scrape_outage", "warn", gaps, what, "counters bridge them, gauges do not"))
    return out


def counter_resets(workspace: Workspace) -> list[Finding]:
    count = _rows(
        workspace,
        "SELECT count(*) FROM (SELECT value - lag(value) OVER (PARTITION BY instance, name, labels, source_id ORDER BY ts_us) AS d "
        "FROM metrics WHERE kind = 'counter') WHERE d < 0",
    )[0][0]
    if not count:
        return []
    return [_finding("counter_resets", "info", count, f"{count} counters fell: engines restarted", "increases are taken between resets")]


def coverage(workspace: Workspace) -> list[Finding]:
    """Rows against the engines' own counters: another client on the same engines shows here."""
    out = []
    for instance, rows, counted in _rows(
        workspace,
        "WITH c AS (SELECT instance, sum(rise) AS counted, min(low) AS low, max(high) AS high FROM (SELECT instance, labels, "
        "max(value) - min(value) AS rise, min(ts_us) AS low, max(ts_us) AS high FROM metrics WHERE name = 'requests_finished_total' "
        "GROUP BY instance, labels) GROUP BY 1) SELECT c.instance, count(r.row_uid), any_value(c.counted) FROM c JOIN requests r "
        "ON r.instance = c.instance AND r.arrival_us + coalesce(r.e2e_us, 0) BETWEEN c.low AND c.high GROUP BY 1 HAVING any_value(counted) > 0",
    ):
        share = rows / counted
        if not 0.95 <= share <= 1.02:
            what = f"{instance}: {rows} rows where the engine counted {counted:.0f} requests ({share:.0%})"
            out.append(_finding("coverage", "error", abs(int(counted) - rows), what, "another client used the engine, or rows are missing"))
    return out


def clock_offset(workspace: Workspace) -> list[Finding]:
    """Gateway against engine: send before arrival and finish before finish bound the offset of their clocks."""
    out = []
    for other, low, high, n in _rows(
        workspace,
        "SELECT e.vantage, quantile_cont(g.arrival_us - e.arrival_us, 0.99), quantile_cont(g.arrival_us + g.e2e_us - e.arrival_us - "
        "e.e2e_us, 0.01), count(*) FROM requests g JOIN requests e ON coalesce(g.corr_id, g.request_id) = coalesce(e.corr_id, e.request_id) "
        "WHERE g.vantage IN ('gateway', 'client') AND e.vantage IN ('engine', 'router') AND g.time_base = 'unix' AND e.time_base = 'unix' "
        "AND g.e2e_us IS NOT NULL AND e.e2e_us IS NOT NULL GROUP BY 1 HAVING count(*) >= 10 ORDER BY 1",
    ):
        if low > high:
            what = f"{n} requests joined with the {other}: no one clock offset fits (drift, steps, or wrong pairs)"
            out.append(_finding("clock_offset", "error", n, what, "do not take times of both together"))
        elif low > 0 or high < 0:
            what = f"the {other}'s clock is {-high / 1e3:.1f} to {-low / 1e3:.1f} ms ahead of the gateway's ({n} requests)"
            out.append(_finding("clock_offset", "warn", n, what, "correct it before times of both are taken together"))
    return out


def repaired(workspace: Workspace) -> list[Finding]:
    out = []
    for path, rows, rejected, repairs in _rows(workspace, "SELECT path, rows, rejected, repaired FROM sources WHERE kind = 'log'"):
        if rows and rejected / rows > 0.01:
            what = f"{path}: {rejected} of {rows} records were rejected"
            out.append(_finding("rejects", "warn", rejected, what, "see table rejects: file, line, reason"))
        for rule, count in json.loads(repairs or "{}").items():
            level = "error" if rule == "cached_over_input" and count > 0.001 * max(rows, 1) else "warn"
            out.append(_finding(rule, level, count, f"{path}: {count} rows repaired by rule {rule}", "the fields were set to NULL"))
    return out


def unknown(workspace: Workspace) -> list[Finding]:
    out = []
    names = ("input_tokens", "output_tokens", "ttft_us", "e2e_us", "instance", "status")
    row = _rows(workspace, "SELECT count(*), " + ", ".join(f"count({name})" for name in names) + " FROM requests")[0]
    for name, count in zip(names, row[1:], strict=True):
        if 0 < count < row[0]:
            what = f"{name} is unknown in {row[0] - count} of {row[0]} rows"
            out.append(_finding(f"unknown_{name}", "info", row[0] - count, what, "they are left out where it is needed"))
    empty = _rows(workspace, "SELECT count(*) FROM requests WHERE output_tokens = 0 AND status = 'ok'")[0][0]
    if empty:
        out.append(_finding("empty_answers", "warn", empty, f"{empty} rows are ok with 0 output tokens", "often an aborted stream: see the log"))
    return out


CHECKS: tuple[Callable[[Workspace], list[Finding]], ...] = (
    attempts, clocks, quantised, definitions, duplicates, hidden_demand, closed_loop, gaps_in_metrics, counter_resets, coverage,
    clock_offset, repaired, unknown,
)  # fmt: skip
