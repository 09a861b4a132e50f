"""A server of raw bytes: answers as each test wants, also against all rules."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any


class RawServer:
    """Gives the request's path and JSON to `answer`, and sends the bytes that it returns.

    `answer` may return pieces, which are sent until the client closes. After `None` or the last piece the connection stays
    open. `RESET` resets it, `CLOSE` closes it.
    """

    def __init__(self, answer: Callable[[str, Any], bytes | Iterable[bytes] | None]) -> None:
        self.answer = answer
        self.paths: list[str] = []
        self.bodies: list[Any] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connected = self._listener.accept()[0]
            except OSError:
                return
            self.connections += 1
            self._open.append(connected)
            threading.Thread(target=self._serve, args=[connected], daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        # A client that gave up closes its connection.
        with connected, contextlib.suppress(OSError):
            while request := _read_request(connected):
                self.paths.append(request[0])
                self.bodies.append(request[1])
                answer = self.answer(*request)
                for piece in [answer] if isinstance(answer, bytes) else answer or ():
                    if piece == RESET:
                        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return
                    if piece == CLOSE:
                        return
                    connected.sendall(piece)

    def close(self) -> None:
        self._listener.close()
        for connected in self._open:
            connected.close()


RESET = b"reset"
CLOSE = b"close"


def _read_request(connected: socket.socket) -> tuple[str, Any] | None:
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connected.recv(65536)
        if not piece:
            return None
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head, re.I)[1])  # type: ignore[index]
    while len(body) < length:
        body += connected.recv(65536)
    return head.split()[1].decode(), json.loads(body)


def response(status: int, body: object, *fields: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = "\r\n".join([f"HTTP/1.1 {status} Answer", f"Content-Length: {len(data)}", *fields])
    return f"{head}\r\n\r\n".encode() + data


def allowed(path: str, body: Any, **fields: object) -> bytes:
    """Allows everything. The answer has these fields as well."""
    if path == "/v1/check/batch":
        return response(200, {"results": [{"allowed": True} for _ in body], **fields})
    return response(200, {"allowed": True, "result": "done", "receipt": "AQAB", **fields})
