"""Measured times in CSV files, read strictly: one line of error names the file, the row and what would be right."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from batchlab.errors import InputError, nearest
from batchlab.files import read_text

MOST = 2.0**40
"""Largest number that is accepted, as a size or as a time."""
MOST_FALL = 2 / 3
"""An operator's time at a larger size may fall by this share: a kernel for large sizes can be faster, in the profiles
that we know by up to 0.6."""


def read(path: Path, numbers: Sequence[str], optional: Sequence[str] = (), text: str | None = None) -> list[Row]:
    """The rows of a file that has these columns. Raises InputError.

    numbers: columns that must be there. optional: numbers too, absent from every row where the file has none; then no
    column may be unknown, since one that is misspelled would count as absent. Else others are ignored. text: a column
    of words.
    """
    text_file = io.StringIO(read_text(path, "a CSV text file is needed").removeprefix("\ufeff"), newline="")
    reader = csv.reader(text_file, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _refuse_header(path, header, [*numbers, *([text] if text else [])], optional)
        if optional and not set(optional) & set(header):
            raise InputError(path, "line 1", None, f"has none of the columns {', '.join(optional)}")
        rows = []
        for cells in reader:
            if len(cells) != len(header):
                raise InputError(
                    path, f"line {reader.line_num}", ",".join(cells) or None, f"must have {len(header)} cells"
                )
            named = dict(zip(header, cells, strict=True))
            values = {name: _number(path, reader.line_num, name, named[name]) for name in numbers}
            for name in optional:
                if name in named:
                    values[name] = _number(path, reader.line_num, name, named[name])
            rows.append(Row(reader.line_num, values, named[text] if text else ""))
    except csv.Error as error:
        raise InputError(path, f"line {reader.line_num}", None, f"not valid CSV: {error}") from None
    if not rows:
        raise InputError(path, "line 2", None, "has no rows; measured points are needed")
    return rows


class Row:
    """One measured point: the line it stands on, its numbers by column, its word."""

    def __init__(self, line: int, values: Mapping[str, float], text: str = "") -> None:
        self.line = line
        self.values = values
        self.text = text

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def series(path: Path, rows: Sequence[Row], size: str, time: str) -> tuple[list[int], list[float]]:
    """Times by ascending size, each size once. Raises InputError."""
    found: dict[int, float] = {}
    lines: dict[int, int] = {}
    for row in rows:
        at = row[size]
        if at != int(at) or at < 1:
            raise InputError(path, f"line {row.line}, {size}", at, "must be a whole number, at least 1")
        if int(at) in found:
            raise InputError(path, f"line {row.line}", int(at), f"a second time for this {row.text} at these {size}")
        if row[time] <= 0:
            raise InputError(path, f"line {row.line}, {time}", row[time], "must be above 0")
        found[int(at)] = row[time]
        lines[int(at)] = row.line
    sizes = sorted(found)
    for low, high in pairwise(sizes):
        if found[high] < found[low] * (1 - MOST_FALL):
            _refuse_fall(path, lines[high], found[high], found[low], lines[low], size)
    return sizes, [found[at] for at in sizes]


def refuse_outliers(
    path: Path,
    columns: Sequence[str],
    points: Mapping[Any, float],
    lines: Mapping[Any, int],
    most: float = MOST_FALL,
    setting: str = "",
) -> None:
    """Raises InputError where more of one size, with as much of all others, takes less time by a share above `most`.

    columns: of the sizes. points: times by size. setting: what the share is set by, for the message.
    """
    for axis, name in enumerate(columns):
        order = sorted(points, key=lambda point: (point[:axis] + point[axis + 1 :], point[axis]))
        for low, high in pairwise(order):
            if low[:axis] + low[axis + 1 :] == high[:axis] + high[axis + 1 :]:
                if points[high] < points[low] * (1 - most):
                    _refuse_fall(path, lines[high], points[high], points[low], lines[low], name, setting)


def _refuse_fall(
    path: Path, line: int, time: float, before: float, line_before: int, size: str, setting: str = ""
) -> None:
    fall = f"falls by {100 * (1 - time / before):.0f} % from the {before:g} of line {line_before} at a smaller {size}"
    told = f"{fall}: one of them is an outlier{setting and f' ({setting})'}"
    raise InputError(path, f"line {line}, time_us", time, told)


def _refuse_header(path: Path, header: list[str], wanted: Sequence[str], optional: Sequence[str]) -> None:
    if not any(header):
        columns = ", ".join([*wanted, *optional])
        raise InputError(path, "line 1", None, f"is empty; it must name the columns: {columns}")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(path, "line 1", twice, "stands twice among the column names")
    for name in wanted:
        if name not in header:
            raise InputError(
                path, "line 1", None, f"has no column {name!r}{nearest(name, header)}; it has: {', '.join(header):.160}"
            )
    for name in header:
        if optional and name not in (*wanted, *optional):
            left = [other for other in optional if other not in header]
            columns = f"the columns are {', '.join([*optional, *wanted])}"
            raise InputError(path, "line 1", name, f"unknown column{nearest(name, left)}; {columns}")


def _number(path: Path, line: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(path, f"line {line}, {name}", text, "must be a number") from None
    if not math.isfinite(value) or not 0 <= value <= MOST:
        raise InputError(path, f"line {line}, {name}", text, "must be a number from 0 to 2^40")
    return value
