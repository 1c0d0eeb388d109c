"""How long a search may go on."""

from __future__ import annotations

import time


class OutOfTimeError(Exception):
    """The time was up before something was started that the search needs."""


class Deadline:
    """The end of a search, so many minutes from now."""

    def __init__(self, minutes: float) -> None:
        self._began_s = time.monotonic()
        self._ends_s = self._began_s + 60 * minutes

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        """Seconds until the end; negative after it."""
        return self._ends_s - time.monotonic()

    def require(self) -> None:
        """Raises OutOfTimeError after the end: then nothing is started."""
        if self.left_s <= 0:
            raise OutOfTimeError
