"""The search space: parameter declarations of policies -> suggestions, pins, bounds, shares, distances."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from tfanalyze.errors import ConfigError, PolicyError
from tfanalyze.replay.policies import PolicySet

KINDS = ("instance", "site", "admit")
DIGITS = 4  # a knob is searched to four digits: what a person would write, and equal settings are found equal
Value = float | str


class Suggest(Protocol):
    """What a search gives: an Optuna trial, or anything that keeps these two methods."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_categorical(self, name: str, choices: Sequence[str]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Knob:
    """One parameter that the search may move. ``name`` is ``policy.field``, as on the command line."""

    name: str
    kind: str
    policy: str
    field: str
    unit: str
    low: float
    high: float
    default: float
    log: bool = False
    integer: bool = False
    choices: tuple[str, ...] = ()
    simplex: str = ""
    doc: str = ""

    def canonical(self, value: float) -> float:
        """Inside the bounds and rounded to what a person would write."""
        value = min(max(float(value), self.low), self.high)
        if self.integer or self.choices:
            return float(round(value))
        return float(f"{value:.{DIGITS}g}") if value else 0.0

    def distance(self, a: float, b: float) -> float:
        """How far two values are, 0..1 of the range."""
        if self.choices:
            return float(a != b)
        if self.log and min(a, b) > 0:
            return abs(math.log(a / b)) / max(math.log(self.high / self.low), 1e-12)
        return abs(a - b) / max(self.high - self.low, 1e-12)

    def show(self, value: float) -> Value:
        return self.choices[int(value)] if self.choices else (int(value) if self.integer else value)


@dataclass(frozen=True)
class Space:
    """What is searched. ``alternatives[kind]`` are the policies to choose from, with pins applied."""

    alternatives: Mapping[str, tuple[Any, ...]]
    knobs: tuple[Knob, ...]
    reference: PolicySet  # what runs now where it can be said in this space, else the defaults

    def suggest(self, trial: Suggest) -> PolicySet:
        """A policy from a trial; a parameter of a policy that was not chosen is not asked for."""
        parts = {}
        for kind in KINDS:
            options = self.alternatives[kind]
            names = [type(p).name for p in options]
            chosen = trial.suggest_categorical(kind, names) if len(options) > 1 else names[0]
            part = options[names.index(chosen)]
            parts[kind] = replace(part, **self._values(part, trial)) if self._knobs(part) else part
        return PolicySet(**parts)

    def _values(self, part: Any, trial: Suggest) -> dict[str, float]:
        values: dict[str, float] = {}
        for knob in self._knobs(part):
            if knob.simplex:
                continue
            if knob.choices:
                span = knob.choices[int(knob.low) : int(knob.high) + 1]
                got: float = knob.choices.index(trial.suggest_categorical(knob.name, span))
            else:
                got = trial.suggest_float(knob.name, knob.low, knob.high, log=knob.log)
            values[knob.field] = knob.canonical(got)
        for name in self._groups(part):
            members = self._members(part, name)
            sticks = [trial.suggest_float(f"{type(part).name}.{name}~{i}", 0.0, 1.0) for i in range(len(members) - 1)]
            shares = shares_of(sticks, members, self._share_left(part, name))
            values |= {k.field: float(f"{v:.{DIGITS}g}") for k, v in zip(members, shares, strict=True)}
        return values

    @property
    def conditional(self) -> bool:
        """Whether some knobs exist only in some trials."""
        return any(len(options) > 1 for options in self.alternatives.values())

    def only(self, names: Sequence[str]) -> Space:
        """The space with these knobs alone; the others stay as the reference has them."""
        return replace(self, knobs=tuple(k for k in self.knobs if k.name in names))

    def params_of(self, policy: PolicySet) -> dict[str, Any]:
        """The suggestions that give ``policy``: what is enqueued. {} if it is not in this space."""
        params: dict[str, Any] = {}
        for kind in KINDS:
            part = getattr(policy, kind)
            options = self.alternatives[kind]
            mine = next((p for p in options if type(p) is type(part)), None)
            if mine is None:
                return {}
            if len(options) > 1:
                params[kind] = type(part).name
            for knob in self._knobs(part):
                if not knob.simplex:
                    value = min(max(getattr(part, knob.field), knob.low), knob.high)
                    params[knob.name] = knob.choices[int(value)] if knob.choices else value
            for name in self._groups(part):
                members = self._members(part, name)
                sticks = sticks_of([getattr(part, k.field) for k in members], members, self._share_left(part, name))
                params |= {f"{type(part).name}.{name}~{i}": u for i, u in enumerate(sticks)}
        return params

    def holds(self, policy: PolicySet) -> bool:
        """Whether a policy can be said here: its policies are among the alternatives."""
        return all(any(type(p) is type(getattr(policy, kind)) for p in self.alternatives[kind]) for kind in KINDS)

    def values_of(self, policy: PolicySet) -> dict[str, float]:
        """Knob values of a policy, by knob name; of the policies it uses only."""
        return {k.name: float(getattr(getattr(policy, k.kind), k.field)) for k in self.used(policy)}

    def used(self, policy: PolicySet) -> tuple[Knob, ...]:
        """The knobs that belong to the policies of this set."""
        return tuple(k for k in self.knobs if type(getattr(policy, k.kind)).name == k.policy)

    def moved(self, policy: PolicySet, values: Mapping[str, float]) -> PolicySet:
        """``policy`` with some knobs set; shares of one simplex are the caller's to keep at a sum of one."""
        for knob in self.used(policy):
            if knob.name in values:
                part = replace(getattr(policy, knob.kind), **{knob.field: values[knob.name]})
                policy = replace(policy, **{knob.kind: part})
        return policy

    def distance(self, a: PolicySet, b: PolicySet) -> float:
        """Root of the summed squares of the knobs' distances; another policy counts as one whole range."""
        total = float(sum(type(getattr(a, k)) is not type(getattr(b, k)) for k in KINDS))
        mine, other = self.values_of(a), self.values_of(b)
        total += sum(k.distance(mine[k.name], other[k.name]) ** 2 for k in self.knobs if k.name in mine and k.name in other)
        return math.sqrt(total)

    def group_name(self, group: Sequence[Knob]) -> str:
        return f"{group[0].policy}.{group[0].simplex} shares" if group[0].simplex else group[0].name

    def groups(self, policy: PolicySet) -> list[tuple[Knob, ...]]:
        """Knobs that can be moved by themselves: single ones, and each simplex as one."""
        single = [(k,) for k in self.used(policy) if not k.simplex]
        parts = [getattr(policy, kind) for kind in KINDS]
        return single + [tuple(self._members(part, name)) for part in parts for name in self._groups(part)]

    def _knobs(self, part: Any) -> list[Knob]:
        return [k for k in self.knobs if k.policy == type(part).name]

    def _groups(self, part: Any) -> list[str]:
        return sorted({k.simplex for k in self._knobs(part) if k.simplex})

    def _members(self, part: Any, name: str) -> list[Knob]:
        return [k for k in self._knobs(part) if k.simplex == name]

    def _share_left(self, part: Any, name: str) -> float:
        """What pinned shares leave to the others of their simplex."""
        free = {k.field for k in self._members(part, name)}
        mine = next(p for kind in KINDS for p in self.alternatives[kind] if type(p) is type(part))
        pinned = [f.name for f in fields(mine) if f.metadata.get("simplex") == name and f.name not in free]
        return 1.0 - float(sum(getattr(mine, field) for field in pinned))


