"""Secrets stay here: the workspace's key, pseudonyms, and block hashes of prompt text or token ids.

This is the only module that ever holds prompt text, and only while it hashes it. The key lies next to the
workspace (mode 600), never inside it, so that a workspace passed on can not be used to guess prompts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tfanalyze.errors import InputError

CHARS_PER_BLOCK = 64  # of prompt text; how many tokens that is gets calibrated on prompt_tokens
TOKENS_PER_BLOCK = 16


def workspace_key(db: str, key_file: str | None = None) -> bytes:
    """The key of a workspace, made on first use; a throw-away one for a workspace in memory."""
    if key_file is None and db == ":memory:":
        return secrets.token_bytes(32)
    path = Path(key_file or db + ".key")
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return _read_key(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", str(path), "give --key-file a place") from error
    key = secrets.token_bytes(32)
    with os.fdopen(handle, "w") as file:
        file.write(key.hex() + "\n")
    return key


def _read_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise InputError("holds no key", str(path), "restore it, or remove it to get a new one") from error
    if len(key) < 16:
        raise InputError("holds too short a key", str(path), "restore it, or remove it to get a new one")
    return key


def derived(key: bytes, purpose: str) -> str:
    """A key of its own for one purpose, as hex."""
    return hmac.new(key, purpose.encode(), hashlib.sha256).hexdigest()


def pseudonym_secret(key: bytes) -> str:
    """What is hashed before a name: 114 bits, so short that a UUID beside it still fits into one block of SHA-256."""
    return base64.b64encode(hmac.digest(key, b"pseudonym", "sha256")).decode()[:19]


def pseudonym(key: bytes, value: Any, prefix: str = "t") -> str:
    """A name that tells values apart without telling them; equals what the SQL macro of logs.py makes."""
    digest = hashlib.sha256((pseudonym_secret(key) + str(value)).encode()).hexdigest()
    return f"{prefix}-{digest[:12]}"


def chain(key: bytes, parts: Iterable[bytes]) -> list[int]:
    """Chained 64-bit hashes: one a part, each over all parts before it too."""
    state, out = derived(key, "blocks").encode(), []
    for part in parts:
        state = hmac.digest(state, part, "sha256")
        out.append(int.from_bytes(state[:8], "big"))
    return out


def hash_tokens(key: bytes, tokens: Sequence[int], size: int = TOKENS_PER_BLOCK) -> list[int]:
    """Blocks of `size` token ids; a last partial block is left out, for it could be guessed."""
    full = len(tokens) // size
    return chain(key, (repr(tuple(tokens[i * size : (i + 1) * size])).encode() for i in range(full)))


def hash_text(key: bytes, text: str, size: int = CHARS_PER_BLOCK) -> list[int]:
    """Blocks of `size` characters of a prompt; a last partial block is left out."""
    full = len(text) // size
    return chain(key, (text[i * size : (i + 1) * size].encode("utf-8", "replace") for i in range(full)))


def prompt_text(content: Any) -> str:
    """The text of a prompt in any of the shapes that request bodies have it: string, chat messages, parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_message(item) for item in content)
    if isinstance(content, dict):
        return _message(content)
    return ""


def _message(item: Any) -> str:
    if isinstance(item, dict):
        role = item.get("role")
        inner = item.get("content", item.get("text", item.get("parts")))
        text = prompt_text(inner) if inner is not None else json.dumps(item, sort_keys=True)
        return f"<{role}>{text}" if isinstance(role, str) else text
    return item if isinstance(item, str) else ""


def tokens_per_block(pairs: Iterable[tuple[int, int]]) -> int | None:
    """Tokens that one block stands for: the median of prompt tokens a block; None without any."""
    ratios = sorted(tokens / blocks for tokens, blocks in pairs if blocks > 0 and tokens > 0)
    return max(1, round(ratios[len(ratios) // 2])) if ratios else None
