"""Exchanges of the client for asyncio: the checks of one tick of the loop leave together when the tick ends."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from ._call import QUEUE_TIMEOUTS, Call, CheckWithWait, Exchange, not_sent_in_time
from ._core import IDLE_SECONDS, Core
from ._http import PIECE_BYTES, BadMessage, Exchanges, Response, Target
from ._patience import SLICE_SECONDS, TimedOut
from ._queue import SLOW_PART, Queue
from .decision import NotSent, Unavailable


class Dispatcher:
    """The queue and the connections of one loop."""

    def __init__(self, core: Core, connections: int, context: ssl.SSLContext | None) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._queue = Queue(connections)
        self._clock = _Clock(self._loop, self._after_slice)
        self._is_planned = False
        # The last used is the first taken, so that those not needed grow old.
        self._idle: list[tuple[_Connection, float]] = []

    async def run(self, call: Call[Any]) -> None:
        """Returns when the call has an outcome."""
        woken: asyncio.Future[None] = self._loop.create_future()
        call.wake = lambda: None if woken.done() else woken.set_result(None)
        call.is_abandoned = woken.cancelled
        call.queued_at = self._clock.now()
        self._queue.add(call)
        self._plan()
        try:
            await woken
        except asyncio.CancelledError:
            if call.abort is not None:
                call.abort()
            raise

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._start_exchanges)

    def _start_exchanges(self) -> None:
        self._is_planned = False
        for exchange in self._queue.start():
            exchange.answers = self._core.health.answers
            exchange.sent_at = self._clock.now()
            limit = self._clock.limit(exchange.left)
            connection = self._take_idle()
            if connection is None:
                self._connect(exchange, limit)
            else:
                self._send(exchange, limit, connection)

    def _connect(self, exchange: Exchange, limit: _Limit) -> None:
        target = self._core.target
        connecting = self._loop.create_task(
            self._loop.create_connection(lambda: _Connection(target), target.host, target.port, ssl=self._context)
        )
        self._give_up_by(connecting.cancel, exchange, limit)
        connecting.add_done_callback(partial(self._connected, exchange, limit))

    def _connected(self, exchange: Exchange, limit: _Limit, connecting: _Connecting) -> None:
        if connecting.cancelled():
            self._end(exchange, limit, NotSent("the caller has left") if exchange.has_left() else TimedOut())
        elif (error := connecting.exception()) is not None:
            self._end(exchange, limit, Unavailable(str(error) or type(error).__name__))
        else:
            self._send(exchange, limit, connecting.result()[1])

    def _send(self, exchange: Exchange, limit: _Limit, connection: _Connection) -> None:
        def end(ended: Response | Unavailable) -> None:
            if connection.is_reusable:
                self._idle.append((connection, time.monotonic()))
            else:
                # Whatever still comes would be taken for the answer to the next call.
                connection.close()
            self._end(exchange, limit, ended)

        self._give_up_by(connection.give_up, exchange, limit)
        connection.exchange(exchange, end)

    def _give_up_by(self, give_up: Callable[[], object], exchange: Exchange, limit: _Limit) -> None:
        limit.at_end = give_up
        if not exchange.is_batch:
            # The server need not wait for a caller that has left.
            exchange.leader.abort = give_up

    def _end(self, exchange: Exchange, limit: _Limit, ended: Response | Unavailable) -> None:
        exchange.left = self._clock.forget(limit)
        self._queue.end(exchange)
        self._core.end_exchange(exchange, NotSent("the caller has left") if exchange.has_left() else ended)
        self._core.end_those_behind(self._queue, exchange, ended)
        if not self._queue.is_empty():
            self._plan()

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_open and time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    def _after_slice(self, now: float) -> None:
        if self._queue.take_slow(lambda exchange: now >= exchange.sent_at + exchange.timeout * SLOW_PART):
            self._plan()
        self._end_overdue(now)

    def _end_overdue(self, now: float) -> None:
        def is_overdue(call: Call[Any]) -> bool:
            seconds = call.wait if isinstance(call, CheckWithWait) else call.timeout * QUEUE_TIMEOUTS
            return now >= call.queued_at + seconds

        for call in self._queue.take_overdue(is_overdue):
            call.conclude(not_sent_in_time(self._queue.connections))

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()


class _Limit:
    """The end of the time of one exchange."""

    def __init__(self, end: float) -> None:
        self.end = end
        self.at_end: Callable[[], object] | None = None

    def expire(self) -> None:
        if self.at_end is not None:
            self.at_end()


class _Clock:
    """Counts the time in which the loop could read. One timer serves all exchanges, and runs only while there are any.

    Args:
        after_slice: called with the time, after each slice.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, after_slice: Callable[[float], None]) -> None:
        self._loop = loop
        self._after_slice = after_slice
        self._now = 0.0
        self._counted_at = 0.0
        self._limits: set[_Limit] = set()
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        if self._timer is None:
            return self._now
        return self._now + min(time.monotonic() - self._counted_at, SLICE_SECONDS)

    def limit(self, seconds: float) -> _Limit:
        if self._timer is None:
            self._counted_at = time.monotonic()
            self._timer = self._loop.call_later(min(seconds, SLICE_SECONDS), self._end_slice)
        limit = _Limit(self.now() + seconds)
        self._limits.add(limit)
        return limit

    def forget(self, limit: _Limit) -> float:
        """Returns the seconds that were left."""
        limit.at_end = None
        self._limits.discard(limit)
        return limit.end - self.now()

    def _end_slice(self) -> None:
        self._now, self._counted_at = self.now(), time.monotonic()
        self._timer = None
        for limit in [limit for limit in self._limits if limit.end <= self._now]:
            self._limits.discard(limit)
            # Two turns of the loop later, so that it has read what was in the sockets when the time ended.
            self._loop.call_soon(self._loop.call_soon, limit.expire)
        self._after_slice(self._now)
        if self._limits:
            left = min(limit.end for limit in self._limits) - self._now
            self._timer = self._loop.call_later(min(left, SLICE_SECONDS), self._end_slice)


class _Connection(asyncio.BufferedProtocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, target: Target) -> None:
        self._exchanges = Exchanges(target)
        # Made once: allocating so much for each read takes longer than the read.
        self._piece = memoryview(bytearray(PIECE_BYTES))
        self._at_end: Callable[[Response | Unavailable], None] | None = None
        self.is_open = False

    @property
    def is_reusable(self) -> bool:
        return self.is_open and self._exchanges.is_reusable

    def exchange(self, exchange: Exchange, at_end: Callable[[Response | Unavailable], None]) -> None:
        """Sends a request. `at_end` gets what ends the exchange."""
        self._at_end = at_end
        self._transport.write(self._exchanges.request(exchange.path, exchange.body, exchange.authorization))

    def give_up(self) -> None:
        self._end(TimedOut())

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        if self._at_end is None:
            # It belongs to no request.
            self.close()
        else:
            self._read(bytes(self._piece[:nbytes]))

    def eof_received(self) -> None:
        self.is_open = False
        if self._at_end is not None:
            self._read(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._end(Unavailable(f"the connection was lost: {error}" if error else "the server closed the connection"))

    def _read(self, data: bytes) -> None:
        try:
            response = self._exchanges.receive(data)
        except BadMessage as error:
            self._end(Unavailable(str(error)))
            return
        if response is not None:
            self._end(response)

    def _end(self, ended: Response | Unavailable) -> None:
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end(ended)


_Connecting = asyncio.Task[tuple[asyncio.Transport, _Connection]]
