"""The clients without I/O: bodies of calls, meaning of answers, retries, and decisions without an answer.

A call is a generator of steps. A step is a message to send by a deadline, a place to find, or a number of seconds to pause.
The client carries out the step, and sends the response into the generator or throws `Unavailable`. The generator returns the
result.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, cast

from ._http1 import Response, Target
from .decision import Decision, Denied, ProblemError, Unavailable

logger = logging.getLogger("spillgate")

Cost = int | Mapping[str, int]
Outcome = Literal["done", "repeated", "expired", "unknown", "unavailable"]
OnFailure = Literal["allow", "deny"]

# The server answers an overload after `store.overload_wait`, by default 250 ms. Its answer should come first.
TIMEOUT = 0.3
CONNECTIONS = 64
# The server closes a connection that is idle for 75 s.
IDLE_SECONDS = 60.0


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


@dataclass(slots=True)
class Call:
    """One call, for metrics: ``observe`` gets it after the answer."""

    operation: str
    seconds: float
    decisions: Sequence[Decision]
    error: Exception | None


Observe = Callable[[Call], None]
Token = str | Callable[[], str]


@dataclass(slots=True)
class PlaceForWait:
    """Asks for one of the places for calls with a wait, by a time of `time.monotonic`. The client keeps it until the call ends."""

    until: float


# A function is called when the call has its connection.
Message = bytes | Callable[[], bytes]
Post = tuple[Message, float]
Step = Post | PlaceForWait | float
Result = TypeVar("Result")
Steps = Generator[Step, Any, Result]


def check_body(
    attributes: Mapping[str, str | int] | None,
    cost: Cost | None,
    domain: str | None,
    key: str | None,
    limit: str | InlineLimit | None,
    headers: bool | str = False,
) -> CheckRequest:
    body: CheckRequest = {}
    if attributes is not None:
        body["attributes"] = attributes
    if cost is not None:
        body["cost"] = cost
    if domain is not None:
        body["domain"] = domain
    if key is not None:
        body["key"] = key
    if limit is not None:
        body["limit"] = {"quota": limit} if isinstance(limit, str) else limit
    if headers:
        body["headers"] = headers
    return body


def reserve_body(check: CheckRequest, ttl: float) -> Mapping[str, Any]:
    # The id makes it safe to repeat the call: it charges once.
    return {**check, "ttl_ms": round(ttl * 1000), "id": uuid.uuid4().hex}


def _encoder() -> Callable[[Any], str]:
    """`JSONEncoder.encode` makes a C encoder for each call, which takes longer than a check; this one is made once."""
    encode = json.JSONEncoder(separators=(",", ":"), default=_as_dict).encode
    try:
        parts = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, _as_dict, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True
        )
        if "".join(parts({"a": 1, "b": ["é"]}, 0)) == encode({"a": 1, "b": ["é"]}):
            return lambda body: "".join(parts(body, 0))
    except Exception:
        # It is no public interface: another Python may have another.
        logger.debug("no C encoder", exc_info=True)
    return encode


def _as_dict(value: Any) -> dict[Any, Any]:
    """Attributes and costs may be of any class of mapping. The encoder calls this for values that it does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"the server takes text, numbers, lists and mappings, got {type(value).__name__}: {value!r}")


_encode = _encoder()
_decode = json.JSONDecoder().raw_decode


def encode(body: Any) -> bytes:
    return _encode(body).encode()


class _Retryable(Unavailable):
    """The server answers that it did a call in part or not at all; the same call does the rest."""


class NotSent(Unavailable):
    """The client sent nothing, so this is no sign of the server's health."""


class NoPlace(NotSent):
    """All places of the client were in use by other calls."""


def places_for_waits(connections: int) -> int:
    """Returns how many of the connections may carry calls with a wait. The server holds these, and checks need the others."""
    return max(1, connections // 2)


def lack_of_places(connections: int) -> str:
    return f"all {connections} connections are in use by other calls; raise `connections` of the client"


def lack_of_places_for_waits(connections: int) -> str:
    places = places_for_waits(connections)
    return f"calls with a wait use {places} of {connections} connections, and all are in use; raise `connections` of the client"


# The decision over a reservation for whose record the store has no room.
_OVERLOADED = {"allowed": False, "reason": "overloaded", "source": "outage-policy", "degraded": True}


def read_answer(status: int, body: bytes) -> Any:
    """Returns the JSON of an answer. Raises `ProblemError` for a refused request, `Unavailable` for no answer."""
    try:
        text = body.decode().strip()
        answer, end = _decode(text)
        if end < len(text):
            answer = None
    except ValueError:
        answer = None
    if status == 200 and answer is not None:
        return answer
    problem = answer if isinstance(answer, dict) else {}
    if 400 <= status < 500 and status != 408:
        raise ProblemError(status, problem)
    # A load balancer also answers 503, but with neither field: then the server is silent.
    if status == 503 and problem.get("reason") == "overloaded":
        return _OVERLOADED
    kind = _Retryable if status == 503 and problem.get("retryable") is True else Unavailable
    raise kind(f"the server answered {status}: {problem.get('detail', 'no JSON')}")


def read_decision(answer: Any) -> Decision:
    if not isinstance(answer, dict) or not isinstance(answer.get("allowed"), bool):
        raise Unavailable("the server's answer is no decision: does the URL lead to Spillgate?")
    return Decision.from_json(answer)


def read_batch(answer: Any, count: int) -> list[Decision]:
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) != count:
        raise Unavailable(f"the server's answer has no {count} results: does the URL lead to Spillgate?")
    return [read_decision(result) for result in results]


