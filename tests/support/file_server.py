"""A server of files on 127.0.0.1 that understands ranges, and can be told to cut or refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(kw_only=True)
class FileServer:
    """What is served, and what was asked for.

    Attributes:
        files: Content of each path.
        kinds: Content type of each path.
        statuses: Paths that are answered with a status instead.
        cuts: How many bytes of a path are sent before the line breaks, once for each entry.
        ignores_ranges: Whether the whole file is sent whatever is asked for.
        seen: ``(method, path, range, authorization)`` of each request.
    """

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    ignores_ranges: bool = False
    seen: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ranges(self) -> list[str | None]:
        return [asked for _, _, asked, _ in self.seen]


class _Server(ThreadingHTTPServer):
    def __init__(self, state: FileServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state = state
        state.port = self.server_address[1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        state, asked = self.server.state, self.headers.get("Range")
        state.seen.append((self.command, self.path, asked, self.headers.get("Authorization")))
        if self.path in state.statuses or self.path not in state.files:
            self._say(state.statuses.get(self.path, 404), 0)
            return
        content = state.files[self.path]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and not state.ignores_ranges else 0
        if start and start >= len(content):
            self._say(416, 0)
            return
        ranges = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        kind = {"Content-Type": state.kinds.get(self.path, "application/octet-stream")}
        self._say(206 if start else 200, len(content) - start, ranges | kind)
        if with_body:
            self._send(content[start:])

    def _say(self, status: int, length: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, content: bytes) -> None:
        cuts = self.server.state.cuts.get(self.path)
        if cuts:
            self.wfile.write(content[: cuts.pop(0)])
            self.close_connection = True
            return
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def running_file_server() -> Iterator[FileServer]:
    state = FileServer()
    server = _Server(state)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
