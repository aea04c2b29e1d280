"""Whose each gap between two tokens was, so that any part of the requests has its percentiles of ITL."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Gaps:
    """Hears of every gap, as a tally counts them, and keeps it exactly.

    Those that many requests had together, in common steps, are kept once for all of them; of each request it is known
    from which common step to which one it was among them. So memory is O(iterations + requests), where most decode in
    step; in a run that is told in events every gap is kept by itself.
    """

    def __init__(self) -> None:
        self._whose, self._gaps = array("q"), array("q")
        self._steps, self._step_gaps = array("q"), array("q")
        self._members, self._from, self._to = array("q"), array("q"), array("q")

    def single(self, position: int, gap: int) -> None:
        """One request had this gap."""
        self._whose.append(position)
        self._gaps.append(gap)

    def common(self, step: int, gap: int) -> None:
        """All that are in step had this gap. Steps count up."""
        self._steps.append(step)
        self._step_gaps.append(gap)

    def was_in_step(self, position: int, after: int, until: int) -> None:
        """A request had the gaps of all common steps after the one and until the other, that one included."""
        self._members.append(position)
        self._from.append(after)
        self._to.append(until)

    def of(self, chosen: Any) -> tuple[Integers, Integers]:
        """The gaps of those requests that a mask chooses: each value in ascending order, and how often it occurred."""
        members, steps = _column(self._members), _column(self._steps)
        mine = chosen[members]
        begin = np.searchsorted(steps, _column(self._from)[mine], "right")
        end = np.searchsorted(steps, _column(self._to)[mine], "right")
        size = len(steps) + 1
        together = np.cumsum(np.bincount(begin, minlength=size) - np.bincount(end, minlength=size))[:-1]
        alone = _column(self._gaps)[chosen[_column(self._whose)]]
        values = np.concatenate((alone, _column(self._step_gaps)))
        times = np.concatenate((np.ones(len(alone), np.int64), together))
        order = np.argsort(values, kind="stable")
        order = order[times[order] > 0]
        values, times = values[order], times[order]
        starts = np.flatnonzero(np.concatenate(([True], np.diff(values) > 0))[: len(values)])
        return values[starts], np.add.reduceat(times, starts) if len(starts) else times


def _column(values: array[int]) -> Integers:
    return np.frombuffer(values, np.int64) if values else np.empty(0, np.int64)
