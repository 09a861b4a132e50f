"""Calls of the application, and the exchanges that carry them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ._answer import Retryable, read_answer, read_results, read_unused
from ._http import Response
from ._request import batch_of, encode
from ._socket import Connection
from .decision import Decision, ProblemError, QueueFull, Unavailable

Result = TypeVar("Result")

# A call that waits to be sent waits for as many time-outs.
QUEUE_TIMEOUTS = 10


class Call(Generic[Result]):
    """One call of the application: what it sends, what an answer means, and how it ended."""

    def __init__(
        self,
        operation: str,
        path: str,
        body: bytes,
        read: Callable[[Any], Result],
        without_server: Callable[[Unavailable], Result],
        *,
        timeout: float,
        authorization: str | None,
        tries: int = 1,
    ) -> None:
        self.operation = operation
        self.path = path
        self.body = body
        self.read = read
        self.without_server = without_server
        self.timeout = timeout
        self.authorization = authorization
        self.tries = tries
        # Seconds of silence that are left for all tries.
        self.left = timeout
        self.start = time.monotonic()
        # Its place in the order of all calls.
        self.number = 0
        self.outcome: Result | Exception | None = None
        # Set by the client: whether the caller is no longer there.
        self.is_abandoned: Callable[[], bool] = lambda: False
        # Set by the client: tells the caller that the call has an outcome, or that it leads an exchange.
        self.wake: Callable[[], object] | None = None
        # In a loop: gives up the exchange of this call alone.
        self.abort: Callable[[], object] | None = None
        # In a loop: when it began to wait, in the time that the loop counts.
        self.queued_at = 0.0

    def conclude(self, outcome: Result | Exception) -> None:
        self.outcome = outcome
        if self.wake is not None:
            self.wake()


class Check(Call[Decision]):
    """A check without a wait. It leaves in a batch, with the others that are waiting at that moment."""


class CheckWithWait(Call[Decision]):
    """A check for which the server waits. The time until it has its connection is part of the wait."""

    def __init__(self, request: Mapping[str, Any], wait: float, *arguments: Any, **named: Any) -> None:
        super().__init__("check", "/v1/check", b"", *arguments, **named)
        self._request = request
        self.wait = wait
        self.prepare()

    def wait_left(self) -> float:
        return max(0.0, self.start + self.wait - time.monotonic())

    def prepare(self) -> None:
        """Makes the message. The server has its whole time-out to answer after the wait."""
        left = self.wait_left()
        self.body = encode({**self._request, "wait_ms": round(left * 1000)})
        self.left = self.timeout + left


class Exchange:
    """One request and its response: for one call, or for a batch of checks."""

    def __init__(self, calls: Sequence[Call[Any]], number: int) -> None:
        self.calls = list(calls)
        self.number = number
        first = self.calls[0]
        self.is_batch = isinstance(first, Check)
        if isinstance(first, CheckWithWait):
            first.prepare()
        self.path = "/v1/check/batch" if self.is_batch else first.path
        self.body = batch_of([call.body for call in calls]) if self.is_batch else first.body
        # Where tokens change, that of the youngest call is valid for the longest time.
        self.authorization = self.calls[-1].authorization
        self.timeout = first.timeout
        # Seconds of silence that are left.
        self.left = first.timeout if self.is_batch else first.left
        # How many answers the client had when this was sent.
        self.answers = 0
        # In an event loop: when it began, by the clock of the loop's dispatcher.
        self.sent_at = 0.0
        # What the answer reports about names that no rule uses.
        self.unused: tuple[str, ...] = ()
        # With threads: the call whose thread does the work, and its connection.
        self.leader = first
        self.connection: Connection | None = None

    @property
    def holds_wait(self) -> bool:
        return isinstance(self.calls[0], CheckWithWait)

    def has_left(self) -> bool:
        """Whether the caller of this exchange is no longer there. A batch goes on for its other callers."""
        return not self.is_batch and self.leader.is_abandoned()

    def end(self, ended: Response | Unavailable) -> Unavailable | None:
        """Gives each call its outcome. Returns why Spillgate did not answer, or ``None`` if it did."""
        outcomes, failure = self._outcomes(ended)
        if not self.is_batch:
            self.calls[0].left = self.left
        for call, outcome in zip(self.calls, outcomes, strict=True):
            call.conclude(outcome)
        return failure

    def _outcomes(self, ended: Response | Unavailable) -> tuple[Sequence[Any], Unavailable | None]:
        try:
            if isinstance(ended, Unavailable):
                raise ended
            answer = read_answer(ended)
            self.unused = read_unused(answer)
            if self.is_batch:
                return read_results(answer, len(self.calls)), None
            return [self.calls[0].read(answer)], None
        except ProblemError as error:
            # An error that is raised belongs to one caller.
            status, problem = error.status, error.problem
            return [ProblemError(status, problem) for _ in self.calls], None
        except Retryable as error:
            return [error] * len(self.calls), None
        except Unavailable as error:
            return [error] * len(self.calls), error


def not_sent_in_time(connections: int) -> QueueFull:
    return QueueFull(f"the call found none of {connections} connections in time: all are in use by other calls")
