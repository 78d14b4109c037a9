"""Studies that are killed, shared and spread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from tests.tune.synthetic import Doomed, Planted, toy_space
from tfanalyze.errors import ConfigError, WorkspaceError
from tfanalyze.tune.measure import Runner
from tfanalyze.tune.objective import parse_objective
from tfanalyze.tune.storage import _mend_tail, open_storage
from tfanalyze.tune.study import Found, Goal, SearchPlan, search

ROOT = Path(__file__).resolve().parents[2]
GOAL = Goal(parse_objective("goodput"))
WORK = """
import sys
from tests.tune.synthetic import Planted, toy_space
from tfanalyze.tune.measure import Runner
from tfanalyze.tune.objective import parse_objective
from tfanalyze.tune.study import Goal, SearchPlan, search
storage, trials, sleep_s, name, sampler = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
with Runner(Planted(0.3, noise=0.05, sleep_s=sleep_s), 2) as runner:
    found = search(toy_space(), Goal(parse_objective("goodput")), runner, SearchPlan(trials, sampler, storage=storage, name=name))
print(len(found.tried), max(t.values[0] for t in found.full))
"""


def start(storage: str, trials: int, sleep_s: float, name: str = "s", sampler: str = "tpe") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORK, storage, str(trials), str(sleep_s), name, sampler],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def here(storage: str | None, trials: int, name: str = "s", sampler: str = "tpe") -> Found:
    with Runner(Planted(0.3, noise=0.05), 2) as runner:
        return search(toy_space(), GOAL, runner, SearchPlan(trials, sampler, storage=storage, name=name))


def rows(found: Found) -> list[tuple[int, object, tuple[float, ...]]]:
    return [(t.number, t.policy, t.values) for t in found.tried]


def test_kill_9_loses_nothing_and_resume_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    child = start(str(path), 40, 0.05)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b'"values"') < 8):
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert child.returncode == -signal.SIGKILL
    resumed = here(str(path), 40)
    assert 4 <= resumed.resumed < 40  # enqueued trials write "values" too before they have any
    whole = here(None, 40)
    assert rows(resumed) == rows(whole)
    again = here(str(path), 40)
    assert again.resumed == 40
    assert rows(again) == rows(whole)


def test_half_a_line_at_the_end_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    here(str(path), 5)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code": 4, "tri')
    _mend_tail(path)
    assert path.read_bytes() == whole
    assert len(here(str(path), 8).tried) == 8


def test_a_study_in_use_says_by_whom(tmp_path: Path) -> None:
    path = str(tmp_path / "studies.journal")
    with open_storage(path), pytest.raises(WorkspaceError, match=f"in use by process {os.getpid()}"), open_storage(path):
        pass


def test_a_database_that_is_not_there_is_one_line() -> None:
    pytest.importorskip("psycopg", reason="needs the postgres extra")
    with pytest.raises(ConfigError, match="cannot be opened"), open_storage("postgresql://nobody@127.0.0.1:1/none"):
        pass


@pytest.fixture(scope="module")
def postgres() -> str:
    url = os.environ.get("TFANALYZE_TEST_POSTGRES", "")
    if not url:
        pytest.skip("no PostgreSQL: set TFANALYZE_TEST_POSTGRES=postgresql://user@host/database")
    pytest.importorskip("psycopg", reason="needs the postgres extra")
    return url


def test_processes_on_one_postgres_study_find_what_one_alone_finds(postgres: str) -> None:
    alone = here(None, 24)
    name = f"test-{uuid.uuid4().hex[:8]}"
    children = [start(postgres, 24, 0.01, name) for _ in range(2)]
    outputs = [child.communicate(timeout=180)[0].split() for child in children]
    assert all(child.returncode == 0 for child in children)
    assert all(int(count) == 24 for count, _ in outputs)
    best = max(t.values[0] for t in alone.full)
    assert all(abs(float(value) - best) < 1e-9 for _, value in outputs)


def test_the_trial_of_a_killed_worker_is_run_again(postgres: str) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    victim = start(postgres, 12, 30.0, name)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _running(postgres, name) < 2:
        time.sleep(0.2)
    victim.kill()
    victim.wait()
    found = here(postgres, 12, name)
    assert len(found.tried) == 12
    assert max(t.values[0] for t in found.full) > 0


def _running(url: str, name: str) -> int:
    import optuna

    with open_storage(url) as storage:
        try:
            study = optuna.load_study(study_name=name, storage=storage)
        except KeyError:
            return 0
        return sum(t.state == optuna.trial.TrialState.RUNNING for t in study.get_trials(deepcopy=False))


def test_a_local_ray_cluster_finds_what_one_process_finds() -> None:
    pytest.importorskip("ray", reason="needs the ray extra")
    from tfanalyze.tune.remote import RayRunner

    alone = here(None, 16)
    with RayRunner(Planted(0.3, noise=0.05), "local", 2) as runner:
        found = search(toy_space(), GOAL, runner, SearchPlan(16))
    assert rows(found) == rows(alone)


def test_the_trial_of_a_killed_ray_worker_is_run_again(tmp_path: Path) -> None:
    """kill -9 of the process that measures, on a real cluster: the trial runs in another, and nothing else changes."""
    pytest.importorskip("ray", reason="needs the ray extra")
    from tfanalyze.tune.remote import RayRunner

    alone = here(None, 16)
    killed: list[int] = []

    def executioner() -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not (tmp_path / "pid").exists():
            time.sleep(0.1)
        time.sleep(0.5)
        pid = int((tmp_path / "pid").read_text()) if (tmp_path / "pid").exists() else os.getpid()
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    thread = threading.Thread(target=executioner)
    thread.start()
    begin_s = time.monotonic()
    with RayRunner(Doomed(tmp_path), "local", 2) as runner:
        found = search(toy_space(), GOAL, runner, SearchPlan(16))
    thread.join()
    assert killed and time.monotonic() - begin_s < 100
    assert rows(found) == rows(alone)


def test_what_is_shared_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    """A reader such as optuna-dashboard opens the journal by Optuna's own backend, and sees what this process sees."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    path = tmp_path / "studies.journal"
    found = here(str(path), 12)
    study = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))))
    complete = [t for t in study.trials if t.state.is_finished()]
    assert [(t.number, tuple(t.values)) for t in complete] == [(t.number, t.values) for t in found.tried]
