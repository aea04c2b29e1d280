"""The waiting queue: who is served next."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from batchlab.core.sequence import Sequence


class WaitingQueue:
    """Waiting sequences, front first: first come, first served, or by a key that is fixed while a sequence waits.

    Knows order only; what may enter is decided by the batch.
    """

    def __init__(self, key: Callable[[Sequence], Any] | None = None) -> None:
        self._key = key
        self._items: OrderedDict[int, Sequence] = OrderedDict()
        self._order: list[tuple[Any, ...]] = []  # with a key: (0, -n) for those put in front, (1, key, position)
        self._entry_of: dict[int, tuple[Any, ...]] = {}
        self._fronts = 0

    def append(self, seq: Sequence) -> None:
        """Put a sequence at the back, or to the place of its key."""
        self._items[seq.position] = seq
        if self._key is not None:
            self._insert((1, self._key(seq), seq.position))

    def push_front(self, seq: Sequence) -> None:
        """Put a sequence at the front, before all that wait."""
        self._items[seq.position] = seq
        if self._key is None:
            self._items.move_to_end(seq.position, last=False)
        else:
            self._fronts += 1
            self._insert((0, -self._fronts, seq.position))

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out from wherever it stands."""
        del self._items[seq.position]
        if self._key is not None:
            entry = self._entry_of.pop(seq.position)
            del self._order[bisect_left(self._order, entry)]

    @property
    def head(self) -> Sequence | None:
        """The sequence at the front, or None."""
        if self._key is not None:
            return self._items[self._order[0][2]] if self._order else None
        for seq in self._items.values():
            return seq
        return None

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        """Front to back, over those that wait now: the queue may change during the walk."""
        if self._key is not None:
            return iter([self._items[entry[2]] for entry in self._order])
        return iter(list(self._items.values()))

    def _insert(self, entry: tuple[Any, ...]) -> None:
        self._entry_of[entry[2]] = entry
        insort(self._order, entry)
