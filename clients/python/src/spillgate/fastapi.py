"""Limits at a route of FastAPI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request

from ._limiter import Limiter, checked_client
from ._request import InlineLimit
from .aio import AsyncClient
from .asgi import App, Applied, Receive, Scope, Send, seen, send_denial, serve
from .decision import Denied

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._limiter import Options

_LIMITS = "spillgate.limits"


class _RouteDenied(Denied):
    """A request was denied by the limit of its route."""


class RouteLimits:
    """ASGI middleware that an application with route limits needs: ``app.add_middleware(RouteLimits)``.

    A dependency cannot see the response to its request. This answers denied requests, adds header fields to all others, and
    knows the outcome for ``count_if``.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limits: list[Applied] = []
        scope[_LIMITS] = limits

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await self.app(scope, receive, send)
            except _RouteDenied as denied:
                await send_denial(denied.decision, scope, send)

        await serve(run, scope, receive, send, limits)


class RouteLimit(Limiter[Request]):
    """A dependency that limits a route: ``dependencies=[Depends(RouteLimit(client, "5/minute"))]``.

    The decision is ``request.scope["spillgate"]``. `Limiter` has the options; functions get the `Request`.
    """

    def __init__(
        self,
        client: AsyncClient,
        limit: str | InlineLimit | None = None,
        **options: Unpack[Options[Request]],
    ) -> None:
        super().__init__(limit, **options)
        self._client = checked_client(client, AsyncClient)

    async def __call__(self, request: Request) -> None:
        limits = request.scope.get(_LIMITS)
        if limits is None:
            raise RuntimeError("RouteLimit needs the middleware of spillgate.fastapi: app.add_middleware(RouteLimits)")
        facts = seen(request.scope)
        check = self.request(request, facts)
        if check is None:
            return
        decision = await self._client.decide(check, ttl=self.ttl, counter=self.counter(facts))
        request.scope["spillgate"] = decision
        if not decision.allowed:
            raise _RouteDenied(decision)
        limits.append(Applied(self, self._client, decision))
