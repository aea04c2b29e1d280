"""Some of a run's requests: those of a group, or those that arrive in a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchlab.core.tally import Tally

COLUMNS = ("result", "first_time", "last_time", "tokens", "first_scheduled", "max_itl")


@dataclass(frozen=True)
class Part:
    """The columns of a tally, of these requests alone."""

    result: npt.NDArray[np.int8]
    first_time: npt.NDArray[np.int64]
    last_time: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    first_scheduled: npt.NDArray[np.int64]
    max_itl: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many requests."""
        return len(self.result)


def part_of(tally: Tally, chosen: Any = slice(None)) -> Part:
    """Those that a mask, or positions, choose; in this order."""
    return Part(*(np.asarray(getattr(tally, name))[: tally.count][chosen] for name in COLUMNS))
