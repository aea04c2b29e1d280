"""Columns that grow while a file is read."""

from collections.abc import Mapping, Sequence

import numpy as np

from batchlab.clients.columns import Integers

FIRST = 1 << 16


class Growing:
    """int64 columns of the same length, with room that doubles; what is left over is given back at the end."""

    def __init__(self, names: Sequence[str], expected: int = FIRST) -> None:
        self._columns = {name: np.empty(max(expected, 1), np.int64) for name in names}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, block: Mapping[str, Integers]) -> None:
        """Some more rows."""
        added = len(next(iter(block.values())))
        needed = self._count + added
        for name, column in self._columns.items():
            if needed > len(column):
                column.resize(max(needed, 2 * len(column)), refcheck=False)
            column[self._count : needed] = block[name]
        self._count = needed

    def columns(self) -> dict[str, Integers]:
        """All rows so far. Nothing can be added afterwards."""
        for column in self._columns.values():
            column.resize(self._count, refcheck=False)
        return self._columns
