"""Workload rows one by one: every value checked, the first wrong one named by file, line, column and value."""

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from batchlab.clients import numbers
from batchlab.clients.columns import Columns, Integers
from batchlab.clients.layout import Layout
from batchlab.errors import InputError
from batchlab.settings import LATEST

HASH_TOKENS = 512
"""Prompt tokens that one of Mooncake's block hashes stands for."""
MOST_HASH = 2**63 - 1


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
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._arrival)

    def add(self, line: int, row: Mapping[str, Any]) -> None:
        """One row: the values as the file has them, by our field names. line: where an editor shows it."""
        name = "arrival"
        try:
            arrival = self._time(row[name]) if self.layout.timed else 0
            self._arrival_in_order(arrival)
            lengths = {}
            for name in self._lengths:  # also says which value was wrong
                lengths[name] = numbers.tokens(row[name], self.layout.least)
            if not all(lengths.values()):
                self.dropped += 1
                return
            if "max_tokens" in lengths and lengths["max_tokens"] < lengths["output"]:
                raise ValueError(f"must be at least the output, {lengths['output']}")
            for name, take in (("priority", self._take_priority), ("id", self._take_id)):
                if name in row:
                    take(row[name], line)
            if "hash_ids" in row:
                name = "hash_ids"
                self._take_hash(row[name], lengths["prompt"])
        except ValueError as error:
            raise InputError(self.path, self.place(line, name), row[name], str(error)) from None
        for name, length in lengths.items():
            self._lengths[name].append(length)
        self._arrival.append(arrival)
        self._lines.append(line)

    def place(self, line: int, name: str) -> str:
        """Where a value stands, for a message."""
        return f"line {line}, {self.layout.kind} {self.layout.names[name]!r}"

    def before(self, line: int) -> str:
        """How a message calls a row that came before."""
        return f"line {line}"

    def columns(self) -> Columns:
        """All rows, in the file's order or sorted by arrival; arrivals from 0 where they are real times."""
        if not self._arrival:
            raise InputError(self.path, None, None, f"each of its {self.dropped:,} rows has a length of 0")
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
        columns.dropped = self.dropped
        return in_time_order(columns) if self.layout.sort else columns

    def _time(self, value: Any) -> int:
        if self.layout.unit == "stamp":
            return numbers.stamp(value)
        return numbers.time(value, self.layout.unit, self.layout.round_times)

    def _arrival_in_order(self, arrival: int) -> None:
        if self._arrival and arrival < self._arrival[-1] and not self.layout.sort:
            before = self.before(self._lines[-1])
            raise ValueError(f"is earlier than {before}; rows must be in order of arrival (sort = true sorts them)")

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
            raise ValueError(f"must be unique; {self.before(other)} has it too")

    def _take_hash(self, value: Any, prompt: int) -> None:
        if not isinstance(value, list):
            raise ValueError("must be a list of whole numbers")
        for entry in value:
            if type(entry) is not int or not 0 <= entry <= MOST_HASH:
                raise ValueError(f"must hold whole numbers from 0 to 2^63 - 1, not {entry!r:.40}")
        if len(value) != -(-prompt // HASH_TOKENS):
            wanted = -(-prompt // HASH_TOKENS)
            raise ValueError(
                f"has {len(value)} hashes; {prompt} prompt tokens need {wanted}, one for every {HASH_TOKENS}"
            )
        self._hash_values.extend(value)
        self._hash_offsets.append(len(self._hash_values))


def from_file(arrival: Integers, found: dict[str, Integers], ids: list[str], dropped: int, layout: Layout) -> Columns:
    """The requests of a file whose columns have been read and checked, in order of arrival if that was asked for."""
    columns = Columns(
        arrival,
        found["prompt"],
        found["output"],
        found.get("max_tokens"),
        priority=found.get("priority"),
        ids=ids if "id" in layout.names else None,
    )
    columns.dropped = dropped
    return in_time_order(columns) if layout.sort else columns


def in_time_order(columns: Columns) -> Columns:
    """Sorted by arrival; rows of the same time stay in the file's order."""
    return columns.take(np.argsort(columns.arrival, kind="stable"))


def _array(values: "array[int]") -> Integers:
    return np.frombuffer(values, np.int64).copy() if values else np.empty(0, np.int64)
