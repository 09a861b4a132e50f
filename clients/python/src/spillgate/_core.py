"""What both clients have: checked settings, the calls that they make, and decisions without an answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ._answer import UNUSED_MAX, Outcome, read_decision, read_outcome, read_results
from ._call import Call, Check, CheckWithWait, Exchange
from ._health import LOG_PAUSE_SECONDS, Health, log
from ._http import Response, Target
from ._patience import TimedOut
from ._queue import Queue
from ._request import (
    CheckRequest,
    Token,
    authorization,
    batch_of,
    encode,
    encoded_check,
    fitting,
    reserve_request,
)
from .decision import Decision, Denied, NotSent, ProblemError, QueueFull, TokenError, Unavailable

OnFailure = Literal["allow", "deny"]
Result = TypeVar("Result")

# The server answers an overload after `store.overload_wait`, by default 250 ms. Its answer should come first.
TIMEOUT = 0.3
CONNECTIONS = 64
# The server closes a connection that is idle for 75 s.
IDLE_SECONDS = 60.0
# Calls that change nothing when repeated are sent up to three times within their time-out.
TRIES = 3
PAUSE_SECONDS = 0.02
# The server refuses a wait above 60 s. One that is much longer would overflow the client's timers.
_WAIT_MAX = 120.0
# How many counters the log names whose requests the server refuses.
_REFUSED_MAX = 64
# How much the log has of a sentence about an unused name.
_SENTENCE_MAX = 1000


@dataclass(slots=True)
class CallReport:
    """One call, for metrics: ``observe`` gets it after the answer."""

    operation: str
    seconds: float
    decisions: Sequence[Decision]
    error: Exception | None


Observe = Callable[[CallReport], None]


class Core:
    """The clients without I/O."""

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
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        if connections < 1:
            raise ValueError(f"connections must be at least 1, got {connections}")
        self.target = Target(url)
        self.timeout = timeout
        self.on_failure = on_failure
        self.connections = connections
        self._token: Callable[[], str] | None = token if callable(token) else None
        self._authorization = authorization(token) if isinstance(token, str) else None
        self._observe = observe
        self.health = Health(on_failure)
        # When the log last named a counter.
        self._refused: dict[str, float] = {}
        # The sentences about unused names that the log has.
        self._unused: set[str] = set()

    def check_call(self, request: CheckRequest, wait: float = 0) -> Call[Decision]:
        # A caller that is late gives a negative wait, which is none.
        if wait > 0:
            return CheckWithWait(
                request, min(wait, _WAIT_MAX), read_decision, self._decide_alone, **self._settings()
            )
        return Check(
            "check", "", encoded_check(request), read_decision, self._decide_alone, **self._settings()
        )

    def batch_calls(self, checks: Sequence[CheckRequest]) -> list[Call[list[Decision]]]:
        """The calls for the checks of one `check_batch`: each has as many as a batch may have."""
        encoded = []
        for index, check in enumerate(checks):
            try:
                encoded.append(encoded_check(check))
            except ProblemError as error:
                raise _at_index(error, index) from None
        calls, start = [], 0
        while start < len(encoded):
            count = fitting(encoded[start:])
            calls.append(self._batch_call(encoded[start : start + count], start))
            start += count
        return calls

    def _batch_call(self, checks: Sequence[bytes], start: int) -> Call[list[Decision]]:
        def read(answer: Any) -> list[Decision]:
            decisions = []
            for index, result in enumerate(read_results(answer, len(checks)), start):
                if isinstance(result, ProblemError):
                    raise _at_index(result, index)
                decisions.append(self._decide_alone(result) if isinstance(result, Unavailable) else result)
            return decisions

        def decide_alone(error: Unavailable) -> list[Decision]:
            return [self._decide_alone(error) for _ in checks]

        return Call("check_batch", "/v1/check/batch", batch_of(checks), read, decide_alone, **self._settings())

    def reserve_call(self, request: CheckRequest, ttl: float) -> Call[Decision]:
        body = encode(reserve_request(request, ttl))
        return Call(
            "reserve", "/v1/reserve", body, read_decision, self._decide_alone, tries=TRIES, **self._settings()
        )

    def end_call(self, operation: str, receipt: str, **fields: Any) -> Call[Outcome]:
        """Settles, cancels, releases or renews a reservation."""
        body = encode({"receipt": receipt, **fields})
        return Call(
            operation, f"/v1/{operation}", body, read_outcome, _unavailable, tries=TRIES, **self._settings()
        )

    def _settings(self) -> dict[str, Any]:
        token = self._authorization if self._token is None else authorization(self._token())
        return {"timeout": self.timeout, "authorization": token}

    def end_exchange(self, exchange: Exchange, ended: Response | Unavailable) -> None:
        """Gives the calls of an exchange their outcomes, and counts it for the breaker."""
        failure = exchange.end(ended)
        if failure is None:
            self.health.answered()
            for sentence in exchange.unused:
                self._note_unused(sentence[:_SENTENCE_MAX])
        elif not isinstance(failure, NotSent):
            self.health.failed(failure, exchange.answers)

    def end_those_behind(self, queue: Queue, exchange: Exchange, ended: Response | Unavailable) -> None:
        """Ends the calls that need not be sent: those that waited through the same silence, or all if the breaker is open."""
        failed: list[Call[Any]] = []
        if self.health.is_open:
            failed = queue.take_all()
        elif isinstance(ended, TimedOut) and self.health.answers == exchange.answers:
            failed = queue.take_before(exchange)
        for call in failed:
            call.conclude(NotSent(f"the server did not answer other calls: {ended}"))

    def is_repeated(self, call: Call[Any]) -> bool:
        """Whether the call is sent once more, after a pause."""
        call.tries -= 1
        call.left -= PAUSE_SECONDS
        return isinstance(call.outcome, Unavailable) and call.tries > 0 and call.left > 0 and not self.health.is_open

    def result(self, call: Call[Result]) -> Result:
        """Returns the result of a call that has an outcome. Without an answer ``on_failure`` decides."""
        outcome = call.outcome
        assert outcome is not None
        if isinstance(outcome, Unavailable):
            result = call.without_server(outcome)
            self._report(call, result, outcome)
            return result
        if isinstance(outcome, Exception):
            self._report(call, (), outcome)
            raise outcome
        self._report(call, outcome, None)
        return outcome

    def _decide_alone(self, error: Exception) -> Decision:
        # A flood of calls is not an outage, and must not switch the limits off.
        overloaded = isinstance(error, QueueFull)
        allowed = self.on_failure == "allow" and not overloaded
        return Decision(
            allowed=allowed,
            reason=None if allowed else "overloaded" if overloaded else "store-unavailable",
            source="client",
            degraded=True,
            error=error,
        )

    def decide_refused(self, error: ProblemError | TokenError, counter: str) -> Decision:
        """Decides for a middleware, which cannot raise, what the server refuses. Logs each counter once in a while."""
        now, logged_at = time.monotonic(), self._refused.get(counter)
        is_due = len(self._refused) < _REFUSED_MAX if logged_at is None else now - logged_at >= LOG_PAUSE_SECONDS
        if is_due:
            self._refused[counter] = now
            line = "Spillgate refuses a request (%s) of %r: on_failure=%r decides"
            log(logging.WARNING, line, error, counter, self.on_failure)
        return self._decide_alone(error)

    def _note_unused(self, sentence: str) -> None:
        """Logs a sentence about a name that no rule uses, once. A unit that is misspelled limits nothing, without an error."""
        if sentence not in self._unused and len(self._unused) < UNUSED_MAX:
            self._unused.add(sentence)
            log(logging.WARNING, "Spillgate reports an unused name: %r", sentence)

    def note_refused_end(self, error: ProblemError | TokenError) -> None:
        log(logging.DEBUG, "Spillgate refuses to end a reservation or a permit: %s", error)

    def _report(self, call: Call[Any], result: object, error: Exception | None) -> None:
        if self._observe is None:
            return
        decisions: Sequence[Decision] = ()
        if isinstance(result, Decision):
            decisions = (result,)
        elif isinstance(result, list):
            decisions = result
        try:
            self._observe(CallReport(call.operation, time.monotonic() - call.start, decisions, error))
        except Exception:
            log(logging.ERROR, "the observe hook failed", exc_info=True)


class ReservationCore:
    """What both reservations have."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self._has_ended = False

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    @property
    def receipt(self) -> str | None:
        """``None`` if denied, or if ``on_failure`` allowed it: then there is nothing to settle."""
        return self.decision.receipt

    def _enter(self) -> None:
        if not self.allowed:
            raise Denied(self.decision)

    def _after_error(self, error: Exception, had_ended: bool) -> None:
        """A call that fails has ended nothing, unless the server answers that the reservation has ended before (409)."""
        if not isinstance(error, ProblemError) or error.status != 409:
            self._has_ended = had_ended

    def _start_to_end(self) -> bool:
        """Returns whether it had ended before. Set at once, so that a caller that is cancelled does not end it again."""
        had_ended, self._has_ended = self._has_ended, True
        return had_ended


def wait_before_retry(decision: Decision, deadline: float) -> float | None:
    """Seconds to wait before a denied request is sent again, or ``None`` if no wait before the deadline helps."""
    if decision.allowed or decision.retry_after is None:
        return None
    # A little more than nothing, so that callers cannot spin.
    wait = max(decision.retry_after, 0.001)
    return wait if time.monotonic() + wait <= deadline else None


def _at_index(error: ProblemError, index: int) -> ProblemError:
    field = f"[{index}].{error.field}" if error.field else f"[{index}]"
    return ProblemError(error.status, {**error.problem, "field": field})


def _unavailable(_: Unavailable) -> Outcome:
    return "unavailable"
