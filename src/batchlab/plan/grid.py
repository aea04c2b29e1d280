"""Combinations of the values of several settings."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

Grid = Mapping[str, Sequence[Any]]
"""Values to take, by dotted key."""


def size_of(grid: Grid) -> int:
    """How many combinations there are."""
    return math.prod(len(values) for values in grid.values())


def combinations(grid: Grid, most: int, seed: int = 0) -> list[dict[str, Any]]:
    """All of them, the last key's values changing fastest; of more than `most` so many, chosen by chance."""
    size = size_of(grid)
    places: Sequence[int] = range(size)
    if most < size:
        places = sorted(random.Random(seed).sample(range(size), most))
    return [_combination(grid, place) for place in places]


def _combination(grid: Grid, place: int) -> dict[str, Any]:
    found = {}
    for key, values in reversed(list(grid.items())):
        place, value = divmod(place, len(values))
        found[key] = values[value]
    return {key: found[key] for key in grid}
