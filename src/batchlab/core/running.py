"""Who holds a seat, in the order of admission."""

from collections.abc import Iterator

from batchlab.core.line import Line
from batchlab.core.sequence import Sequence


class Running:
    """The running list. Those that have ended stay in it until somebody reads it: so leaving costs the same always.

    While sequences decode in step, `loose` are the others, those that have to be looked at one by one.
    """

    def __init__(self) -> None:
        self._all = Line()
        self._taken = 0  # so many seats were ever taken
        self.count = 0
        self._gone = 0  # have ended and are still in the line
        self.split = False  # whether some are in step
        self._loose = Line()  # while split

    def append(self, seq: Sequence) -> None:
        """Take a seat, at the end."""
        seq._seat = self._taken
        self._taken += 1
        self._all.push(seq)
        self.count += 1
        if self.split:
            self._loose.push(seq)

    def remove(self, seq: Sequence) -> None:
        """Give the seat back, to come again perhaps."""
        self._all.remove(seq)
        self.count -= 1
        if self.split and self._loose.has(seq):
            self._loose.remove(seq)

    def leave(self) -> None:
        """One that has ended gives its seat back; it stays in the line for now, and whoever fills `loose` drops it."""
        self.count -= 1
        self._gone += 1
        if self._gone > 4 * self.count + 64:
            self._tidy()

    def take_out_ended(self) -> list[Sequence]:
        """All that have ended leave; they are returned in running order."""
        ended = [seq for seq in self._all if seq.ended]
        self._tidy()
        self.count = self._all.count
        return ended

    def everyone(self) -> Line:
        """All that hold a seat. The row itself, not a copy."""
        if self._all.count != self.count:
            self._tidy()
        return self._all

    def loose(self) -> Line:
        """All that are not in step. The row itself, not a copy."""
        return self._loose if self.split else self.everyone()

    def last(self) -> Sequence | None:
        """Who took its seat last."""
        row = self._all
        while row.count and row.items[row.count - 1].ended:
            row.count -= 1
            self._gone -= 1
        return row.items[row.count - 1] if row.count else None

    def part(self) -> None:
        """From now on some may be in step; nobody is so far."""
        if not self.split:
            self._loose.clear()
            for seq in self.everyone():
                self._loose.push(seq)
            self.split = True

    def rejoin(self, seq: Sequence) -> None:
        """One that was in step is loose."""
        self._loose.stand_in(seq)

    def reunite(self) -> None:
        """Nobody is in step any more."""
        self.split = False
        self._loose.clear()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Sequence]:
        """Over those that hold a seat now: the list may change during the walk."""
        return iter(self.everyone())

    def __getitem__(self, index: int) -> Sequence:
        found: Sequence = self.everyone().as_list()[index]
        return found

    def _tidy(self) -> None:
        row = self._all
        kept = 0
        for place in range(row.count):
            seq = row.items[place]
            if not seq.ended:
                row.items[kept] = seq
                kept += 1
        row.count = kept
        self._gone = 0
