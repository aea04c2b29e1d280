"""A step's time from measured steps."""

from pathlib import Path
from typing import Any, ClassVar

from batchlab.core.work import Work
from batchlab.costs.base import whole
from batchlab.costs.grid import Grid, Point
from batchlab.costs.measured import Row, read, refuse_outliers
from batchlab.errors import InputError, SettingError

COLUMNS = ("prefill_tokens", "prefill_context", "decodes", "decode_context")
TIME = "time_us"


class Table:
    """Measured steps on a grid, and lines between them. docs/profiles.md describes the file.

    file: a CSV file. tolerance: a measured time may be lower than that of a step with less of one size by this share;
    what falls more is an outlier and refused.
    """

    unit = "ns"
    idle = "jump"
    details: tuple[str, ...] = ("chunks",)
    files: ClassVar = {"file": ""}

    def __init__(self, file: str, tolerance: float = 0.1) -> None:
        if not 0 <= tolerance <= 1:
            raise SettingError("tolerance", tolerance, "must be a share from 0 to 1", section="cost")
        self._name = Path(file).name
        points = read_steps(Path(file), tolerance)
        try:
            self.grid = Grid(points)
        except ValueError as error:
            raise InputError(file, None, None, f"{error}: `batchlab calibrate` fits scattered steps") from None
        self.tolerance = tolerance
        self._knows_mixed = any(tokens and decodes for tokens, _, decodes, _ in points)
        self.timed = 0
        self.outside = 0
        self.mixed = 0

    def duration(self, work: Work) -> int:
        """The time at the step's tokens, in ns. Several prefills count as one, its history weighted by their tokens.

        A step with prefills and decodes takes the sum of both where the file has no such step.
        """
        tokens = work.prefill_tokens + work.padding_tokens
        before = sum(chunk * history for chunk, history in work.chunks) / tokens if tokens else 0.0
        decodes = work.decode_tokens
        context = (work.context_tokens - work.prefill_context) / decodes if decodes else 0.0
        at = (tokens, before, decodes, context)
        self.timed += 1
        axes = self.grid.axes
        self.outside += any(
            len(axis) > 1 and not axis[0] <= value <= axis[-1] for axis, value in zip(axes, at, strict=True) if value
        )
        if tokens and decodes and not self._knows_mixed:
            self.mixed += 1
            us = self.grid(tokens, before, 0, 0) + self.grid(0, 0, decodes, context)
        else:
            us = self.grid(*at)
        return whole(us * 1000)

    def remarks(self) -> list[str]:
        """What is to be said after a run."""
        of = f"of {self.timed:,} steps"
        told = []
        if self.outside:
            told.append(f"{self.outside:,} {of} lie outside {self._name}; their times are extrapolated")
        if self.mixed:
            told.append(
                f"{self.mixed:,} {of} mix prefill and decode, which {self._name} does not: both times are added"
            )
        return told

    def describe(self) -> dict[str, Any]:
        """The file's name."""
        return {"model": "table", "file": self._name, "tolerance": self.tolerance}


def read_steps(path: Path, tolerance: float) -> dict[Point, float]:
    """The measured steps of a file. A column that it does not have is 0 in all of them. Raises InputError."""
    found: dict[Point, float] = {}
    lines: dict[Point, int] = {}
    for row in read(path, (TIME,), optional=COLUMNS):
        values = [row.values.get(name, 0.0) for name in COLUMNS]
        point = (values[0], values[1], values[2], values[3])
        refuse_no_step(path, row)
        if point in found:
            raise InputError(path, f"line {row.line}", None, f"this step was measured on line {lines[point]} too")
        found[point], lines[point] = row[TIME], row.line
    if len(found) < 2:
        raise InputError(path, None, None, "one step is no table: at least 2 are needed")
    refuse_outliers(path, COLUMNS, found, lines, tolerance, f"tolerance = {tolerance}")
    return found


def refuse_no_step(path: Path, row: Row) -> None:
    """Raise InputError for a row that is no single step: contexts are means, tokens and decodes are counted."""
    for name in ("prefill_tokens", "decodes"):
        if not row.values.get(name, 0.0).is_integer():
            expected = "must be a whole number: a row is one step"
            raise InputError(path, f"line {row.line}, {name}", row[name], expected)
    if not row.values.get("prefill_tokens") and not row.values.get("decodes"):
        raise InputError(path, f"line {row.line}", None, "neither prefill_tokens nor decodes: the step is empty")
    if row[TIME] <= 0:
        raise InputError(path, f"line {row.line}, {TIME}", row[TIME], "must be above 0")
