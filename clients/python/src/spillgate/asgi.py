"""ASGI middleware: FastAPI, Starlette, Django, Quart, Litestar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from ._middleware import Middleware, denial, fields_of
from .aio import AsyncClient

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimit(Middleware[App, AsyncClient, Scope]):
    """Answers denied requests itself, and adds the header fields of the decision to all others.

    The decision is ``scope["spillgate"]``. Its permits end when the application returns. Only HTTP requests are
    limited, not WebSockets. `Middleware` has the arguments.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method: str = scope["method"]
        peer = scope.get("client")
        # Looked for only if the peer is trusted.
        forwarded_for = (value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")
        check = self._check_of(scope, method, scope["path"], peer[0] if peer else None, forwarded_for)
        if check is None:
            await self.app(scope, receive, send)
            return
        decision = await self._client.decide(check)
        scope["spillgate"] = decision
        if decision.allowed:
            fields = fields_of(decision)
            try:
                await self.app(scope, receive, _adding(fields, send) if fields else send)
            finally:
                if decision.receipt is not None:
                    # A task that is being cancelled may be cancelled again; the release goes on by itself.
                    await self._client.finish(decision.receipt)
            return
        status, headers, body = denial(decision, method)
        await send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})
        await send({"type": "http.response.body", "body": body})


def _adding(fields: Mapping[str, str], send: Send) -> Send:
    ours = _encoded(fields.items())

    def send_with_fields(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            there = list(message.get("headers", ()))
            names = {name.lower() for name, _ in there}
            # An inner layer stands nearer to the work: its fields stay.
            if names.isdisjoint([name for name, _ in ours]):
                message = {**message, "headers": there + ours}
        return send(message)

    return send_with_fields


def _encoded(fields: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in fields]
