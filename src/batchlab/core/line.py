"""Sequences in a row."""

from collections.abc import Iterator
from typing import Any

from batchlab.core.sequence import Sequence


class Line:
    """Sequences in a row, as in a list; one that is emptied keeps its room, so that filling it again costs little.

    `items` may be longer than the row: only the first `count` of them are in it.
    """

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.count = 0

    def clear(self) -> None:
        """Empty the row."""
        self.count = 0

    def push(self, seq: Any) -> None:
        """Put a sequence behind all others."""
        if self.count == len(self.items):
            self.items.append(seq)
        else:
            self.items[self.count] = seq
        self.count += 1

    def stand_in(self, seq: Sequence) -> None:
        """Put a sequence at the place of its seat among others in running order: mostly that is the last."""
        self.push(seq)
        place = self.count - 1
        while place > 0:
            other: Sequence = self.items[place - 1]
            if other._seat < seq._seat:
                break
            self.items[place] = other
            place -= 1
        self.items[place] = seq

    def remove(self, seq: Any) -> int:
        """Take a sequence out; where it stood. Those at the end are found soonest."""
        place = self.count - 1
        while self.items[place] is not seq:
            place -= 1
        del self.items[place]
        self.count -= 1
        return place

    def has(self, seq: Any) -> bool:
        """Whether a sequence is in the row."""
        place = self.count - 1
        while place >= 0 and self.items[place] is not seq:
            place -= 1
        return place >= 0

    def as_list(self) -> list[Any]:
        """A copy."""
        return self.items[: self.count]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items[: self.count])
