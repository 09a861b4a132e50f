"""WSGI middleware: Flask, Django, Pyramid, Bottle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http.client import responses
from typing import TYPE_CHECKING, Any

from ._calls import Cost
from ._middleware import bounded, headers_of, problem, status_of
from .address import ClientAddress
from .client import Client
from .decision import Decision, ProblemError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Attributes = Callable[[dict[str, Any]], Mapping[str, str] | None]


class RateLimit:
    """Answers denied requests itself; adds the header fields of the decision to all others.

    The rules see the attributes ``ip``, ``method`` and ``path``, and those that ``attributes`` returns. The decision
    is ``environ["spillgate"]``.

    Args:
        app: the application.
        client: asks the server.
        attributes: more attributes of a request, such as a user; ``None`` leaves the request unlimited.
        cost: of each request, or a function of its environment.
        domain: of the rules.
        headers: the style of the header fields: ``"ietf"``, ``"draft-7"``, ``"draft-6"``, ``"legacy"``, ``"none"``.
        trusted_proxies: networks of proxies that may set ``X-Forwarded-For``.
    """

    def __init__(
        self,
        app: WSGIApplication,
        client: Client,
        *,
        attributes: Attributes | None = None,
        cost: Cost | Callable[[dict[str, Any]], Cost] | None = None,
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

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        attributes = self._attributes_of(environ)
        if attributes is None:
            return self.app(environ, start_response)
        decision = self._decide(environ, attributes)
        environ["spillgate"] = decision
        if not decision.allowed:
            return _deny(decision, environ["REQUEST_METHOD"], start_response)
        fields = headers_of(decision)
        return self.app(environ, _adding(fields, start_response) if fields else start_response)

    def _attributes_of(self, environ: WSGIEnvironment) -> Mapping[str, str] | None:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        # WSGI hands out bytes as Latin-1.
        path = path.encode("latin-1", "replace").decode("utf-8", "replace")
        # Servers join several lines by commas.
        forwarded_for = environ.get("HTTP_X_FORWARDED_FOR")
        ip = self._address.attribute(environ.get("REMOTE_ADDR"), (forwarded_for,) if forwarded_for else ())
        attributes = {"ip": ip, "method": bounded(environ["REQUEST_METHOD"]), "path": bounded(path)}
        if self._attributes is not None:
            more = self._attributes(environ)
            if more is None:
                return None
            attributes.update((name, bounded(value)) for name, value in more.items())
        return attributes

    def _decide(self, environ: WSGIEnvironment, attributes: Mapping[str, str]) -> Decision:
        cost = self._cost(environ) if callable(self._cost) else self._cost
        try:
            return self._client.check(attributes, cost=cost, domain=self._domain, headers=self._headers)
        except ProblemError as error:
            return self._client._refused(error)


def _deny(decision: Decision, method: str, start_response: StartResponse) -> Iterable[bytes]:
    body = problem(decision)
    status = status_of(decision)
    headers = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
    start_response(f"{status} {responses[status]}", headers + list(headers_of(decision).items()))
    return [] if method == "HEAD" else [body]


def _adding(fields: Mapping[str, str], start_response: StartResponse) -> StartResponse:
    def start_response_with_fields(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        names = {name.lower() for name, _ in headers}
        # An inner layer stands nearer to the work: its fields stay.
        if not any(name.lower() in names for name in fields):
            headers = headers + list(fields.items())
        return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

    return start_response_with_fields
