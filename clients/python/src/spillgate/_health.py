"""The breaker: stops calls to a server that does not answer."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from typing import Any

from .decision import NotSent, Unavailable

_logger = logging.getLogger("spillgate")

_OPENS_AFTER = 3
_PROBE_SECONDS = 0.1
# A line about the same thing is logged at most once in so many seconds: strangers must not fill the log.
LOG_PAUSE_SECONDS = 10.0


class Health:
    """Counts failures in a row. Three open the breaker; one call at a time then tries the server, ten times a second.

    All threads and loops of a client share it.
    """

    def __init__(self, on_failure: str) -> None:
        self._on_failure = on_failure
        self._failures = 0
        self._probe_at = 0.0
        self._outage_logged_at = -math.inf
        # Whether the log shows that the server is down, so that its return is logged too.
        self._is_logged = False
        # How many answers have arrived: a failure counts only if none came after its call had been sent.
        self.answers = 0
        self.start()

    def start(self) -> None:
        """Starts again in the child of a fork, in which no other thread goes on."""
        self._lock = threading.Lock()
        self._probing = False

    @property
    def is_open(self) -> bool:
        return self._failures >= _OPENS_AFTER

    def admit(self) -> bool:
        """Returns whether the call is the one that tries the server. Raises `NotSent` while the breaker is open.

        The call that tries the server must call `end_probe`.
        """
        if not self.is_open:
            return False
        with self._lock:
            now = time.monotonic()
            if self._probing or now < self._probe_at:
                raise NotSent("the server did not answer the last calls; one call at a time tries it again")
            self._probing, self._probe_at = True, now + _PROBE_SECONDS
        return True

    def end_probe(self) -> None:
        self._probing = False

    def answered(self) -> None:
        with self._lock:
            self.answers += 1
            self._failures = 0
            was_logged, self._is_logged = self._is_logged, False
        if was_logged:
            # A warning as well, because most applications do not show less than that.
            log(logging.WARNING, "Spillgate answers again")

    def failed(self, error: Unavailable, answers: int) -> None:
        """Counts a failure, unless an answer came since there were so many `answers`."""
        with self._lock:
            if self.answers != answers:
                return
            self._failures += 1
            now = time.monotonic()
            if self._failures == _OPENS_AFTER:
                self._probe_at = now + _PROBE_SECONDS
            # An outage that begins within the pause is logged by its first failure after the pause.
            is_due = not self._is_logged and now - self._outage_logged_at >= LOG_PAUSE_SECONDS
            if is_due:
                self._is_logged, self._outage_logged_at = True, now
        if is_due:
            log(logging.WARNING, "Spillgate does not answer (%s): on_failure=%r decides", error, self._on_failure)


def log(level: int, line: str, *values: object, **options: Any) -> None:
    """Writes a line. What a handler of the application raises reaches no caller: there is no other place to report it."""
    with contextlib.suppress(Exception):
        _logger.log(level, line, *values, stacklevel=2, **options)
