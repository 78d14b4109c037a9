"""Every log format by name. Adding one: its file, and one line here."""

from __future__ import annotations

from tfanalyze.errors import FormatError
from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats import (
    agents,
    aiperf,
    azure,
    bailian,
    bench,
    blis,
    burstgpt,
    dynamo,
    envoy,
    gateway,
    guidellm,
    inferencex,
    litellm,
    llmservingsim,
    lmbench,
    mooncake,
    observability,
    otlp,
    router_logs,
    servegen,
    sglang_log,
    vllm_log,
    vtc,
)
from tfanalyze.ingest.formats.base import Format, Head, head_of

ALL: tuple[Format, ...] = (
    gateway.FORMAT, mooncake.FORMAT, azure.FORMAT, burstgpt.FORMAT, bailian.FORMAT, otlp.FORMAT, vllm_log.FORMAT,
    sglang_log.FORMAT, dynamo.FORMAT, litellm.FORMAT, envoy.FORMAT, *router_logs.LIST, aiperf.FORMAT, guidellm.FORMAT,
    *bench.LIST, *observability.LIST, lmbench.FORMAT, blis.FORMAT, inferencex.FORMAT, llmservingsim.FORMAT, vtc.FORMAT,
    agents.FORMAT, servegen.FORMAT,
)  # fmt: skip
FORMATS: dict[str, Format] = {form.name: form for form in ALL}


def sniff(source: Source) -> Format:
    """The one format that a file is in. Errors: FormatError when none or several fit."""
    head: Head = head_of(source)
    hits = [form for form in FORMATS.values() if form.sniff(head)]
    if len(hits) == 1:
        return hits[0]
    if hits:
        names = " and ".join(form.name for form in hits)
        raise FormatError(f"could be {names}", source.name, "say which with --format")
    raise FormatError("is in no request log format known here" + _seen(head), source.name, _hint(head))


def _hint(head: Head) -> str:
    from tfanalyze.ingest.shapes import SHAPES

    if any(shape.sniff(head) for shape in SHAPES.values()):
        return "it looks like metrics: use tfanalyze ingest metrics"
    return "give --format NAME, or a mapping in tfanalyze.toml"


def _seen(head: Head) -> str:
    if head.source.head.startswith(b"PAR1"):
        return " (Parquet)"
    if head.rows:
        return f" (JSON with {', '.join(sorted(head.keys)[:8])})"
    if head.header and all(len(name) <= 40 and name.isprintable() for name in head.header):
        return f" (columns {', '.join(head.header[:8])})"
    return ""


def by_name(name: str) -> Format | None:
    """A format by its name; None stands for the user's mapping. Errors: FormatError with the nearest names."""
    if name == "mapping":
        return None
    if name in FORMATS:
        return FORMATS[name]
    import difflib

    near = difflib.get_close_matches(name, FORMATS, 3, 0.4)
    raise FormatError(f"no format {name!r}", mend=f"did you mean {', '.join(near)}?" if near else "see docs/formats.md")
