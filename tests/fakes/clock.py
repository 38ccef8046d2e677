"""A clock that moves only when a test says so."""

from __future__ import annotations

import asyncio
import heapq

__all__ = ["ManualClock"]


class ManualClock:
    """Implements the Clock port; ``sleep`` stands in for ``asyncio.sleep``.

    With ``eager`` set, a sleep moves the clock itself and returns after one turn of the loop, so that code that waits
    runs at full speed; otherwise it returns when ``advance`` has passed its end.
    """

    def __init__(self, *, monotonic: float = 1000.0, utc: float = 1_700_000_000.0, eager: bool = False) -> None:
        self._monotonic = monotonic
        self._offset = utc - monotonic
        self._eager = eager
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0
        self.slept: list[float] = []
        """Every duration that was asked for, in order."""

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self._monotonic

    def utc(self) -> float:
        """Return the same time since the epoch."""
        return self._monotonic + self._offset

    def advance(self, seconds: float) -> None:
        """Move the clock and wake who waits until then."""
        assert seconds >= 0
        self._monotonic += seconds
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            heapq.heappop(self._sleepers)[2].set()

    def set_utc(self, utc: float) -> None:
        """Jump the wall clock, as a time server does; the monotonic time stays."""
        self._offset = utc - self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Wait for *seconds* of this clock."""
        self.slept.append(seconds)
        if self._eager:
            self.advance(max(0.0, seconds))
            await asyncio.sleep(0)
            return
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._count += 1
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._count, woken))
        await woken.wait()
