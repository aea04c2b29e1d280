"""Who holds a seat, in the order of admission."""

from collections.abc import Iterator

from batchlab.core.sequence import Sequence


class Running:
    """The running list. Those that have ended stay in it until somebody reads it: so leaving costs the same always.

    While sequences decode in step, `loose` are the others, those that have to be looked at one by one.
    """

    def __init__(self) -> None:
        self._all: list[Sequence] = []
        self.count = 0
        self._gone = 0  # have ended and are still in the list
        self.split = False  # whether some are in step
        self._loose: list[Sequence] = []  # while split

    def append(self, seq: Sequence) -> None:
        """Take a seat, at the end."""
        self._all.append(seq)
        self.count += 1
        if self.split:
            self._loose.append(seq)

    def remove(self, seq: Sequence) -> None:
        """Give the seat back, to come again perhaps."""
        self._all.remove(seq)
        self.count -= 1
        if self.split and seq in self._loose:
            self._loose.remove(seq)

    def leave(self, seq: Sequence, in_step: bool) -> None:
        """A sequence that ends gives its seat back; it stays in the list for now."""
        self.count -= 1
        if self.split and not in_step:
            self._loose.remove(seq)
        self._gone += 1
        if self._gone > self.count + 64:
            self._tidy()

    def take_out_ended(self) -> list[Sequence]:
        """All that have ended leave; they are returned in running order."""
        ended = [seq for seq in self._all if seq.ended]
        self._tidy()
        self.count = len(self._all)
        return ended

    def everyone(self) -> list[Sequence]:
        """All that hold a seat. The list itself, not a copy."""
        if len(self._all) != self.count:
            self._tidy()
        return self._all

    def loose(self) -> list[Sequence]:
        """All that are not in step. The list itself, not a copy."""
        return self._loose if self.split else self.everyone()

    def last(self) -> Sequence | None:
        """Who took its seat last."""
        while self._all and self._all[-1].ended:
            self._all.pop()
        return self._all[-1] if self._all else None

    def part(self, loose: list[Sequence]) -> None:
        """From now on some are in step, and these are not."""
        self.split = True
        self._loose = loose

    def reunite(self) -> None:
        """Nobody is in step any more."""
        self.split = False
        self._loose = []

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Sequence]:
        """Over those that hold a seat now: the list may change during the walk."""
        return iter(list(self.everyone()))

    def __getitem__(self, index: int) -> Sequence:
        return self.everyone()[index]

    def _tidy(self) -> None:
        self._all = [seq for seq in self._all if not seq.ended]
        self._gone = 0
