"""Tiny fake engines on 127.0.0.1, and what starts a real gateway in front of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Engine:
    """One fake replica: answers chat calls after ``delay_s`` and reports the load it is told to."""

    name: str
    delay_s: float = 0.0
    kv_used_share: float = 0.1
    waiting: int = 0
    slots: int = 64
    port: int = field(default_factory=free_port)
    served: int = 0
    running: int = 0  # chat calls it is answering
    polled_s: float = 0.0  # monotonic time when its load was last asked for
    reported: int = 0  # running, as it said then
    on_chat: Callable[[str], None] | None = (
        None  # called with the body of each chat call; the answer waits for it
    )
    healthy: bool = True  # answers health checks
    status: int = 200  # of chat answers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def report(self, path: str) -> Any:
        if path == "/v1/models":
            return {
                "object": "list",
                "data": [{"id": "m", "object": "model", "owned_by": "test", "max_model_len": 8192}],
            }
        if path == "/v1/loads":
            self.polled_s, self.reported = time.monotonic(), self.running
            load = {
                "dp_rank": 0, "num_running_reqs": self.running, "num_waiting_reqs": self.waiting,
                "num_total_reqs": self.running + self.waiting,
                "num_used_tokens": int(self.kv_used_share * 10000), "max_total_num_tokens": 10000, "token_usage": self.kv_used_share,
                "gen_throughput": 500.0, "cache_hit_rate": 0.0, "utilization": self.kv_used_share, "max_running_requests": self.slots,
            }  # fmt: skip
            return {"timestamp": "t", "dp_rank_count": 1, "loads": [load]}
        if path == "/metrics":
            return (
                f'vllm:num_requests_running{{model_name="m"}} {self.running}\nvllm:num_requests_waiting{{model_name="m"}} {self.waiting}\n'
                f'vllm:kv_cache_usage_perc{{model_name="m"}} {self.kv_used_share}\nsglang:token_usage {self.kv_used_share}\n'
            )
        if path == "/version":
            return {"version": "0.12.0"}
        return {
            "status": "ok",
            "model_path": "m",
            "model_id": "m",
            "served_model_name": "m",
            "model_type": "llama",
            "max_running_requests": self.slots,
        }

    def render(self, body: Any) -> Any:
        """As vLLM's .../render: the prompt as tokens; here one each four characters, the same text the same number."""
        text = "".join(str(m.get("content")) for m in body.get("messages", ()))
        tokens = [zlib.crc32(text[k : k + 4].encode()) % 100_000 for k in range(0, len(text), 4)]
        return {"request_id": "x", "model": "m", "token_ids": tokens, "sampling_params": {}}

    def answer(self, body_bytes: int) -> Any:
        message = {"role": "assistant", "content": "hi"}
        return {
            "id": "x", "object": "chat.completion", "created": 1, "model": "m", "served_by": self.name, "system_fingerprint": self.name,
            "choices": [{"index": 0, "finish_reason": "stop", "text": "hi", "message": message}],
            "usage": {"prompt_tokens": max(1, body_bytes // 4), "completion_tokens": 1, "total_tokens": body_bytes // 4 + 1},
        }  # fmt: skip


def _handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _send(self, found: Any, status: int = 200) -> None:
            data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(found, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("x-backend", engine.name)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            self._send(engine.report(path), 200 if engine.healthy or path != "/health" else 503)

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(size)
            if self.path.split("?")[0] == "/v1/chat/completions/render":
                self._send(engine.render(json.loads(body)))
                return
            chat = self.path.split("?")[0] == "/v1/chat/completions"
            if chat:
                engine.served += 1
                engine.running += 1
                if engine.on_chat is not None:
                    engine.on_chat(body.decode())
                time.sleep(engine.delay_s)
                engine.running -= 1
            self._send(engine.answer(size), engine.status if chat else 200)

    return Handler


@contextmanager
def running(engines: Sequence[Engine]) -> Iterator[Sequence[Engine]]:
    servers = []
    for engine in engines:
        server = ThreadingHTTPServer(("127.0.0.1", engine.port), _handler(engine))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    try:
        yield engines
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


@contextmanager
def started(
    command: Sequence[str],
    log: Path,
    ready_url: str,
    *,
    env: dict[str, str] | None = None,
    wait_s: float = 60.0,
) -> Iterator[Path]:
    """Run a gateway until the block ends; yields its log. It must answer ``ready_url`` within ``wait_s``."""
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        try:
            _await(ready_url, process, log, wait_s)
            yield log
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def _await(url: str, process: subprocess.Popen[bytes], log: Path, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        assert process.poll() is None, f"ended with {process.returncode}: {log.read_text()[-2000:]}"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url} did not answer in {wait_s} s: {log.read_text()[-2000:]}")


def chat(
    url: str,
    text: str = "hello",
    headers: dict[str, str] | None = None,
    model: str = "m",
    timeout_s: float = 20.0,
) -> tuple[int, str]:
    """One chat call: (status, name of the engine that served it)."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(
        url + "/v1/chat/completions", body, {"content-type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return reply.status, str(json.loads(reply.read()).get("system_fingerprint") or "")
    except urllib.error.HTTPError as error:
        return error.code, ""
