"""Evaluations on a Ray cluster: the trace goes to each machine once, trials as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from tfanalyze.errors import ConfigError
from tfanalyze.tune.measure import Evaluator, Job, Measured, evaluate

RETRIES = 3  # of a trial whose worker was killed


class RayRunner:
    """The same as Runner, on a Ray cluster. ``address``: "local" starts one here, else as ``ray.init`` takes it."""

    def __init__(self, evaluator: Evaluator, address: str, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError("ray is not installed", "tune --ray", "pip install 'tfanalyze[ray]'") from None
        self._ray, self._own = ray, not ray.is_initialized()
        if self._own:
            local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
            try:
                ray.init(address=None if address == "local" else address, log_to_driver=False, configure_logging=False, **local)
            except (ConnectionError, ValueError) as problem:
                raise ConfigError(f"no Ray cluster at {address} ({problem})", "tune --ray", "start one, or use --ray local") from None
        resources: Any = ray.cluster_resources
        self.workers = workers or max(1, int(resources().get("CPU", 1)))
        self._evaluator = ray.put(evaluator)
        self._task = ray.remote(_work).options(max_retries=RETRIES, num_cpus=1)

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """``fn(evaluator, *args)`` on a machine of the cluster; again on another when that one dies."""
        future: Future[Any] = self._task.remote(self._evaluator, fn, *args).future()
        return future

    def run(self, jobs: Iterable[Job], sizes: tuple[int, ...] = ()) -> list[Measured]:
        futures = [self.submit(evaluate, policy, scenario, sizes) for policy, scenario in jobs]
        return [future.result() for future in futures]

    def close(self) -> None:
        if self._own:
            self._ray.shutdown()

    def __enter__(self) -> RayRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_KEPT: dict[str, Any] = {}  # one evaluator a worker process: its simulators stay prepared between trials


def _work(evaluator: Any, fn: Callable[..., Any], *args: Any) -> Any:
    key = getattr(evaluator, "key", None) or repr(type(evaluator))
    kept = _KEPT.setdefault(key, evaluator)
    return fn(kept, *args)
