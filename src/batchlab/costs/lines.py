"""Times measured by one size, and between the points."""

from bisect import bisect_left
from collections.abc import Sequence


class Line:
    """Times by size: a line between two of them, the last line beyond, or the time of the next size."""

    def __init__(self, sizes: Sequence[float], times: Sequence[float]) -> None:
        self.sizes = sizes
        self.times = times

    def __call__(self, size: float, next_size: bool = False) -> float:
        """The time at a size."""
        sizes, times = self.sizes, self.times
        place = bisect_left(sizes, size)
        if place < len(sizes) and (next_size or sizes[place] == size or place == 0):
            return times[place]
        if len(sizes) == 1:
            return times[0] * size / sizes[0]
        place = min(place, len(sizes) - 1)
        low, high = sizes[place - 1], sizes[place]
        return max(times[place - 1] + (times[place] - times[place - 1]) * (size - low) / (high - low), 0.0)
