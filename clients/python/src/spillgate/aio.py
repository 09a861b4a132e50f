"""The client for asyncio, on a protocol of the standard library."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

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


class AsyncClient(Core):
    """Asks a Spillgate server, as `Client` does, from coroutines.

    Make it once; it may be made before the loop runs. Each event loop has connections of its own, up to ``connections``.
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

    async def check(
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
        """Decides one request; see `Client.check`."""
        return await self._run(self._checking(check_body(attributes, cost, domain, key, limit, headers), wait))

    async def check_batch(self, checks: Sequence[CheckRequest]) -> list[Decision]:
        """Decides up to 1,000 requests in one call, each by itself. The decisions have the order of the requests."""
        return await self._run(self._checking_batch(checks))

    async def acquire(
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
        return await self._run(self._acquiring(check_body(attributes, cost, domain, key, limit), deadline))

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
    ) -> _Reserving:
        """Charges an estimate, to be settled within ``ttl`` seconds. To be awaited, or entered by ``async with``.

        >>> async with client.reserve({"user": "ada"}, cost={"tokens": 4000}) as job:  # doctest: +SKIP
        ...     await job.settle({"tokens": await call_the_model()})
        """
        return _Reserving(self, reserve_body(check_body(attributes, cost, domain, key, limit, headers), ttl))

    async def settle(self, receipt: str, cost: Cost) -> Outcome:
        """Replaces a reservation's estimate by the true cost. ``"unavailable"`` if the server does not answer."""
        return await self._run(self._ending("settle", receipt, cost=cost))

    async def cancel(self, receipt: str) -> Outcome:
        """Refunds a reservation."""
        return await self._run(self._ending("cancel", receipt))

    async def release(self, receipt: str) -> Outcome:
        """Ends the permits of a reservation or of a check; the estimate stays charged."""
        return await self._run(self._ending("release", receipt))

    async def renew(self, receipt: str, ttl: float) -> Outcome:
        """Lets a reservation and its permits last for ``ttl`` seconds from now."""
        return await self._run(self._ending("renew", receipt, ttl_ms=round(ttl * 1000)))

    async def _run(self, steps: Steps[Result]) -> Result:
        place: _Places | None = None
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    step = next(steps)
                    continue
                try:
                    if isinstance(step, PlaceForWait):
                        place = await self._pool.take_place_for_wait(step.until)
                        step = next(steps)
                        continue
                    response = await self._pool.post(*step)
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

    async def close(self) -> None:
        """Closes the connections of the running loop that are not in use. Call it in each loop that used the client."""
        self._pool.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Reserving:
    """A call to reserve, not sent yet."""

    def __init__(self, client: AsyncClient, body: Mapping[str, Any]) -> None:
        self._client = client
        self._body = body
        self._reservation: AsyncReservation | None = None

    def __await__(self) -> Generator[Any, None, AsyncReservation]:
        return self._reserve().__await__()

    async def _reserve(self) -> AsyncReservation:
        return AsyncReservation(self._client, await self._client._run(self._client._reserving(self._body)))

    async def __aenter__(self) -> AsyncReservation:
        self._reservation = await self
        return await self._reservation.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reservation is not None:
            await self._reservation.__aexit__(kind, error, trace)


class AsyncReservation(ReservationCore):
    """A charged estimate; see `Reservation`."""

    def __init__(self, client: AsyncClient, decision: Decision) -> None:
        super().__init__(client, decision)
        self._client = client

    async def settle(self, cost: Cost) -> Outcome:
        """Replaces the estimate by the true cost."""
        return await self._finish(self._ending("settle", cost=cost))

    async def cancel(self) -> Outcome:
        """Refunds the estimate."""
        return await self._finish(self._ending("cancel"))

    async def release(self) -> Outcome:
        """Ends the permits and keeps the estimate charged."""
        return await self._finish(self._ending("release"))

    async def renew(self, ttl: float) -> Outcome:
        """Lets it last for ``ttl`` seconds from now."""
        return await self._client._run(self._renewing(ttl))

    async def __aenter__(self) -> AsyncReservation:
        self._entering()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            await self._finish(self._leaving(by_error=kind is not None))

    async def _finish(self, steps: Steps[Result]) -> Result:
        """Ends the reservation. If the caller is cancelled meanwhile, the call goes on by itself."""
        return await asyncio.shield(self._client._run(steps))


class _Places:
    """Bounds the calls at once. The first that waits gets the next place. An `asyncio.Semaphore` takes several times as long."""

    def __init__(self, size: int, lack: str) -> None:
        self._free = size
        self._lack = lack
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def take(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Raises `NoPlace` if there is no place by the deadline."""
        if self.take_now():
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        try:
            await asyncio.wait_for(waiter, max(0.0, deadline - time.monotonic()))
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                # It got a place, but the caller has gone.
                self.release()
            if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
                raise NoPlace(self._lack) from error
            raise

    def release(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class _LoopPool:
    """The places and idle connections of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: int) -> None:
        self.loop = loop
        self.places = _Places(connections, lack_of_places(connections))
        self.places_for_waits = _Places(places_for_waits(connections), lack_of_places_for_waits(connections))
        # The last used is the first taken, so that those not needed grow old.
        self.idle: list[tuple[_Connection, float]] = []

    def take_idle(self) -> _Connection | None:
        while self.idle:
            connection, since = self.idle.pop()
            if connection.is_open and time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.close()
        return None


class _Pool:
    """Keep-alive connections to one server. They belong to the loop that made them, and loops may run in several threads."""

    def __init__(self, target: _http1.Target, connections: int, ssl_context: ssl.SSLContext | None) -> None:
        self._target = target
        self._ssl = ssl_context or (ssl.create_default_context() if target.is_secure else None)
        self._size = connections
        # A child of a fork has another loop, so it leaves the connections to its parent.
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopPool] = {}

    def _of_running_loop(self) -> _LoopPool:
        loop = asyncio.get_running_loop()
        return self._by_loop.get(loop) or self._start(loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> _LoopPool:
        # Only the thread of a loop adds its entry. Copying the keys is atomic, so other threads may do the same meanwhile.
        for known in list(self._by_loop):
            if known.is_closed():
                self._by_loop.pop(known, None)
        self._by_loop[loop] = started = _LoopPool(loop, self._size)
        return started

    async def take_place_for_wait(self, until: float) -> _Places:
        """Returns the places of which to release one when the call has ended. Raises `NoPlace` if there is none by then."""
        mine = self._of_running_loop()
        await mine.places_for_waits.take(mine.loop, until)
        return mine.places_for_waits

    async def post(self, message: Message, deadline: float) -> _http1.Response:
        mine = self._of_running_loop()
        places = mine.places
        # Most calls find a place at once. They do without another coroutine.
        if not places.take_now():
            await places.take(mine.loop, deadline)
        try:
            connection = mine.take_idle() or await self._connect(mine.loop, deadline)
            try:
                response = await connection.send(message if isinstance(message, bytes) else message(), deadline)
            except BaseException:
                # Whatever still comes would be taken for the answer to the next call.
                connection.close()
                raise
            if response.keep_alive:
                mine.idle.append((connection, time.monotonic()))
            else:
                connection.close()
            return response
        finally:
            places.release()

    async def _connect(self, loop: asyncio.AbstractEventLoop, deadline: float) -> _Connection:
        connecting = loop.create_connection(lambda: _Connection(loop), self._target.host, self._target.port, ssl=self._ssl)
        try:
            return (await asyncio.wait_for(connecting, max(0.0, deadline - time.monotonic())))[1]
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise Unavailable("the server did not answer in time") from error
        except OSError as error:
            raise Unavailable(str(error) or type(error).__name__) from error

    def close(self) -> None:
        # Connections of other loops are not ours: after a fork, those of the parent.
        mine = self._of_running_loop()
        while mine.idle:
            mine.idle.pop()[0].close()


class _Connection(asyncio.BufferedProtocol):
    """One connection, which carries one call at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buffer = memoryview(bytearray(_PIECE_BYTES))
        self._received = b""
        self._waiter: asyncio.Future[_http1.Response] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._watched_until = 0.0
        self.is_open = False

    def send(self, message: bytes, deadline: float) -> asyncio.Future[_http1.Response]:
        """Sends a request. After an error, or if the caller no longer waits, the connection must be closed."""
        self._waiter = waiter = self._loop.create_future()
        self._deadline = deadline
        if self._timer is None or deadline < self._watched_until:
            self._watch()
        self._transport.write(message)
        return waiter

    def close(self) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._waiter is None:
            self.close()
            return
        data = bytes(self._buffer[:nbytes])
        self._received = self._received + data if self._received else data
        self._advance(ended=False)

    def eof_received(self) -> None:
        self._advance(ended=True)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._fail(f"the connection was lost: {error}" if error else "the server closed the connection")

    def _advance(self, ended: bool) -> None:
        if self._waiter is None:
            return
        try:
            response = _http1.parse(self._received, ended)
        except _http1.BadResponse as error:
            self._fail(str(error))
            return
        if response is not None:
            waiter, self._waiter, self._received = self._waiter, None, b""
            # A caller that was cancelled no longer waits.
            if not waiter.done():
                waiter.set_result(response)

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._watched_until = self._deadline
        self._timer = self._loop.call_later(max(0.0, self._deadline - time.monotonic()), self._time_out)

    def _time_out(self) -> None:
        """One timer serves all calls that end before it: setting one for each takes longer than reading the answer."""
        self._timer = None
        if self._waiter is None:
            return
        if time.monotonic() < self._deadline:
            self._watch()
        else:
            self._fail("the server did not answer in time")

    def _fail(self, why: str) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(Unavailable(why))


_PIECE_BYTES = 64 * 1024
