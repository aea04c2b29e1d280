"""Workload rows one by one: every value checked, the first wrong one named by file, line, column and value."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchlab.clients import numbers
from batchlab.clients.columns import Columns, Integers
from batchlab.errors import InputError
from batchlab.settings import LATEST

HASH_TOKENS = 512
"""Prompt tokens that one of Mooncake's block hashes stands for."""
MOST_HASH = 2**63 - 1


@dataclass(frozen=True)
class Layout:
    """What a file's rows hold, and where.

    names: the file's own name for each of our fields. unit: of arrivals; "stamp" for absolute times. kind: "column" or
    "key". sort: whether rows may come in any order. limit: only so many rows are read.
    """

    names: Mapping[str, str]
    unit: str
    kind: str = "column"
    sort: bool = False
    limit: int | None = None

    @property
    def from_zero(self) -> bool:
        """Whether arrivals count from the first one: real times do, the units of an abstract clock do not."""
        return self.unit != "unit"


class Rows:
    """Takes rows in, checks them, and makes columns of them."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.layout = layout
        self._arrival: list[int] = []
        self._lines = array("q")
        self._lengths = {name: array("q") for name in layout.names if name in ("prompt", "output", "max_tokens")}
        self._priority = array("q")
        self._ids: dict[str, int] = {}
        self._hash_values = array("q")
        self._hash_offsets = array("q", [0])

    def __len__(self) -> int:
        return len(self._arrival)

    def add(self, line: int, row: Mapping[str, Any]) -> None:
        """One row: the values as the file has them, by our field names. line: where an editor shows it."""
        try:
            name = "arrival"
            value = row[name]
            arrival = numbers.stamp(value) if self.layout.unit == "stamp" else numbers.time(value, self.layout.unit)
            self._arrival_in_order(arrival)
            for name, column in self._lengths.items():  # also says which value was wrong
                column.append(numbers.tokens(row[name]))
            if "max_tokens" in self._lengths and self._lengths["max_tokens"][-1] < self._lengths["output"][-1]:
                raise ValueError(f"must be at least the output, {self._lengths['output'][-1]}")
            for name, take in (("priority", self._take_priority), ("id", self._take_id), ("hash_ids", self._take_hash)):
                if name in row:
                    take(row[name], line)
        except ValueError as error:
            raise InputError(self.path, self.place(line, name), row[name], str(error)) from None
        self._arrival.append(arrival)
        self._lines.append(line)

    def place(self, line: int, name: str) -> str:
        """Where a value stands, for a message."""
        return f"line {line}, {self.layout.kind} {self.layout.names[name]!r}"

    def columns(self) -> Columns:
        """All rows, in the file's order or sorted by arrival; arrivals from 0 where they are real times."""
        first = min(self._arrival) if self.layout.from_zero else 0
        last = max(self._arrival)
        if last - first > LATEST:
            line = self._lines[self._arrival.index(last)]
            raise InputError(self.path, self.place(line, "arrival"), None, "is more than 2^62 ns after the first one")
        arrival = np.array([time - first for time in self._arrival], np.int64)
        lengths = {name: _array(column) for name, column in self._lengths.items()}
        columns = Columns(
            arrival,
            lengths["prompt"],
            lengths["output"],
            lengths.get("max_tokens"),
            priority=_array(self._priority) if "priority" in self.layout.names else None,
            ids=list(self._ids) if "id" in self.layout.names else None,
            hashes=(_array(self._hash_offsets), _array(self._hash_values)) if "hash_ids" in self.layout.names else None,
        )
        return in_time_order(columns) if self.layout.sort else columns

    def _arrival_in_order(self, arrival: int) -> None:
        if self._arrival and arrival < self._arrival[-1] and not self.layout.sort:
            raise ValueError(
                f"is earlier than line {self._lines[-1]}; rows must be in order of arrival (sort = true sorts them)"
            )

    def _take_priority(self, value: Any, line: int) -> None:
        self._priority.append(numbers.priority(value))

    def _take_id(self, value: Any, line: int) -> None:
        id = str(value) if type(value) is int else value
        if not isinstance(id, str) or isinstance(id, numbers.Literal):
            raise ValueError("must be a text")
        if not id:
            raise ValueError("is empty; every request needs an id of its own")
        try:
            id.encode()
        except UnicodeEncodeError:
            raise ValueError("must be a text that UTF-8 can hold") from None
        other = self._ids.setdefault(id, line)
        if len(self._ids) == len(self):
            raise ValueError(f"must be unique; line {other} has it too")

    def _take_hash(self, value: Any, line: int) -> None:
        if not isinstance(value, list):
            raise ValueError("must be a list of whole numbers")
        for entry in value:
            if type(entry) is not int or not 0 <= entry <= MOST_HASH:
                raise ValueError(f"must hold whole numbers from 0 to 2^63 - 1, not {entry!r:.40}")
        prompt = self._lengths["prompt"][-1]
        if len(value) != -(-prompt // HASH_TOKENS):
            wanted = -(-prompt // HASH_TOKENS)
            raise ValueError(
                f"has {len(value)} hashes; {prompt} prompt tokens need {wanted}, one for every {HASH_TOKENS}"
            )
        self._hash_values.extend(value)
        self._hash_offsets.append(len(self._hash_values))


def in_time_order(columns: Columns) -> Columns:
    """Sorted by arrival; rows of the same time stay in the file's order."""
    return columns.in_order(np.argsort(columns.arrival, kind="stable"))


def _array(values: "array[int]") -> Integers:
    return np.frombuffer(values, np.int64).copy() if values else np.empty(0, np.int64)
