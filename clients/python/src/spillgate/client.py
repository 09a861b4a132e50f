"""The client for threads."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ._answer import Outcome
from ._call import Call
from ._core import (
    CONNECTIONS,
    PAUSE_SECONDS,
    TIMEOUT,
    Core,
    Observe,
    OnFailure,
    ReservationCore,
    Result,
    wait_before_retry,
)
from ._request import CheckRequest, Cost, InlineLimit, Token, check_request
from ._threads import Dispatcher
from .decision import Decision, NotSent, ProblemError, TokenError


class Client:
    """Asks a Spillgate server. One client serves all threads; make it once.

    A call never raises because the server is slow or down: ``on_failure`` decides then. It raises `ProblemError`
    for a request that the server refuses, such as a wrong token.

    Args:
        url: where the server listens, ``http://127.0.0.1:8080``.
        token: the bearer token, or a function that returns it.
        timeout: how many seconds the server may be silent until ``on_failure`` decides.
        on_failure: ``"allow"`` (fail open) or ``"deny"`` (fail closed).
        connections: the most connections, and so calls at once. Calls with a wait use at most half of them, at least one.
        observe: called with a `CallReport` after each call, for metrics.
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
        self._core = Core(url, token, timeout, on_failure, connections, observe)
        self._dispatcher = Dispatcher(self._core, connections, ssl_context)

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
        request = check_request(attributes, cost, domain, key, limit, headers)
        return self._perform(self._core.check_call(request, wait))

    def check_batch(self, checks: Sequence[CheckRequest]) -> list[Decision]:
        """Decides many requests, each by itself, up to 1,000 in one exchange. The decisions have the order of the requests.

        Raises the `ProblemError` of the first request that has one, such as ``[3].cost``. The others were decided.
        """
        calls = self._core.batch_calls(checks)
        return [decision for call in calls for decision in self._perform(call)]

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
        until = time.monotonic() + deadline
        request = check_request(attributes, cost, domain, key, limit)
        while True:
            decision = self._perform(self._core.check_call(request))
            pause = wait_before_retry(decision, until)
            if pause is None:
                return decision
            time.sleep(pause)

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

        >>> with client.reserve({"user": "ada"}, cost={"requests": 1, "tokens": 4000}) as job:  # doctest: +SKIP
        ...     job.settle({"tokens": call_the_model()})
        """
        request = check_request(attributes, cost, domain, key, limit, headers)
        return Reservation(self._perform(self._core.reserve_call(request, ttl)), self._end)

    def settle(self, receipt: str, cost: Cost) -> Outcome:
        """Replaces a reservation's estimate by the true cost. ``"unavailable"`` if the server does not answer."""
        return self._end("settle", receipt, cost=cost)

    def cancel(self, receipt: str) -> Outcome:
        """Refunds a reservation."""
        return self._end("cancel", receipt)

    def release(self, receipt: str) -> Outcome:
        """Ends the permits of a reservation or of a check; the estimate stays charged."""
        return self._end("release", receipt)

    def renew(self, receipt: str, ttl: float) -> Outcome:
        """Lets a reservation and its permits last for ``ttl`` seconds from now."""
        return self._end("renew", receipt, ttl_ms=round(ttl * 1000))

    def decide(self, request: CheckRequest, *, ttl: float | None = None, counter: str = "*") -> Decision:
        """Decides a request for a middleware: ``on_failure`` also decides if the server refuses the request or the token.

        With ``ttl`` the cost is reserved for that many seconds. `finish` ends the receipt of the decision, if there is one.
        The log names a refused request by ``counter``.
        """
        try:
            if ttl is None:
                return self._perform(self._core.check_call(request))
            return self._perform(self._core.reserve_call(request, ttl))
        except (ProblemError, TokenError) as error:
            return self._core.decide_refused(error, counter)

    def finish(self, receipt: str | None, *, refund: bool = False) -> None:
        """Ends the permits of a decision for a middleware, or refunds it. Never raises: the server ends what this leaves."""
        try:
            self._end("cancel" if refund else "release", receipt)
        except (ProblemError, TokenError) as error:
            self._core.note_refused_end(error)

    def _end(self, operation: str, receipt: str | None, **fields: Any) -> Outcome:
        # Without a receipt there is nothing to end.
        return "unknown" if receipt is None else self._perform(self._core.end_call(operation, receipt, **fields))

    def _perform(self, call: Call[Result]) -> Result:
        while True:
            self._send(call)
            if not self._core.is_repeated(call):
                return self._core.result(call)
            time.sleep(PAUSE_SECONDS)

    def _send(self, call: Call[Any]) -> None:
        call.outcome = None
        try:
            is_probe = self._core.health.admit()
        except NotSent as error:
            call.outcome = error
            return
        try:
            self._dispatcher.run(call)
        finally:
            if is_probe:
                self._core.health.end_probe()

    def close(self) -> None:
        """Closes the connections that are not in use."""
        self._dispatcher.close()

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

    def __init__(self, decision: Decision, end: Callable[..., Outcome]) -> None:
        super().__init__(decision)
        self._send_end = end

    def settle(self, cost: Cost) -> Outcome:
        """Replaces the estimate by the true cost."""
        return self._end("settle", cost=cost)

    def cancel(self) -> Outcome:
        """Refunds the estimate."""
        return self._end("cancel")

    def release(self) -> Outcome:
        """Ends the permits and keeps the estimate charged."""
        return self._end("release")

    def renew(self, ttl: float) -> Outcome:
        """Lets it last for ``ttl`` seconds from now."""
        return self._send_end("renew", self.receipt, ttl_ms=round(ttl * 1000))

    def _end(self, operation: str, **fields: Any) -> Outcome:
        had_ended = self._start_to_end()
        try:
            return self._send_end(operation, self.receipt, **fields)
        except Exception as error:
            self._after_error(error, had_ended)
            raise

    def __enter__(self) -> Reservation:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_ended:
            return
        try:
            self._end("release" if kind is None else "cancel")
        except ProblemError:
            # The caller's own error matters more. Without an end the estimate stays charged.
            if kind is None:
                raise
