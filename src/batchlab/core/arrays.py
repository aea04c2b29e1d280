"""Columns of numbers."""

from array import array
from typing import Any


def longer(column: Any, more: int, value: int = 0) -> "array[int]":
    """A column with so many more numbers behind it, each of this value."""
    kept = memoryview(column)
    found = array(kept.format, [value]) * (len(kept) + more)
    memoryview(found)[: len(kept)] = kept
    return found
