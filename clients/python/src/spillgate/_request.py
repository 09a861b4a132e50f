"""Requests to the server: their fields, their JSON, and the bounds of a batch."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from .decision import ProblemError, TokenError

Cost = int | Mapping[str, int]

# The server reads more. But a batch is answered as a whole, so one that is smaller is answered sooner on a busy machine.
BATCH_CHECKS = 250
BATCH_BYTES = 512 * 1024
VALUE_BYTES = 4096
# What a longer value keeps of its beginning and of its end.
KEPT_BYTES = 1024


class InlineLimit(TypedDict, total=False):
    """A limit that comes with the request."""

    quota: str
    burst: int
    algorithm: str
    time_zone: str
    max_hold: str


class CheckRequest(TypedDict, total=False):
    """One check as the server reads it."""

    domain: str
    attributes: Mapping[str, str | int]
    cost: Cost
    wait_ms: int
    headers: bool | str
    key: str
    limit: InlineLimit


Token = str | Callable[[], str]


def check_request(
    attributes: Mapping[str, str | int] | None,
    cost: Cost | None,
    domain: str | None,
    key: str | None,
    limit: str | InlineLimit | None,
    headers: bool | str = False,
) -> CheckRequest:
    request: CheckRequest = {}
    if attributes is not None:
        request["attributes"] = attributes
    if cost is not None:
        request["cost"] = cost
    if domain is not None:
        request["domain"] = domain
    if key is not None:
        request["key"] = key
    if limit is not None:
        request["limit"] = {"quota": limit} if isinstance(limit, str) else limit
    if headers:
        request["headers"] = headers
    return request


def reserve_request(check: CheckRequest, ttl: float) -> Mapping[str, Any]:
    # The id makes it safe to repeat the call: it charges once.
    return {**_bounded_request(check), "ttl_ms": round(ttl * 1000), "id": uuid.uuid4().hex}


def encoded_check(check: CheckRequest) -> bytes:
    """Returns the JSON of a check in a batch. Raises `ProblemError` if no batch has room for it."""
    data = encode(_bounded_request(check))
    if len(data) > BATCH_BYTES - 2:
        detail = f"a check must have at most {BATCH_BYTES - 2} bytes as JSON, got {len(data)}"
        raise ProblemError(413, {"type": "about:blank", "title": "Content Too Large", "status": 413, "detail": detail})
    return data


def batch_of(checks: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(checks) + b"]"


def fitting(checks: Sequence[bytes]) -> int:
    """Returns how many of these checks, from the first on, make one batch."""
    room = BATCH_BYTES - 1
    for count, check in enumerate(checks[:BATCH_CHECKS]):
        room -= len(check) + 1
        if room < 0:
            return count
    return min(len(checks), BATCH_CHECKS)


def encode(body: Any) -> bytes:
    """Returns the JSON of a request. Raises `TypeError` or `ValueError` for values that JSON does not have."""
    text = _encode(body)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # The server reads Unicode, in which a surrogate alone is not a character.
        return _SURROGATE.sub("\ufffd", text).encode()


def bounded(value: str) -> str:
    """Makes any string a value that the server accepts, so that no stranger can cause an error by a request.

    A value that is too long keeps both ends, so that rules for a prefix or a suffix match. The hash tells it from others.
    """
    if len(value) <= VALUE_BYTES and value.isascii():
        return value
    value = _SURROGATE.sub("\ufffd", value)
    data = value.encode()
    if len(data) <= VALUE_BYTES:
        return value
    first, last = data[:KEPT_BYTES].decode(errors="ignore"), data[-KEPT_BYTES:].decode(errors="ignore")
    return f"{first}sha256:{hashlib.sha256(data).hexdigest()}{last}"


def authorization(token: str) -> str:
    """Returns the header field for a token. White space around it is cut off, since files end with a newline."""
    token = token.strip()
    if not _TOKEN.fullmatch(token):
        raise TokenError("the token must be a string of visible ASCII characters, such as a file with one line has it")
    return f"Bearer {token}"


def _bounded_request(check: CheckRequest) -> CheckRequest:
    attributes, key = check.get("attributes"), check.get("key")
    if isinstance(attributes, Mapping):
        check = {**check, "attributes": {name: _bounded_value(value) for name, value in attributes.items()}}
    if isinstance(key, str):
        check = {**check, "key": bounded(key)}
    return check


def _bounded_value(value: str | int) -> str | int:
    return bounded(value) if isinstance(value, str) else value


def _as_dict(value: Any) -> dict[Any, Any]:
    """Attributes and costs may be of any class of mapping. The encoder calls this for values that it does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"the server takes strings, numbers, lists and mappings, got {type(value).__name__}: {value!r}")


# Not a number and infinity are no JSON: the server would refuse the whole batch.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_as_dict).encode
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOKEN = re.compile("[!-~]+")
