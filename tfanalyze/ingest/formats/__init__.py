"""Every log format by name. Adding one: its file, and one line here."""

from __future__ import annotations

from tfanalyze.errors import FormatError
from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats import azure, bailian, burstgpt, gateway, mooncake
from tfanalyze.ingest.formats.base import Format, Head, head_of

_MODULES = (gateway, mooncake, bailian, azure, burstgpt)

FORMATS: dict[str, Format] = {module.FORMAT.name: module.FORMAT for module in _MODULES}


def sniff(source: Source) -> Format:
    """The one format that a file is in. Errors: FormatError when none or several fit."""
    head: Head = head_of(source)
    hits = [form for form in FORMATS.values() if form.sniff(head)]
    if len(hits) == 1:
        return hits[0]
    if hits:
        names = " and ".join(form.name for form in hits)
        raise FormatError(f"could be {names}", source.name, "say which with --format")
    raise FormatError(
        "is in no format known here" + _seen(head), source.name, "give --format NAME, or a mapping in tfanalyze.toml"
    )


def _seen(head: Head) -> str:
    if head.rows:
        return f" (JSON with {', '.join(sorted(head.keys)[:8])})"
    if head.header:
        return f" (columns {', '.join(head.header[:8])})"
    return ""


def by_name(name: str) -> Format:
    """A format by its name. Errors: FormatError with the nearest names."""
    if name in FORMATS:
        return FORMATS[name]
    import difflib

    near = difflib.get_close_matches(name, FORMATS, 3, 0.4)
    raise FormatError(f"no format {name!r}", mend=f"did you mean {', '.join(near)}?" if near else "see docs/formats.md")
