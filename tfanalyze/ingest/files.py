"""Find the files to read, unpack them, and hand them to DuckDB or to a Python reader, line numbers kept.

A plain file whose lines are sound is read where it lies. Anything else (gzip, zstd, xz, stdin, blank lines, bad
UTF-8, a torn last line) is passed on in chunks that live in memory: no unpacked copy is ever written to disk.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import BinaryIO

from tfanalyze.errors import FormatError, InputError

HEAD_BYTES = 1 << 16
CHUNK_BYTES = 32 << 20
MAX_LINE_BYTES = 32 << 20
MAX_RATIO = 2000  # unpacked to packed size; above it a file is taken for a decompression bomb
BLANK = "\x02"  # stands for a line without a record, so that line numbers stay right
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz"}
IGNORED_NAMES = {"license", "readme", "notice", "copying", "makefile"}
IGNORED_SUFFIXES = {
    ".md", ".rst", ".yaml", ".yml", ".toml", ".py", ".sh", ".html", ".npz", ".npy", ".png", ".svg", ".pdf", ".key", ".duckdb",
    ".wal", ".db", ".gitignore", ".jinja",
}  # fmt: skip


@dataclass(slots=True)
class Source:
    """One file to ingest, scanned: what it is packed with, its hash, and how sound its lines are."""

    path: str
    name: str  # as shown and stored
    codec: str  # plain | gzip | zstd | xz
    head: bytes  # first unpacked bytes, at most HEAD_BYTES
    sha256: str = ""
    size: int = 0  # unpacked bytes
    lines: int = 0  # newline-terminated lines that are not blank
    blank: int = 0
    torn: int = 0  # 1 if the last line has no newline
    clean: bool = False  # DuckDB may read the file where it lies
    notes: list[str] = field(default_factory=list)
    data: bytes | None = None  # stdin is read once and kept

    def text_head(self) -> str:
        """The first bytes as text, whole lines only where there is more than one."""
        text = self.head.decode("utf-8", "replace").lstrip("\ufeff")
        if len(self.head) >= HEAD_BYTES and "\n" in text:
            text = text[: text.rindex("\n") + 1]
        return text


def find(paths: Sequence[str | Path]) -> list[str]:
    """Expand directories and globs, in sorted order; "-" is stdin. Errors: InputError for what matches nothing."""
    found: list[str] = []
    for path in paths:
        text = str(path)
        if text == "-":
            found.append(text)
        elif Path(text).is_dir():
            inside = sorted(str(p) for p in Path(text).rglob("*") if p.is_file() and _wanted(p))
            if not inside:
                raise InputError("holds no file to read", text, "give a file, a directory or a glob")
            found += inside
        elif Path(text).exists():
            found.append(text)
        else:
            matched = sorted(p for p in glob.glob(text, recursive=True) if Path(p).is_file())  # noqa: PTH207 (absolute globs)
            if not matched:
                raise InputError("no such file", text, "check the path")
            found += matched
    return list(dict.fromkeys(found))


def _wanted(path: Path) -> bool:
    if path.name.startswith(".") or path.name.split(".")[0].split("-")[0].lower() in IGNORED_NAMES:
        return False
    return path.suffix.lower() not in IGNORED_SUFFIXES


def peek(path: str) -> Source:
    """Read the head of a file and see what it is packed with."""
    if path == "-":
        data = sys.stdin.buffer.read()
        source = Source("-", "<stdin>", codec_of(data[:6]), b"", data=data)
    else:
        try:
            with Path(path).open("rb") as file:
                magic = file.read(6)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path, "check its permissions") from error
        source = Source(path, path, codec_of(magic), b"")
    with opened(source) as stream:
        source.head = _read(stream, HEAD_BYTES, source)
    if len(source.head) >= 2 and source.head[0] == 0x80 and source.head[1] in (2, 3, 4, 5):
        raise FormatError(
            "is a Python pickle, which can run code when it is read",
            source.name,
            "convert it to JSON on the host that wrote it",
        )
    return source


def codec_of(magic: bytes) -> str:
    for start, codec in PACKED.items():
        if magic.startswith(start):
            return codec
    return "plain"


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """The unpacked bytes of a source as a stream."""
    raw: BinaryIO
    try:
        raw = io.BytesIO(source.data) if source.data is not None else Path(source.path).open("rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source.path, "check its permissions") from error
    try:
        yield _unpacked(raw, source.codec)
    finally:
        raw.close()


def _unpacked(raw: BinaryIO, codec: str) -> BinaryIO:
    if codec == "gzip":
        import gzip

        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if codec == "xz":
        import lzma

        return lzma.LZMAFile(raw)  # type: ignore[return-value]
    if codec == "zstd":
        import zstandard

        reader: BinaryIO = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return reader
    return raw


def _read(stream: BinaryIO, size: int, source: Source) -> bytes:
    """Read up to `size` bytes; a torn archive gives what it has, and says so once."""
    parts: list[bytes] = []
    left = size
    while left > 0:
        try:
            part = stream.read(left)
        except (EOFError, OSError, ValueError) as error:
            _torn_archive(source, error)
            break
        except Exception as error:  # zlib.error, ZstdError and LZMAError share no base class
            if type(error).__name__ not in ("error", "ZstdError", "LZMAError"):
                raise
            _torn_archive(source, error)
            break
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _torn_archive(source: Source, error: Exception) -> None:
    if isinstance(error, OSError) and error.errno:
        raise InputError(f"cannot be read: {error.strerror}", source.name, "check the disk") from error
    note = "archive ends early: what it holds before that was read"
    if note not in source.notes:
        source.notes.append(note)


def scan(source: Source, progress: Callable[[float, str], None] | None = None) -> None:
    """Hash a file and judge its lines: fills sha256, bytes, lines, blank, torn and clean."""
    digest, clean, last, previous = hashlib.sha256(), source.codec == "plain", b"\n", b"\n"
    newlines = doubled = source.size = 0
    size = Path(source.path).stat().st_size if source.data is None else len(source.data)
    with opened(source) as stream:
        while chunk := _read(stream, 4 << 20, source):
            digest.update(chunk)
            source.size += len(chunk)
            newlines += chunk.count(b"\n")
            joined = previous + chunk
            if clean:
                doubled = joined.count(b"\n\n") + joined.count(b"\n\r\n")
                clean = not doubled and b"\x00" not in chunk and b"\x01" not in chunk and _plain_text(chunk)
            previous, last = chunk[-1:], chunk[-1:]
            if source.codec != "plain" and source.size > MAX_RATIO * max(size, 1 << 16):
                raise InputError(f"unpacks to more than {MAX_RATIO} times its size", source.name, "unpack it yourself")
            if progress:
                progress(0.2 * min(1.0, source.size / max(size, 1)), f"reading {source.name}")
    source.sha256 = digest.hexdigest()
    source.torn = int(last != b"\n" and source.size > 0)
    source.lines = newlines
    source.clean = clean and not source.torn and not source.notes and source.data is None


def measure(source: Source, stop: Event | None = None, text: bool = True) -> bool:
    """Hash a plain file and count its lines: fills sha256, size, lines and torn. True if all of it is plain ASCII text.

    For a thread beside DuckDB's: all that takes time runs without the interpreter's lock. `stop` ends it early; without
    `text` nobody asks what it is.
    """
    import numpy as np

    digest, plain, last = hashlib.sha256(), True, 10
    source.size = source.lines = 0
    buffer = bytearray(1 << 20)  # stays in the processor's cache
    view, codes = memoryview(buffer), np.frombuffer(buffer, np.uint8)
    try:
        with Path(source.path).open("rb", buffering=0) as file:
            while (stop is None or not stop.is_set()) and (size := file.readinto(buffer)):
                digest.update(view[:size])
                source.size += size
                source.lines += int(np.count_nonzero(codes[:size] == 10))
                last = buffer[size - 1]
                if text and plain:
                    chunk = bytes(view[:size])
                    plain = b"\x00" not in chunk and _plain_text(chunk)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source.path, "check the disk") from error
    source.sha256 = digest.hexdigest()
    source.torn = int(last != 10 and source.size > 0)
    return plain


def _plain_text(chunk: bytes) -> bool:
    """Whether a chunk is ASCII without lone carriage returns; other text takes the careful path."""
    return chunk.isascii() and (b"\r" not in chunk or chunk.count(b"\r") == chunk.count(b"\r\n"))


def lines(source: Source) -> Iterator[tuple[int, str]]:
    """(line number, text) of each line that is not blank. A torn last line is dropped when `source.torn` is kept 1.

    Lines longer than MAX_LINE_BYTES come as an empty text, for the reader to reject.
    """
    yield from _raw_lines(source)


def _raw_lines(source: Source) -> Iterator[tuple[int, str]]:
    number = 0
    with opened(source) as stream:
        rest = b""
        while chunk := _read(stream, 4 << 20, source):
            parts = (rest + chunk).split(b"\n")
            rest = parts.pop()
            for part in parts:
                number += 1
                text = _decode(part, number)
                if text.strip():
                    yield number, text if len(part) <= MAX_LINE_BYTES else ""
            if len(rest) > 4 * MAX_LINE_BYTES:
                rest = rest[: 2 * MAX_LINE_BYTES]
        if rest.strip():
            yield number + 1, _decode(rest, number + 1)


def _decode(part: bytes, number: int) -> str:
    text = part.decode("utf-8", "replace").rstrip("\r").replace("\x00", "")
    return text.removeprefix("\ufeff") if number == 1 else text


def whole_text(source: Source, limit: int = 1 << 30) -> str:
    """All of a file as text, for formats that are one JSON document. Errors: InputError above `limit` bytes."""
    with opened(source) as stream:
        data = _read(stream, limit + 1, source)
    if len(data) > limit:
        raise InputError(f"is one document of more than {limit >> 20} MiB", source.name, "export it as JSON lines")
    return data.decode("utf-8", "replace").lstrip("\ufeff")


def feed(source: Source, sound: Callable[[str], bool]) -> Iterator[str]:
    """Paths that DuckDB can read line by line: the file itself, or chunks of it in memory.

    In chunks a blank line becomes BLANK, and the last line, if torn, is kept only if it is `sound`.
    """
    if source.clean:
        yield source.path
        return
    buffer: list[str] = []
    size = expected = 0
    for number, text in _raw_lines(source):
        if source.torn and number == source.lines + 1 and not sound(text):
            break
        expected += 1
        while expected < number:
            buffer.append(BLANK)
            source.blank += 1
            expected += 1
        line = text.replace("\r", " ").replace("\x01", " ") or "{too long}"
        buffer.append(line)
        size += len(line) + 1
        if size >= CHUNK_BYTES:
            yield from _chunk(buffer)
            buffer, size = [], 0
    if buffer:
        yield from _chunk(buffer)


def _chunk(buffer: list[str]) -> Iterator[str]:
    data = ("\n".join(buffer) + "\n").encode("utf-8", "replace")
    with memory_file(data) as path:
        yield path


@contextmanager
def memory_file(data: bytes) -> Iterator[str]:
    """A path under which `data` can be read; in memory where the system can, else an unlinked-after temporary file."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        handle = os.memfd_create("tfanalyze")
        try:
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(data)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile(prefix="tfanalyze-") as file:
        file.write(data)
        file.flush()
        yield file.name
