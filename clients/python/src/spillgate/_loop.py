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
from ._http import BadMessage, Exchanges, Response, Target
from ._patience import SLICE_SECONDS, TimedOut
from ._queue import Queue
from .decision import NotSent, Unavailable


class Dispatcher:
    """The queue and the connections of one loop."""

    def __init__(self, core: Core, connections: int, context: ssl.SSLContext | None) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._context = context
        # No bound on batches besides that of the connections: one leaves in each tick.
        self._queue = Queue(connections, connections)
        self._clock = _Clock(self._loop, self._end_overdue)
        self._is_planned = False
        # The loop has only weak references to its tasks.
        self._tasks: set[asyncio.Task[Response]] = set()
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
            task = self._loop.create_task(self._carry(exchange))
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, exchange))
            if not exchange.is_batch:
                # The server need not wait for a caller that has gone.
                exchange.leader.abort = task.cancel

    def _end(self, exchange: Exchange, task: asyncio.Task[Response]) -> None:
        self._tasks.discard(task)
        self._queue.end(exchange)
        ended = _ended(task)
        self._core.end_exchange(exchange, ended)
        self._core.end_those_behind(self._queue, exchange, ended)
        self._start_exchanges()

    async def _carry(self, exchange: Exchange) -> Response:
        limit = self._clock.limit(exchange.left)
        try:
            connection = self._take_idle() or await self._connect(limit)
            limit.at_end = connection.time_out
            try:
                response = await connection.exchange(exchange.path, exchange.body, exchange.authorization)
            except BaseException:
                # Whatever still comes would be taken for the answer to the next call.
                connection.close()
                raise
        finally:
            exchange.left = self._clock.forget(limit)
        if connection.is_reusable:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()
        return response

    async def _connect(self, limit: _Limit) -> _Connection:
        target = self._core.target
        connecting = self._loop.create_task(
            self._loop.create_connection(
                lambda: _Connection(self._loop, target), target.host, target.port, ssl=self._context
            )
        )
        limit.at_end = connecting.cancel
        try:
            await asyncio.wait([connecting])
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_unused)
            connecting.cancel()
            raise
        if connecting.cancelled():
            raise TimedOut
        return connecting.result()[1]

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_open and time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    def _end_overdue(self, now: float) -> None:
        def is_overdue(call: Call[Any]) -> bool:
            seconds = call.wait if isinstance(call, CheckWithWait) else call.timeout * QUEUE_TIMEOUTS
            return now >= call.queued_at + seconds

        for call in self._queue.take_overdue(is_overdue):
            call.conclude(not_sent_in_time(self._queue.connections))

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()


def _ended(task: asyncio.Task[Response]) -> Response | Unavailable:
    if task.cancelled():
        return NotSent("the task of the call was cancelled")
    error = task.exception()
    if error is None:
        return task.result()
    return error if isinstance(error, Unavailable) else Unavailable(str(error) or type(error).__name__)


def _close_unused(connecting: asyncio.Task[tuple[asyncio.Transport, _Connection]]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].abort()


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


class _Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Target) -> None:
        self._loop = loop
        self._exchanges = Exchanges(target)
        self._response: asyncio.Future[Response] | None = None
        self.is_open = False

    @property
    def is_reusable(self) -> bool:
        return self.is_open and self._exchanges.is_reusable

    def exchange(self, path: str, body: bytes, authorization: str | None) -> asyncio.Future[Response]:
        """Sends a request. After an error, or if the caller no longer waits, the connection must be closed."""
        self._response = self._loop.create_future()
        self._transport.write(self._exchanges.request(path, body, authorization))
        return self._response

    def time_out(self) -> None:
        self._fail(TimedOut())

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        waiting = self._response
        if waiting is None:
            # It belongs to no request.
            self.close()
            return
        if waiting.done():
            return
        try:
            response = self._exchanges.receive(data)
        except BadMessage as error:
            self._fail(Unavailable(str(error)))
            return
        if response is not None:
            self._response = None
            waiting.set_result(response)

    def eof_received(self) -> None:
        self.is_open = False
        if self._response is not None:
            self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._fail(Unavailable(f"the connection was lost: {error}" if error else "the server closed the connection"))

    def _fail(self, error: Unavailable) -> None:
        waiting, self._response = self._response, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
