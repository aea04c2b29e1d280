"""The waiting queue: who is served next, in O(1) at both ends."""

from collections import OrderedDict
from collections.abc import Iterator

from batchlab.core.sequence import Sequence


class WaitingQueue:
    """Waiting sequences, front first. Knows order only; what may enter is decided by the batch."""

    def __init__(self) -> None:
        self._items: OrderedDict[int, Sequence] = OrderedDict()

    def append(self, seq: Sequence) -> None:
        """Put a sequence at the back."""
        self._items[seq.position] = seq

    def push_front(self, seq: Sequence) -> None:
        """Put a sequence at the front, before all that wait."""
        self._items[seq.position] = seq
        self._items.move_to_end(seq.position, last=False)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out from wherever it stands."""
        del self._items[seq.position]

    @property
    def head(self) -> Sequence | None:
        """The sequence at the front, or None."""
        for seq in self._items.values():
            return seq
        return None

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        """Front to back, over those that wait now: the queue may change during the walk."""
        return iter(list(self._items.values()))
