"""The client for threads, on sockets."""

from __future__ import annotations

import ipaddress
import os
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _http1
from ._core import (
    CONNECTIONS,
    IDLE_SECONDS,
    TIMEOUT,
    CheckRequest,
    Core,
    Cost,
    InlineLimit,
    Message,
    NoPlace,
    Observe,
    OnFailure,
    Outcome,
    PlaceForWait,
    ReservationCore,
    Result,
    Steps,
    Token,
    check_body,
    lack_of_places,
    lack_of_places_for_waits,
    places_for_waits,
    reserve_body,
)
from .decision import Decision, Unavailable


class Client(Core):
    """Asks a Spillgate server. One client serves all threads; make it once.

    A call never raises because the server is slow or away: ``on_failure`` decides then. It raises `ProblemError`
    for a request that the server refuses, such as a wrong token.

    Args:
        url: where the server listens, ``http://127.0.0.1:8080``.
        token: the bearer token, or a function that returns it.
        timeout: seconds until ``on_failure`` decides.
        on_failure: ``"allow"`` (fail open) or ``"deny"`` (fail closed).
        connections: the most connections, and so calls at once. Calls with a wait use at most half of them, at least one.
        observe: called with a `Call` after each call, for metrics.
        ssl_context: for ``https``; by default the system's certificates are trusted.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        token: Token | None = None,
        timeout: float = TIMEOUT,
        on_failure: OnFailure = "allow",
        connections: int = CONNECTIONS,
        observe: Observe | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(url, token, timeout, on_failure, connections, observe)
        self._pool = _Pool(self._target, connections, ssl_context)

    def check(
        self,
        attributes: Mapping[str, str | int] | None = None,
        *,
        cost: Cost | None = None,
        domain: str | None = None,
        key: str | None = None,
        limit: str | InlineLimit | None = None,
        wait: float = 0,
        headers: bool | str = False,
    ) -> Decision:
        """Decides one request by the rules of the policy, or ``key`` by a ``limit`` such as ``"5/minute"``.

        Args:
            attributes: what the rules match and limit by.
            cost: a number of requests, or ``{"requests": 1, "tokens": 900}``; 0 only looks.
            wait: seconds to wait for room, at most 60; they add to the time-out. A negative wait is none. The server waits,
                after the client has a connection for the call.
            headers: ``True`` or a style, such as ``"draft-7"``, for response header fields in the answer.
        """
        return self._run(self._checking(check_body(attributes, cost, domain, key, limit, headers), wait))

    def check_batch(self, checks: Sequence[CheckRequest]) -> list[Decision]:
        """Decides up to 1,000 requests in one call, each by itself. The decisions have the order of the requests."""
        return self._run(self._checking_batch(checks))

    def acquire(
        self,
        attributes: Mapping[str, str | int] | None = None,
        *,
        deadline: float,
        cost: Cost | None = None,
        domain: str | None = None,
        key: str | None = None,
        limit: str | InlineLimit | None = None,
    ) -> Decision:
        """Checks, and waits ``retry_after`` after each denial, until allowed, or until the next wait would exceed ``deadline``.

        Both are in seconds. For permits use `check` with ``wait``: their ``retry_after`` is the latest time at which one is free.
        """
        return self._run(self._acquiring(check_body(attributes, cost, domain, key, limit), deadline))

    def reserve(
        self,
        attributes: Mapping[str, str | int] | None = None,
        *,
        cost: Cost | None = None,
        ttl: float = 60,
        domain: str | None = None,
        key: str | None = None,
        limit: str | InlineLimit | None = None,
        headers: bool | str = False,
    ) -> Reservation:
        """Charges an estimate, to be settled with the true cost within ``ttl`` seconds, at most 24 hours.

        >>> with client.reserve({"user": "ada"}, cost={"tokens": 4000}) as job:  # doctest: +SKIP
        ...     job.settle({"tokens": call_the_model()})
        """
        body = reserve_body(check_body(attributes, cost, domain, key, limit, headers), ttl)
        return Reservation(self, self._run(self._reserving(body)))

    def settle(self, receipt: str, cost: Cost) -> Outcome:
        """Replaces a reservation's estimate by the true cost. ``"unavailable"`` if the server does not answer."""
        return self._run(self._ending("settle", receipt, cost=cost))

    def cancel(self, receipt: str) -> Outcome:
        """Refunds a reservation."""
        return self._run(self._ending("cancel", receipt))

    def release(self, receipt: str) -> Outcome:
        """Ends the permits of a reservation or of a check; the estimate stays charged."""
        return self._run(self._ending("release", receipt))

    def renew(self, receipt: str, ttl: float) -> Outcome:
        """Lets a reservation and its permits last for ``ttl`` seconds from now."""
        return self._run(self._ending("renew", receipt, ttl_ms=round(ttl * 1000)))

    def _run(self, steps: Steps[Result]) -> Result:
        place: threading.BoundedSemaphore | None = None
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    time.sleep(step)
                    step = next(steps)
                    continue
                try:
                    if isinstance(step, PlaceForWait):
                        place = self._pool.take_place_for_wait(step.until)
                        step = next(steps)
                        continue
                    response = self._pool.post(*step)
                except Unavailable as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            if place is not None:
                place.release()

    def close(self) -> None:
        """Closes the connections that are not in use."""
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reservation(ReservationCore):
    """A charged estimate. As a context manager it ends by itself.

    Entering raises `Denied` if the reservation was denied. Leaving by an exception cancels it. Leaving without a
    call to `settle` or `cancel` keeps the estimate charged and ends the permits. A call that the server refuses does not
    count.
    """

    def __init__(self, client: Client, decision: Decision) -> None:
        super().__init__(client, decision)
        self._client = client

    def settle(self, cost: Cost) -> Outcome:
        """Replaces the estimate by the true cost."""
        return self._client._run(self._ending("settle", cost=cost))

    def cancel(self) -> Outcome:
        """Refunds the estimate."""
        return self._client._run(self._ending("cancel"))

    def release(self) -> Outcome:
        """Ends the permits and keeps the estimate charged."""
        return self._client._run(self._ending("release"))

    def renew(self, ttl: float) -> Outcome:
        """Lets it last for ``ttl`` seconds from now."""
        return self._client._run(self._renewing(ttl))

    def __enter__(self) -> Reservation:
        self._entering()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self._client._run(self._leaving(by_error=kind is not None))


