"""SLO class of requests whose log names none, by the class rules of tfanalyze.toml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from tfanalyze.config import ClassRule


def classifier(rules: Sequence[ClassRule]) -> Callable[[dict[str, Any]], Any] | None:
    """A function for ``load_trace(classify=...)``: columns by name, shape (n,) -> class names, None where no rule holds."""
    if not rules:
        return None

    def classify(columns: dict[str, Any]) -> Any:
        named = np.full(len(columns["input_tokens"]), None, object)
        for rule in reversed(rules):  # the first rule is written last, so it wins
            named[_holds(rule, columns)] = rule.slo_class
        return named

    return classify


def _holds(rule: ClassRule, columns: dict[str, Any]) -> Any:
    inputs = np.asarray(columns["input_tokens"], np.float64)
    holds = inputs >= rule.min_input_tokens
    if rule.max_input_tokens:
        holds &= inputs <= rule.max_input_tokens
    if rule.min_max_tokens:
        holds &= np.nan_to_num(np.asarray(columns["max_tokens"], np.float64), nan=-1.0) >= rule.min_max_tokens
    if rule.has_deadline:
        holds &= ~np.isnan(np.asarray(columns["deadline_s"], np.float64))
    for name in ("tenant", "model"):
        pattern = getattr(rule, name)
        if pattern:
            values = columns[name]
            found = {v: v is not None and fnmatchcase(str(v), pattern) for v in set(values.tolist())}
            holds &= np.array([found[v] for v in values.tolist()], np.bool_)
    return holds
