"""Finished rows of long work, kept as they come, so that a killed run goes on where it was.

A file of JSON Lines: first what the work is, by a digest, then a row a line, each with a check of itself, so that only
what was written is taken for a row. Only whole lines count: what a killed process left of its last one is cut off.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import tomllib
import zlib
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
        self._digest = digest
        self.rows: dict[int, dict[str, Any]] = {}
        try:
            whole = self._read()
            self._file = open(path, "ab")  # noqa: SIM115
            self._file.truncate(whole)
            if not whole:
                self._append({"sweep": digest})
        except OSError as error:
            raise InputError(path, None, None, f"cannot be written: {error.strerror}") from error

    def _read(self) -> int:
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
                found = entry["sweep"] if number == 1 else entry["check"]
                expected = self._digest if number == 1 else self._check(entry["number"], entry["row"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise self._no_line(number) from error
            if number > 1:
                if found != expected:
                    raise self._no_line(number)
                self.rows[entry["number"]] = entry["row"]
            elif found != expected:
                other = "is the journal of another sweep or tuning: delete it, or write elsewhere"
                raise InputError(self.path, None, None, other)
        return len(text) + 1

    def _no_line(self, number: int) -> InputError:
        return InputError(self.path, f"line {number}", None, "is no line of a sweep's journal")

    def _check(self, number: int, row: dict[str, Any]) -> int:
        """Of a row of this very work."""
        return zlib.crc32(json.dumps([self._digest, number, row]).encode())

    def add(self, number: int, row: dict[str, Any]) -> None:
        """Keep a row; it is in the file when this returns."""
        self.rows[number] = row
        self._append({"number": number, "row": row, "check": self._check(number, row)})

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
    files: dict[str, str] = {}
    for folder in (Path(scenario).parent, Path()):
        _add_files(files, folder, [document, list(rest.values()), workload])
    parts = {
        "version": batchlab.__version__,
        "scenario": hashlib.sha256(data).hexdigest(),
        "workload": workload,
        "files": list(files.values()),
        **rest,
    }
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _add_files(files: dict[str, str], folder: Path, value: Any) -> None:
    """A digest of each file that some text in a value names from a folder, and of those that these files name.

    Any text may be a name: one file too many does no harm, and no key can be forgotten.
    """
    for text in _texts(value):
        path = folder / re.sub(r"(?<=\.py):\w*$", "", text)
        with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError):  # a text that is no path
            for file in sorted(path.glob("*.csv")) if text and path.is_dir() else [path]:  # a folder is a profile
                real = os.path.realpath(file)
                if real not in files and file.is_file():
                    with open(file, "rb") as read:
                        files[real] = hashlib.file_digest(read, "sha256").hexdigest()
                    _add_files(files, file.parent, _named_in(file))


def _named_in(file: Path) -> list[Any]:
    """What may name more files: the texts of another section or of a class, and what the class imports."""
    if file.suffix == ".toml":
        return [tomllib.loads(file.read_text("utf-8"))]
    if file.suffix != ".py":
        return []
    nodes = list(ast.walk(ast.parse(file.read_bytes())))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    modules = [each.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for each in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return [*texts, *(f"{name.replace('.', '/')}.py" for name in modules)]


def _texts(value: Any) -> Iterator[str]:
    """All texts in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)
