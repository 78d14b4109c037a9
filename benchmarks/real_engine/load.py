"""The traffic that is played: sessions of several turns that share a system prompt and grow by their own history.

All text is drawn from a fixed list of words with a seed; there is nothing personal in it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

WORD_LIST = (
    "river stone morning paper window garden letter copper engine signal forest market silver bridge harbor "
    "winter candle mirror planet station thunder valley wagon yellow basket corner dragon eagle feather glass "
    "hammer island jacket kettle ladder marble needle ocean pencil quarry rocket saddle tunnel umbrella violin"
)
WORDS = WORD_LIST.split()
BLOCK_WORDS = 16  # words of a text block, the unit of prefix hashes


@dataclass(frozen=True)
class Turn:
    """One question of a session: its words, how many tokens are answered, how long the user thinks before it."""

    words: str
    answer_tokens: int
    think_s: float


@dataclass(frozen=True)
class Session:
    """A user of one application (one of a few system prompts)."""

    name: str
    start_s: float
    slo_class: str
    system: str
    turns: tuple[Turn, ...]


def text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words))


def sessions(seed: int, seconds: float, rate: float, apps: int = 3) -> list[Session]:
    """Poisson arrivals of `rate` sessions a second over `seconds`.

    Four of five are chats of two to five turns behind one of `apps` system prompts of 192 words; the fifth is a
    one-shot batch job of 300 to 500 words.  The system prompts depend on no seed: they are the applications'.
    """
    draw = random.Random(seed)
    system = [text(random.Random(1000 + app), 12 * BLOCK_WORDS) for app in range(apps)]
    out: list[Session] = []
    now_s = draw.expovariate(rate)
    while now_s < seconds:
        name = f"s{seed}-{len(out)}"
        if draw.random() < 0.8:
            count = draw.randint(2, 5)
            turns = tuple(Turn(text(draw, draw.randint(16, 48)), draw.randint(12, 32), draw.uniform(1.0, 5.0)) for _ in range(count))
            out.append(Session(name, now_s, "interactive", draw.choice(system), turns))
        else:
            out.append(Session(name, now_s, "offline", text(draw, draw.randint(300, 500)), (Turn("go on", draw.randint(24, 48), 0.0),)))
        now_s += draw.expovariate(rate)
    return out


def block_hashes(prompt: str) -> list[str]:
    """A chained hash of each whole block of 16 words: equal hash = equal text from the start to there."""
    words, digest, out = prompt.split(), b"", []
    for begin in range(0, len(words) - BLOCK_WORDS + 1, BLOCK_WORDS):
        piece = " ".join(words[begin : begin + BLOCK_WORDS]).encode()
        digest = hashlib.sha256(digest + piece).digest()
        out.append(digest[:6].hex())
    return out


def grow(prompt: str, turn: Turn) -> str:
    return f"{prompt} Q: {turn.words} A:"


def prompts(session: Session, answers: Iterator[str]) -> Iterator[str]:
    """The prompt of each turn, given the answers to the ones before."""
    so_far = session.system
    for turn in session.turns:
        so_far = grow(so_far, turn)
        yield so_far
        so_far = f"{so_far} {next(answers)}"