def read_outcome(answer: Any) -> Outcome:
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, str):
        raise Unavailable("the server's answer has no result: does the URL lead to Spillgate?")
    return cast(Outcome, result)


class Health:
    """Stops calling a server that does not answer: after three failures in a row one call a second tries again."""

    def __init__(self) -> None:
        self._failures = 0
        self._refused = False
        self._retry_at = 0.0

    def check(self) -> None:
        if self.rests():
            raise NotSent("the server did not answer the last calls; one call a second tries again")
        if self._failures >= _TRIPS_AFTER:
            self._retry_at = time.monotonic() + _RETRY_SECONDS

    def rests(self) -> bool:
        return self._failures >= _TRIPS_AFTER and time.monotonic() < self._retry_at

    def succeeded(self) -> None:
        if self._failures or self._refused:
            logger.info("Spillgate answers again")
            self._failures, self._refused = 0, False

    def refused(self) -> None:
        self._failures = 0

    def is_first_refusal(self) -> bool:
        """Whether a middleware should log a refusal: the first since the last answer."""
        first, self._refused = not self._refused, True
        return first

    def failed(self, error: Unavailable, on_failure: OnFailure) -> None:
        if not self._failures:
            logger.warning("Spillgate does not answer (%s): on_failure=%r decides", error, on_failure)
        self._failures += 1
        if self._failures == _TRIPS_AFTER:
            self._retry_at = time.monotonic() + _RETRY_SECONDS


# The server refuses a wait above 60 s. One that is much longer would overflow the client's timers.
_WAIT_MAX = 120.0

_TRIPS_AFTER = 3
_RETRY_SECONDS = 1.0

# Calls that change nothing when repeated are sent up to three times within their time-out.
TRIES = 3
PAUSE_SECONDS = 0.02


