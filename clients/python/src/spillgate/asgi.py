"""ASGI middleware: FastAPI, Starlette, Django, Quart, Litestar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._limiter import Limiter, Seen, checked_client, denial, missing_fields, registration
from ._request import InlineLimit
from .aio import AsyncClient
from .decision import Decision

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._limiter import Options

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimit(Limiter[Scope]):
    """Answers denied requests itself, and adds the header fields of the decision to all others.

    The decision is ``scope["spillgate"]``. Its permits end when the application returns. Only HTTP requests are
    limited, not WebSockets. `Limiter` has the options.
    """

    def __init__(
        self,
        app: App,
        client: AsyncClient,
        limit: str | InlineLimit | None = None,
        **options: Unpack[Options[Scope]],
    ) -> None:
        super().__init__(limit, **options)
        self.app = app
        self._client = checked_client(client, AsyncClient)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        facts = seen(scope)
        request = self.request(scope, facts)
        if request is None:
            await self.app(scope, receive, send)
            return
        decision = await self._client.decide(request, ttl=self.ttl, counter=self.counter(facts))
        scope["spillgate"] = decision
        if decision.allowed:
            await serve(self.app, scope, receive, send, [Applied(self, self._client, decision)])
        else:
            await send_denial(decision, scope, send)


@dataclass(slots=True)
class Applied:
    """A limit that has allowed a request."""

    limiter: Limiter[Any]
    client: AsyncClient
    decision: Decision
    has_ended: bool = False

    async def count(self, status: int) -> None:
        """Refunds the request if its outcome does not count."""
        if not self.has_ended and not self.limiter.counts(status):
            self.has_ended = True
            await self.client.finish(self.decision.receipt, refund=True)

    async def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            await self.client.finish(self.decision.receipt)


async def serve(app: App, scope: Scope, receive: Receive, send: Send, limits: list[Applied]) -> None:
    """Runs the application for a request that these limits have allowed."""
    has_started = False

    async def send_with_fields(message: Message) -> None:
        nonlocal has_started
        if message["type"] == "http.response.start":
            has_started = True
            headers = list(message.get("headers", ()))
            for applied in limits:
                await applied.count(message["status"])
                headers += _encoded(missing_fields(applied.decision, [name.decode("latin-1") for name, _ in headers]))
            message = {**message, "headers": headers}
        await send(message)

    try:
        await app(scope, receive, send_with_fields)
    except Exception:
        # The server answers 500.
        if not has_started:
            for applied in limits:
                await applied.count(500)
        raise
    finally:
        for applied in limits:
            await applied.end()


async def send_denial(decision: Decision, scope: Scope, send: Send) -> None:
    status, headers, body = denial(decision, scope["method"])
    await send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": body})


def seen(scope: Scope) -> Seen:
    peer = scope.get("client")
    forwarded_for = (value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")
    matched = scope.get("route")
    template, route, registered = getattr(matched, "path", None), None, None
    if isinstance(template, str):
        registered = registration(template, getattr(matched, "methods", None))
        # The prefix of an application that is mounted.
        route = scope.get("root_path", "") + template
    return Seen(scope["method"], scope["path"], route, peer[0] if peer else None, forwarded_for, registered)


def _encoded(fields: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in fields]