def shares_of(sticks: Sequence[float], members: Sequence[Knob], total: float) -> list[float]:
    """Shares that sum to ``total`` from k-1 numbers in 0..1, inside every member's bounds.

    Even numbers give even coverage of the simplex (stick breaking with 1-(1-u)^(1/(k-i)), Devroye 1986, XI.4).
    """
    k = len(members)
    rest = total - sum(m.low for m in members)
    shares, left = [], 1.0
    for i, u in enumerate(sticks):
        taken = left * (1.0 - (1.0 - min(max(u, 0.0), 1.0)) ** (1.0 / (k - 1 - i)))
        shares.append(taken)
        left -= taken
    shares.append(left)
    values = [m.low + rest * s for m, s in zip(members, shares, strict=True)]
    for _ in range(k):  # what is above a bound goes to those with room
        over = sum(max(0.0, v - m.high) for v, m in zip(values, members, strict=True))
        if over <= 1e-12:
            break
        values = [min(v, m.high) for v, m in zip(values, members, strict=True)]
        room = [m.high - v for v, m in zip(values, members, strict=True)]
        values = [v + over * r / max(sum(room), 1e-12) for v, r in zip(values, room, strict=True)]
    return values


def sticks_of(values: Sequence[float], members: Sequence[Knob], total: float) -> list[float]:
    """The inverse of ``shares_of`` for values inside the bounds; values that do not sum to ``total`` are scaled."""
    k = len(members)
    size = sum(values) or 1.0
    rest = max(total - sum(m.low for m in members), 1e-12)
    shares = [max(v * total / size - m.low, 0.0) / rest for v, m in zip(values, members, strict=True)]
    sticks, left = [], 1.0
    for i, share in enumerate(shares[:-1]):
        part = min(max(share / left, 0.0), 1.0) if left > 1e-12 else 0.0
        sticks.append(1.0 - (1.0 - part) ** (k - 1 - i))
        left -= share
    return sticks


