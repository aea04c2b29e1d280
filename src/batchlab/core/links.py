"""Chains of tokens by number, so that two are compared at once however long they are."""

from __future__ import annotations

from array import array

from batchlab.core.arrays import longer

# For this file alone: where it is compiled these are C constants, which nobody else can import.
MIX_PARENT = 0x2545F491
MIX_SEGMENT = 0x1B873593
MIX_START = 0x05EBCA6B


class Links:
    """Numbers for chains of runs, from 0 on: equal numbers mean equal tokens from the very first one on.

    A link is what comes before it, as a number (NO_LINK at the beginning), and a run of tokens behind that. They are
    found by open addressing: no object is made for a link.
    """

    def __init__(self) -> None:
        self.count = 0
        self._rows = array("q", bytes(8 * 4 * 1024))  # of each: parent, segment, start, length
        self._table = array("q", bytes(8 * 4096))  # number + 1; 0: free
        self._mask = 4096 - 1

    def number(self, parent: int, segment: int, start: int, length: int) -> int:
        """The number of the chain that goes on behind `parent` with these tokens of a segment."""
        place = self._place(parent, segment, start, length)
        while self._table[place]:
            row = 4 * (self._table[place] - 1)
            if (
                self._rows[row] == parent
                and self._rows[row + 1] == segment
                and self._rows[row + 2] == start
                and self._rows[row + 3] == length
            ):
                return self._table[place] - 1
            place = (place + 1) & self._mask
        return self._enter(place, parent, segment, start, length)

    def _place(self, parent: int, segment: int, start: int, length: int) -> int:
        """Where in the table to begin to look. Where compiled, the sums wrap round, which changes only that place."""
        mixed = parent * MIX_PARENT + segment * MIX_SEGMENT + start * MIX_START + length
        mixed ^= (mixed >> 17) ^ (mixed >> 34)
        return mixed & self._mask

    def _enter(self, place: int, parent: int, segment: int, start: int, length: int) -> int:
        number = self.count
        row = 4 * number
        if row == len(self._rows):
            self._rows = longer(self._rows, row)
        self._rows[row] = parent
        self._rows[row + 1] = segment
        self._rows[row + 2] = start
        self._rows[row + 3] = length
        self._table[place] = number + 1
        self.count = number + 1
        if 2 * self.count > self._mask:
            self._spread()
        return number

    def _spread(self) -> None:
        """A table of twice the size."""
        self._mask = 2 * self._mask + 1
        self._table = array("q", bytes(8 * (self._mask + 1)))
        for number in range(self.count):
            row = 4 * number
            place = self._place(self._rows[row], self._rows[row + 1], self._rows[row + 2], self._rows[row + 3])
            while self._table[place]:
                place = (place + 1) & self._mask
            self._table[place] = number + 1
