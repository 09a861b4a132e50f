"""Limits of requests without I/O: the check of a request, the response to a denied one, and header fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._request import CheckRequest, Cost, InlineLimit, bounded, check_request
from .address import ClientAddress
from .decision import Decision

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"
STYLES = ("ietf", "draft-7", "draft-6", "legacy", "none")
# How long a response may take until its cost can no longer be refunded.
OUTCOME_SECONDS = 300.0

# A limit as a string, as the server reads it: `20`, `5/minute`, `1_000/30s`. With a misspelt one each request would fail.
_COUNT = "[0-9]+(?:_[0-9]+)*"
_PERIOD = f"second|minute|hour|day|week|month|year|(?:{_COUNT})?(?:ms|s|m|h|d)"
_LIMIT = re.compile(f"unlimited|block|{_COUNT}/(?:{_PERIOD})")

Source = TypeVar("Source")
AnyClient = TypeVar("AnyClient")


@dataclass(slots=True)
class Seen:
    """What a limit needs of a request."""

    method: str
    path: str
    # The framework's template of the route, where it is known.
    route: str | None
    peer: str | None
    # The lines of X-Forwarded-For. They are looked at only if the peer is a trusted proxy.
    forwarded_for: Iterable[str]
    # The route as it was registered, for the name of its counter. Nothing of it comes from the request: a client that
    # invents methods or prefixes would get a new counter with each of them.
    registered: str | None = None


def registration(template: str, methods: Iterable[str] | None = None) -> str:
    """Returns the methods of a route, without those that frameworks add by themselves, and its template."""
    names = set(methods or ())
    names -= {"OPTIONS"} | ({"HEAD"} if "GET" in names else set())
    return f"{','.join(sorted(names))} {template}" if names else template


if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class Options(TypedDict, Generic[Source], total=False):
        """The options that all limits have; see `Limiter`."""

        key: Callable[[Source], object] | None
        name: str | None
        count_if: Callable[[int], bool] | None
        attributes: Callable[[Source], Mapping[str, object] | None] | None
        cost: Cost | Callable[[Source], Cost] | None
        domain: str | None
        headers: str
        trusted_proxies: Iterable[str]
        path: str


def checked_client(given: AnyClient, expected: type[AnyClient]) -> AnyClient:
    """Returns the client of a limit. One of the other kind, or none at all, would fail at each request."""
    if not isinstance(given, expected):
        raise TypeError(f"client must be a spillgate.{expected.__name__} here, got {type(given).__name__}: {given!r}")
    return given


class Limiter(Generic[Source]):
    """Makes the check of a request: by the rules of the policy, or by a ``limit`` of its own.

    The rules see the attributes ``ip``, ``method`` and ``path``, and those that ``attributes`` returns. Functions get the
    framework's request: the scope in ASGI, the environment in WSGI.

    Args:
        limit: such as ``"5/minute"``, instead of the rules.
        key: the subject of ``limit``, by default the client's address; ``None`` leaves the request unlimited.
        name: of the counter of ``limit``, by default the route as it was registered (``POST /login``), else ``*``.
        count_if: whether a response with this status counts, for example only failed logins. The cost is reserved
            meanwhile, and refunded before the response is sent if it does not count.
        attributes: more attributes of a request, such as a user; ``None`` leaves the request unlimited. An attribute that is
            ``None`` is left out, bytes are read as Latin-1, and any other value becomes ``str(value)``.
        cost: of each request, or a function that returns it.
        domain: of the rules, and of the counters of ``limit``.
        headers: the style of the header fields: ``"ietf"``, ``"draft-7"``, ``"draft-6"``, ``"legacy"``, ``"none"``.
        trusted_proxies: networks of proxies that may set ``X-Forwarded-For``.
        path: ``"route"`` makes the attribute ``path`` the template of the route, where it is known.
    """

    def __init__(
        self,
        limit: str | InlineLimit | None = None,
        *,
        key: Callable[[Source], object] | None = None,
        name: str | None = None,
        count_if: Callable[[int], bool] | None = None,
        attributes: Callable[[Source], Mapping[str, object] | None] | None = None,
        cost: Cost | Callable[[Source], Cost] | None = None,
        domain: str | None = None,
        headers: str = "ietf",
        trusted_proxies: Iterable[str] = (),
        path: str = "request",
    ) -> None:
        if isinstance(limit, str):
            if not _LIMIT.fullmatch(limit):
                raise ValueError(f'limit must be such as "5/minute", "1_000/30s", "unlimited" or "block", got {limit!r}')
        elif limit is not None and not isinstance(limit, Mapping):
            raise TypeError(f'limit must be a string such as "5/minute", or a mapping, got {limit!r}')
        if limit is None and (key is not None or name is not None):
            raise ValueError("key and name belong to a limit; give one such as limit=\"5/minute\", or leave them out")
        if limit is not None and attributes is not None:
            raise ValueError("attributes are for the rules of the policy; with a limit, give a key")
        if headers not in STYLES:
            raise ValueError(f"headers must be one of {', '.join(STYLES)}, got {headers!r}")
        if path not in ("request", "route"):
            raise ValueError(f'path must be "request" or "route", got {path!r}')
        self._limit = limit
        self._key = key
        self._name = name
        self._count_if = count_if
        self._attributes = attributes
        self._cost = cost
        self._domain = domain
        self._headers = headers
        self._address = ClientAddress(trusted_proxies)
        self._takes_route = path == "route"

    @property
    def ttl(self) -> float | None:
        """How long the cost of a request is reserved, if only some outcomes count."""
        return None if self._count_if is None else OUTCOME_SECONDS

    def counts(self, status: int) -> bool:
        return self._count_if is None or self._count_if(status)

    def counter(self, seen: Seen) -> str:
        """The name of the counter of ``limit``, and of the request in the log."""
        return self._name or seen.registered or "*"

    def request(self, source: Source, seen: Seen) -> CheckRequest | None:
        """The check of a request, or ``None`` if it is unlimited."""
        cost: Any = self._cost(source) if callable(self._cost) else self._cost
        if self._limit is not None:
            subject = self._ip(seen) if self._key is None else self._key(source)
            if subject is None:
                return None
            # A name has no end of its own: the array keeps names and subjects apart.
            key = json.dumps([self.counter(seen), bounded(_string(subject))], ensure_ascii=False, separators=(",", ":"))
            return check_request(None, cost, self._domain, key, self._limit, self._headers)
        path = seen.route if self._takes_route and seen.route is not None else escaped(seen.path)
        attributes: dict[str, str | int] = {"ip": self._ip(seen), "method": seen.method, "path": path}
        if self._attributes is not None:
            more = self._attributes(source)
            if more is None:
                return None
            for name, value in more.items():
                if value is not None:
                    attributes[name] = _string(value)
        return check_request(attributes, cost, self._domain, None, None, self._headers)

    def _ip(self, seen: Seen) -> str:
        return self._address.attribute(seen.peer, seen.forwarded_for)


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


def missing_fields(decision: Decision, present: Iterable[str]) -> list[tuple[str, str]]:
    """The header fields to add to an allowed response. An inner layer stands nearer to the work: its fields stay."""
    names = {name.lower() for name in present}
    fields = fields_of(decision)
    return [] if any(name.lower() in names for name in fields) else list(fields.items())


def escaped(path: str) -> str:
    """Escapes again, in a decoded path, the characters by which the server would take another path."""
    return path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    # Frameworks hand out parts of a request as bytes, and `str` would add the quotes of a literal to them.
    return value.decode("latin-1") if isinstance(value, bytes | bytearray) else str(value)


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
