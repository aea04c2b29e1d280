"""The iterations of a run as columns: one slot an iteration, or, where they are many, one for 2, 4, 8, ... of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SUMS = ("prefill", "decode", "unused", "batch")
PEAKS = ("queue", "kv")
LAST = ("active",)
WHY = ("head_why", "rest_why", "order_why", "head", "latest")
"""Texts on why nobody else got a seat: for the head of the queue, for those behind it, for those overtaken by somebody
who came later; who is the head (0: nobody, else its row + 1), and before which comer one is overtaken."""
COLUMNS = ("start", "end", *SUMS, *PEAKS, *LAST, *WHY)
START, END = 0, 1
_SUMS = slice(2, 2 + len(SUMS))
_PEAKS = slice(_SUMS.stop, _SUMS.stop + len(PEAKS))
_LAST = slice(_PEAKS.stop, _PEAKS.stop + len(LAST))
_WHY = slice(_LAST.stop, len(COLUMNS))


class Slots:
    """Takes one row an iteration. Where twice `most` slots are full, every two become one.

    Of a slot's iterations tokens and batch are sums, queue and KV use are the largest, active is how many have a seat
    at its end, and `WHY` is what held for the longer half.
    """

    def __init__(self, most: int) -> None:
        self.iterations = 0
        self.per_slot = 1
        self._table = np.zeros((2 * most, len(COLUMNS)), np.int64)
        self._used = 0
        self._inside = 0

    def add(self, *row: int) -> None:
        """The next iteration, its values in the order of COLUMNS."""
        if self._inside == 0:
            if self._used == len(self._table):
                self._halve()
            self._table[self._used] = row
            self._used += 1
        else:
            self._table[self._used - 1] = _joined(self._table[self._used - 1 : self._used], np.array([row]))
        self._inside = (self._inside + 1) % self.per_slot
        self.iterations += 1

    def _halve(self) -> None:
        half = len(self._table) // 2
        self._table[:half] = _joined(self._table[::2], self._table[1::2])
        self._used = half
        self.per_slot *= 2
        self._inside = 0

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """One value a slot."""
        return self._table[: self._used, COLUMNS.index(name)]

    def replace(self, name: str, values: npt.NDArray[Any]) -> None:
        """Other values for a column."""
        self._table[: self._used, COLUMNS.index(name)] = values


def _joined(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Slots and those that follow them, as one each."""
    both = left.copy()
    both[:, END] = right[:, END]
    both[:, _SUMS] += right[:, _SUMS]
    both[:, _PEAKS] = np.maximum(left[:, _PEAKS], right[:, _PEAKS])
    both[:, _LAST] = right[:, _LAST]
    longer = right[:, END] - right[:, START] > left[:, END] - left[:, START]
    both[longer, _WHY] = right[longer, _WHY]
    return both
