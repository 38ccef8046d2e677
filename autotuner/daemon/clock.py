"""The system's clock behind the ``Clock`` port."""

from __future__ import annotations

import time

__all__ = ["SystemClock"]


class SystemClock:
    """Durations from the monotonic clock; stamps that follow it, so that a jump of the wall clock moves nothing."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def utc(self) -> float:
        """Return seconds since the epoch as of this process's start, advanced by the monotonic clock."""
        return self._offset + time.monotonic()
