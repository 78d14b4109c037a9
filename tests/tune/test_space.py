"""Pins, bounds, shares, choices: what is searched and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfanalyze.errors import ConfigError, PolicyError
from tfanalyze.replay.policies import load_policy
from tfanalyze.tune.select import Draw, neighbours
from tfanalyze.tune.space import Knob, make_space, shares_of, sticks_of
from tfanalyze.tune.study import defaults_of, policy_of


def share(name: str, low: float = 0.0, high: float = 1.0) -> Knob:
    return Knob(name, "admit", "p", name, "share", low, high, 0.3, simplex="quota")


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5), st.floats(0.0, 0.15), st.floats(0.5, 1.0), st.floats(0.9, 1.0)
)
@settings(max_examples=200, deadline=None)
def test_shares_sum_to_what_is_left_and_keep_their_bounds(
    sticks: list[float], low: float, high: float, total: float
) -> None:
    members = [share(str(i), low, high) for i in range(len(sticks) + 1)]
    shares = shares_of(sticks, members, total)
    assert sum(shares) == pytest.approx(total)
    assert all(low - 1e-9 <= s <= high + 1e-9 for s in shares)


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5))
@settings(max_examples=200, deadline=None)
def test_sticks_are_the_inverse_of_shares(raw: list[float]) -> None:
    values = [v / sum(raw) for v in raw]
    members = [share(str(i)) for i in range(len(values))]
    assert shares_of(sticks_of(values, members, 1.0), members, 1.0) == pytest.approx(values, abs=1e-9)


def test_even_sticks_cover_the_simplex_evenly() -> None:
    rng = np.random.default_rng(1)
    members = [share(str(i)) for i in range(3)]
    drawn = np.array([shares_of(list(rng.random(2)), members, 1.0) for _ in range(4000)])
    assert drawn.mean(axis=0) == pytest.approx([1 / 3] * 3, abs=0.02)
    assert drawn.std(axis=0) == pytest.approx([np.sqrt(1 / 18)] * 3, abs=0.02)  # of Dirichlet(1, 1, 1)


def test_what_is_enqueued_comes_back_the_same() -> None:
    space = make_space("tokenpilot+slomax")
    rng = np.random.default_rng(3)
    for policy in (space.reference, defaults_of(space), *(space.suggest(Draw(rng)) for _ in range(20))):
        again = policy_of(space, space.params_of(policy))
        assert again is not None
        assert space.distance(policy, again) < 2e-3  # shares are rounded to four digits
        quota = [getattr(again.admit, k.field) for k in space.used(again) if k.simplex]
        assert sum(quota) == pytest.approx(1.0, abs=1e-3)


def test_pins_are_kept_and_not_searched() -> None:
    space = make_space("tokenpilot", pin={"tokenpilot.cache_weight": 2.5})
    assert "tokenpilot.cache_weight" not in {k.name for k in space.knobs}
    assert space.suggest(Draw(np.random.default_rng(1))).instance.cache_weight == 2.5


def test_a_pinned_share_leaves_the_rest_to_the_others() -> None:
    space = make_space("slomax", pin={"slomax.offline_share": 0.2})
    for seed in range(10):
        admit = space.suggest(Draw(np.random.default_rng(seed))).admit
        assert admit.offline_share == 0.2
        assert admit.interactive_share + admit.long_context_share == pytest.approx(0.8, abs=1e-3)


def test_bounds_narrow_the_search_and_open_what_is_closed() -> None:
    space = make_space("tokenpilot+slomax", bounds={"tokenpilot.cache_weight": (0.5, 0.6), "slomax.period_s": (1.0, 4.0)})
    for seed in range(10):
        policy = space.suggest(Draw(np.random.default_rng(seed)))
        assert 0.5 <= policy.instance.cache_weight <= 0.6
        assert 1.0 <= policy.admit.period_s <= 4.0


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"pin": {"tokenpilot.cache_wieght": 1.0}}, PolicyError, "did you mean tokenpilot.cache_weight"),
        ({"pin": {"tokenpilot.cache_weight": 99.0}}, ConfigError, "allowed are 0 to 4"),
        ({"pin": {"tokenpilot.cache_weight": "many"}}, ConfigError, "give a number"),
        ({"bounds": {"tokenpilot.cache_weight": (2.0, 1.0)}}, ConfigError, "must lie inside"),
        ({"bounds": {"tokenpilot.cache_weight": (0.0, 9.0)}}, ConfigError, "must lie inside"),
        (
            {"pin": {"tokenpilot.kv_knee": 0.9}, "bounds": {"tokenpilot.kv_knee": (0.6, 0.9)}},
            ConfigError,
            "both pinned and bounded",
        ),
    ],
)
def test_mistakes_are_named(options: dict[str, object], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        make_space("tokenpilot", **options)  # type: ignore[arg-type]


def test_a_choice_of_policies_asks_only_for_the_chosen_one() -> None:
    space = make_space("tokenpilot|lmetric")
    names = {type(space.suggest(Draw(np.random.default_rng(s))).instance).name for s in range(20)}
    assert names == {"tokenpilot", "lmetric"}
    lmetric = load_policy("lmetric")
    assert {k.policy for k in space.used(lmetric)} <= {"lmetric"}
    assert policy_of(space, space.params_of(lmetric)) == lmetric


def test_the_present_settings_are_the_reference() -> None:
    now = load_policy("tokenpilot", {"tokenpilot.cache_weight": 2.0})
    space = make_space("tokenpilot+slomax", present=now)
    assert space.reference.instance.cache_weight == 2.0
    assert space.distance(space.reference, defaults_of(space)) > 0


def test_neighbours_are_ten_percent_off() -> None:
    space = make_space("tokenpilot")
    near = neighbours(space, space.reference, ["tokenpilot.kv_knee"])
    assert {round(p.instance.kv_knee, 3) for p in near.values()} == {0.81, 0.99}