def make_space(
    policy: str,
    *,
    present: PolicySet | None = None,
    pin: Mapping[str, Value] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    settings: Mapping[str, Value] | None = None,
) -> Space:
    """The space of ``policy``: names joined by ``+``, alternatives of one hook by ``|`` (``tokenpilot|lmetric+slomax``).

    ``settings``: values that stay what they are unless they are knobs, then the start.  ``pin``: not searched,
    fixed to this value.  ``bounds``: searched between these, also where a policy says "do not search".
    Errors: PolicyError for an unknown name, ConfigError for a bound outside the declared range.
    """
    pin, bounds = dict(pin or {}), dict(bounds or {})
    found = _alternatives(policy, settings or {})
    declared = {f"{type(p).name}.{f.name}": f for parts in found.values() for p in parts for f in _fields(p)}
    for name in (*pin, *bounds):
        if name not in declared:
            near = difflib.get_close_matches(name, declared, 1)
            raise PolicyError(f"no parameter '{name}' in {policy}", "tune", f"did you mean {near[0]}?" if near else "see docs/policies.md")
        if name in pin and name in bounds:
            raise ConfigError(f"'{name}' is both pinned and bounded", "tune", "give one of the two")
    if present is not None:
        found = {kind: tuple(_present(p, getattr(present, kind)) for p in parts) for kind, parts in found.items()}
    found = {kind: tuple(_pinned(p, pin) for p in parts) for kind, parts in found.items()}
    knobs = tuple(
        _knob(kind, p, f, bounds.get(f"{type(p).name}.{f.name}"))
        for kind in KINDS
        for p in found[kind]
        for f in _fields(p)
        if f"{type(p).name}.{f.name}" not in pin and (f.metadata["tune"] or f"{type(p).name}.{f.name}" in bounds)
    )
    knobs = _without_lone_shares(knobs)
    parts = {kind: _first_choice(found[kind], getattr(present, kind) if present else None) for kind in KINDS}
    return Space(found, knobs, PolicySet(**parts))


def _alternatives(policy: str, settings: Mapping[str, Value]) -> dict[str, tuple[Any, ...]]:
    """Policies for each hook; the trivial default where none is named."""
    from tfanalyze.replay.policies import load_policy

    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for word in policy.replace("|", "+").split("+"):
        name = word.strip()
        mine = {k: v for k, v in settings.items() if k.split(".", 1)[0] == name}
        one = load_policy(name, mine)
        for kind in KINDS:
            part = getattr(one, kind)
            if type(part).name == name or (not type(part).trivial and ":" in name):
                found[kind].append(part)
    usual = load_policy(policy.split("+")[0].split("|")[0].strip(), {})
    return {kind: tuple(parts) or (getattr(usual, kind),) for kind, parts in found.items()}


def _fields(part: Any) -> list[Any]:
    return [f for f in fields(part) if "low" in f.metadata]


def _present(part: Any, now: Any) -> Any:
    return now if type(now) is type(part) else part


def _first_choice(parts: tuple[Any, ...], now: Any) -> Any:
    return next((p for p in parts if type(p) is type(now)), parts[0])


def _pinned(part: Any, pin: Mapping[str, Value]) -> Any:
    values = {}
    for f in _fields(part):
        name = f"{type(part).name}.{f.name}"
        if name in pin:
            values[f.name] = _number(name, pin[name], f.metadata)
    return replace(part, **values) if values else part


def _number(name: str, value: Value, meta: Mapping[str, Any]) -> float:
    """A setting as the number the policy takes; a choice may be given by name."""
    if isinstance(value, str) and meta["choices"]:
        if value not in meta["choices"]:
            raise ConfigError(f"{name} is '{value}'", "tune", f"use one of {', '.join(meta['choices'])}")
        return float(meta["choices"].index(value))
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"{name} is '{value}'", "tune", "give a number") from None
    if not meta["low"] <= number <= meta["high"]:
        raise ConfigError(f"{name} is {number:g}", "tune", f"allowed are {meta['low']:g} to {meta['high']:g}")
    return number


def _knob(kind: str, part: Any, f: Any, bound: tuple[float, float] | None) -> Knob:
    meta, name = f.metadata, f"{type(part).name}.{f.name}"
    low, high = (0.0, float(len(meta["choices"]) - 1)) if meta["choices"] else (meta["low"], meta["high"])
    if bound is not None:
        if not low <= bound[0] < bound[1] <= high:
            raise ConfigError(f"{name} is bounded to {bound[0]:g}..{bound[1]:g}", "tune", f"it must lie inside {low:g}..{high:g}")
        low, high = float(bound[0]), float(bound[1])
    if not (math.isfinite(low) and math.isfinite(high)):
        raise PolicyError(f"{name} has no finite range to search", "tune", f"give one: --bound {name}=LOW:HIGH, or pin it")
    return Knob(
        name, kind, type(part).name, f.name, meta["unit"], low, high, float(getattr(part, f.name)),
        meta["log"] and low > 0, meta["integer"], tuple(meta["choices"]), meta["simplex"], meta["doc"],
    )  # fmt: skip


def _without_lone_shares(knobs: tuple[Knob, ...]) -> tuple[Knob, ...]:
    """A simplex of which all but one are pinned leaves nothing to search."""
    count: dict[tuple[str, str], int] = {}
    for k in knobs:
        count[k.policy, k.simplex] = count.get((k.policy, k.simplex), 0) + 1
    return tuple(k for k in knobs if not k.simplex or count[k.policy, k.simplex] > 1)
