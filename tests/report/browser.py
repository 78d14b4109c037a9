"""Debian's chromium, headless, driven over its debugging port with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlparse

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


def chromium() -> str | None:
    """The path of a chromium, or None."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


class Browser:
    """One page of a fresh browser. Collects what the console and the network saw."""

    def __init__(self, program: str) -> None:
        self.home = tempfile.mkdtemp(prefix="tfanalyze-chromium-")
        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.home}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        try:
            self.stream = _connect(self._page_address())
        except BaseException:
            self.close()
            raise
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)

    def _page_address(self) -> str:
        port_file = Path(self.home, "DevToolsActivePort")
        for _ in range(300):
            if port_file.exists() and (text := port_file.read_text().split("\n"))[0]:
                with urllib.request.urlopen(f"http://127.0.0.1:{text[0]}/json", timeout=10) as answer:
                    pages = [one for one in json.load(answer) if one["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError("chromium did not open its debugging port")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its answer; events that come first are noted."""
        self.number += 1
        _send(self.stream, json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(_receive(self.stream))
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:1800])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"])[:1800])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"][:1800])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"][:200])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.documentElement?.classList.contains('drawn')")

    def until(self, condition: str, timeout_s: float = 60.0) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + timeout_s
        while not self.value(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition} did not come true; console: {self.errors}")
            time.sleep(0.1)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression (a promise is awaited)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:1800])
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        code = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9, "Enter": 13}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - 3, y=y)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, path: Path) -> bytes:
        answer = self.call("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path.read_bytes()


def _connect(url: str) -> socket.socket:
    """A websocket: the opening handshake of RFC 6455."""
    where = urlparse(url)
    stream = socket.create_connection((where.hostname, where.port), timeout=90)
    key = base64.b64encode(os.urandom(16)).decode()
    stream.sendall(
        f"GET {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += _exactly(stream, 1)
    if b" 101 " not in answer.split(b"\r\n", 1)[0]:
        raise RuntimeError(answer.decode(errors="replace"))
    return stream


def _send(stream: socket.socket, text: str) -> None:
    """One masked text frame."""
    body, mask = text.encode(), os.urandom(4)
    size = len(body)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size) if size < 65_536 else b"\xff" + struct.pack(">Q", size)
    stream.sendall(b"\x81" + length + mask + bytes(byte ^ mask[k % 4] for k, byte in enumerate(body)))


def _receive(stream: socket.socket) -> str:
    """One text message, from as many frames as it has; pings are skipped."""
    parts = b""
    while True:
        first, second = _exactly(stream, 2)
        size = second & 0x7F
        if size == 126:
            size = struct.unpack(">H", _exactly(stream, 2))[0]
        elif size == 127:
            size = struct.unpack(">Q", _exactly(stream, 8))[0]
        body = _exactly(stream, size)
        if first & 0x0F in (0x0, 0x1):
            parts += body
            if first & 0x80:
                return parts.decode()


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = stream.recv(size - len(found))
        if not part:
            raise RuntimeError("chromium closed the connection")
        found += part
    return found
