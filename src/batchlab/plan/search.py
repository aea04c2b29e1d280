"""The highest rate at which a sample meets its objectives, on a lattice of rates: bracketing, then bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batchlab.plan.probe import Probe, Sample, probe

STEPS = 32
"""Rates that are looked at lie 1/32 of a doubling apart: 2.2 %."""
FARTHEST = 10 * STEPS
"""Search from 1/1024 of the first rate to 1024 times it."""


@dataclass(frozen=True)
class Found:
    """The capacity of a sample. met: at the highest rate that met everything, None if none did. missed: at the next
    rate, None where the search ended before one; where nothing meets, at the lowest rate that was tried. tried: the
    runs at all rates that the search looked at, the lowest first.
    """

    sample: Sample
    place: int
    met: Probe | None
    missed: Probe | None
    tried: list[Probe]

    @property
    def rate(self) -> float:
        """0 where nothing meets."""
        return 0.0 if self.met is None else self.met.rate

    @property
    def unbound(self) -> bool:
        """Whether the objectives were met at every rate there was to try."""
        return self.met is not None and self.missed is None


def search(sample: Sample, start: int = 0, step: int = STEPS // 2) -> Found:
    """The capacity of a sample. start, step: where to begin, and how far to go first. Raises InputError."""
    tried: dict[int, Probe] = {}

    def met(place: int) -> bool:
        tried[place] = probe(sample, lattice(sample, place))
        return tried[place].met

    low, high = edge(met, start, step)
    best, above = (None if place is None else tried[place] for place in (low, high))
    return Found(sample, low or 0, best, above, [tried[place] for place in sorted(tried)])


def lattice(sample: Sample, place: int) -> float:
    """The rate at a place, counted from the sample's own rate; a float power of two times one of 32 factors."""
    return float(f"{sample.rate * 2 ** (place / STEPS):.6g}")


def edge(met: Callable[[int], bool], start: int = 0, step: int = STEPS // 2) -> tuple[int | None, int | None]:
    """The highest place that is met, and the next one, which is not; None for one that is not within reach.

    start: within reach, as is every place that is looked at. Steps that double until one is missed (or met), then
    bisection. An answer that is met more often is never lower, since the two searches look at the same places up to the
    first one on which they differ.
    """
    if met(start):
        low, high = start, min(start + step, FARTHEST)
        while low < FARTHEST and met(high):
            low, step = high, step * 2
            high = min(high + step, FARTHEST)
        if low == FARTHEST:
            return low, None
    else:
        if not met(-FARTHEST):
            return None, -FARTHEST
        low, high = max(start - step, -FARTHEST), start
        while low > -FARTHEST and not met(low):
            high, step = low, step * 2
            low = max(low - step, -FARTHEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low, high
