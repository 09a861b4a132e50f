"""Limits at a route of Flask."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flask import Request, Response, after_this_request, current_app, g, request

from ._limiter import Limiter, Seen, checked_client, denial, missing_fields, registration
from ._request import InlineLimit
from .client import Client
from .decision import Decision

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._limiter import Options

View = TypeVar("View", bound=Callable[..., Any])


class RouteLimit(Limiter[Request]):
    """A decorator that limits a view, below its route: ``@RouteLimit(client, "5/minute")``.

    The decision is ``flask.g.spillgate``. Its permits end when the server closes the response. `Limiter` has the options;
    functions get the `flask.Request`. Views may be coroutines.
    """

    def __init__(self, client: Client, limit: str | InlineLimit | None = None, **options: Unpack[Options[Request]]) -> None:
        super().__init__(limit, **options)
        self._client = checked_client(client, Client)

    def __call__(self, view: View) -> View:
        @wraps(view)
        def limited(*arguments: Any, **named: Any) -> Any:
            seen = _seen()
            check = self.request(request, seen)
            if check is not None:
                decision = self._client.decide(check, ttl=self.ttl, counter=self.counter(seen))
                g.spillgate = decision
                if not decision.allowed:
                    status, headers, body = denial(decision, request.method)
                    return Response(body, status, headers)
                # Flask calls it also for the response to an error of the view.
                after_this_request(lambda response: self._after(decision, response))
            return current_app.ensure_sync(view)(*arguments, **named)

        return cast(View, limited)

    def _after(self, decision: Decision, response: Response) -> Response:
        response.headers.extend(missing_fields(decision, response.headers.keys()))
        receipt = decision.receipt
        if receipt is not None:
            if self.counts(response.status_code):
                response.call_on_close(lambda: self._client.finish(receipt))
            else:
                self._client.finish(receipt, refund=True)
        return response


def _seen() -> Seen:
    rule = request.url_rule
    forwarded_for = request.headers.getlist("X-Forwarded-For")
    path = request.script_root + request.path
    if rule is None:
        return Seen(request.method, path, None, request.remote_addr, forwarded_for)
    registered = registration(rule.rule, rule.methods)
    route = request.script_root + rule.rule
    return Seen(request.method, path, route, request.remote_addr, forwarded_for, registered)
