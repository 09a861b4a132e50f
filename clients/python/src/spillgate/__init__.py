"""Client of the Spillgate rate limiter.

>>> from spillgate import Client
>>> client = Client("http://127.0.0.1:8080")
>>> decision = client.check({"ip": "203.0.113.7"})  # doctest: +SKIP
>>> decision.allowed  # doctest: +SKIP
True
"""

from ._answer import Outcome
from ._core import CallReport
from ._request import CheckRequest, Cost, InlineLimit
from .address import ClientAddress
from .aio import AsyncClient, AsyncReservation
from .client import Client, Reservation
from .decision import (
    Decision,
    Denial,
    Denied,
    Limit,
    ProblemError,
    Reason,
    Source,
    SpillgateError,
    TokenError,
    Unavailable,
)

__all__ = [
    "AsyncClient",
    "AsyncReservation",
    "CallReport",
    "CheckRequest",
    "Client",
    "ClientAddress",
    "Cost",
    "Decision",
    "Denial",
    "Denied",
    "InlineLimit",
    "Limit",
    "Outcome",
    "ProblemError",
    "Reason",
    "Reservation",
    "Source",
    "SpillgateError",
    "TokenError",
    "Unavailable",
]
