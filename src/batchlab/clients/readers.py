"""Readers for workload files: CSV, JSON Lines, and the public traces that come as one of them. docs/workloads.md.

Each has exact rules, kept by `rows.Rows`. A CSV file is first offered to `fast_csv`, which takes only what is right
beyond doubt; everything else, right or wrong, goes through the rows.
"""

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from batchlab.clients.columns import Columns
from batchlab.clients.layout import Layout
from batchlab.clients.numbers import Literal
from batchlab.clients.rows import Rows
from batchlab.clients.source import decoded, opened, without_mark
from batchlab.errors import InputError, nearest

LONGEST_CELL = 1 << 30
"""Characters: a column of texts may have long ones, beside those that are read."""
CUT = " (the last line, and it has no line end: is the file cut off?)"


def read_csv(path: Path, layout: Layout) -> Columns:
    """The requests in a CSV file. Raises InputError."""
    from batchlab.clients import fast_csv

    with opened(path, "a CSV file with a header line") as file:
        quick = fast_csv.read(path, file, layout)
    if quick is not None:
        return quick
    with opened(path, "a CSV file with a header line") as file:
        return read_thoroughly(path, file, layout)


def read_jsonl(path: Path, layout: Layout) -> Columns:
    """The requests in a JSON Lines file. Raises InputError."""
    rows = Rows(path, layout)
    with opened(path, "a JSON Lines file") as file:
        for number, line in enumerate(itertools.islice(file, layout.limit), 1):
            raw = without_mark(line) if number == 1 else line
            rows.add(number, _json_row(path, number, decoded(path, raw, number), layout))
    return rows.columns()


class _Lines:
    """A CSV file's lines as text. cut: whether the last one that was read has no line end."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self.cut = False

    def __iter__(self) -> Iterator[str]:
        for number, raw in enumerate(self._file, 1):
            text = decoded(self._path, without_mark(raw) if number == 1 else raw, number)
            self.cut = not text.endswith(("\n", "\r"))
            if number == 1 and text.startswith(("{", "[")):
                expected = "must be a line of column names; for JSON Lines set format = 'jsonl'"
                raise InputError(self._path, "line 1", text[:40], expected)
            yield from io.StringIO(text, newline="") if "\r" in text else (text,)  # a lone \r ends a line too


def read_thoroughly(path: Path, file: IO[bytes], layout: Layout) -> Columns:
    """The requests in a CSV file, cell by cell. Raises InputError."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        return _cell_by_cell(path, file, layout)
    finally:
        csv.field_size_limit(before)


def _cell_by_cell(path: Path, file: IO[bytes], layout: Layout) -> Columns:
    lines = _Lines(path, file)
    reader = csv.reader(iter(lines), strict=True)
    rows = Rows(path, layout)
    line = 1
    try:
        header = next(reader)
        places = _find_columns(path, header, layout)
        line = reader.line_num + 1
        for cells in itertools.islice(reader, layout.limit):
            if len(cells) != len(header):
                last = CUT if lines.cut else ""
                raise InputError(path, f"line {line}", ",".join(cells) or None, _wrong_count(cells, header) + last)
            rows.add(line, {name: cells[place] for name, place in places.items()})
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(path, f"line {line}", None, f"not valid CSV: {error}; is a quote not closed?") from None
    if line == 2:
        raise InputError(path, "line 2", None, "has a header line and no rows; at least one request is needed")
    return rows.columns()


def _find_columns(path: Path, header: list[str], layout: Layout) -> dict[str, int]:
    """Where in a row each field stands."""
    if len(header) != len(set(header)):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(path, "line 1", twice, "stands twice among the column names")
    places = {}
    for name, column in layout.names.items():
        if column not in header:
            hint = nearest(column, header)
            if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
                hint = "; cells must be separated by commas"
            shown = ", ".join(header)
            raise InputError(
                path, "line 1", None, f"has no column {column!r}{hint}; it has: {shown:.160}{layout.asked(name)}"
            )
        places[name] = header.index(column)
    return places


def _wrong_count(cells: list[str], header: list[str]) -> str:
    if not cells:
        return "a blank line; every line must hold a row"
    return f"{len(cells)} cells, but the header line names {len(header)} columns"


def _json_row(path: Path, number: int, line: str, layout: Layout) -> dict[str, Any]:
    if not line.strip():
        raise InputError(path, f"line {number}", None, "a blank line; every line must hold a row")
    try:
        row = json.loads(line, parse_float=Literal, parse_constant=_no_constant, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        reason = why_not_json(error)
        cut = "" if line.endswith("\n") else CUT
        shown = line.rstrip("\r\n")
        raise InputError(path, f"line {number}", shown, f"not a JSON object on one line: {reason}{cut}") from None
    if not isinstance(row, dict):
        raise InputError(path, f"line {number}", row, "must be a JSON object")
    values = {}
    for name, key in layout.names.items():
        if key not in row:
            raise InputError(
                path, f"line {number}, key {key!r}", None, f"is missing{_near_key(key, row)}{layout.asked(name)}"
            )
        if type(row[key]) is str and name not in ("id", "session"):
            raise InputError(path, f"line {number}, key {key!r}", row[key], "must be a number, not a text")
        values[name] = row[key]
    return values


def why_not_json(error: Exception) -> str:
    """What the JSON parser has to say, in words for those who wrote the file."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "a number of thousands of digits" if "integer string conversion" in str(error) else str(error)


def _near_key(key: str, row: Iterable[str]) -> str:
    return nearest(key, row) or f"; the line has: {', '.join(row):.160}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key stands twice")
    return row
