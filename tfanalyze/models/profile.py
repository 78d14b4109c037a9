"""Profile: what one engine replica costs in time, with how well that was known."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

from tfanalyze.errors import ProfileError


@dataclass(frozen=True, slots=True)
class StepTime:
    """Duration of one engine step in seconds; every coefficient >= 0.

    With p = prefill tokens computed in the step, A = sum over those tokens of their position in the sequence
    (a chunk of m tokens starting at position n adds m*n + m*(m+1)/2), B = sequences in decode and K = sum over
    those of the context length they read (tokens computed before, plus this one):

        fixed   = c0_s + [p > 0] c_prefill_step_s + [B > 0] c_decode_step_s
        compute = c_prefill_s p + c_prefill2_s p^2 + c_attn_s A + c_seq_s B + c_seq_knee_s max(0, B - knee_seqs)
        memory  = c_mem_s + c_kv_s K + c_kv2_s K^2          (c_kv2_s may be negative within its valid range)
        longest = c_long_s min(L, K / (split_seqs - B / 2)) while B < split_seqs, else c_long_s L
        step    = fixed + compute + memory + longest        (form "sum")
                  fixed + max(compute, memory) + longest    (form "max")
        and with p > 0 at least prefill_least_s: steps with prompt chunks run without a full CUDA graph, and the host needs
        that long to launch their kernels, whatever the GPU has to do meanwhile.

    With graph_seqs G > 0 a step without prefill computes B taken up to the next CUDA graph: 1, 2, 4, then multiples of G.

    L = the longest context that a decoding sequence reads. An attention kernel that gives each sequence and head one
    thread block ends with its longest sequence; it splits contexts, so that all blocks read alike, only while the batch
    leaves blocks free: FlashInfer 0.6 `scheduler.cuh` while batch * KV heads < blocks the GPU holds at once
    (split_seqs = those blocks over KV heads; 0 = it never splits), K / (split_seqs - B / 2) being about the part that each then reads.
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
    c_long_s: float = 0.0
    split_seqs: float = 0.0
    prefill_least_s: float = 0.0
    graph_seqs: float = 0.0
    form: str = "sum"  # sum | max


def with_coefficients(step: StepTime, values: Mapping[str, float]) -> StepTime:
    """The step time with the named coefficients in place of its own."""
    changes: dict[str, Any] = dict(values)
    return replace(step, **changes)


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


SCHEMA, VERSION = "tfanalyze/profile", 1
STEP_UNITS = {
    "c0_s": "s a step", "c_prefill_step_s": "s a step with prefill", "c_decode_step_s": "s a step with decode",
    "c_prefill_s": "s a prompt token computed", "c_prefill2_s": "s a prompt token squared (of one step)",
    "c_attn_s": "s a prompt token and position", "c_seq_s": "s a decoding sequence and step",
    "c_seq_knee_s": "s a decoding sequence above the knee and step", "knee_seqs": "sequences", "c_mem_s": "s a step",
    "c_kv_s": "s a KV token read", "c_kv2_s": "s a KV token read, squared",
    "c_long_s": "s a token of the longest context read", "split_seqs": "sequences from which contexts are not split",
    "prefill_least_s": "s, the least that a step with prefill takes", "graph_seqs": "sequences, CUDA graphs of decode are multiples of",
    "request_s": "s a request before the engine's queue",
    "request_token_s": "s a prompt token before the engine's queue", "response_s": "s from a step's end to the client",
}  # fmt: skip


def coefficients(profile: Profile) -> list[dict[str, Any]]:
    """Every coefficient that is not zero: name, value, unit, and its 90 % interval where one is known."""
    values = {name: getattr(profile.step, name, None) for name in STEP_UNITS}
    values |= {name: getattr(profile, name) for name in ("request_s", "request_token_s", "response_s")}
    return [
        {"name": name, "value": values[name], "unit": unit, "low": profile.low.get(name), "high": profile.high.get(name)}
        for name, unit in STEP_UNITS.items()
        if values[name] or name in profile.high
    ]


