"""Finding the first difference between what was recorded and what we computed."""

from dataclasses import dataclass
from typing import Any

from batchlab.errors import shorten


@dataclass(frozen=True)
class Difference:
    """Where two results part: the place, and both values."""

    place: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.place}: expected {shorten(self.expected)}, got {shorten(self.got)}"


_ABSENT = "(absent)"


def compare(expected: Any, got: Any, place: str) -> Difference | None:
    """The first difference, walking both in order; None if they are equal. 1 and 1.0 and true all differ."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in [*expected, *(key for key in got if key not in expected)]:
            found = compare(expected.get(key, _ABSENT), got.get(key, _ABSENT), f"{place}: {key}" if place else str(key))
            if found:
                return found
        return None
    if type(expected) is not type(got) or expected != got:
        return Difference(place, expected, got)
    return None


def compare_steps(expected: list[Any], got: list[Any], noun: str) -> Difference | None:
    """The first differing field of the first differing step."""
    for index, (left, right) in enumerate(zip(expected, got, strict=False)):
        found = compare(left, right, f"{noun} {index}")
        if found:
            return found
    if len(expected) != len(got):
        within, colon, word = noun.rpartition(": ")
        return Difference(f"{within}{colon}number of {word}s", len(expected), len(got))
    return None
