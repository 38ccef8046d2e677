"""The paged KV cache: blocks with reference counts, and a prefix cache that is evicted least recently used first.

Invariant: every block is in exactly one of three places: free, cached and unreferenced, or referenced.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """A fixed number of blocks."""

    def __init__(self, total: int, *, caching: bool) -> None:
        self.total = total
        self._caching = caching
        self._free: deque[int] = deque(range(total))
        self._idle_cached: OrderedDict[int, None] = OrderedDict()
        self._by_hash: dict[int, int] = {}
        self._hash_of: list[int | None] = [None] * total
        self._references = [0] * total

    @property
    def available(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return len(self._free) + len(self._idle_cached)

    @property
    def usage(self) -> float:
        """Share of the blocks in use by sequences (0..1)."""
        return 1.0 - self.available / self.total if self.total else 0.0

    def match(self, hashes: Sequence[int]) -> list[int]:
        """Return the cached blocks of the longest known prefix of *hashes*, without taking them."""
        found: list[int] = []
        if self._caching:
            for value in hashes:
                block = self._by_hash.get(value)
                if block is None:
                    break
                found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """Return how many of *blocks* count as available now (cached, not referenced)."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def take(self, blocks: Sequence[int]) -> None:
        """Add a reference to cached *blocks*."""
        for block in blocks:
            if self._references[block] == 0:
                del self._idle_cached[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Return *count* fresh blocks, evicting cached ones when needed; the caller has checked ``available``."""
        fresh: list[int] = []
        for _ in range(count):
            if self._free:
                block = self._free.popleft()
            else:
                block, _ = self._idle_cached.popitem(last=False)
                self._forget(block)
            self._references[block] = 1
            fresh.append(block)
        return fresh

    def remember(self, block: int, value: int) -> None:
        """Enter a computed *block* into the prefix cache under the hash *value*."""
        if self._caching and value not in self._by_hash and self._hash_of[block] is None:
            self._by_hash[value] = block
            self._hash_of[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of *blocks*; the last ones become the first to be evicted."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._hash_of[block] is None:
                    self._free.append(block)
                else:
                    self._idle_cached[block] = None

    def reset(self) -> bool:
        """Empty the prefix cache; refuse (``False``) while any block is referenced."""
        if self.available != self.total:
            return False
        for block in list(self._idle_cached):
            self._forget(block)
            self._free.append(block)
        self._idle_cached.clear()
        return True

    def check(self) -> None:
        """Raise ``AssertionError`` when the invariant does not hold."""
        referenced = sum(1 for count in self._references if count > 0)
        assert len(self._free) + len(self._idle_cached) + referenced == self.total
        assert min(self._references, default=0) >= 0
        assert all(self._references[block] == 0 for block in self._idle_cached)
        assert all(self._hash_of[block] == value for value, block in self._by_hash.items())

    def _forget(self, block: int) -> None:
        value = self._hash_of[block]
        if value is not None:
            del self._by_hash[value]
            self._hash_of[block] = None