class _Pool:
    """Keep-alive connections to one server, for all threads of this process."""

    def __init__(self, target: _http1.Target, connections: int, ssl_context: ssl.SSLContext | None) -> None:
        self._target = target
        self._ssl = ssl_context or (ssl.create_default_context() if target.is_secure else None)
        self._size = connections
        self._start()

    def _start(self) -> None:
        self._places = threading.BoundedSemaphore(self._size)
        self._places_for_waits = threading.BoundedSemaphore(places_for_waits(self._size))
        # The last used is the first taken, so that those not needed grow old. Appending and popping are atomic.
        self._idle: list[_Connection] = []
        # Last: other threads take the sockets in `_idle` for their own as soon as this is their process.
        self._process = os.getpid()

    def _start_after_fork(self) -> None:
        """Leaves the sockets to the parent, if this is a child of the process that opened them."""
        if self._process != os.getpid():
            self._start()

    def take_place_for_wait(self, until: float) -> threading.BoundedSemaphore:
        """Returns the semaphore to release when the call has ended. Raises `NoPlace` if there is no place by then."""
        self._start_after_fork()
        places = self._places_for_waits
        if not places.acquire(timeout=max(0.0, until - time.monotonic())):
            raise NoPlace(lack_of_places_for_waits(self._size))
        return places

    def post(self, message: Message, deadline: float) -> _http1.Response:
        self._start_after_fork()
        places = self._places
        if not places.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise NoPlace(lack_of_places(self._size))
        connection: _Connection | None = None
        response: _http1.Response | None = None
        try:
            connection = self._take() or self._connect(deadline)
            response = connection.post(message if isinstance(message, bytes) else message(), deadline)
            return response
        except TimeoutError as error:
            raise Unavailable("the server did not answer in time") from error
        except (OSError, _http1.BadResponse) as error:
            raise Unavailable(str(error) or type(error).__name__) from error
        finally:
            if connection is not None:
                if response is not None and response.keep_alive:
                    self._idle.append(connection)
                else:
                    # Whatever still comes would be taken for the answer to the next call.
                    connection.close()
            places.release()

    def _take(self) -> _Connection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_usable():
                return connection
            connection.close()

    def _connect(self, deadline: float) -> _Connection:
        host = self._target.host
        connected = _connect_to_any(_addresses(host, self._target.port, deadline), deadline)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ssl is not None:
                connected = self._ssl.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
                connected.settimeout(_left(deadline))
                connected.do_handshake()
            return _Connection(connected)
        except BaseException:
            connected.close()
            raise

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Connection:
    """One connection, which carries one call at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._used = time.monotonic()
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(connected, select.POLLIN)

    def post(self, message: bytes, deadline: float) -> _http1.Response:
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(message)
        received = b""
        while True:
            piece = self._socket.recv(_PIECE_BYTES)
            received = received + piece if received else piece
            response = _http1.parse(received, ended=not piece)
            if response is not None:
                self._used = time.monotonic()
                return response
            if not piece:
                raise _http1.BadResponse("the server closed the connection")
            self._socket.settimeout(_left(deadline))

    def is_usable(self) -> bool:
        """Whether it is young, and the server has not closed it: it has nothing to read but its end."""
        if time.monotonic() - self._used >= IDLE_SECONDS:
            return False
        if self._poll is not None:
            return not self._poll.poll(0)
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()


def _addresses(host: str, port: int, deadline: float) -> list[Any]:
    """Returns what `socket.getaddrinfo` does. Raises `TimeoutError` if it has no answer by the deadline."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # A name: the look-up has no time-out of its own.
        pass
    else:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:
            answers.put(error)

    try:
        threading.Thread(target=look_up, name="spillgate-lookup", daemon=True).start()
    except RuntimeError:
        # No thread starts while the interpreter shuts down.
        look_up()
    try:
        answer = answers.get(timeout=_left(deadline))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _connect_to_any(addresses: list[Any], deadline: float) -> socket.socket:
    """Connects to the first address that accepts. Raises the error of the last one if none does."""
    failure = OSError("the host has no address")
    for family, kind, protocol, _, address in addresses:
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.settimeout(_left(deadline))
            connecting.connect(address)
            return connecting
        except OSError as error:
            connecting.close()
            failure = error
        except BaseException:
            connecting.close()
            raise
    raise failure


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


_PIECE_BYTES = 64 * 1024
