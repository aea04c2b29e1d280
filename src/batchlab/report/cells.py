"""What a cell of a saved table, or an entry of a saved document, has to be: files may have been changed by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from batchlab.errors import InputError, shorten
from batchlab.metrics.objectives import ATTAINMENT

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
                right, expected = isinstance(value, bool), "must be true or false"
            elif name in ("error", "unit"):
                right, expected = isinstance(value, str), "must be a text"
            elif name in {*drawn, *NUMBERS} or name.startswith(NUMBERS_OF) or _is_rate(name, value):
                right, expected = is_number(value), "must be a finite number"
            else:
                continue
            if not right:
                raise InputError(path, f"column {name}, row {number}", value, expected)


def _is_rate(name: str, value: Any) -> bool:
    """Whether it is a rate at which attainment is drawn; a setting of that name may be a text."""
    return name.rpartition(".")[2] == RATE and isinstance(value, float)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def number_of(value: Any) -> float:
    """Raises ValueError for what is no finite number."""
    if not is_number(value):
        raise ValueError(f"{shorten(value)}: must be a finite number")
    return float(value)


def switch_of(value: Any) -> bool:
    """Raises ValueError for what is neither true nor false."""
    if not isinstance(value, bool):
        raise ValueError(f"{shorten(value)}: must be true or false")
    return value
