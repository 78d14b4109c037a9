"""Profiles: JSON both ways, refusals that name the field, shipped defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfanalyze.errors import ProfileError
from tfanalyze.models import default_names, from_json, load_profile, load_profiles, to_json
from tfanalyze.models.profile import STEP_UNITS, Profile, StepTime, coefficients

FULL = Profile(
    "p", StepTime(c0_s=0.1 + 0.2, c_kv_s=1e-8, form="max"), request_s=0.01, low={"c0_s": 0.1}, high={"c0_s": 0.5},
    held_out={"ttft_s_p95": -0.03}, trusted={"input_tokens": (1.0, 9.5)}, facts={"rows": 3},
)  # fmt: skip


def test_round_trip_through_a_file_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(to_json({"a": FULL, "b": Profile("b", StepTime())})))
    assert load_profiles(path) == {"a": FULL, "b": Profile("b", StepTime())}
    with pytest.raises(ProfileError, match="holds 2 profiles"):
        load_profile(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "x"}, "schema"),
        ({"version": 99}, "version"),
        ({"profiles": {"p": {"name": "p"}}}, "name and step"),
        ({"profiles": {"p": {"name": "p", "step": {"c0_z": 1}}}}, "c0_z"),
        ({"profiles": {"p": {"name": "p", "step": {"c0_s": -1}}}}, "c0_s"),
        ({"profiles": {"p": {"name": "p", "step": {"c0_s": True}}}}, "c0_s"),
        ({"profiles": {"p": {"name": "p", "step": {"form": "cubic"}}}}, "form"),
    ],
)
def test_a_bad_document_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        from_json(to_json(FULL) | change)


def test_a_missing_file_lists_what_is_near() -> None:
    with pytest.raises(ProfileError, match="h100-llama3.1-8b"):
        load_profiles("h100-llama3-8b")


def test_no_json_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{")
    with pytest.raises(ProfileError, match="JSON"):
        load_profiles(path)


@pytest.mark.parametrize("name", default_names())
def test_shipped_profiles_cite_their_source_and_are_sane(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.facts["source"]
    assert 1e-3 < profile.step.c0_s < 0.1
    assert profile.kv_tokens is not None
    assert 10_000 < profile.kv_tokens < 10_000_000
    speed = 8192 / (profile.step.c0_s + profile.step.c_prefill_s * 8192 + profile.step.c_attn_s * 8192 * 8193 / 2)
    assert 1_000 < speed < 500_000


def test_faster_gpus_are_faster() -> None:
    a100, h100, h200 = (load_profile(f"{gpu}-llama3.1-8b") for gpu in ("a100", "h100", "h200"))
    assert a100.step.c_kv_s > h100.step.c_kv_s > h200.step.c_kv_s
    assert a100.step.c_prefill_s > h100.step.c_prefill_s


def test_every_coefficient_has_a_unit() -> None:
    listed = {row["name"]: row for row in coefficients(FULL)}
    assert listed["c0_s"]["high"] == 0.5
    assert set(listed) <= set(STEP_UNITS)
