"""Reads answers. Nothing in them is trusted: whatever is not an answer of Spillgate is `Unavailable`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, cast

from ._http import Response
from .decision import Decision, Denial, Limit, ProblemError, Unavailable

Outcome = Literal["done", "repeated", "expired", "unknown", "unavailable"]
Result = TypeVar("Result")


class Retryable(Unavailable):
    """The server answers that it did a call in part or not at all; the same call does the rest."""


# How many sentences about unused names an answer may have. The server sends 16 at most.
UNUSED_MAX = 64
# The decision over a reservation for whose record the store has no room.
_OVERLOADED = {"allowed": False, "reason": "overloaded", "source": "outage-policy", "degraded": True}


def read_answer(response: Response) -> Any:
    """Returns the JSON of an answer. Raises `ProblemError` for a refused request, `Unavailable` for no answer."""
    status = response.status
    answer = _parsed(response.body)
    if status == 200 and answer is not None:
        return answer
    if status == 503 and isinstance(answer, dict):
        # A load balancer also answers 503, but with neither field: then the server is silent.
        if answer.get("reason") == "overloaded":
            return _OVERLOADED
        if answer.get("retryable") is True:
            raise Retryable(f"the server answered 503: {_detail(answer)}")
    raise _refusal(status, answer) or Unavailable(f"the server answered {status}: {_detail(answer)}")


def read_decision(answer: Any) -> Decision:
    if not isinstance(answer, dict):
        raise _not_of_spillgate("a decision")
    known = _known(answer, _DECISION)
    if known is None or "allowed" not in known:
        raise _not_of_spillgate("a decision")
    limits = [_known(limit, _LIMIT) for limit in known.pop("limits", ())]
    if None in limits:
        raise _not_of_spillgate("a decision")
    decision = Decision(**known)
    decision.limits = tuple([Limit(**limit) for limit in limits if limit is not None])
    decision.headers = {name: value.strip() for name, value in decision.headers.items() if _is_field(name, value)}
    decision.denial = _denial(answer.get("denial"))
    decision.unused = read_unused(answer)
    return decision


def read_results(answer: Any, count: int) -> list[Decision | ProblemError | Unavailable]:
    """Returns the result of each check of a batch. Raises `Unavailable` if none of them is one."""
    if answer is _OVERLOADED:
        return [read_decision(answer) for _ in range(count)]
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) != count:
        raise _not_of_spillgate(f"{count} results")
    unused = read_unused(answer)
    read = [_result(item, unused) for item in results]
    for result in read:
        if not isinstance(result, Unavailable):
            return read
    raise Unavailable(str(read[0]))


def read_outcome(answer: Any) -> Outcome:
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, str):
        raise _not_of_spillgate("a result")
    return cast(Outcome, result)


def read_unused(answer: Any) -> tuple[str, ...]:
    """Returns the sentences about unused names. They only inform, so with a wrong type, or too many, they count as absent."""
    unused = answer.get("unused") if isinstance(answer, dict) else None
    if not isinstance(unused, list) or len(unused) > UNUSED_MAX:
        return ()
    if not all([isinstance(sentence, str) for sentence in unused]):
        return ()
    return tuple(unused)


def _result(item: Any, unused: tuple[str, ...]) -> Decision | ProblemError | Unavailable:
    try:
        problem = item.get("error") if isinstance(item, dict) else None
        if problem is not None:
            status = problem.get("status") if isinstance(problem, dict) else None
            return _refusal(status, problem) or Unavailable(f"the server did not decide: {_detail(problem)}")
        decision = read_decision(item)
        decision.unused = unused
        return decision
    except Unavailable as error:
        return error


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        return None


def _refusal(status: Any, problem: Any) -> ProblemError | None:
    """The error of a problem of Spillgate. A web server's page, or a redirect, is none."""
    if type(status) is not int or not 400 <= status < 500 or status == 408:
        return None
    if not isinstance(problem, dict) or not isinstance(problem.get("title"), str):
        return None
    return ProblemError(status, problem)


def _detail(problem: Any) -> str:
    detail = problem.get("detail") if isinstance(problem, dict) else None
    return detail if isinstance(detail, str) else "no problem details"


def _not_of_spillgate(what: str) -> Unavailable:
    return Unavailable(f"the server's answer is not {what}: does the URL lead to Spillgate?")


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_fields(value: Any) -> bool:
    return isinstance(value, dict) and all([isinstance(text, str) for text in value.values()])


_NUMBERS = ("capacity", "remaining", "retry_after_ms", "reset_after_ms")
_COMMON: dict[str, Callable[[Any], bool]] = {
    "allowed": _is_bool,
    **dict.fromkeys(("reason", "rule", "limit", "source"), _is_string),
    **dict.fromkeys(_NUMBERS, _is_number),
}
_LIMIT = {**_COMMON, "unit": _is_string, "shadow": _is_bool}
_DECISION = {
    **_COMMON,
    "degraded": _is_bool,
    "matched": _is_bool,
    "receipt": _is_string,
    "headers": _is_fields,
    "limits": _is_list,
}


def _known(answer: Any, types: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any] | None:
    """Returns the fields that this version knows and that are not null, or ``None`` if one has a wrong type."""
    if not isinstance(answer, dict):
        return None
    known = {}
    for name, value in answer.items():
        is_right = types.get(name)
        if value is None or is_right is None:
            continue
        if not is_right(value):
            return None
        known[name] = value
    return known


def _is_field(name: str, value: str) -> bool:
    """Whether a response may carry it. The fields of a connection belong to the application's server."""
    return bool(_NAME.fullmatch(name) and _VALUE.fullmatch(value)) and name.lower() not in _OF_THE_CONNECTION


def _denial(denial: Any) -> Denial | None:
    if not isinstance(denial, dict):
        return None
    status, body = denial.get("status"), denial.get("body")
    if type(status) is not int or not 200 <= status <= 599 or not isinstance(body, str) or _SURROGATE.search(body):
        return None
    return Denial(status, body)


_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_OF_THE_CONNECTION = frozenset(
    ("connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection")
    + ("te", "trailer", "transfer-encoding", "upgrade")
)
