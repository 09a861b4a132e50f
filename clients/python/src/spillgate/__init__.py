"""Client of the Spillgate rate limiter.

>>> from spillgate import Client
>>> client = Client("http://127.0.0.1:8080")
>>> decision = client.check({"ip": "203.0.113.7"})  # doctest: +SKIP
>>> decision.allowed  # doctest: +SKIP
True
"""

from ._core import Call, CheckRequest, Cost, InlineLimit, Outcome
from .address import ClientAddress
from .aio import AsyncClient, AsyncReservation
from .client import Client, Reservation
from .decision import Decision, Denied, Limit, ProblemError, Reason, Source, SpillgateError, Unavailable

__all__ = [
    "AsyncClient",
    "AsyncReservation",
    "Call",
    "CheckRequest",
    "Client",
    "ClientAddress",
    "Cost",
    "Decision",
    "Denied",
    "InlineLimit",
    "Limit",
    "Outcome",
    "ProblemError",
    "Reason",
    "Reservation",
    "Source",
    "SpillgateError",
    "Unavailable",
]
