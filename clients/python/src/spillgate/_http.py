"""HTTP/1.1 without I/O, by h11: the messages of one connection, and what is read of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

# An honest answer to the largest batch has some 500 KB.
ANSWER_BYTES = 16 * 1024 * 1024
# A piece of a body counts at least as much, so that reading an answer in tiny pieces ends soon, too.
_COUNTED_BYTES = 4096
# How much is read at once. The answer to a large batch then takes few turns of a loop that others keep busy.
PIECE_BYTES = 256 * 1024


class Target:
    """Where requests go."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be http://HOST:PORT or https://HOST:PORT, got {url!r}")
        self.is_secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.is_secure else 80)
        self.path = parts.path.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host.encode("idna").decode()
        self.fields = [("Host", f"{host}:{self.port}"), ("Content-Type", "application/json")]


class BadMessage(Exception):
    """The server does not speak HTTP/1.1, or answers more than a client reads."""


@dataclass(slots=True)
class Response:
    status: int
    body: bytes


class Exchanges:
    """The exchanges on one connection, one after the other."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._http = h11.Connection(h11.CLIENT)
        self._status = 0
        self._body: list[bytes] = []
        self._room = ANSWER_BYTES
        # Whether the connection may carry another exchange.
        self.is_reusable = False

    def request(self, path: str, body: bytes, authorization: str | None) -> bytes:
        """Returns the bytes to send."""
        fields = [*self._target.fields, ("Content-Length", str(len(body)))]
        if authorization is not None:
            fields.append(("Authorization", authorization))
        head = self._http.send(h11.Request(method="POST", target=self._target.path + path, headers=fields))
        sent = self._http.send(h11.Data(data=body))
        end = self._http.send(h11.EndOfMessage())
        self.is_reusable = False
        self._status, self._body, self._room = 0, [], ANSWER_BYTES
        return (head or b"") + (sent or b"") + (end or b"")

    def receive(self, data: bytes) -> Response | None:
        """Takes what was read, or ``b""`` at the end of the connection. Returns the response once it is complete.

        Raises `BadMessage` for anything else than a final response of bounded size. The connection must be closed then.
        """
        try:
            self._http.receive_data(data)
            return self._read()
        except h11.ProtocolError as error:
            raise BadMessage(str(error)) from error

    def _read(self) -> Response | None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                self._room -= max(len(event.data), _COUNTED_BYTES)
                if self._room < 0:
                    raise BadMessage(f"the answer has more than {ANSWER_BYTES} bytes, or too many pieces")
                self._body.append(bytes(event.data))
            elif isinstance(event, h11.Response):
                self._status = event.status_code
            elif isinstance(event, h11.EndOfMessage):
                self._end()
                return Response(self._status, b"".join(self._body))
            elif event is h11.NEED_DATA:
                return None
            elif isinstance(event, h11.InformationalResponse):
                raise BadMessage(f"the server sent status {event.status_code}, which is not a final answer")
            else:
                raise BadMessage("the server closed the connection")

    def _end(self) -> None:
        ended = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        # What comes after the response belongs to no request of ours.
        if ended and self._http.trailing_data == (b"", False):
            self._http.start_next_cycle()
            self.is_reusable = True
