"""The order of calls: which of them leave now, and which checks leave together."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from ._call import Call, Check, CheckWithWait, Exchange
from ._request import BATCH_BYTES, BATCH_CHECKS

# How many batches may be under way before checks gather: no more than the server can answer in time on a busy machine.
_BATCHES = 2
# A batch that takes longer than this part of the time-out no longer counts as one of them.
SLOW_PART = 0.5


class Queue:
    """Calls that wait to be sent, and the connections in use. It has no lock: its owner calls it from one place at a time.

    Args:
        connections: the most exchanges at once. Those with a wait use at most half: the server holds these, and checks need
            the others.
    """

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self._free = connections
        self._free_for_waits = max(1, connections // 2)
        self._free_for_batches = _BATCHES
        self._numbers = itertools.count(1)
        self._checks: deque[Call[Any]] = deque()
        self._waits: deque[Call[Any]] = deque()
        self._others: deque[Call[Any]] = deque()
        # Batches that are under way and not slow.
        self._counted: set[Exchange] = set()

    def add(self, call: Call[Any]) -> None:
        call.number = next(self._numbers)
        if isinstance(call, Check):
            self._checks.append(call)
        elif isinstance(call, CheckWithWait):
            self._waits.append(call)
        else:
            self._others.append(call)

    def start(self) -> list[Exchange]:
        """Returns the exchanges that begin now. Each must be ended."""
        started = []
        while self._free and (line := self._next_line()) is not None:
            exchange = Exchange(self._batch() if line is self._checks else [line.popleft()], next(self._numbers))
            self._free -= 1
            if exchange.holds_wait:
                self._free_for_waits -= 1
            if exchange.is_batch:
                self._free_for_batches -= 1
                self._counted.add(exchange)
            started.append(exchange)
        return started

    def is_empty(self) -> bool:
        return not (self._checks or self._waits or self._others)

    def take_slow(self, is_slow: Callable[[Exchange], bool]) -> bool:
        """Counts slow batches no longer. Returns whether there were any."""
        slow = [exchange for exchange in self._counted if is_slow(exchange)]
        for exchange in slow:
            self.slow(exchange)
        return bool(slow)

    def slow(self, exchange: Exchange) -> None:
        """Counts a batch no longer, so that one stalled connection does not hold up the rest."""
        if exchange in self._counted:
            self._counted.remove(exchange)
            self._free_for_batches += 1

    def end(self, exchange: Exchange) -> None:
        self.slow(exchange)
        self._free += 1
        if exchange.holds_wait:
            self._free_for_waits += 1

    def take_all(self) -> list[Call[Any]]:
        """Removes and returns all calls that wait."""
        taken = [*self._checks, *self._waits, *self._others]
        for line in (self._checks, self._waits, self._others):
            line.clear()
        return taken

    def take_before(self, exchange: Exchange) -> list[Call[Any]]:
        """Removes and returns the calls that have waited for longer than the exchange, except those with a wait of their own."""
        taken = []
        for line in (self._checks, self._others):
            while line and line[0].number < exchange.number:
                taken.append(line.popleft())
        return taken

    def take_overdue(self, is_overdue: Callable[[Call[Any]], bool]) -> list[Call[Any]]:
        """Removes and returns the calls that have waited for too long. The first of a line has waited for the longest time."""
        taken = [call for call in self._waits if is_overdue(call)]
        for call in taken:
            self._waits.remove(call)
        for line in (self._checks, self._others):
            while line and is_overdue(line[0]):
                taken.append(line.popleft())
        return taken

    def remove(self, call: Call[Any]) -> bool:
        """Returns whether the call was waiting."""
        for line in (self._checks, self._waits, self._others):
            if call in line:
                line.remove(call)
                return True
        return False

    def _next_line(self) -> deque[Call[Any]] | None:
        """Returns the line whose first call is the oldest of those that may leave."""
        oldest = None
        for line, free in (
            (self._checks, self._free_for_batches),
            (self._waits, self._free_for_waits),
            (self._others, 1),
        ):
            while line and line[0].is_abandoned():
                line.popleft()
            if line and free > 0 and (oldest is None or line[0].number < oldest[0].number):
                oldest = line
        return oldest

    def _batch(self) -> list[Call[Any]]:
        batch: list[Call[Any]] = []
        room = BATCH_BYTES - 1
        while self._checks and len(batch) < BATCH_CHECKS:
            room -= len(self._checks[0].body) + 1
            if room < 0:
                break
            call = self._checks.popleft()
            if call.is_abandoned():
                room += len(call.body) + 1
            else:
                batch.append(call)
        return batch
