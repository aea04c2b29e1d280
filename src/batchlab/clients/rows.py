"""Workload rows one by one: every value checked, the first wrong one named by file, line, column and value."""

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from batchlab.clients import numbers
from batchlab.clients.columns import Columns, Integers
from batchlab.clients.layout import Layout
from batchlab.clients.sessions import join_turns
from batchlab.errors import InputError
from batchlab.settings import LATEST

HASH_TOKENS = 512
"""Prompt tokens that one of Mooncake's block hashes stands for."""
MOST_HASH = 2**63 - 1
MOST_TURN = 2**31


class Rows:
    """Takes rows in, checks them, and makes columns of them."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.layout = layout
        self._arrival: list[int] = []
        self._lines = array("q")
        self._lengths = [name for name in layout.names if name in ("prompt", "output", "max_tokens")]
        self._others = [name for name in layout.names if name in ("priority", "id", "session", "turn")]
        self._found = {name: array("q") for name in layout.names if name not in ("arrival", "id", "hash_ids")}
        self._sessions = Codes()
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
            for name in self._others:
                self._take(name, row[name], line)
            if "hash_ids" in row:
                name = "hash_ids"
                self._take_hash(row[name], lengths["prompt"])
        except ValueError as error:
            raise InputError(self.path, self.place(line, name), row[name], str(error)) from None
        for name, length in lengths.items():
            self._found[name].append(length)
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
        found = {name: _array(column) for name, column in self._found.items()}
        hashes = (_array(self._hash_offsets), _array(self._hash_values)) if "hash_ids" in self.layout.names else None
        return from_file(self.path, arrival, found, list(self._ids), self.dropped, self.layout, hashes)

    def _time(self, value: Any) -> int:
        if self.layout.unit == "stamp":
            return numbers.stamp(value)
        return numbers.time(value, self.layout.unit, self.layout.round_times)

    def _arrival_in_order(self, arrival: int) -> None:
        if self._arrival and arrival < self._arrival[-1] and not self.layout.sort:
            before = self.before(self._lines[-1])
            raise ValueError(f"is earlier than {before}; rows must be in order of arrival (sort = true sorts them)")

    def _take(self, name: str, value: Any, line: int) -> None:
        if name == "id":
            self._take_id(value, line)
        elif name == "session":
            self._found[name] += array("q", self._sessions.of([_text(value)]))
        elif name == "turn":
            self._found[name].append(numbers.whole(value, 0, MOST_TURN, "2^31"))
        else:
            self._found[name].append(numbers.priority(value))

    def _take_id(self, value: Any, line: int) -> None:
        id = _text(value)
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


def from_file(
    path: Path,
    arrival: Integers,
    found: Mapping[str, Integers],
    ids: list[str],
    dropped: int,
    layout: Layout,
    hashes: tuple[Integers, Integers] | None = None,
) -> Columns:
    """The requests of a file whose columns have been read and checked, in order of arrival if that was asked for.

    Raises InputError for turns that make no session.
    """
    columns = Columns(
        arrival,
        found["prompt"],
        found["output"],
        found.get("max_tokens"),
        priority=found.get("priority"),
        ids=ids if "id" in layout.names else None,
        hashes=hashes,
    )
    session, turn = found.get("session"), found.get("turn")
    if layout.sort:  # rows of the same time stay in the file's order
        order = np.argsort(arrival, kind="stable")
        columns = columns.take(order)
        session = None if session is None else session[order]
        turn = None if turn is None else turn[order]
    columns.dropped = dropped
    if session is not None:
        try:
            join_turns(columns, session, turn, layout.prompts == "whole", layout.think_time)
        except ValueError as error:
            raise InputError(path, None, None, str(error)) from None
    return columns


class Codes:
    """Names as numbers: 0, 1, 2, ... in the order in which they come."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def of(self, names: Sequence[str]) -> list[int]:
        """The number of each name. Raises ValueError for an empty one."""
        if "" in names:
            raise ValueError("is empty; every request needs a session")
        return [self._codes.setdefault(name, len(self._codes)) for name in names]


def _text(value: Any) -> str:
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or isinstance(text, numbers.Literal):
        raise ValueError("must be a text")
    return text


def _array(values: "array[int]") -> Integers:
    return np.frombuffer(values, np.int64).copy() if values else np.empty(0, np.int64)
