"""What the ASGI and the WSGI middleware share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from .decision import Decision

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"
VALUE_MAX = 4096


def bounded(value: str) -> str:
    """Makes any text a value that the server accepts, so that no client can cause an error by its request."""
    if len(value) <= VALUE_MAX and value.isascii():
        return value
    data = value.encode("utf-8", "replace")
    if len(data) <= VALUE_MAX:
        return data.decode()
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def status_of(decision: Decision) -> int:
    if decision.reason == "blocked":
        return 403
    if decision.reason in ("limit-exceeded", "cost-exceeds-limit"):
        return 429
    return 503


def problem(decision: Decision) -> bytes:
    """The body of a denial: problem details (RFC 9457)."""
    status = status_of(decision)
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


def headers_of(decision: Decision) -> Mapping[str, str]:
    """The header fields for the response: the server's, or for a denial without the server when to come back."""
    if decision.source == "client" and not decision.allowed:
        return {"Retry-After": "1"}
    return decision.headers


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