class Core:
    """What both clients have: checked settings, and their calls as steps."""

    def __init__(
        self,
        url: str,
        token: Token | None,
        timeout: float,
        on_failure: OnFailure,
        connections: int,
        observe: Observe | None,
    ) -> None:
        if on_failure not in ("allow", "deny"):
            raise ValueError(f'on_failure must be "allow" or "deny", got {on_failure!r}')
        if timeout <= 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        if connections < 1:
            raise ValueError(f"connections must be at least 1, got {connections}")
        self._target = Target(url)
        self.timeout = timeout
        self.on_failure = on_failure
        self._token = token
        self._observe = observe
        self._health = Health()

    def _checking(self, body: CheckRequest, wait: float = 0) -> Steps[Decision]:
        return self._calling("check", "/v1/check", body, read_decision, self._without_server, wait=wait)

    def _deciding(self, body: CheckRequest) -> Steps[Decision]:
        """A check of a middleware, which cannot raise: ``on_failure`` also decides if the server refuses the request."""
        try:
            return (yield from self._checking(body))
        except ProblemError as error:
            if self._health.is_first_refusal():
                logger.warning("Spillgate refuses a request (%s): on_failure=%r decides", error, self.on_failure)
            return self._without_server(error)

    def _checking_batch(self, checks: Sequence[CheckRequest]) -> Steps[list[Decision]]:
        def read(answer: Any) -> list[Decision]:
            return read_batch(answer, len(checks))

        def without(error: Unavailable) -> list[Decision]:
            return [self._without_server(error) for _ in checks]

        return self._calling("check_batch", "/v1/check/batch", checks, read, without)

    def _acquiring(self, body: CheckRequest, deadline: float) -> Steps[Decision]:
        until = time.monotonic() + deadline
        while True:
            decision = yield from self._checking(body)
            wait = wait_before_retry(decision, until)
            if wait is None:
                return decision
            yield wait

    def _reserving(self, body: Mapping[str, Any]) -> Steps[Decision]:
        return self._calling("reserve", "/v1/reserve", body, read_decision, self._without_server, tries=TRIES)

    def _ending(self, operation: str, receipt: str | None, **fields: Any) -> Steps[Outcome]:
        """Settles, cancels, releases or renews a reservation. Without a receipt there is nothing to end."""
        if receipt is None:
            return "unknown"
        body = {"receipt": receipt, **fields}
        return (
            yield from self._calling(operation, f"/v1/{operation}", body, read_outcome, _outcome_without_server, tries=TRIES)
        )

    def _releasing(self, receipt: str) -> Steps[None]:
        """Ends the permits of a request for a middleware, which cannot raise. `max_hold` ends what this leaves."""
        try:
            yield from self._ending("release", receipt)
        except ProblemError as error:
            logger.debug("Spillgate refuses to release a permit: %s", error)

    def _calling(
        self,
        operation: str,
        path: str,
        body: Any,
        read: Callable[[Any], Result],
        without_server: Callable[[Unavailable], Result],
        *,
        wait: float = 0,
        tries: int = 1,
    ) -> Steps[Result]:
        start = time.monotonic()
        deadline = start + self.timeout
        authorization = self._authorization()
        message: Message
        # A caller that is late gives a negative wait, which is none.
        if wait > 0:
            wait = min(wait, _WAIT_MAX)
            deadline += wait
            message = self._waiting_message(path, body, authorization, start + wait)
        else:
            message = self._target.request(path, encode(body), authorization)
        failure: Unavailable | None = None
        while True:
            tries -= 1
            try:
                self._health.check()
                if wait > 0:
                    yield PlaceForWait(start + wait)
                response: Response = yield message, deadline
                result = read(read_answer(response.status, response.body))
            except ProblemError as error:
                self._health.refused()
                self._report(operation, start, (), error)
                raise
            except Unavailable as error:
                if isinstance(error, _Retryable):
                    self._health.refused()
                elif not isinstance(error, NotSent):
                    self._health.failed(error, self.on_failure)
                if tries > 0 and not self._health.rests() and time.monotonic() + PAUSE_SECONDS < deadline:
                    yield PAUSE_SECONDS
                    continue
                result, failure = without_server(error), error
                break
            self._health.succeeded()
            break
        if self._observe is not None:
            self._report(operation, start, _decisions_of(result), failure)
        return result

    def _waiting_message(
        self, path: str, body: Mapping[str, Any], authorization: str | None, until: float
    ) -> Callable[[], bytes]:
        def message() -> bytes:
            # The time until the call has its connection is part of the wait. The server has its whole time-out to answer.
            left = max(0.0, until - time.monotonic())
            return self._target.request(path, encode({**body, "wait_ms": round(left * 1000)}), authorization)

        return message

    def _authorization(self) -> str | None:
        token = self._token() if callable(self._token) else self._token
        return None if token is None else f"Bearer {token}"

    def _without_server(self, error: Exception) -> Decision:
        allowed = self.on_failure == "allow"
        return Decision(
            allowed=allowed,
            reason=None if allowed else "store-unavailable",
            source="client",
            degraded=True,
            error=error,
        )

    def _report(
        self, operation: str, start: float, decisions: Sequence[Decision], error: Exception | None
    ) -> None:
        if self._observe is None:
            return
        try:
            self._observe(Call(operation, time.monotonic() - start, decisions, error))
        except Exception:
            logger.exception("the observe hook failed")


def _outcome_without_server(_: Unavailable) -> Outcome:
    return "unavailable"


def _decisions_of(result: object) -> Sequence[Decision]:
    if isinstance(result, Decision):
        return (result,)
    return result if isinstance(result, list) else ()


class ReservationCore:
    """What both reservations have."""

    def __init__(self, client: Core, decision: Decision) -> None:
        self._core = client
        self.decision = decision
        self._ended = False

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    @property
    def receipt(self) -> str | None:
        """``None`` if denied, or if ``on_failure`` allowed it: then there is nothing to settle."""
        return self.decision.receipt

    def _ending(self, operation: str, **fields: Any) -> Steps[Outcome]:
        # Set now, since the generator may start later: a caller that is cancelled before must not end the reservation again.
        had_ended, self._ended = self._ended, True
        return self._refusable(self._core._ending(operation, self.receipt, **fields), had_ended)

    def _refusable(self, ending: Steps[Outcome], had_ended: bool) -> Steps[Outcome]:
        """A call that fails has ended nothing, unless the server answers that the reservation has ended before (409)."""
        try:
            return (yield from ending)
        except Exception as error:
            if not isinstance(error, ProblemError) or error.status != 409:
                self._ended = had_ended
            raise

    def _renewing(self, ttl: float) -> Steps[Outcome]:
        return self._core._ending("renew", self.receipt, ttl_ms=round(ttl * 1000))

    def _entering(self) -> None:
        if not self.allowed:
            raise Denied(self.decision)

    def _leaving(self, by_error: bool) -> Steps[None]:
        try:
            yield from self._ending("cancel" if by_error else "release")
        except ProblemError:
            # The caller's own error matters more. Without an end the estimate stays charged.
            if not by_error:
                raise


def wait_before_retry(decision: Decision, deadline: float) -> float | None:
    """Seconds to wait before a denied request is sent again, or ``None`` if no wait before the deadline helps."""
    if decision.allowed or decision.retry_after is None:
        return None
    # A little more than nothing, so that callers cannot spin.
    wait = max(decision.retry_after, 0.001)
    return wait if time.monotonic() + wait <= deadline else None