def to_json(profiles: Profile | Mapping[str, Profile]) -> dict[str, Any]:
    """A JSON document of one or several profiles, keyed by name."""
    many = {profiles.name: profiles} if isinstance(profiles, Profile) else profiles
    return {"schema": SCHEMA, "version": VERSION, "profiles": {key: asdict(p) for key, p in sorted(many.items())}}


def from_json(document: Mapping[str, Any], where: str = "profile") -> dict[str, Profile]:
    """The profiles of a document made by to_json.

    Errors: ProfileError for another schema, a newer version, a field that is missing, unknown or no number.
    """
    if document.get("schema") != SCHEMA or not isinstance(document.get("profiles"), Mapping):
        raise ProfileError(f"no profile: schema is {document.get('schema')!r}", where, f"expected {SCHEMA!r}; make one with: tfanalyze fit")
    if not isinstance(document.get("version"), int) or document["version"] > VERSION:
        raise ProfileError(f"profile version {document.get('version')!r}, this tfanalyze knows up to {VERSION}", where, "upgrade tfanalyze")
    return {str(key): _one(body, f"{where}: profiles.{key}") for key, body in document["profiles"].items()}


def _one(body: Any, where: str) -> Profile:
    known, step_known = {f.name for f in fields(Profile)}, {f.name for f in fields(StepTime)}
    if not isinstance(body, Mapping) or not isinstance(body.get("step"), Mapping) or not isinstance(body.get("name"), str):
        raise ProfileError("needs the fields name and step", where, "make one with: tfanalyze fit")
    unknown = sorted((set(body) - known) | (set(body["step"]) - step_known))
    if unknown:
        raise ProfileError(f"unknown field {unknown[0]!r}", where, "check the spelling, or upgrade tfanalyze")
    step = {}
    for name, value in body["step"].items():
        if name == "form":
            if value not in ("sum", "max"):
                raise ProfileError(f"step.form is {value!r}", where, "use sum or max")
            step[name] = value
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or (value < 0 and name != "c_kv2_s"):
            raise ProfileError(f"step.{name} is {value!r}", where, "a finite number >= 0 is needed")
        step[name] = float(value)
    rest = {key: value for key, value in body.items() if key != "step"}
    rest["trusted"] = {key: (float(low), float(high)) for key, (low, high) in body.get("trusted", {}).items()}
    return Profile(step=StepTime(**step), **rest)


def load_profiles(name_or_file: str | Path) -> dict[str, Profile]:
    """Profiles of a file made by `tfanalyze fit --out`, or the shipped default of that name.

    Errors: ProfileError when there is neither, or the file is no profile.
    """
    path = Path(name_or_file)
    shipped = Path(__file__).with_name("defaults") / f"{name_or_file}.json"
    if not path.is_file():
        if not shipped.is_file():
            near = difflib.get_close_matches(str(name_or_file), default_names(), n=3, cutoff=0.3)
            raise ProfileError(
                f"no profile file and no shipped profile of this name (close: {', '.join(near) or 'none'})", str(name_or_file),
                f"give a file made by: tfanalyze fit --out FILE, or one of {len(default_names())} shipped names",
            )  # fmt: skip
        path = shipped
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot be read as JSON: {error}", str(path), "make it again with: tfanalyze fit --out FILE") from error
    if not isinstance(document, dict):
        raise ProfileError("is no JSON object", str(path), "make it again with: tfanalyze fit --out FILE")
    return from_json(document, str(path))


def load_profile(name_or_file: str | Path) -> Profile:
    """The one profile of a file or shipped default.

    Errors: ProfileError, also when the file holds several (use load_profiles).
    """
    found = load_profiles(name_or_file)
    if len(found) != 1:
        raise ProfileError(f"holds {len(found)} profiles: {', '.join(found)}", str(name_or_file), "exactly one is needed here")
    return next(iter(found.values()))


def default_names() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.stem for path in Path(__file__).with_name("defaults").glob("*.json"))
