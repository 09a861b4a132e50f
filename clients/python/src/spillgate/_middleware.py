"""The middleware without I/O: the check of a request, the response to a denied one, and header fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from ._request import CheckRequest, Cost, bounded, check_request
from .address import ClientAddress
from .decision import Decision

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"

App = TypeVar("App")
Client = TypeVar("Client")
Source = TypeVar("Source")


class Middleware(Generic[App, Client, Source]):
    """Answers denied requests itself; adds the header fields of the decision to all others.

    The rules see the attributes ``ip``, ``method`` and ``path``, and those that ``attributes`` returns.

    Args:
        app: the application.
        client: asks the server.
        attributes: more attributes of a request, such as a user; ``None`` leaves the request unlimited. An attribute that is
            ``None`` is left out, any other value that is no text becomes ``str(value)``.
        cost: of each request, or a function of its scope or environment.
        domain: of the rules.
        headers: the style of the header fields: ``"ietf"``, ``"draft-7"``, ``"draft-6"``, ``"legacy"``, ``"none"``.
        trusted_proxies: networks of proxies that may set ``X-Forwarded-For``.
    """

    def __init__(
        self,
        app: App,
        client: Client,
        *,
        attributes: Callable[[Source], Mapping[str, object] | None] | None = None,
        cost: Cost | Callable[[Source], Cost] | None = None,
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

    def _check_of(
        self, source: Source, method: str, path: str, peer: str | None, forwarded_for: Iterable[str]
    ) -> CheckRequest | None:
        """The check of a request, or ``None`` if it is unlimited."""
        ip = self._address.attribute(peer, forwarded_for)
        attributes = {"ip": ip, "method": bounded(method), "path": bounded(escaped(path))}
        if self._attributes is not None:
            more = self._attributes(source)
            if more is None:
                return None
            for name, value in more.items():
                if value is not None:
                    attributes[name] = bounded(value if isinstance(value, str) else str(value))
        cost = self._cost(source) if callable(self._cost) else self._cost
        return check_request(attributes, cost, self._domain, None, None, self._headers)


def denial(decision: Decision, method: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """The response to a denied request: that of the rule, else problem details (RFC 9457)."""
    fields = dict(fields_of(decision))
    if decision.denial is not None:
        status, body = decision.denial.status, decision.denial.body.encode()
        if status in (204, 304):
            # These have no content by definition.
            return status, list(fields.items()), b""
    else:
        status = _status_of(decision)
        body = _problem(decision, status)
        fields["content-type"] = "application/problem+json"
    fields["content-length"] = str(len(body))
    return status, list(fields.items()), b"" if method == "HEAD" else body


def fields_of(decision: Decision) -> Mapping[str, str]:
    """The header fields for the response: the server's, or for a denial without the server when to come back."""
    if decision.source == "client" and not decision.allowed:
        return {"Retry-After": "1"}
    return decision.headers


def escaped(path: str) -> str:
    """Escapes again, in a decoded path, the characters by which the server would take another path."""
    return path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def _status_of(decision: Decision) -> int:
    if decision.reason == "blocked":
        return 403
    if decision.reason in ("limit-exceeded", "cost-exceeds-limit"):
        return 429
    return 503


def _problem(decision: Decision, status: int) -> bytes:
    kind, title = "quota-exceeded", "Quota exceeded"
    if status == 503:
        kind, title = "temporary-reduced-capacity", "Temporarily reduced capacity"
    body = {
        "type": PROBLEM_TYPES + kind,
        "title": title,
        "status": status,
        "detail": _detail(decision),
        "violated-policies": decision.violated_policies,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def _detail(decision: Decision) -> str:
    if decision.reason == "limit-exceeded" and "retry-after" in decision.headers:
        return f"Try again in {decision.headers['retry-after']} s."
    return _DETAILS.get(decision.reason or "", "The request is denied.")


_DETAILS = {
    "limit-exceeded": "The limit has no room at the moment.",
    "cost-exceeds-limit": "The cost is larger than the limit can ever hold.",
    "blocked": "Requests like this one are blocked.",
    "store-unavailable": "The rate limiter cannot reach its store.",
    "overloaded": "The rate limiter is overloaded.",
}
