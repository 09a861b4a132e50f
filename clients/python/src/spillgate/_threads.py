"""Exchanges of the client for threads: no thread of its own, the threads that call do the work.

A thread whose call begins an exchange leads it: it sends and reads for all calls of the batch. The others wait. An
exchange that ends lets the next ones begin, each led by one of its own callers, so no thread works for others for ever.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
import weakref
from typing import Any

from ._call import QUEUE_TIMEOUTS, Call, CheckWithWait, Exchange, not_sent_in_time
from ._core import IDLE_SECONDS, Core
from ._http import BadMessage, Response
from ._patience import SLICE_SECONDS, Patience
from ._queue import SLOW_PART, Queue
from ._socket import Connection, connect
from .decision import NotSent, Unavailable


class Dispatcher:
    """The queue and the connections of one process."""

    def __init__(self, core: Core, connections: int, ssl_context: ssl.SSLContext | None) -> None:
        self._core = core
        self._size = connections
        target = core.target
        self._ssl = ssl_context or (ssl.create_default_context() if target.is_secure else None)
        self.start()
        _dispatchers.add(self)

    def start(self) -> None:
        self._lock = threading.Lock()
        self._queue = Queue(self._size)
        self._led: dict[Call[Any], Exchange] = {}
        # The last used is the first taken, so that those not needed grow old.
        self._idle: list[Connection] = []

    def start_in_child(self) -> None:
        """Starts empty after a fork: locks, calls and connections are those of the parent."""
        self._core.health.start()
        self.start()

    def run(self, call: Call[Any]) -> None:
        """Returns when the call has an outcome."""
        woken = threading.Event()
        call.wake = woken.set
        try:
            with self._lock:
                self._queue.add(call)
                self._start_exchanges()
            while call.outcome is None:
                exchange = self._led.get(call)
                if exchange is None:
                    self._wait(call, woken)
                else:
                    self._lead(exchange)
        except BaseException:
            self._leave(call)
            raise

    def _start_exchanges(self) -> None:
        """With the lock: lets exchanges begin, each led by the caller that waits for the longest time."""
        for exchange in self._queue.start():
            exchange.answers = self._core.health.answers
            self._hand_over(exchange, exchange.calls[0])

    def _hand_over(self, exchange: Exchange, leader: Call[Any]) -> None:
        exchange.leader = leader
        self._led[leader] = exchange
        if leader.wake is not None:
            leader.wake()

    def _lead(self, exchange: Exchange) -> None:
        ended: Response | Unavailable
        try:
            ended = self._carry(exchange)
        except Unavailable as error:
            ended = error
        except (BadMessage, OSError) as error:
            ended = Unavailable(str(error) or type(error).__name__)
        self._end(exchange, ended)

    def _carry(self, exchange: Exchange) -> Response:
        def after_slice(left: float) -> None:
            exchange.left = left
            if exchange.is_batch and left <= exchange.timeout * (1 - SLOW_PART):
                with self._lock:
                    self._queue.slow(exchange)
                    self._start_exchanges()

        patience = Patience(exchange.left, after_slice)
        try:
            if exchange.connection is None:
                connection = self._take_idle() or connect(self._core.target, self._ssl, patience)
                connection.start(exchange.path, exchange.body, exchange.authorization)
                exchange.connection = connection
            # Else the thread that led before was interrupted, and this one goes on.
            return exchange.connection.carry(patience)
        finally:
            exchange.left = patience.left

    def _end(self, exchange: Exchange, ended: Response | Unavailable) -> None:
        connection, exchange.connection = exchange.connection, None
        if connection is not None:
            if isinstance(ended, Response) and connection.is_reusable:
                self._idle.append(connection)
            else:
                # Whatever still comes would be taken for the answer to the next call.
                connection.close()
        try:
            self._core.end_exchange(exchange, ended)
        finally:
            self._free(exchange, ended)

    def _free(self, exchange: Exchange, ended: Response | Unavailable) -> None:
        for call in exchange.calls:
            if call.outcome is None:
                call.conclude(NotSent("the thread of the call was interrupted"))
        with self._lock:
            self._led.pop(exchange.leader, None)
            self._queue.end(exchange)
            self._core.end_those_behind(self._queue, exchange, ended)
            self._start_exchanges()

    def _wait(self, call: Call[Any], woken: threading.Event) -> None:
        """Waits until the call has an outcome or leads. A queue that does not move for ten time-outs ends the wait.

        Those that lead notice a silent server, so this wakes up seldom, and counts only time in which threads ran in time.
        """
        left = call.wait if isinstance(call, CheckWithWait) else call.timeout * QUEUE_TIMEOUTS
        while True:
            start, pause = time.monotonic(), min(left, call.timeout)
            if woken.wait(pause):
                return
            late = time.monotonic() - start - pause
            left -= pause if late < SLICE_SECONDS else min(pause, SLICE_SECONDS)
            if left <= 0:
                with self._lock:
                    # A call that is under way has a leader, which ends it in time.
                    waiting = self._queue.remove(call)
                if waiting:
                    call.conclude(not_sent_in_time(self._size))
                    return
                left = call.timeout

    def _leave(self, call: Call[Any]) -> None:
        """The thread was interrupted by an exception: another caller of its exchange goes on."""
        with self._lock:
            call.is_abandoned = lambda: True
            self._queue.remove(call)
            exchange = self._led.pop(call, None)
            if exchange is None or call.outcome is not None:
                return
            heirs = [other for other in exchange.calls if not other.is_abandoned() and other.outcome is None]
            if heirs:
                self._hand_over(exchange, heirs[0])
                return
        if exchange.connection is not None:
            exchange.connection.close()
        self._free(exchange, NotSent("the thread of the call was interrupted"))

    def _take_idle(self) -> Connection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_usable(IDLE_SECONDS):
                return connection
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def _start_after_fork() -> None:
    for dispatcher in list(_dispatchers):
        dispatcher.start_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_after_fork)
