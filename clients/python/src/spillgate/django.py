"""Limits at a view of Django."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse

from ._limiter import Limiter, Seen, denial, missing_fields
from ._request import InlineLimit
from .aio import AsyncClient
from .client import Client
from .decision import Decision

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._limiter import Options

View = TypeVar("View", bound=Callable[..., Any])


class RouteLimit(Limiter[Any]):
    """A decorator that limits a view: ``@RouteLimit(client, "5/minute")``.

    A view needs a `Client`, a view that is a coroutine an `AsyncClient`. The decision is ``request.spillgate``. Its permits
    end when the view returns. `Limiter` has the options; functions get the `HttpRequest`.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        limit: str | InlineLimit | None = None,
        **options: Unpack[Options[Any]],
    ) -> None:
        super().__init__(limit, **options)
        self._client = client

    def __call__(self, view: View) -> View:
        client = self._client
        if iscoroutinefunction(view):
            if not isinstance(client, AsyncClient):
                raise TypeError(f"{view.__name__} is a coroutine, so its RouteLimit needs an AsyncClient")
            return cast(View, self._limited_coroutine(view, client))
        if not isinstance(client, Client):
            raise TypeError(f"{getattr(view, '__name__', view)} is not a coroutine, so its RouteLimit needs a Client")
        return cast(View, self._limited(view, client))

    def _limited(self, view: Callable[..., Any], client: Client) -> Callable[..., Any]:
        @wraps(view)
        def limited(request: HttpRequest, *arguments: Any, **named: Any) -> Any:
            seen = _seen(request)
            check = self.request(request, seen)
            if check is None:
                return view(request, *arguments, **named)
            decision = client.decide(check, ttl=self.ttl, counter=self.counter(seen))
            request.spillgate = decision
            if not decision.allowed:
                return _denied(decision, request)
            try:
                response = view(request, *arguments, **named)
            except Exception as error:
                client.finish(decision.receipt, refund=not self.counts(_status_of(error)))
                raise
            client.finish(decision.receipt, refund=not self.counts(response.status_code))
            return _with_fields(decision, response)

        return limited

    def _limited_coroutine(self, view: Callable[..., Any], client: AsyncClient) -> Callable[..., Any]:
        @wraps(view)
        async def limited(request: HttpRequest, *arguments: Any, **named: Any) -> Any:
            seen = _seen(request)
            check = self.request(request, seen)
            if check is None:
                return await view(request, *arguments, **named)
            decision = await client.decide(check, ttl=self.ttl, counter=self.counter(seen))
            request.spillgate = decision
            if not decision.allowed:
                return _denied(decision, request)
            try:
                response = await view(request, *arguments, **named)
            except Exception as error:
                await client.finish(decision.receipt, refund=not self.counts(_status_of(error)))
                raise
            await client.finish(decision.receipt, refund=not self.counts(response.status_code))
            return _with_fields(decision, response)

        return limited


def _seen(request: Any) -> Seen:
    forwarded_for = request.META.get("HTTP_X_FORWARDED_FOR")
    match = request.resolver_match
    route = None if match is None else f"/{match.route}"
    lines = (forwarded_for,) if forwarded_for else ()
    # Django's routes have no methods.
    return Seen(request.method, request.path, route, request.META.get("REMOTE_ADDR"), lines, registered=route)


def _status_of(error: Exception) -> int:
    """The status of Django's response to an error of a view."""
    if isinstance(error, Http404):
        return 404
    if isinstance(error, PermissionDenied):
        return 403
    return 400 if isinstance(error, BadRequest | SuspiciousOperation) else 500


def _denied(decision: Decision, request: Any) -> HttpResponse:
    status, headers, body = denial(decision, request.method)
    response = HttpResponse(body, status=status)
    # Django sets a type of its own otherwise.
    del response["Content-Type"]
    for name, value in headers:
        response[name] = value
    return response


def _with_fields(decision: Decision, response: Any) -> Any:
    for name, value in missing_fields(decision, response.headers.keys()):
        response[name] = value
    return response
