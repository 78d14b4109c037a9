"""explain: the reasons add up, the blame names what happened, the forks tell the price."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tfanalyze.config import Fleet, Gateway, Pool, SloClass
from tfanalyze.errors import InputError
from tfanalyze.explain import explain, find_row
from tfanalyze.models.profile import Profile, StepTime
from tfanalyze.replay import Options, replay
from tfanalyze.trace import Trace, from_columns

PROFILE = Profile("test", StepTime(c0_s=0.006, c_prefill_s=5e-5, c_attn_s=1e-9, c_seq_s=5e-5, c_kv_s=2.5e-8))
CLASSES = (SloClass("interactive", ttft_s=0.5, tpot_s=0.1),)
FLEET = Fleet((Pool("p", count=4),))


def sessions(n: int = 400, rate: float = 30.0) -> Trace:
    draw = np.random.default_rng(7)
    blocks = [[s * 1000 + j for j in range(10 + row // 40)] for row, s in enumerate(draw.integers(0, 40, n))]
    return from_columns(
        arrival_s=np.cumsum(draw.exponential(1 / rate, n)), input_tokens=[len(b) * 64 + 30 for b in blocks],
        output_tokens=draw.integers(20, 300, n), blocks=blocks, block_size=64, request_ids=[f"chat-{i}" for i in range(n)],
    )  # fmt: skip


def test_terms_add_up_and_the_least_score_was_chosen() -> None:
    found = explain("chat-300", sessions(), FLEET, "tokenpilot", PROFILE, classes=CLASSES)
    candidates = found["decision"]["candidates"]
    assert len(candidates) == 4
    for candidate in candidates:
        assert sum(candidate["terms"].values()) == pytest.approx(candidate["score"], rel=1e-9)
    chosen = next(c for c in candidates if c["instance"] == found["decision"]["chosen"])
    assert chosen["score"] <= min(c["score"] for c in candidates) + 0.002
    assert found["fate"]["instance"] == chosen["instance"]
    json.dumps(found, allow_nan=False)


def test_regret_is_what_a_forced_replay_gives() -> None:
    trace = sessions()
    found = explain("chat-300", trace, FLEET, "tokenpilot", PROFILE, classes=CLASSES)
    names = [f"p-{i}" for i in range(4)]
    for branch in found["regret"]["branches"][1:]:
        forced = Options(force_row=300, force_instance=names.index(branch["instance"]))
        outcome = replay(trace, FLEET, "tokenpilot", PROFILE, classes=CLASSES, options=forced)
        assert outcome.instance[300] == forced.force_instance
        assert branch["ttft_s"] == float(outcome.first_token_s[300] - outcome.arrival_s[300])
    own = found["regret"]["branches"][0]
    assert own["ttft_s"] == found["fate"]["ttft_s"]
    assert len(found["regret"]["branches"]) == 4


def test_time_parts_add_up_to_the_whole() -> None:
    found = explain("chat-123", sessions(), FLEET, "tokenpilot", PROFILE, classes=CLASSES)
    assert sum(found["time"].values()) == pytest.approx(found["fate"]["e2e_s"], rel=1e-9)
    assert sum(b["seconds"] for b in found["blame"]) == pytest.approx(found["fate"]["e2e_s"], rel=1e-9)
    assert sum(b["share"] for b in found["blame"]) == pytest.approx(1.0)


def test_a_cold_prefix_is_blamed_under_round_robin() -> None:
    trace = sessions(rate=10.0)
    causes = []
    for row in range(350, 400, 5):
        found = explain(f"chat-{row}", trace, FLEET, "round_robin", PROFILE, classes=CLASSES, max_forks=0)
        causes += [b["cause"] for b in found["blame"]]
        assert "terms" not in found["decision"]["candidates"][0]
    assert "cold_prefix" in causes


def test_a_stale_signal_is_blamed_when_reports_are_old() -> None:
    trace, fleet = (
        sessions(rate=60.0),
        Fleet((Pool("p", count=4),), gateway=Gateway(report_interval_s=3.0, replicas=4)),
    )
    causes = [
        b["cause"]
        for row in range(200, 400, 20)
        for b in explain(f"chat-{row}", trace, fleet, "tokenpilot", PROFILE, classes=CLASSES, max_forks=0)[
            "blame"
        ]
    ]
    assert "stale_signal" in causes


def test_a_shed_request_has_a_fate_but_no_decision() -> None:
    trace = sessions(rate=300.0)
    outcome = replay(trace, Fleet((Pool("p", count=1),)), "slomax", PROFILE, classes=CLASSES)
    row = int(np.flatnonzero(outcome.reason == 1)[0])
    found = explain(f"r{row}", trace, Fleet((Pool("p", count=1),)), "slomax", PROFILE, classes=CLASSES)
    assert found["fate"]["reason"] == "shed"
    assert found["fate"]["broke"] == ["not_served"]
    assert found["decision"] is None
    assert found["regret"] is None


def test_unknown_requests_are_named() -> None:
    trace = sessions()
    assert find_row(trace, "chat-7") == find_row(trace, "r7") == find_row(trace, "7") == 7
    with pytest.raises(InputError, match="did you mean chat-7"):
        find_row(trace, "chat7")
    with pytest.raises(InputError, match="r0 to r399"):
        find_row(trace, "zzzzzz")
