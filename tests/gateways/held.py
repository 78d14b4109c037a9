"""Ask a real gateway for one choice at a time: fake engines hold each request until it is let go."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import commonprefix

from tests.gateways.engines import Engine, chat

LETTERS = "abcdefghijklmnopqrstuvwxyz "


@dataclass
class Held:
    """Requests in flight through a gateway, by name; a text ends with its own name."""

    url: str
    engines: Sequence[Engine]
    landed: dict[str, int] = field(default_factory=dict)
    _arrived: dict[str, threading.Event] = field(default_factory=dict)
    _go: dict[str, threading.Event] = field(default_factory=dict)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for n, engine in enumerate(self.engines):
            engine.on_chat = lambda body, n=n: self._hold(body, n)  # type: ignore[misc]

    def _hold(self, body: str, n: int) -> None:
        found = re.search(r"#(\w+)#", body)
        if found and found[1] in self._go:
            self.landed[found[1]] = n
            self._arrived[found[1]].set()
            self._go[found[1]].wait(60.0)

    def ask(self, name: str, text: str, headers: dict[str, str] | None = None) -> int:
        """Send it and wait until an engine has it; returns which."""
        self._arrived[name], self._go[name] = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=chat, args=(self.url, f"{text}#{name}#", headers), kwargs={"timeout_s": 90.0}, daemon=True
        )
        self._threads[name] = thread
        thread.start()
        assert self._arrived[name].wait(20.0), f"no engine got {name}"
        return self.landed[name]

    def free(self, name: str) -> None:
        """Let its engine answer, and wait until the client has the answer."""
        self._go[name].set()
        self._threads.pop(name).join(20.0)
        time.sleep(0.02)  # the gateway counts it off after it has passed on the last byte


@contextmanager
def held(url: str, engines: Sequence[Engine]) -> Iterator[Held]:
    found = Held(url, engines)
    try:
        yield found
    finally:
        for name in list(found._threads):
            found.free(name)
        for engine in engines:
            engine.on_chat = None


def steps_of(seed: int, n: int, families: int = 6) -> list[tuple[str, str, str]]:
    """("ask", name, text) and ("free", name, ""): families share a prefix, of a length of their own; up to 12 in flight."""
    draw = random.Random(seed)
    letters = lambda k: "".join(draw.choice(LETTERS) for _ in range(k))  # noqa: E731
    prefixes = [letters(draw.randrange(100, 900)) for _ in range(families)]
    steps: list[tuple[str, str, str]] = []
    open_: list[str] = []
    for k in range(n):
        steps.append(("ask", f"r{k}", draw.choice(prefixes) + letters(draw.randrange(50, 900))))
        open_.append(f"r{k}")
        while len(open_) > 12 or (open_ and draw.random() < 0.45):
            steps.append(("free", open_.pop(draw.randrange(len(open_))), ""))
    return steps


@dataclass
class Book:
    """What a router knows of one worker."""

    texts: list[str] = field(default_factory=list)
    inflight: set[str] = field(default_factory=set)

    def hit(self, text: str) -> int:
        """Characters of the longest common prefix with anything sent there."""
        return max((len(commonprefix([text, old])) for old in self.texts), default=0)
