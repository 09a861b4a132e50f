"""ASGI middleware: FastAPI, Starlette, Django, Quart, Litestar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from ._calls import Cost
from ._middleware import bounded, headers_of, problem, status_of
from .address import ClientAddress
from .aio import AsyncClient
from .decision import Decision, ProblemError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Attributes = Callable[[Scope], Mapping[str, str] | None]


class RateLimit:
    """Answers denied requests itself; adds the header fields of the decision to all others.

    The rules see the attributes ``ip``, ``method`` and ``path``, and those that ``attributes`` returns. The decision
    is ``scope["spillgate"]``. Only HTTP requests are limited, not WebSockets.

    Args:
        app: the application.
        client: asks the server.
        attributes: more attributes of a request, such as a user; ``None`` leaves the request unlimited.
        cost: of each request, or a function of its scope.
        domain: of the rules.
        headers: the style of the header fields: ``"ietf"``, ``"draft-7"``, ``"draft-6"``, ``"legacy"``, ``"none"``.
        trusted_proxies: networks of proxies that may set ``X-Forwarded-For``.
    """

    def __init__(
        self,
        app: App,
        client: AsyncClient,
        *,
        attributes: Attributes | None = None,
        cost: Cost | Callable[[Scope], Cost] | None = None,
        domain: str | None = None,
        headers: str = "ietf",
        trusted_proxies: Iterable[str] = (),
    ) -> None:
        self.app = app
        self._client = client
        self._attributes = attributes
        self._cost = cost
        self._domain = domain
        self._headers = headers
        self._address = ClientAddress(trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        attributes = self._attributes_of(scope)
        if attributes is None:
            await self.app(scope, receive, send)
            return
        decision = await self._decide(scope, attributes)
        scope["spillgate"] = decision
        if decision.allowed:
            fields = headers_of(decision)
            await self.app(scope, receive, _adding(fields, send) if fields else send)
        else:
            await _deny(decision, scope["method"], send)

    def _attributes_of(self, scope: Scope) -> Mapping[str, str] | None:
        client = scope.get("client")
        # Looked for only if the peer is trusted.
        forwarded_for = (value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")
        ip = self._address.attribute(client[0] if client else None, forwarded_for)
        attributes = {"ip": ip, "method": bounded(scope["method"]), "path": bounded(scope["path"])}
        if self._attributes is not None:
            more = self._attributes(scope)
            if more is None:
                return None
            attributes.update((name, bounded(value)) for name, value in more.items())
        return attributes

    async def _decide(self, scope: Scope, attributes: Mapping[str, str]) -> Decision:
        cost = self._cost(scope) if callable(self._cost) else self._cost
        try:
            return await self._client.check(attributes, cost=cost, domain=self._domain, headers=self._headers)
        except ProblemError as error:
            return self._client._refused(error)


async def _deny(decision: Decision, method: str, send: Send) -> None:
    body = problem(decision)
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in headers_of(decision).items()]
    await send({"type": "http.response.start", "status": status_of(decision), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})


def _adding(fields: Mapping[str, str], send: Send) -> Send:
    ours = [(name.lower().encode(), value.encode()) for name, value in fields.items()]

    async def send_with_fields(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = list(message.get("headers", ()))
            names = {name.lower() for name, _ in there}
            # An inner layer stands nearer to the work: its fields stay.
            if not any(name in names for name, _ in ours):
                message = {**message, "headers": there + ours}
        await send(message)

    return send_with_fields


