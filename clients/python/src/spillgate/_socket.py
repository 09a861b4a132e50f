"""Connections of the client for threads, on sockets that never block for more than a slice of time."""

from __future__ import annotations

import ipaddress
import os
import queue
import select
import socket
import ssl
import threading
import time
from typing import Any

from ._http import PIECE_BYTES, Exchanges, Response, Target
from ._patience import Patience


class Connection:
    """One connection, which carries one exchange at a time."""

    def __init__(self, connected: socket.socket, target: Target) -> None:
        self._socket = connected
        self._readiness = _Readiness(connected)
        self._exchanges = Exchanges(target)
        self._unsent = memoryview(b"")
        # Made once: allocating so much for each read takes longer than the read.
        self._piece = memoryview(bytearray(PIECE_BYTES))
        self._used = time.monotonic()

    def start(self, path: str, body: bytes, authorization: str | None) -> None:
        self._unsent = memoryview(self._exchanges.request(path, body, authorization))

    def carry(self, patience: Patience) -> Response:
        """Sends what is not sent yet, and reads the response. Another thread may go on where one was interrupted."""
        while self._unsent:
            self._send(patience)
        while (response := self._receive(patience)) is None:
            pass
        self._used = time.monotonic()
        return response

    def _send(self, patience: Patience) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            patience.wait(self._readiness.to_write)

    def _receive(self, patience: Patience) -> Response | None:
        if not _has_pending(self._socket):
            patience.wait(self._readiness.to_read)
        try:
            size = self._socket.recv_into(self._piece)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        return self._exchanges.receive(bytes(self._piece[:size]))

    @property
    def is_reusable(self) -> bool:
        return self._exchanges.is_reusable

    def is_usable(self, idle_seconds: float) -> bool:
        """Whether it is young, and the server has not closed it: it has nothing to read but its end."""
        return time.monotonic() - self._used < idle_seconds and not self._readiness.to_read(0)

    def close(self) -> None:
        self._socket.close()


class _Readiness:
    """Waits for a socket. `select` cannot watch a file descriptor above 1,023, `poll` is not on Windows."""

    def __init__(self, watched: socket.socket) -> None:
        self._socket = watched
        self._poll = select.poll() if hasattr(select, "poll") else None

    def to_read(self, seconds: float) -> bool:
        if self._poll is None:
            return bool(select.select([self._socket], [], [], seconds)[0])
        self._poll.register(self._socket, select.POLLIN)
        return bool(self._poll.poll(seconds * 1000))

    def to_write(self, seconds: float) -> bool:
        if self._poll is None:
            # A connection that fails is an exception there.
            return any(select.select([], [self._socket], [self._socket], seconds))
        self._poll.register(self._socket, select.POLLOUT)
        return bool(self._poll.poll(seconds * 1000))


def connect(target: Target, context: ssl.SSLContext | None, patience: Patience) -> Connection:
    connected = _connect_to_any(_addresses(target, patience), patience)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connected = _secured(connected, context, target.host, patience)
        return Connection(connected, target)
    except BaseException:
        connected.close()
        raise


def _secured(
    connected: socket.socket, context: ssl.SSLContext, host: str, patience: Patience
) -> ssl.SSLSocket:
    secured = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
    readiness = _Readiness(secured)
    try:
        while True:
            try:
                secured.do_handshake()
                return secured
            except ssl.SSLWantReadError:
                patience.wait(readiness.to_read)
            except ssl.SSLWantWriteError:
                patience.wait(readiness.to_write)
    except BaseException:
        secured.close()
        raise


def _has_pending(connected: socket.socket) -> bool:
    """Whether TLS has read more from the socket than the client has read from it."""
    return isinstance(connected, ssl.SSLSocket) and connected.pending() > 0


def _addresses(target: Target, patience: Patience) -> list[Any]:
    """Returns what `socket.getaddrinfo` does."""
    try:
        ipaddress.ip_address(target.host)
    except ValueError:
        # A name: the look-up has no time-out of its own.
        pass
    else:
        return socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()
    found: list[list[Any] | Exception] = []

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except Exception as error:
            answers.put(error)

    def has_answer(seconds: float) -> bool:
        try:
            found.append(answers.get(timeout=seconds) if seconds else answers.get_nowait())
        except queue.Empty:
            return False
        return True

    try:
        threading.Thread(target=look_up, name="spillgate-lookup", daemon=True).start()
    except RuntimeError:
        # No thread starts while the interpreter shuts down.
        look_up()
    patience.wait(has_answer)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _connect_to_any(addresses: list[Any], patience: Patience) -> socket.socket:
    """Connects to the first address that accepts. Raises the error of the last one if none does."""
    failure = OSError("the host has no address")
    for family, kind, protocol, _, address in addresses:
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            _connect(connecting, address, patience)
            return connecting
        except OSError as error:
            connecting.close()
            failure = error
        except BaseException:
            connecting.close()
            raise
    raise failure


def _connect(connecting: socket.socket, address: Any, patience: Patience) -> None:
    try:
        connecting.connect(address)
    except BlockingIOError:
        patience.wait(_Readiness(connecting).to_write)
        number = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number)) from None
