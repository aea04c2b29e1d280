"""What a cell of a saved table, or an entry of a saved document, has to be: files may have been changed by hand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from batchlab.errors import InputError, shorten
from batchlab.metrics.objectives import ATTAINMENT


@dataclass(frozen=True)
class Kind:
    """What a value has to be: `right` tells it of a value, `expected` says it."""

    right: Callable[[Any], bool]
    expected: str

    def of(self, value: Any) -> Any:
        """The value. Raises ValueError for one that is not right."""
        if not self.right(value):
            raise ValueError(f"{shorten(value)}: {self.expected}")
        return value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


NUMBER = Kind(is_number, "must be a finite number")
SWITCH = Kind(lambda value: isinstance(value, bool), "must be true or false")
TEXT = Kind(lambda value: isinstance(value, str), "must be a text")
RATE = "request_rate"
SWITCHES = ("met", "pareto", "recommended")
NUMBERS = (ATTAINMENT, "totals.preemptions")
NUMBERS_OF = ("slo.", "attained.")
"""Columns of a table, and how some begin, by what stands in them."""


def refuse_odd_cells(path: str | os.PathLike[str], rows: Sequence[dict[str, Any]], drawn: Sequence[str]) -> None:
    """Raise InputError for a cell that no sweep writes, of those that are drawn or decide what is."""
    for number, row in enumerate(rows, 1):
        for name, value in row.items():
            if value is None and (row["error"] is not None or name not in ("unit", *SWITCHES)):
                continue
            if name in SWITCHES:
                kind = SWITCH
            elif name in ("error", "unit"):
                kind = TEXT
            elif name in {*drawn, *NUMBERS} or name.startswith(NUMBERS_OF) or _is_rate(name, value):
                kind = NUMBER
            else:
                continue
            if not kind.right(value):
                raise InputError(path, f"column {name}, row {number}", value, kind.expected)


def _is_rate(name: str, value: Any) -> bool:
    """Whether it is a rate at which attainment is drawn; a setting of that name may be a text."""
    return name.rpartition(".")[2] == RATE and isinstance(value, float)


def number_of(value: Any) -> float:
    """Raises ValueError for what is no finite number."""
    return float(NUMBER.of(value))


def switch_of(value: Any) -> bool:
    """Raises ValueError for what is neither true nor false."""
    return bool(SWITCH.of(value))


def parsed(text: str) -> Any:
    """A value of a table's metadata: JSON, or a text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
