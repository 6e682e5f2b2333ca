"""A server that speaks like OpenAI's API, for tests of clients. Run as a program it stands in for ``octavo serve``."""

import argparse
import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeServer:
    """What the server says, and what it was asked."""

    pieces: list[str] = field(default_factory=lambda: ["Paris", " is", " it", "."])
    error_status: int | None = None
    """Answer every generation with this status."""
    error_in_stream: bool = False
    """Put an error event behind the first piece."""
    break_off: bool = False
    """Close the connection behind the first piece."""
    gap: float = 0.0
    """Seconds between two pieces."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def events(self, chat: bool) -> Iterator[dict[str, Any]]:
        """The events of one stream: the role (for chat), the pieces, the end, the usage."""
        if chat:
            yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        for number, piece in enumerate(self.pieces):
            yield {"choices": [{"index": 0, **({"delta": {"content": piece}} if chat else {"text": piece})}]}
            if self.error_in_stream and number == 0:
                yield {"error": {"message": "the engine is gone", "type": "server_error"}}
        yield {"choices": [{"index": 0, "finish_reason": "stop", **({"delta": {}} if chat else {"text": ""})}]}
        yield {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(self.pieces)}}

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the streams that run at the same time."""
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1


def make_handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    """A request handler class that plays ``server``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            known = {"/health": {"status": "ready"}, "/v1/models": {"data": [{"id": "fake-model"}]}}
            self.answer(
                200 if self.path in known else 404, known.get(self.path, {"error": {"message": "no such path"}})
            )

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.requests.append(body)
            server.paths.append(self.path)
            if server.error_status is not None:
                self.answer(server.error_status, {"error": {"message": "max_tokens is too large"}})
                return
            with server.counted():
                self.stream()

        def answer(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def stream(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for event in server.events("chat" in self.path):
                # Each event is cut in two, so that a client that takes a chunk for an event fails.
                data = f"data: {json.dumps(event)}\n\n".encode()
                self.chunk(data[:9])
                self.chunk(data[9:])
                if server.break_off and event["choices"] and "finish_reason" not in event["choices"][0]:
                    self.close_connection = True
                    return
                time.sleep(server.gap)
            self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    return Handler


@contextlib.contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Serves in a thread while the block runs; ``server.url`` tells where."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(server))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def serve_from_command_line() -> None:
    """Stands in for ``octavo serve`` in tests of ``octavo bench startup``: takes its flags, writes its timeline."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fail", action="store_true")
    arguments = parser.parse_args()
    if arguments.fail:
        raise SystemExit("octavo: there is no such model")
    began = time.time()
    path = os.environ.get("OCTAVO_STARTUP_JSON")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"process_start": began, "marks": {"api: imports": began, "engine-0: load weights": began}}, file)
    ThreadingHTTPServer((arguments.host, arguments.port), make_handler(FakeServer())).serve_forever()


if __name__ == "__main__":
    serve_from_command_line()
