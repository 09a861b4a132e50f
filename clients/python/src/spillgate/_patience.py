"""How long a server may be silent."""

from __future__ import annotations

import time
from collections.abc import Callable

from .decision import Unavailable

# Time is counted in slices of at most this length, each by its own length however late it ends: an event loop or a
# thread that did not run could not have read an answer either.
SLICE_SECONDS = 0.025


class TimedOut(Unavailable):
    """The server was silent for one time-out."""

    def __init__(self) -> None:
        super().__init__("the server did not answer in time")


class Patience:
    """The time that a thread spends on one exchange.

    Args:
        seconds: of silence until it ends.
        after_slice: called with the seconds that are left, after each slice in which nothing came.
    """

    def __init__(self, seconds: float, after_slice: Callable[[float], None]) -> None:
        self.left = seconds
        self._after_slice = after_slice
        self._last = time.monotonic()

    def wait(self, is_ready: Callable[[float], bool]) -> None:
        """Returns when `is_ready`, called with the seconds that it may wait, is true. Raises `TimedOut` after a last look."""
        while True:
            self._count()
            left = max(0.0, self.left)
            if is_ready(min(left, SLICE_SECONDS)):
                return
            if not left:
                raise TimedOut
            self._count()
            self._after_slice(self.left)

    def _count(self) -> None:
        now = time.monotonic()
        self.left -= min(now - self._last, SLICE_SECONDS)
        self._last = now
