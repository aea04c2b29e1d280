"""Times measured on a grid of four sizes, also a ragged one, and between its points."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Point = tuple[float, float, float, float]
"""Prefill tokens, those computed before them, decodes, the context of each."""
MOST_CELLS = 4_000_000
NEAR = 16.0
"""Tokens added to both ends of an interval before its ends are compared, so that 0 to 16 is not infinitely wide."""


class Grid:
    """Linear interpolation, axis by axis, between the points of a grid.

    Linear, not in logarithms: leaving one point out, that misses measured attention times by less. Cells of a ragged
    grid that nobody measured are filled once, along the axis whose measured neighbours are nearest in ratio, or, where
    no axis has one on both sides, along a line through the last two; before the first point as there. Beyond the last
    point the last line goes on.
    """

    def __init__(self, points: Mapping[Point, float]) -> None:
        self.axes = [sorted({point[axis] for point in points}) for axis in range(4)]
        self.cells = int(np.prod([len(axis) for axis in self.axes]))
        if self.cells > MOST_CELLS:
            raise ValueError(f"{len(points):,} points on {self.cells:,} cells are no grid")
        places = [{value: place for place, value in enumerate(axis)} for axis in self.axes]
        values = np.full([len(axis) for axis in self.axes], np.nan)
        for point, time in points.items():
            values[tuple(places[axis][point[axis]] for axis in range(4))] = time
        _spread(values, self.axes)
        self.measured = int(np.count_nonzero(~np.isnan(values)))
        self._values = _filled(values, [np.array(axis) for axis in self.axes]).tolist()
        self.most = tuple(axis[-1] for axis in self.axes)

    def __call__(self, tokens: float, history: float, decodes: float, context: float) -> float:
        """The time at a point, at least 0."""
        at = (tokens, history if tokens else 0.0, decodes, context if decodes else 0.0)
        (i, a), (j, b), (k, c), (m, d) = map(_place, self.axes, at)
        time = 0.0
        for plane, of_plane in ((i, 1 - a), (i + 1, a)):
            if of_plane:
                for row, of_row in ((j, 1 - b), (j + 1, b)):
                    if of_row:
                        rows = self._values[plane][row]
                        of = of_plane * of_row
                        line = rows[k]
                        if 1 - c:
                            time += of * (1 - c) * (line[m] + d * (line[m + 1] - line[m]) if d else line[m])
                        if c:
                            line = rows[k + 1]
                            time += of * c * (line[m] + d * (line[m + 1] - line[m]) if d else line[m])
        return max(time, 0.0)


def left_out(points: Mapping[Point, float]) -> list[list[tuple[float, float]]]:
    """For each axis, (interpolated, measured) of the points that have a measured neighbour on both sides of it.

    Each point is taken from those two, as if it had not been measured. This is what interpolation costs between the
    points of the grid, or less, since the gap is twice as wide here.
    """
    found: list[list[tuple[float, float]]] = [[], [], [], []]
    for axis, pairs in enumerate(found):
        lines: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        for point, time in sorted(points.items()):
            lines.setdefault(point[:axis] + point[axis + 1 :], []).append((point[axis], time))
        for line in lines.values():
            line.sort()
            for (low, first), (at, measured), (high, last) in zip(line, line[1:], line[2:], strict=False):
                pairs.append((first + (last - first) * (at - low) / (high - low), measured))
    return found


def _place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The interval that holds a value, the last one for what lies beyond, and how far into it."""
    if len(axis) == 1:
        return 0, 0.0
    place = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    low = axis[place]
    return place, (value - low) / (axis[place + 1] - low)


def _spread(values: Floats, axes: Sequence[Sequence[float]]) -> None:
    """Without prefill its history says nothing, and without decodes their context: one value for all."""
    if axes[0][0] == 0:
        values[0] = _first_known(values[0], 0)
        if axes[2][0] == 0:
            values[0, :, 0] = 0.0
    if axes[2][0] == 0:
        values[:, :, 0] = _first_known(values[:, :, 0], 2)


def _first_known(values: Floats, axis: int) -> Floats:
    moved = np.moveaxis(values, axis, 0)
    known = moved[0].copy()
    for layer in moved[1:]:
        known = np.where(np.isnan(known), layer, known)
    return np.moveaxis(np.broadcast_to(known, moved.shape), 0, axis)


def _filled(values: Floats, axes: Sequence[Floats]) -> Floats:
    for beyond in (False, True):
        while np.isnan(values).any():
            found, width = np.full(values.shape, np.nan), np.full(values.shape, np.inf)
            for axis, sizes in enumerate(axes):
                _fill_along(values, axis, sizes, beyond, found, width)
            new = np.isnan(values) & ~np.isnan(found)
            if not new.any():
                break
            values[new] = found[new]
    return values


def _fill_along(values: Floats, axis: int, sizes: Floats, beyond: bool, found: Floats, width: Floats) -> None:
    """Put into `found` what lines along one axis say of unknown cells, where the interval is narrower than `width`."""
    lines, into, widths = (np.moveaxis(array, axis, 0) for array in (values, found, width))
    count = len(sizes)
    place = np.arange(count).reshape(-1, 1, 1, 1)
    known = ~np.isnan(lines)
    low = np.maximum.accumulate(np.where(known, place, -1), axis=0)
    high = np.minimum.accumulate(np.where(known, place, count)[::-1], axis=0)[::-1]
    if beyond:  # the last known point and the one before it, or the one that there is
        before = np.take_along_axis(low, np.maximum(low - 1, 0), 0)
        before = np.where((low > 0) & (before >= 0), before, low)
        low, high = np.where(low < 0, high, before), np.where(low < 0, high, low)
    usable = ~known & (low >= 0) & (high < count)
    low, high = np.clip(low, 0, count - 1), np.clip(high, 0, count - 1)
    start, end = sizes[low], sizes[high]
    first, last = np.take_along_axis(lines, low, 0), np.take_along_axis(lines, high, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.where(end > start, first + (last - first) * (sizes[place] - start) / (end - start), first)
    ratio = (np.maximum(end, sizes[place]) + NEAR) / (start + NEAR)
    better = usable & (ratio < widths) & ~np.isnan(at)
    into[better] = at[better]
    widths[better] = ratio[better]
