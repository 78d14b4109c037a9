"""Periodic statistics in engine logs: vLLM's throughput lines and SGLang's batch lines, of all versions.

Anchors are searched anywhere in a line, several a line, and what follows is read as `key: value` pairs against an
allow-list; so one reader serves every version. Time and rank come from the header nearest in front of the anchor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tfanalyze.ingest.times import ANSI, Clock

ANCHOR = re.compile(
    r"(?:(?P<engine>Engine \d+|\d+ Engines Aggregated): )?(?P<vllm>Avg prompt throughput: )"
    r"|(?P<more>Prefix cache hit rate: GPU: )"
    r"|(?P<spec>SpecDecoding metrics: )"
    r"|(?P<sglang>(?:Prefill|Decode) batch)(?: ?\[\d+\])?[.,] "
)
RANK = re.compile(r"\b(DP|TP|EP|PP)(\d+)\b")
_NUMBER = r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
PAIR = re.compile(rf"([#A-Za-z][^:,\[\]{{}}]*?):\s*{_NUMBER}\s*(%)?")

VLLM_KEYS = {
    "Avg prompt throughput": "prompt_tok_s",
    "Avg generation throughput": "generation_tok_s",
    "Running": "running",
    "Waiting": "waiting",
    "Pending": "waiting",
    "Swapped": "swapped",
    "Deferred": "waiting_deferred",
    "Preemptions": "preemptions_in_window",
    "GPU KV cache usage": "kv_usage",
    "CPU KV cache usage": "host_kv_usage",
    "Prefix cache hit rate": "prefix_hit_share",
    "External prefix cache hit rate": "external_prefix_hit_share",
    "MM cache hit rate": "mm_hit_share",
    "Corrupted": "corrupted_in_window",
    "Mean acceptance length": "spec_accept_length",
    "Accepted": "spec_accepted_in_window",
    "Drafted": "spec_drafted_in_window",
    "Avg Draft acceptance rate": "spec_accept_share",
    "GPU": "prefix_hit_share",
    "CPU": "host_prefix_hit_share",
}
SGLANG_KEYS = {
    "#new-seq": "prefill_batch_seqs",
    "#new-token": "prefill_batch_tokens",
    "#cached-token": "prefill_batch_cached_tokens",
    "#running-req": "running",
    "#queue-req": "waiting",
    "#token": "kv_used_tokens",
    "#full token": "kv_used_tokens",
    "token usage": "kv_usage",
    "full token usage": "kv_usage",
    "swa token usage": "kv_usage_sliding",
    "mamba usage": "mamba_usage",
    "cache hit rate": "prefix_hit_share",
    "gen throughput (token/s)": "generation_tok_s",
    "input throughput (token/s)": "prompt_tok_s",
    "accept len": "spec_accept_length",
    "accept rate": "spec_accept_share",
    "#retracted-req": "preempted_now",
    "#transfer-req": "transferring",
    "#inflight-req": "transferring",
    "#prealloc-req": "decode_prealloc_waiting",
    "#bootstrap-req": "bootstrap_waiting",
    "#unbootstrapped-req": "bootstrap_waiting",
    "#pending-token": "waiting_tokens",
}
_PERCENT = {"kv_usage", "host_kv_usage", "prefix_hit_share", "host_prefix_hit_share", "external_prefix_hit_share"}


class Stat(NamedTuple):
    """One statistics record: time, engine rank if named, whose line, and canonical name -> value."""

    time_us: int | None
    rank: str
    engine: str  # vllm | sglang
    batch: str  # "", prefill or decode
    values: dict[str, float]


def stats(line: str, clock: Clock) -> Iterator[Stat]:
    """All statistics records of one line of a log."""
    text = ANSI.sub("", line)
    anchors = list(ANCHOR.finditer(text))
    for i, anchor in enumerate(anchors):
        end = anchors[i + 1].start() if i + 1 < len(anchors) else len(text)
        body = text[anchor.start() : end]
        before = text[: anchor.start()] if i == 0 else text[anchors[i - 1].end() : anchor.start()]
        time_us = clock.time_us(before) or clock.time_us(text[: anchor.start()])
        sglang = anchor["sglang"]
        engine = "sglang" if sglang else "vllm"
        values = _values(body, SGLANG_KEYS if sglang else VLLM_KEYS, bool(anchor["more"]))
        if values:
            yield Stat(time_us, _rank(anchor, before), engine, sglang.split()[0].lower() if sglang else "", values)


def _rank(anchor: re.Match[str], before: str) -> str:
    if anchor["engine"]:
        number = re.search(r"\d+", anchor["engine"])
        return f"{int(number[0])}" if number and "Aggregated" not in anchor["engine"] else "all"
    ranks = RANK.findall(before[-60:])
    return " ".join(f"{kind}{number}" for kind, number in ranks)


def _values(body: str, keys: dict[str, str], is_old_rate: bool) -> dict[str, float]:
    values: dict[str, float] = {}
    for key, number, percent in PAIR.findall(body):
        key = key.strip()
        if is_old_rate and key == "Prefix cache hit rate":
            continue
        name = keys.get(key) or _device(key)
        if name is None:
            continue
        value = float(number)
        if percent:
            value /= 100.0
        values.setdefault(name, value)
    return values


def _device(key: str) -> str | None:
    return "kv_usage" if key.endswith(" KV cache usage") and not key.startswith("CPU") else None
