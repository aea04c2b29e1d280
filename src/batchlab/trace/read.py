"""Read a trace line by line, strictly: what is not plain JSON Lines in UTF-8 is an error, never a guess."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any

from batchlab.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
UTF8_BOM = b"\xef\xbb\xbf"


class BadLine(InputError):
    """The file could be read, but what stands in this line (None: in the whole file) is not a trace."""

    def __init__(
        self,
        file: str | os.PathLike[str],
        line: int | None,
        value: object,
        expected: str,
        truncated: bool = False,
    ) -> None:
        super().__init__(file, None if line is None else f"line {line}", value, expected)
        self.line = line
        self.truncated = truncated


class NotStrictJson(ValueError):
    """Text that is no JSON, or JSON that two readers could understand differently."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(expected)
        self.value = value
        self.expected = expected


def read_trace(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line of the file as (line number from 1, object). Raises InputError at the first bad one."""
    try:
        with open(path, "rb") as file:
            number = 0
            for number, raw in enumerate(file, 1):
                yield number, _parse_line(path, number, raw)
            if number == 0:
                raise BadLine(path, None, None, "a trace, but the file is empty", truncated=True)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str | os.PathLike[str], error: OSError, kind: str = "trace") -> InputError:
    """The error for a path that cannot be opened or read. kind: what `run` writes with the option of that name."""
    if isinstance(error, IsADirectoryError):
        return InputError(path, None, None, f"is a directory; a file as run --{kind} writes it is needed")
    return InputError(path, None, None, f"a readable file expected ({error.strerror or error})")


def _parse_line(path: str | os.PathLike[str], number: int, raw: bytes) -> dict[str, Any]:
    if number == 1 and raw.startswith(GZIP_MAGIC):
        raise BadLine(path, 1, None, "plain JSON Lines expected, but this is a gzip file: unpack it first")
    if not raw.strip():
        raise BadLine(path, number, None, "a JSON object expected, but the line is blank")
    try:
        value = parse_json(raw)
    except NotStrictJson as error:
        if not raw.endswith(b"\n"):
            expected = f"a whole line expected, but the file breaks off within it ({error.expected})"
            raise BadLine(path, number, error.value, expected, truncated=True) from error
        raise BadLine(path, number, error.value, error.expected) from error
    if not isinstance(value, dict):
        raise BadLine(path, number, value, "a JSON object expected")
    return value


def parse_json(raw: bytes) -> Any:
    """Parse one JSON document; NaN, infinities, duplicate keys and bytes that are not UTF-8 are refused."""
    if raw.startswith(UTF8_BOM):
        raise NotStrictJson(raw[:3], "UTF-8 without a byte order mark expected")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotStrictJson(raw[error.start : error.end], f"UTF-8 expected (byte {error.start})") from error
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite_float)
    except NotStrictJson:
        raise
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        around = text[max(0, error.pos - 20) : error.pos + 20].strip()
        raise NotStrictJson(around, f"JSON expected ({error.msg} at {where})") from error
    except RecursionError as error:
        raise NotStrictJson(text[:20], "JSON without such deep nesting expected") from error
    except ValueError as error:
        raise NotStrictJson(text[:20], f"JSON expected ({error})") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise NotStrictJson(key, "each key only once expected")
            seen.add(key)
    return result


def _no_constant(name: str) -> Any:
    raise NotStrictJson(name, "a JSON number expected (NaN and infinities are none)")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotStrictJson(text, "a number within the range of a double expected")
    return value
