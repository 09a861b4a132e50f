"""The client for asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
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
from ._loop import Dispatcher
from ._request import CheckRequest, Cost, InlineLimit, Token, check_request
from .decision import Decision, NotSent, ProblemError, TokenError


class AsyncClient:
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
        self._core = Core(url, token, timeout, on_failure, connections, observe)
        self._ssl = ssl_context or (ssl.create_default_context() if self._core.target.is_secure else None)
        # A child of a fork has another loop, so it leaves the connections to its parent.
        self._by_loop: dict[asyncio.AbstractEventLoop, Dispatcher] = {}

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
        request = check_request(attributes, cost, domain, key, limit, headers)
        return await self._perform(self._core.check_call(request, wait))

    async def check_batch(self, checks: Sequence[CheckRequest]) -> list[Decision]:
        """Decides many requests, each by itself; see `Client.check_batch`."""
        calls = self._core.batch_calls(checks)
        return [decision for call in calls for decision in await self._perform(call)]

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
        until = time.monotonic() + deadline
        request = check_request(attributes, cost, domain, key, limit)
        while True:
            decision = await self._perform(self._core.check_call(request))
            pause = wait_before_retry(decision, until)
            if pause is None:
                return decision
            await asyncio.sleep(pause)

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

        >>> async with client.reserve({"user": "ada"}, cost={"requests": 1, "tokens": 4000}) as job:  # doctest: +SKIP
        ...     await job.settle({"tokens": await call_the_model()})
        """
        request = check_request(attributes, cost, domain, key, limit, headers)

        async def reserve() -> AsyncReservation:
            return AsyncReservation(await self._perform(self._core.reserve_call(request, ttl)), self._end)

        return _Reserving(reserve)

    async def settle(self, receipt: str, cost: Cost) -> Outcome:
        """Replaces a reservation's estimate by the true cost. ``"unavailable"`` if the server does not answer."""
        return await self._end("settle", receipt, cost=cost)

    async def cancel(self, receipt: str) -> Outcome:
        """Refunds a reservation."""
        return await self._end("cancel", receipt)

    async def release(self, receipt: str) -> Outcome:
        """Ends the permits of a reservation or of a check; the estimate stays charged."""
        return await self._end("release", receipt)

    async def renew(self, receipt: str, ttl: float) -> Outcome:
        """Lets a reservation and its permits last for ``ttl`` seconds from now."""
        return await self._end("renew", receipt, ttl_ms=round(ttl * 1000))

    async def decide(self, request: CheckRequest, *, ttl: float | None = None, counter: str = "*") -> Decision:
        """Decides a request for a middleware; see `Client.decide`."""
        try:
            if ttl is None:
                return await self._perform(self._core.check_call(request))
            return await self._perform(self._core.reserve_call(request, ttl))
        except (ProblemError, TokenError) as error:
            return self._core.decide_refused(error, counter)

    async def finish(self, receipt: str | None, *, refund: bool = False) -> None:
        """Ends the permits of a decision for a middleware, or refunds it; see `Client.finish`.

        If the task is cancelled meanwhile, the call goes on by itself.
        """
        try:
            await asyncio.shield(self._end("cancel" if refund else "release", receipt))
        except (ProblemError, TokenError) as error:
            self._core.note_refused_end(error)

    async def _end(self, operation: str, receipt: str | None, **fields: Any) -> Outcome:
        # Without a receipt there is nothing to end.
        if receipt is None:
            return "unknown"
        return await self._perform(self._core.end_call(operation, receipt, **fields))

    async def _perform(self, call: Call[Result]) -> Result:
        while True:
            await self._send(call)
            if not self._core.is_repeated(call):
                return self._core.result(call)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send(self, call: Call[Any]) -> None:
        call.outcome = None
        try:
            is_probe = self._core.health.admit()
        except NotSent as error:
            call.outcome = error
            return
        try:
            await self._dispatcher().run(call)
        finally:
            if is_probe:
                self._core.health.end_probe()

    def _dispatcher(self) -> Dispatcher:
        loop = asyncio.get_running_loop()
        return self._by_loop.get(loop) or self._start(loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> Dispatcher:
        # Only the thread of a loop adds its entry. Copying the keys is atomic, so other threads may do the same meanwhile.
        for known in list(self._by_loop):
            if known.is_closed():
                self._by_loop.pop(known, None)
        self._by_loop[loop] = started = Dispatcher(self._core, self._core.connections, self._ssl)
        return started

    async def close(self) -> None:
        """Closes the connections of the running loop that are not in use. Call it in each loop that used the client."""
        self._dispatcher().close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Reserving:
    """A call to reserve, not sent yet."""

    def __init__(self, reserve: Callable[[], Coroutine[Any, Any, AsyncReservation]]) -> None:
        self._reserve = reserve
        self._reservation: AsyncReservation | None = None

    def __await__(self) -> Generator[Any, None, AsyncReservation]:
        return self._reserve().__await__()

    async def __aenter__(self) -> AsyncReservation:
        self._reservation = await self
        return await self._reservation.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reservation is not None:
            await self._reservation.__aexit__(kind, error, trace)


class AsyncReservation(ReservationCore):
    """A charged estimate; see `Reservation`. If the caller is cancelled, the call that ends it goes on by itself."""

    def __init__(self, decision: Decision, end: Callable[..., Coroutine[Any, Any, Outcome]]) -> None:
        super().__init__(decision)
        self._send_end = end

    async def settle(self, cost: Cost) -> Outcome:
        """Replaces the estimate by the true cost."""
        return await self._end("settle", cost=cost)

    async def cancel(self) -> Outcome:
        """Refunds the estimate."""
        return await self._end("cancel")

    async def release(self) -> Outcome:
        """Ends the permits and keeps the estimate charged."""
        return await self._end("release")

    async def renew(self, ttl: float) -> Outcome:
        """Lets it last for ``ttl`` seconds from now."""
        return await self._send_end("renew", self.receipt, ttl_ms=round(ttl * 1000))

    async def _end(self, operation: str, **fields: Any) -> Outcome:
        had_ended = self._start_to_end()
        try:
            return await asyncio.shield(self._send_end(operation, self.receipt, **fields))
        except Exception as error:
            self._after_error(error, had_ended)
            raise

    async def __aenter__(self) -> AsyncReservation:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_ended:
            return
        try:
            await self._end("release" if kind is None else "cancel")
        except ProblemError:
            # The caller's own error matters more. Without an end the estimate stays charged.
            if kind is None:
                raise
