"""Finished rows of long work, kept as they come, so that a killed run goes on where it was.

A file of JSON Lines: first what the work is, by a digest, then a row a line. Only whole lines count: what a killed
process left of its last one is cut off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import batchlab
from batchlab.errors import InputError
from batchlab.files import read_toml


class Journal:
    """rows: those found, by their number. Raises InputError where the file is of other work or cannot be used."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.rows: dict[int, dict[str, Any]] = {}
        try:
            whole = self._read(digest)
            self._file = open(path, "ab")  # noqa: SIM115
            self._file.truncate(whole)
            if not whole:
                self._append({"sweep": digest})
        except OSError as error:
            raise InputError(path, None, None, f"cannot be written: {error.strerror}") from error

    def _read(self, digest: str) -> int:
        """Take in the rows. Returns the bytes of the whole lines."""
        if not self.path.exists():
            return 0
        text, line_end, torn = self.path.read_bytes().rpartition(b"\n")
        if not line_end:
            if torn[:11] != b'{"sweep": "'[: len(torn)]:
                raise InputError(self.path, None, None, "is no journal of a sweep: move it away")
            return 0
        for number, line in enumerate(text.split(b"\n"), 1):
            try:
                entry = json.loads(line)
                if number > 1:
                    self.rows[int(entry["number"])] = dict(entry["row"])
                    continue
                found = entry["sweep"]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(self.path, f"line {number}", None, "is no line of a sweep's journal") from error
            if found != digest:
                expected = "is the journal of another sweep or tuning: delete it, or write elsewhere"
                raise InputError(self.path, None, None, expected)
        return len(text) + 1

    def add(self, number: int, row: dict[str, Any]) -> None:
        """Keep a row; it is in the file when this returns."""
        self.rows[number] = row
        self._append({"number": number, "row": row})

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(self.path, None, None, f"cannot be written: {error.strerror}") from error

    def delete(self) -> None:
        """Nobody needs it any more."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def digest_of(scenario: str, workload: str | None, rest: Mapping[str, Any]) -> str:
    """Of everything that decides rows: this version, the scenario, the files that are named, and the rest."""
    document, data = read_toml(scenario)
    named = sorted(set(_texts([document, list(rest.values()), workload])))
    folders = (Path(scenario).parent, Path())
    parts = {
        "version": batchlab.__version__,
        "scenario": hashlib.sha256(data).hexdigest(),
        "workload": workload,
        "files": [_of_files(folder / name.partition(".py:")[0]) for name in named for folder in folders],
        **rest,
    }
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _texts(value: Any) -> Iterator[str]:
    """All texts in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)


def _of_files(path: Path) -> str | None:
    """A digest of a file, or of a folder's files; None where there is none of that name."""
    try:
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_dir():  # a profile
            return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(path.glob("*.csv")))).hexdigest()
    except (OSError, ValueError):  # a text that is no path
        pass
    return None
