"""Which partitions are this guard's: it takes the messages of these, and of no others.

A division of work, never a lock. While guards hand a partition over, two of them may have it: then they are
slower and never wrong, since each event is appended by compare-and-set.
"""

from collections.abc import Callable


class Assignment:
    """The partitions of one guard."""

    def __init__(self) -> None:
        self.mine: frozenset[int] = frozenset()
        """Partitions that are this guard's now, from 0; none before `start`."""
        self._callbacks: list[Callable[[], None]] = []

    async def start(self, partitions: int) -> None:
        """Begin to share a mesh of so many partitions."""
        self._become(frozenset(range(partitions)))

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change of `mine`. Return a function that stops this."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _become(self, mine: frozenset[int]) -> None:
        if mine != self.mine:
            self.mine = mine
            for callback in tuple(self._callbacks):
                callback()
