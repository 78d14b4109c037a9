"""Trace-driven, offline analysis and policy tuning for LLM inference fleets.

    import tfanalyze as tf

The names below are the library; the commands of the same names only parse, call one of them and render.
They are resolved when first used, so that ``import tfanalyze`` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tfanalyze.config import Config as Config
    from tfanalyze.config import Fleet as Fleet
    from tfanalyze.config import Pool as Pool
    from tfanalyze.config import SloClass as SloClass
    from tfanalyze.config import load_config as load_config
    from tfanalyze.demo import demo as demo
    from tfanalyze.doctor import doctor as doctor
    from tfanalyze.errors import TfanalyzeError as TfanalyzeError
    from tfanalyze.explain import explain as explain
    from tfanalyze.export import export as export
    from tfanalyze.frames import outcome_frame as outcome_frame
    from tfanalyze.ingest.explain import explain_file as explain_file
    from tfanalyze.ingest.lint import lint as lint
    from tfanalyze.ingest.logs import ingest_logs as ingest_logs
    from tfanalyze.ingest.metrics import ingest_metrics as ingest_metrics
    from tfanalyze.inspect import inspect as inspect
    from tfanalyze.models.fitting import fit as fit
    from tfanalyze.models.profile import Profile as Profile
    from tfanalyze.models.profile import load_profile as load_profile
    from tfanalyze.models.validating import validate as validate
    from tfanalyze.plan import plan as plan
    from tfanalyze.replay import Options as Options
    from tfanalyze.replay import Outcome as Outcome
    from tfanalyze.replay import Simulator as Simulator
    from tfanalyze.replay import replay as replay
    from tfanalyze.replay.policies import load_policy as load_policy
    from tfanalyze.report import report as report
    from tfanalyze.runs import compare as compare
    from tfanalyze.runs import replay_run as replay_run
    from tfanalyze.slo import attained as attained
    from tfanalyze.slo import summarise as summarise
    from tfanalyze.sql import run_sql as run_sql
    from tfanalyze.synth import synth as synth
    from tfanalyze.trace import Trace as Trace
    from tfanalyze.trace import load_trace as load_trace
    from tfanalyze.trace import read_trace as read_trace
    from tfanalyze.tune import tune as tune
    from tfanalyze.workspace import Workspace as Workspace

# name -> the module that defines it
_HOME = {
    "Config": "config", "Fleet": "config", "Options": "replay", "Outcome": "replay", "Pool": "config",
    "Profile": "models.profile", "Simulator": "replay", "SloClass": "config", "TfanalyzeError": "errors",
    "Trace": "trace", "Workspace": "workspace", "attained": "slo", "compare": "runs", "demo": "demo",
    "doctor": "doctor", "explain": "explain", "explain_file": "ingest.explain", "export": "export", "fit": "models.fitting",
    "ingest_logs": "ingest.logs", "ingest_metrics": "ingest.metrics", "inspect": "inspect", "lint": "ingest.lint",
    "load_config": "config", "load_policy": "replay.policies", "load_profile": "models.profile", "load_trace": "trace",
    "outcome_frame": "frames", "plan": "plan", "read_trace": "trace", "replay": "replay", "replay_run": "runs",
    "report": "report", "run_sql": "sql", "summarise": "slo", "synth": "synth", "tune": "tune", "validate": "models.validating",
}  # fmt: skip

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tfanalyze' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tfanalyze.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


class _Verb(ModuleType):
    """A module that may be called: ``tf.replay(...)`` is ``tfanalyze.replay.replay(...)``.

    A verb and the module that holds it have one name (replay, tune, report, ...), and the import system
    would hide the function behind the module as soon as anyone imports it.
    """

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **options)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and type(value) is ModuleType and name in _HOME:
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
