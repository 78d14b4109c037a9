"""doctor: versions, cores, workspace health, and what is missing to fit or tune."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tfanalyze.config import Config, load_config
from tfanalyze.errors import TfanalyzeError, WorkspaceError

NEEDED = ("polars", "duckdb", "numpy", "scipy", "numba", "optuna", "typer", "rich", "plotly")
OPTIONAL = {"ray": "tune --ray", "psycopg": "tune --storage postgresql://", "cmaes": "the CMA-ES sampler"}
LEAST_TIMED = 20  # timed requests a pool that fit wants


def doctor(db: str | Path = "tfanalyze.duckdb", *, config: Config | str | Path | None = None) -> dict[str, Any]:
    """Look at this machine and a workspace; every check is {"name", "ok", "found", "mend"}; ok None = does not matter.

    Returns the JSON shape tfanalyze.doctor/1; ``ok`` is False if any check fails.
    """
    checks = [*_machine(), *_packages(), *_config(config), *_workspace(db)]
    return {"schema": "tfanalyze.doctor/1", "ok": all(c["ok"] is not False for c in checks), "checks": checks}


def _check(name: str, ok: bool | None, found: str, mend: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "found": found, "mend": mend}


def _machine() -> list[dict[str, Any]]:
    from tfanalyze import __version__

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    good = sys.version_info >= (3, 11)
    return [
        _check("tfanalyze", None, __version__),
        _check("python", good, platform.python_version(), "" if good else "use Python 3.11 or newer"),
        _check("cores", None, str(cores)),
        _check("memory", None, _memory()),
        _check("disk", free > 1.0, f"{free:.0f} GB free", "" if free > 1.0 else "make room: ingest needs it"),
        _compiled(),
    ]


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{total / 2**30:.0f} GiB"


def _compiled() -> dict[str, Any]:
    from tfanalyze.runs import core_compiled

    return _check("replay core", None, "compiled" if core_compiled() else "not compiled yet: the first replay takes some seconds longer")


def _packages() -> list[dict[str, Any]]:
    checks = []
    for name in NEEDED:
        found = _version(name)
        checks.append(_check(name, found is not None, found or "missing", "" if found else f"pip install {name}"))
    for name, use in OPTIONAL.items():
        found = _version(name)
        checks.append(_check(name, None, found or f"not installed (only {use} needs it)"))
    return checks


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _config(config: Config | str | Path | None) -> list[dict[str, Any]]:
    try:
        cfg = config if isinstance(config, Config) else load_config(config)
    except TfanalyzeError as error:
        return [_check("config", False, str(error), "see docs/config.md")]
    fleet = f", {cfg.fleet.n_instances} instances" if cfg.fleet else ""
    return [_check("config", True, f"{cfg.path or 'none, defaults'}: {len(cfg.classes)} SLO classes{fleet}")]


def _workspace(db: str | Path) -> list[dict[str, Any]]:
    from tfanalyze.workspace import Workspace

    if not Path(db).exists():
        return [_check("workspace", None, f"{db}: not there yet", "tfanalyze ingest logs PATH")]
    try:
        with Workspace.open(db, read_only=True) as workspace:
            return _contents(workspace, str(db))
    except WorkspaceError as error:
        return [_check("workspace", False, str(error))]


def _contents(workspace: Any, db: str) -> list[dict[str, Any]]:
    con = workspace.con
    row = con.execute(
        "SELECT count(*), count(ttft_us), count(e2e_us), count(instance), count(blocks), count(DISTINCT instance) FROM requests"
    ).fetchone()
    requests, ttft, e2e, named, blocks, instances = (int(v) for v in row)
    rejected, metrics = workspace.count("rejects"), workspace.count("metrics")
    size = Path(db).stat().st_size / 1e6
    checks = [_check("workspace", requests > 0, f"{db}: {requests} requests, {metrics} metric samples, {rejected} rejected, {size:.1f} MB",
                     "" if requests else "tfanalyze ingest logs PATH")]  # fmt: skip
    if not requests:
        return checks
    timed = min(ttft, e2e)
    enough = timed >= LEAST_TIMED * max(instances, 1)
    checks.append(_check("to fit", enough or None, f"{timed} of {requests} requests have TTFT and E2E, {instances} instances",
                         "" if enough else "ingest a log with timings, or replay with --profile NAME"))  # fmt: skip
    checks.append(_check("recorded routing", None, f"{named} of {requests} requests name their instance" + ("" if named else ": validate and the recorded baseline need it")))
    checks.append(_check("prefix blocks", None, f"{blocks} of {requests} requests have them" + ("" if blocks else ": prefix hits cannot be replayed")))
    checks.append(_check("metrics", None, f"{metrics} samples" if metrics else "none: tfanalyze ingest metrics PATH improves the KV facts"))
    fitted = bool(workspace.list_json("fit"))
    checks.append(_check("to tune", None, "a profile was fitted" if fitted else "no profile fitted: tfanalyze fit, else a shipped one is taken"))
    return checks
