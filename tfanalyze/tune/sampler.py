"""Samplers whose proposal for trial k depends on the seed, k, and trials up to k - DEPTH alone.

So any number of workers, threads or machines proposes the same trials, and a study that was killed and
resumed goes on exactly as it would have.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from tfanalyze.errors import ConfigError

if TYPE_CHECKING:
    import optuna

DEPTH = 8  # trials that may be in flight at once; at least the workers of one machine
CANDIDATES = 12  # points that TPE weighs for each proposal: half of its default costs half and finds the same here
HISTORY = 100  # past trials that TPE models, half of them the best and half the latest: its cost grows with their number
SAMPLERS = ("tpe", "gp", "cmaes", "random")


def make_inner(name: str, seed: int, startup: int, grouped: bool) -> optuna.samplers.BaseSampler:
    """One of Optuna's samplers; ``startup`` trials are random first.

    ``grouped``: parameters exist only where their policy was chosen, so TPE models each group by itself.
    """
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if name == "tpe":
            return optuna.samplers.TPESampler(
                seed=seed, multivariate=True, group=grouped, n_startup_trials=startup, n_ei_candidates=CANDIDATES
            )
        if name == "gp":
            from importlib.util import find_spec

            if find_spec("torch") is None:  # Optuna would say so only after the random trials
                raise ConfigError("the sampler gp needs PyTorch, which is not installed", "tune", "pip install 'tfanalyze[gp]' (several GB), or use tpe")
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
        if name == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
    raise ConfigError(f"no sampler '{name}'", "tune", f"use one of {', '.join(SAMPLERS)}")


def seed_of(seed: int, number: int) -> int:
    """A seed for one trial (splitmix64's finisher over both numbers), below 2^32."""
    z = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (z ^ (z >> 31)) & (2**32 - 1)


class _PastStudy:
    """A study as trial ``number`` may see it: trials up to ``number - depth``, of many only ``most``."""

    def __init__(self, study: optuna.Study, upto: int, most: int | None) -> None:
        self._study, self._upto, self._most = study, upto, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def _get_trials(self, deepcopy: bool = True, states: Container[Any] | None = None, use_cache: bool = False) -> list[Any]:
        found = self._study._get_trials(deepcopy=deepcopy, states=states, use_cache=use_cache)
        return self._kept([trial for trial in found if trial.number <= self._upto])

    def _kept(self, trials: list[Any]) -> list[Any]:
        if self._most is None or len(trials) <= self._most or len(self._study.directions) > 1:
            return trials
        sign = -1.0 if self._study.direction.name == "MAXIMIZE" else 1.0
        half = self._most // 2
        older = [t for t in trials[: -half] if t.values]  # those that the short look ended have none
        best = sorted(older, key=lambda t: (sign * t.values[0], t.number))[:half]
        return sorted(best, key=lambda t: t.number) + trials[-half:]

    def get_trials(self, deepcopy: bool = True, states: Container[Any] | None = None) -> list[Any]:
        return self._get_trials(deepcopy, states)

    @property
    def trials(self) -> list[Any]:
        return self._get_trials()


def numbered_sampler(
    name: str,
    seed: int,
    *,
    startup: int = 10,
    depth: int = DEPTH,
    distributions: dict[str, Any] | None = None,
) -> optuna.samplers.BaseSampler:
    """The named sampler, made anew for each trial from (seed, trial number) and shown only the past.

    ``distributions``: those of every parameter, where all trials have the same; None = found from past trials.
    """
    import optuna

    class Numbered(optuna.samplers.BaseSampler):
        def __init__(self) -> None:
            self._number, self._inner = -1, make_inner(name, seed, startup, distributions is None)

        def _of(self, trial: optuna.trial.FrozenTrial) -> optuna.samplers.BaseSampler:
            if trial.number != self._number:
                self._number, self._inner = trial.number, make_inner(
                    name, seed_of(seed, trial.number), startup, distributions is None
                )
            return self._inner

        def _past(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> Any:
            return _PastStudy(study, trial.number - depth, HISTORY if name == "tpe" else None)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            if distributions is not None and name in ("tpe", "gp", "random"):
                return distributions if trial.number >= startup + depth and name != "random" else {}
            return self._of(trial).infer_relative_search_space(self._past(study, trial), trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._of(trial).sample_relative(self._past(study, trial), trial, search_space)

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return self._of(trial).sample_independent(self._past(study, trial), trial, param_name, param_distribution)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Sequence[float] | None) -> None:
            """Nothing: none of these samplers keeps anything but what the study holds, and there are no constraint functions."""

        def reseed_rng(self) -> None:
            """Seeds come from trial numbers."""

    return Numbered()


