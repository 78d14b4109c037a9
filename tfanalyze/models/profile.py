"""Profile: what one engine replica costs in time, with how well that was known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StepTime:
    """Duration of one engine step in seconds; every coefficient >= 0.

    With p = prefill tokens computed in the step, A = sum over those tokens of their position in the sequence
    (a chunk of m tokens starting at position n adds m*n + m*(m+1)/2), B = sequences in decode and K = sum over
    those of the context length they read (tokens computed before, plus this one):

        fixed   = c0_s + [p > 0] c_prefill_step_s + [B > 0] c_decode_step_s
        compute = c_prefill_s p + c_prefill2_s p^2 + c_attn_s A + c_seq_s B + c_seq_knee_s max(0, B - knee_seqs)
        memory  = c_mem_s + c_kv_s K + c_kv2_s K^2          (c_kv2_s may be negative within its valid range)
        step    = fixed + compute + memory        (form "sum")
                  fixed + max(compute, memory)    (form "max")
    """

    c0_s: float = 0.005
    c_prefill_step_s: float = 0.0
    c_decode_step_s: float = 0.0
    c_prefill_s: float = 0.0
    c_prefill2_s: float = 0.0
    c_attn_s: float = 0.0
    c_seq_s: float = 0.0
    c_seq_knee_s: float = 0.0
    knee_seqs: float = 0.0
    c_mem_s: float = 0.0
    c_kv_s: float = 0.0
    c_kv2_s: float = 0.0
    form: str = "sum"  # sum | max


@dataclass(frozen=True, slots=True)
class Profile:
    """Step time and KV facts of one GPU type x model x layout."""

    name: str
    step: StepTime
    request_s: float = 0.0  # fixed time a request spends before the engine's queue (client, gateway, tokenizer)
    request_token_s: float = 0.0  # the same, per input token
    response_s: float = 0.0  # from the end of a step to the client seeing its token
    gpu: str = "default"
    model: str = ""
    kv_tokens: int | None = None  # capacity found; None = take the engine's limit
    block_size: int | None = None
    low: dict[str, float] = field(default_factory=dict)  # 90 % interval, by coefficient name
    high: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)  # relative error by metric, e.g. ttft_s_p95
    trusted: dict[str, tuple[float, float]] = field(default_factory=dict)  # regime: quantity -> (low, high) seen
    facts: dict[str, Any] = field(default_factory=dict)  # provenance: rows used, what was assumed, sources
