"""What a page is made of: sections (tabs) of cards, sentences, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfanalyze.report.figures import Figure, Table


@dataclass(frozen=True, slots=True)
class Card:
    """One number that matters: label, value, and a line under it. tone: "" | good | bad | unsure."""

    label: str
    value: str
    below: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Cards:
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence. missing: it says which command would fill this place."""

    text: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of text as a list, or as a block of commands."""

    lines: tuple[str, ...]
    code: bool = False
    title: str = ""


Block = Card | Cards | Heading | Note | Lines | Figure | Table


@dataclass(frozen=True, slots=True)
class Section:
    key: str
    title: str
    blocks: tuple[Block, ...]


def section(key: str, title: str, blocks: Sequence[Block | None]) -> Section:
    """A section of the blocks that are there."""
    return Section(key, title, tuple(block for block in blocks if block is not None))
