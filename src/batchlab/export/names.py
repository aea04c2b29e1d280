"""Requests' ids as labels beside a row: cut where they are long, and no two of them alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


def labels(names: Sequence[str], most: int, cells: Callable[[str], int] = len) -> list[str]:
    """A label of at most so many cells for each name: of a longer one head and tail.

    Where the labels of two different names would be the same, they end in `~` and their places, counted from 1.
    """
    cut = [shortened(name, most, cells) for name in names]
    times = Counter(cut)
    found = []
    for place, (name, label) in enumerate(zip(names, cut, strict=True), 1):
        mark = f"~{place}"
        found.append(label if times[label] == 1 else shortened(name, max(most - len(mark), 0), cells) + mark)
    return found


def shortened(name: str, most: int, cells: Callable[[str], int] = len) -> str:
    """Its head and its tail, where it has more cells than that."""
    if cells(name) <= most:
        return name
    head, tail = name[: (most - 1) // 2], name[len(name) - max((most - 2) // 2, 0) :]
    while cells(head) > (most - 1) // 2:
        head = head[:-1]
    while cells(tail) > (most - 2) // 2:
        tail = tail[1:]
    return f"{head}..{tail}"
