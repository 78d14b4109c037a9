"""Policies by name, with settings, from a user's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfanalyze.errors import PolicyError
from tfanalyze.replay.policies import load_policy
from tfanalyze.testing import Decider, check_policy, make_request, make_view

ROOT = Path(__file__).resolve().parents[3]

MINE = '''
from dataclasses import dataclass
from typing import ClassVar
from tfanalyze.replay.policies import param
from tfanalyze.replay.policies.helpers import argmin

@dataclass(frozen=True)
class Mine:
    """Fewest in flight, scaled."""
    name: ClassVar[str] = "mine"
    kind: ClassVar[str] = "instance"
    scale: float = param(1.0, "factor", 0.1, 9.0, "scales")

    @staticmethod
    def choose(view, request, params, memory, rng, scores):
        scale = params[0]
        for n in range(view.size):
            scores[n] = SIGN * scale * view[n].inflight
        return argmin(scores, view, rng)
'''


def test_parts_go_to_their_hooks_and_the_rest_is_trivial() -> None:
    full = load_policy("slomax+tokenpilot+fleetmind")
    assert full.name == "tokenpilot+fleetmind+slomax"
    one = load_policy("tokenpilot")
    assert (type(one.admit).name, type(one.site).name) == ("admit_all", "any_site")
    assert type(load_policy("slomax").instance).name == "round_robin"


def test_settings_reach_their_policy() -> None:
    found = load_policy("tokenpilot+slomax", {"tokenpilot.cache_weight": "1.5", "batch_limit": 32})
    assert found.instance.cache_weight == 1.5
    assert found.admit.batch_limit == 32
    assert load_policy("production_stack", {"routing_logic": "session"}).instance.routing_logic == 1


@pytest.mark.parametrize(
    ("spec", "settings", "said"),
    [
        ("tokenpilt", {}, "did you mean tokenpilot"),
        ("", {}, "no policy named"),
        ("round_robin+tokenpilot", {}, "both decide the instance"),
        ("tokenpilot", {"tokenpilot.cach_weight": 1}, "did you mean tokenpilot.cache_weight"),
        ("tokenpilot", {"cache_weight": 99}, "allowed: 0 to 4 s/s"),
        ("tokenpilot", {"cache_weight": "much"}, "a number from 0 to 4"),
        ("slomax", {"patience": 2.5}, "a whole number"),
        ("tokenpilot+fleetmind", {"kv_knee": 0.8}, "more than one policy"),
        ("nowhere.py:Mine", {}, "no such file"),
    ],
)
def test_mistakes_say_how_to_mend_them(spec: str, settings: dict[str, float | str], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        load_policy(spec, settings)


def test_a_users_file_is_treated_like_ours(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE.replace("SIGN", "1.0"))
    policy = load_policy(f"{file}:Mine", {"mine.scale": 2})
    assert policy.instance.scale == 2
    check_policy(type(policy.instance))
    view = make_view(3, inflight=[5, 2, 7])
    assert Decider(policy.instance).choose(view, make_request()) == 1
    assert type(load_policy(f"{file}:Mine").instance) is type(policy.instance)
    file.write_text(MINE.replace("SIGN", "-1.0"))  # an edited file is read again, whatever is cached
    assert Decider(load_policy(str(file)).instance).choose(view, make_request()) == 2


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (MINE.replace("SIGN", "1.0"), "Mien", "no policy class 'Mien'.*policies there: Mine"),
        (MINE.replace('"instance"', '"router"'), "Mine", "kind is 'router'"),
        (MINE.replace("def choose", "def chose"), "Mine", "has no choose"),
        (MINE.replace('param(1.0, "factor", 0.1, 9.0, "scales")', "1.0"), "Mine", "not declared with param"),
        ("import nothing_like_this\n" + MINE, "Mine", "ModuleNotFoundError.*mend the file"),
        ("def f(:\n", "Mine", "SyntaxError"),
        (
            MINE.replace("SIGN", "view[n].true_output_tokens"),
            "Mine",
            "Mine does not compile: no field .true_output_tokens.",
        ),
        (
            MINE.replace("SIGN", "1.0").replace(
                "scale = params[0]", "scale = params[0]\n        seen = [n for n in view]"
            ),
            "Mine",
            "does not compile",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, name: str, said: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(PolicyError, match=said) as caught:
        load_policy(f"{file}:{name}")
    assert "\n" not in str(caught.value)


def test_check_policy_finds_a_wrong_unpack_order(tmp_path: Path) -> None:
    file = tmp_path / "swapped.py"
    file.write_text(
        MINE.replace("SIGN", "1.0").replace("scale = params[0]", "spread = params[0]\n        scale = spread")
    )
    with pytest.raises(AssertionError, match="unpacked as 'spread'"):
        check_policy(type(load_policy(f"{file}:Mine").instance))
