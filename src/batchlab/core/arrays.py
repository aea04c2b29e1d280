"""Columns of numbers."""

from array import array
from typing import Any


def longer(column: Any, more: "array[int]") -> "array[int]":
    """A column with more of its kind behind it."""
    found = array(more.typecode)
    found.frombytes(memoryview(column).tobytes())
    found.extend(more)
    return found
