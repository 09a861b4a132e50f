"""What Spillgate answers, and the errors of the clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Reason = Literal["limit-exceeded", "cost-exceeds-limit", "blocked", "store-unavailable", "overloaded"]
Source = Literal["store", "lease", "denial-cache", "fallback", "outage-policy", "client"]


@dataclass(slots=True)
class Limit:
    """One limit of one rule in an answer. Unknown values are ``None``."""

    rule: str | None = None
    limit: str | None = None
    unit: str | None = None
    capacity: int | None = None
    remaining: int | None = None
    retry_after_ms: int | None = None
    reset_after_ms: int | None = None
    allowed: bool = True
    reason: Reason | None = None
    source: Source = "store"
    shadow: bool = False


@dataclass(slots=True)
class Denial:
    """The response that a rule sets for its denials."""

    status: int
    body: str


@dataclass(slots=True)
class Decision:
    """One answer. Unknown values are ``None``.

    ``source`` is ``"client"`` where the server did not answer and ``on_failure`` decided; ``error`` then has the cause.
    ``denial`` is there if the rule sets a response for its denials and ``headers`` was asked for. ``unused`` has a sentence for
    each attribute or unit that no rule uses, such as a misspelled one; checks that left in one batch share it.
    """

    allowed: bool
    reason: Reason | None = None
    rule: str | None = None
    limit: str | None = None
    capacity: int | None = None
    remaining: int | None = None
    retry_after_ms: int | None = None
    reset_after_ms: int | None = None
    source: Source = "store"
    degraded: bool = False
    matched: bool = False
    receipt: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    denial: Denial | None = None
    limits: tuple[Limit, ...] = ()
    unused: tuple[str, ...] = ()
    error: Exception | None = None

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request can be allowed; ``None`` if no wait helps or none is known."""
        return None if self.retry_after_ms is None else self.retry_after_ms / 1000

    @property
    def violated_policies(self) -> list[str]:
        """The limits that deny: the rule's name, or ``rule/limit`` where the rule has several."""
        rules = [limit.rule for limit in self.limits]
        return [
            f"{limit.rule}/{limit.limit}" if rules.count(limit.rule) > 1 else str(limit.rule)
            for limit in self.limits
            if not limit.allowed and not limit.shadow and limit.rule is not None
        ]


class SpillgateError(Exception):
    """The base of all errors of this package."""


class Unavailable(SpillgateError):
    """The server did not answer in time, or not with an answer. A decision by ``on_failure`` has it as ``error``."""


class NotSent(Unavailable):
    """The client sent nothing, so this is no sign of the server's health."""


class QueueFull(NotSent):
    """The call waited for ten time-outs while the server answered others. The decision is a denial, ``overloaded``."""


class ProblemError(SpillgateError):
    """The server refused the request itself: bad input (400), a wrong token (401), an ended id (409). Nothing was charged."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = problem
        reasons = (problem.get("detail"), problem.get("title"), "no reason given")
        super().__init__(f"{status}: {next(reason for reason in reasons if reason and isinstance(reason, str))}")

    @property
    def field(self) -> str | None:
        """The field of the request that is wrong, if the server names one."""
        named = self.problem.get("field")
        return named if isinstance(named, str) else None


class TokenError(SpillgateError, ValueError):
    """The token has a character that is not visible ASCII, so it cannot be sent."""


class Denied(SpillgateError):
    """A reservation was denied, so the ``with`` block was not entered."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        super().__init__(f"denied: {decision.reason}")
