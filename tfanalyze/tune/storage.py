"""Where a study lives: memory, a journal file (survives kill -9), or a database that many machines share."""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tfanalyze.errors import ConfigError, WorkspaceError

if TYPE_CHECKING:
    import optuna

Direction = Literal["maximize", "minimize"]
DEFAULT_STORAGE = "tfanalyze-studies.journal"  # the command's default; the library's is memory
HEARTBEAT_S = 5  # a worker that shares a study says this often that it lives
SYNC_S = 5.0
GRACE_S = 20  # and its trial is given to another when it was silent so long


def is_shared(storage: str | None) -> bool:
    """Whether other processes may work on the same study."""
    return storage is not None and "://" in storage


@contextmanager
def open_storage(storage: str | None) -> Iterator[Any]:
    """An Optuna storage. None: memory. A path: a journal file, locked while it is in use. A URL: a database.

    Errors: WorkspaceError when another process has the journal, ConfigError when the database cannot be reached.
    """
    if storage is None:
        import optuna

        yield optuna.storages.InMemoryStorage()
    elif is_shared(storage):
        yield _database(storage)
    else:
        with _journal(Path(storage)) as found:
            yield found


def create_study(storage: Any, name: str, directions: Sequence[Direction], sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """The study of this name, made if it is not there."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=storage, study_name=name, directions=directions, sampler=sampler, load_if_exists=True
    )
    if [d.name.lower() for d in study.directions] != list(directions):
        raise ConfigError(f"study '{name}' has other objectives", "tune --study-name", "choose another name")
    return study


def _database(url: str) -> Any:
    with warnings.catch_warnings():
        for wait_s in (0.5, 1.0, 2.0):  # processes that start at once may all try to make the tables
            try:
                return _opened(url)
            except ConfigError as problem:
                if "exists" not in problem.what and "duplicate" not in problem.what:
                    raise
                time.sleep(wait_s)
        return _opened(url)


def _opened(url: str) -> Any:
    import optuna

    if url.startswith("postgresql://"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    retry = getattr(optuna.storages, "RetryHeartbeatStaleTrialCallback", None) or optuna.storages.RetryFailedTrialCallback
    known = inspect.signature(optuna.storages.RDBStorage.__init__).parameters
    named = "heartbeat_stale_trial_callback" if "heartbeat_stale_trial_callback" in known else "failed_trial_callback"
    options: dict[str, Any] = {named: retry(max_retry=3), "heartbeat_interval": HEARTBEAT_S, "grace_period": GRACE_S}
    where = f"storage {url.split('@')[-1]}"
    try:
        return optuna.storages.RDBStorage(url, **options)
    except ImportError as problem:
        raise ConfigError(f"a driver is missing ({problem})", where, "pip install 'tfanalyze[postgres]'") from None
    except Exception as problem:
        if type(problem).__module__.split(".")[0] not in ("sqlalchemy", "psycopg"):
            raise
        line = str(problem).strip().splitlines()[0]
        raise ConfigError(f"cannot be opened: {line}", where, "check that the server runs and the URL") from None


class _Appending:
    """Optuna's journal file, without a disk sync at every parameter: what is written survives the process that wrote it.

    Nor is it read back at every step: the file is locked, so what is in it was there at the start or was written here.
    """

    def __new__(cls, path: str) -> Any:
        import json

        from optuna.storages.journal import JournalFileBackend

        class Backend(JournalFileBackend):
            def __init__(self) -> None:
                super().__init__(path, lock_obj=_NoLock())  # type: ignore[arg-type]
                self._lines = Path(path).read_bytes().splitlines()
                self._tail = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open as long as the study
                self._synced_s = 0.0

            def append_logs(self, logs: list[dict[str, Any]]) -> None:
                lines = [json.dumps(log, separators=(",", ":")).encode() for log in logs]
                self._tail.write(b"".join(line + b"\n" for line in lines))
                self._lines += lines
                now_s = time.monotonic()
                if now_s - self._synced_s > SYNC_S:  # a power cut may lose the last seconds, a kill nothing
                    os.fsync(self._tail.fileno())
                    self._synced_s = now_s

            def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
                yield from map(json.loads, self._lines[log_number_from:])

        return Backend()


class _NoLock:
    """The journal is locked as a whole, by flock, which the system lets go when a process is killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


@contextmanager
def _journal(path: Path) -> Iterator[Any]:
    import fcntl

    from optuna.storages import JournalStorage

    path.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{path}.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise WorkspaceError(f"in use by process {holder}", str(path), "wait for it, or give another --storage") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        _mend_tail(path)
        yield JournalStorage(_Appending(str(path)))


def _mend_tail(path: Path) -> None:
    """Drop a last line that a killed process left half-written: what came before it is whole."""
    if not path.exists():
        return
    with path.open("rb+") as f:
        text = f.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            f.truncate(whole)
