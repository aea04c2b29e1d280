"""The waiting queue: who is served next."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from batchlab.core.load import Load
from batchlab.core.sequence import Sequence


class WaitingQueue:
    """Waiting sequences, front first: first come, first served, or by a key that is fixed while a sequence waits.

    Knows order only; what may enter is decided by the batch. Without a key, requests that only have to stand in line
    can wait as places of a load (`pend`): each becomes a sequence when it comes to the front, or when somebody looks.
    """

    def __init__(self, key: Callable[[Sequence], Any] | None = None) -> None:
        self._key = key
        self._items: OrderedDict[int, Sequence] = OrderedDict()
        self._count = 0  # of the items
        self._order: list[tuple[Any, ...]] = []  # with a key: (0, -n) for those put in front, (1, key, position)
        self._entry_of: dict[int, tuple[Any, ...]] = {}
        self._fronts = 0
        self._load: Load | None = None
        self._pending = 0  # places of the load from here ...
        self._end = 0  # ... up to here wait behind all items
        self._first: Sequence | None = None  # the sequence of the first of them, once somebody has looked at it

    def append(self, seq: Sequence) -> None:
        """Put a sequence at the back, or to the place of its key."""
        if self._pending < self._end:
            self._make_all()
        self._items[seq.position] = seq
        self._count += 1
        if self._key is not None:
            self._insert((1, self._key(seq), seq.position))

    def push_front(self, seq: Sequence) -> None:
        """Put a sequence at the front, before all that wait."""
        self._items[seq.position] = seq
        self._count += 1
        if self._key is None:
            self._items.move_to_end(seq.position, last=False)
        else:
            self._fronts += 1
            self._insert((0, -self._fronts, seq.position))

    def pend(self, load: Load, start: int, end: int) -> None:
        """The places from start to end of a load stand in line, at the back."""
        if self._pending < self._end and start > self._end:  # some between them did not come to wait
            self._make_all()
        if self._pending == self._end:
            self._load = load
            self._pending = start
        self._end = end

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out from wherever it stands."""
        if seq is self._first:
            self._first = None
            self._pending += 1
            return
        del self._items[seq.position]
        self._count -= 1
        if self._key is not None:
            entry = self._entry_of.pop(seq.position)
            del self._order[bisect_left(self._order, entry)]

    @property
    def head(self) -> Sequence | None:
        """The sequence at the front, or None."""
        return self.front()

    def front(self) -> Sequence | None:
        """The sequence at the front, or None."""
        if self._count:
            if self._key is not None:
                return self._items[self._order[0][2]]
            return next(iter(self._items.values()))
        if self._first is None and self._pending < self._end:
            self._first = self._load.make(self._pending)  # type: ignore[union-attr]  # there is a load if any pend
        return self._first

    def length(self) -> int:
        """How many wait."""
        return self._count + self._end - self._pending

    def __len__(self) -> int:
        return self.length()

    def __iter__(self) -> Iterator[Sequence]:
        """Front to back, over those that wait now: the queue may change during the walk."""
        if self._key is not None:
            return iter([self._items[entry[2]] for entry in self._order])
        self._make_all()
        return iter(list(self._items.values()))

    def _make_all(self) -> None:
        """Somebody looks at everyone, so everyone becomes a sequence."""
        for place in range(self._pending, self._end):
            seq = self._first if self._first is not None else self._load.make(place)  # type: ignore[union-attr]
            self._first = None
            self._items[seq.position] = seq
            self._count += 1
        self._pending = self._end

    def _insert(self, entry: tuple[Any, ...]) -> None:
        self._entry_of[entry[2]] = entry
        insort(self._order, entry)
