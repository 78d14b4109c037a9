"""Terminal tables: 80 columns, numbers as people read them, nothing lost that decides."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType

from tfanalyze.report import terminal
from tfanalyze.report.numbers import count, digits, pretty, seconds, sentence, share, sparkline, words

from .made import made_fit, made_tune, made_validation


def shown(thing: RenderableType, width: int = 80, color: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False).print(thing)
    return out.getvalue()


METRICS: dict[str, Any] = {
    "goodput_tok_s": 11_234.5, "attainment": 0.861, "ttft_s": {"p50": 0.4, "p95": 1.9, "p99": 4.0}, "tpot_s": {"p50": 0.03, "p95": 0.06},
    "prefix_hit_share": 0.412, "shed_share": 0.021, "waste_tokens": {"timeout": 1200, "preempt": 0},
}  # fmt: skip
FACTS = {"requests": 12_031, "trace": "mooncake", "trace_hash": "0123456789abcdef", "fleet": {"instances": 16}, "profile": ["h100"], "profile_hash": "f" * 16,
         "kernel_s": 0.05, "wall_s": 1.2, "seed": 1, "load": 1.0, "model_error": 0.08, "assumed": ["a class was assumed"]}  # fmt: skip
RESULTS: dict[str, dict[str, Any]] = {
    "inspect": {
        "requests": 5000, "span_s": 3600.0, "began": "2026-01-01", "rate": {"mean_req_s": 1.4, "peak_minute_req_s": 3.0, "by_time": [1, 5, 3]},
        "tokens": {"input_tokens": {"known": 5000, "mean": 900.0, "p50": 500.0, "p95": 4000.0, "p99": 9000.0, "max": 12_000}},
        "classes": {"interactive": {"requests": 4000}, "long_context": {"requests": 1000}},
        "sessions": {"sessions": 900, "turns_mean": 5.5, "think_s_p50": 4.0}, "prefix": {"reusable_share": 0.4, "cached_share": None},
        "observed": {**METRICS, "requests": 5000, "status": {"ok": 4990, "timeout": 10}, "by_class": {"interactive": METRICS}},
        "time": {"share": {"queue": 0.2, "prefill": 0.1, "decode": 0.7}}, "instances": {"i0": 2500, "i1": 2500}, "retries": 3,
        "rejected": {"no arrival": 2}, "metrics": {"running": 30}, "assumed": ["classes are the default ones"],
    },
    "fit": made_fit() | {"out": "profile.json"},
    "validate": made_validation() | {"worst_error": {"value": 0.4, "of": "ttft_s.p95"}, "max_error": 0.15, "ok": False},
    "replay": {"policy": "tokenpilot", "metrics": METRICS | {"by_class": {"interactive": METRICS, "long_context": METRICS}}, **FACTS},
    "compare": {"baseline": "round_robin", "runs": {"round_robin": {"metrics": METRICS, "gain": None}, "tokenpilot+fleetmind+slomax": {
        "metrics": METRICS, "gain": {"pct": 29.4, "ci_low_pct": 20.0, "ci_high_pct": 38.1}}}, **FACTS},
    "tune": made_tune() | {"against": {"lmetric": {"baseline": 4300.0, "tuned": 4650.0, "gain_pct": 8.1, "ci_low_pct": 2.0, "ci_high_pct": 14.0}},
                           "knobs": {"tokenpilot.cache_weight": {"importance": 0.6, "identifiable": True}, "tokenpilot.tie_s": {"importance": 0.0, "identifiable": False}}},
    "export": {"target": "llm-d", "out": "export", "files": ["epp.yaml", "evidence.md"], "proof": "schema-checked", "diff": "-a\n+b", "dry_run": True,
               "changed": {"queue.weight": [1.0, 2.0]}, "notes": ["weights are per replica"], "commands": ["kubectl apply -f epp.yaml"]},
    "lint": {"requests": 10, "findings": [{"check": "clock", "level": "error", "count": 3, "what": "arrivals go back in time", "mend": "sort the log"}]},
    "doctor": {"ok": False, "checks": [{"name": "disk", "ok": False, "found": "0 GB free", "mend": "make room"}, {"name": "cores", "ok": None, "found": "2", "mend": ""}]},
    "plan": {"target": {"interactive": 0.95}, "cases": [{"load": 1.0, "gpu": "", "policy": "tokenpilot", "needed": 12, "gpus": 12.0, "gpu_hours": 12.0,
             "curve": [{"instances": 8, "attainment": 0.6}, {"instances": 12, "attainment": 0.96}]}], "savings": [{"load": 1.0, "gpu": "", "baseline_needs": 16, "policy_needs": 12, "gpus_saved": 4.0, "saved_share": 0.25}]},
    "check": {"advice": "tune_again", "why": "the traffic has moved.", "requests": 306, "predicted": {"attainment": 0.9, "p95_ttft": 1.2}, "realised": {"attainment": 0.7, "p95_ttft": 4.0},
              "drift": {"rate_req_s": {"was": 1.0, "is": 2.0, "drifted": True}, "input_tokens": {"was": [1.0, 5.0, 9.0], "is": [1.0, 6.0, 9.0], "drifted": False},
                        "class_share": {"was": {"a": 0.8, "b": 0.2}, "is": {"a": 0.5, "b": 0.5}, "drifted": True}}},
    "explain": {"policy": "tokenpilot", "request_id": "q7", "slo_class": "interactive", "input_tokens": 500, "output_tokens": 20,
                "fate": {"attained": False, "broke": ["ttft"], "status": "ok", "instance": "i1", "ttft_s": 3.0, "slo": {"ttft_s": 2.0}},
                "blame": [{"cause": "engine_queue", "seconds": 2.5, "share": 0.8}],
                "decision": {"chosen": "i1", "because": "wait_s is 1 s better", "candidates": [{"instance": "i0", "score": 4.0, "terms": {"wait_s": 3.0}},
                             {"instance": "i1", "score": 3.0, "terms": {"wait_s": 2.0}}]},
                "regret": {"branches": [{"instance": "i0", "ttft_s": 3.4, "e2e_s": 9.0, "attained": False, "fleet_effective_tokens": 8000}]}},
    "explain_file": {"path": "a.jsonl", "format": "gateway", "columns": [{"column": "ttft_us", "from": "ttft * 1000", "rests_on": "observed", "filled": 0.5}],
                     "empty": ["row_uid", "tenant"], "notes": ["units from the header"]},
    "ingest": {"db": "w.duckdb", "files": [{"path": "/a/b/c.jsonl", "format": "gateway", "rows": 10, "taken": 8, "rejected": 2, "reasons": {"no arrival": 2}}],
               "skipped": [{"path": "/a/b/x", "why": "/a/b/x: is empty"}], "totals": {"rows": 10}},
    "sql": {"columns": ["run", "attainment"], "rows": [["tokenpilot", 0.861234567], [None, 1.0]]},
    "report": {"path": "reports/r.html", "bytes": 2_100_000, "runs": ["a", "b"]},
}  # fmt: skip
MUST_SHOW = {
    "inspect": ("5,000", "3.00 req/s", "86.1 %", "no arrival 2", "classes are the default ones"),
    "fit": ("0.004", "8.0 %", "profile.json"),
    "validate": ("ABOVE it", "ttft_s.p95", "TTFT P99"),
    "replay": ("11,234", "timeout 1,200 tokens", "held-out P95 TTFT error is 8.0 %"),
    "compare": ("+29.4 %", "+20.0 % to +38.1 %"),
    "tune": ("Verdict: gain", "+19.2 %", "+12.1 % to +26.6 %", "tokenpilot.cache_weight", "any value does", "3.0 %"),
    "export": ("not written", "schema-checked", "kubectl apply"),
    "lint": ("arrivals go back in time; sort the log", "error"),
    "doctor": ("0 GB free; make room", "Some checks failed"),
    "plan": ("12", "interactive 95.0 %", "12 instances instead of 16: 4.00 GPUs saved (25.0 %)"),
    "check": ("tune again", "1.00 req/s 2.00 req/s moved", "median 5", "80/20 %"),
    "explain": ("missed its SLO: TTFT 3.00 s (limit 2.00 s)", "engine queue 2.50 s 80.0 %", "i1 *", "score (lowest wins) 4.00 3.00", "8,000"),
    "explain_file": ("ttft * 1000", "50.0 %", "left unknown: tenant"),
    "ingest": ("b/c.jsonl", "no arrival: 2", "b/x: is empty"),
    "sql": ("0.861235", "2 rows"),
    "report": ("2.10 MB", "a, b"),
}


@pytest.mark.parametrize("command", sorted(RESULTS))
def test_fits_80_columns_and_shows_what_decides(command: str) -> None:
    text = shown(getattr(terminal, f"render_{command}")(RESULTS[command]))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    flat = " ".join(text.split())
    for wanted in MUST_SHOW[command]:
        assert wanted in flat, text
    assert not re.search(r"\bnan\b", flat)


def test_colour_only_where_it_is_wanted() -> None:
    assert "\x1b[" not in shown(terminal.render_tune(RESULTS["tune"]))
    assert "\x1b[" in shown(terminal.render_tune(RESULTS["tune"]), color=True)


def test_a_rival_that_serves_nothing_has_no_percentage() -> None:
    rival = {"baseline": 0.0, "tuned": 3670.0, "gain_pct": 3.7e14, "ci_low_pct": 3.5e14, "ci_high_pct": 3.8e14}
    text = shown(terminal.render_tune(RESULTS["tune"] | {"against": {"prefix_affinity": rival}}))
    assert "from nothing" in text and "e+14" not in text and "000,000" not in text


def test_every_part_may_be_missing() -> None:
    for command, least in {"tune": {"verdict": "keep_current"}, "validate": {}, "fit": {}, "export": {}, "lint": {}, "inspect": {"requests": 0}}.items():
        assert isinstance(shown(getattr(terminal, f"render_{command}")(least)), str)


def test_lists_longer_than_shown_are_counted() -> None:
    text = shown(terminal.remarks("Noted", [f"line {k}" for k in range(20)]) or "")
    assert "and 12 more" in text and "line 7" in text and "line 8\n" not in text


@pytest.mark.parametrize(("value", "text"), [
    (0.0, "0 s"), (8.5e-4, "850 us"), (0.0123, "12.3 ms"), (1.234, "1.23 s"), (90.0, "90.0 s"), (740.0, "12.3 min"), (19_440.0, "5.40 h"),
    (267_840.0, "3.10 d"), (math.nan, "-"), (math.inf, "no limit"),
])  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


def test_numbers_by_the_unit_in_their_name() -> None:
    assert pretty("goodput_tok_s", 11_234.5) == "11,234 tok/s"
    assert pretty("ttft_s.p95", 0.25) == pretty("ttft_s", {"p95": 0.25}).removeprefix("p95 ") == "250 ms"
    assert pretty("prefix_hit_share", 0.412) == "41.2 %" and pretty("gain_pct", -3.0) == "-3.0 %"
    assert pretty("queue_us", 1500) == "1.50 ms" and pretty("peak_rss_bytes", 2**21) == "2.0 MiB"
    assert pretty("seed", 12_345) == "12345" and pretty("anything", None) == "-" and pretty("ok", True) == "yes"
    assert count(12_345) == "12,345" and count(2.5e7) == "25.0 M" and digits(0.01234) == "0.0123" and share(0.5) == "50.0 %"
    assert words("ttft_s_p95") == "TTFT P95" and words("prefix_hit_share") == "prefix hit"
    assert sentence({"kind": "drift", "text": "i0 became slower"}) == "i0 became slower"


def test_sparkline_shows_shape_and_gaps() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, math.nan, 1.0]) == "█ █"
    assert sparkline([0.0, 0.0]) == "▁▁" and sparkline([]) == ""
    assert len(sparkline(list(range(1000)), 40)) == 40
