"""Writes HTTP/1.1 requests and reads responses, without any I/O."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit


class Target:
    """Where requests go."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be http://HOST:PORT or https://HOST:PORT, got {url!r}")
        self.is_secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.is_secure else 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self._start = f"POST {parts.path.rstrip('/')}"
        self._fields = f" HTTP/1.1\r\nHost: {host}:{self.port}\r\nContent-Type: application/json\r\nContent-Length: "

    def request(self, path: str, body: bytes, authorization: str | None) -> bytes:
        head = f"{self._start}{path}{self._fields}{len(body)}\r\n"
        if authorization is not None:
            head += f"Authorization: {authorization}\r\n"
        return f"{head}\r\n".encode("latin-1") + body


class BadResponse(Exception):
    """The bytes are no HTTP/1.1 response."""


@dataclass(slots=True)
class Response:
    status: int
    body: bytes
    keep_alive: bool


def parse(data: bytes | bytearray, ended: bool = False) -> Response | None:
    """Returns the response, or ``None`` while some of it is missing. `ended`: the connection is closed, no more comes."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > _HEAD_MAX:
            raise BadResponse("the head of the response is too long")
        return None
    status, keep_alive, length, is_chunked = _head(bytes(data[:end]))
    if status < 200:
        return parse(data[end + 4 :], ended)
    start = end + 4
    if is_chunked:
        body = _chunks(data, start)
        return None if body is None else Response(status, body, keep_alive)
    if length is None:
        if status == 204 or status == 304:
            return Response(status, b"", keep_alive)
        return Response(status, bytes(data[start:]), False) if ended else None
    stop = start + length
    if len(data) < stop:
        return None
    return Response(status, bytes(data[start:stop]), keep_alive and len(data) == stop)


# Many answers have the same head, so most are not read again.
@lru_cache(maxsize=128)
def _head(head: bytes) -> tuple[int, bool, int | None, bool]:
    """Returns the status, whether the connection stays open, Content-Length, and whether the body comes in chunks."""
    if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
        raise BadResponse("the server does not speak HTTP/1.1")
    status = int(head[9:12])
    head = head.lower()
    keep_alive = head.startswith(b"http/1.1") and _field(head, b"connection") != b"close"
    length = _field(head, b"content-length")
    if length is None:
        return status, keep_alive, None, b"chunked" in (_field(head, b"transfer-encoding") or b"")
    if not length.isdigit():
        raise BadResponse("Content-Length is no number")
    return status, keep_alive, int(length), False


def _field(head: bytes, name: bytes) -> bytes | None:
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : len(head) if end < 0 else end].strip()


def _chunks(data: bytes | bytearray, start: int) -> bytes | None:
    body = bytearray()
    while True:
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            return None
        try:
            size = int(bytes(data[start:line_end]).split(b";")[0], 16)
        except ValueError:
            raise BadResponse("a chunk has no size") from None
        start = line_end + 2
        if size == 0:
            # Trailer fields, up to an empty line.
            has_no_trailers = data[start : start + 2] == b"\r\n"
            return bytes(body) if has_no_trailers or data.find(b"\r\n\r\n", start) >= 0 else None
        if len(data) < start + size + 2:
            return None
        body += data[start : start + size]
        start += size + 2


_HEAD_MAX = 64 * 1024
