"""Memory of what was computed, bounded in bytes: what was not asked for longest goes first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any


class Shelf:
    """Values with their sizes in bytes; together they take at most `room`.

    A value larger than `room` is computed and not kept. Safe to use from several threads.
    """

    def __init__(self, room: int) -> None:
        self.room, self.held = room, 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], tuple[Any, int]]) -> Any:
        """The value of `key`; where it is not here, `make` gives it with its bytes."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        value, size = make()
        with self._lock:
            if key in self._kept:  # another thread was faster; one value serves both
                return self._kept[key][0]
            if size <= self.room:
                self._kept[key] = value, size
                self.held += size
            while self.held > self.room:
                _, (_, gone) = self._kept.popitem(last=False)
                self.held -= gone
        return value

    def drop(self, belongs: Callable[[Any], bool]) -> None:
        """Forget every value whose key `belongs`."""
        with self._lock:
            for key in [key for key in self._kept if belongs(key)]:
                self.held -= self._kept.pop(key)[1]
