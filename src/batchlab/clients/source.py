"""Workload files as bytes: opened, unpacked, and refused where they are no text."""

import contextlib
import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from batchlab.errors import InputError

KNOWN_BINARY = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ\x00": "xz data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"\x93NUMPY": "a numpy file",
    b"SQLite format 3": "an SQLite file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"


def digest(path: Path) -> str:
    """The sha256 of the file as it lies there, compressed or not. Raises InputError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


@contextlib.contextmanager
def opened(path: Path, expected: str) -> Iterator[IO[bytes]]:
    """The file's bytes, through gzip if it is compressed. expected: what it should be, for a message.

    Raises InputError for everything that can be wrong with it as a file, also while it is read.
    """
    try:
        with contextlib.ExitStack() as stack:
            refuse_no_file(path, expected)
            file: IO[bytes] = stack.enter_context(path.open("rb"))
            if file.read(2) == GZIP:
                file.seek(0)
                file = cast(IO[bytes], stack.enter_context(gzip.open(file)))
            else:
                file.seek(0)
            _refuse_binary(path, file.read(64), expected)
            file.seek(0)
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(path, None, None, f"cut or damaged gzip data: {error}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def refuse_no_file(path: Path, expected: str) -> None:
    """Raise InputError where there is no such file, or something else of that name. expected: as in `opened`."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise InputError(path, None, None, f"is {kind}; {expected} is needed")
    except OSError as error:
        raise _unreadable(path, error) from error


def refuse_other_files(path: Path, magic: bytes, expected: str) -> None:
    """Raise InputError for a file that does not begin so, or is none."""
    refuse_no_file(path, expected)
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not start.startswith(magic):
        _refuse_binary(path, start, expected)
        raise InputError(path, None, None, f"is not {expected}")


def decoded(path: Path, data: bytes, line: int = 1) -> str:
    """The data as text. line: the number of its first line. Raises InputError."""
    if b"\0" in data:
        at = line + data.count(b"\n", 0, data.index(b"\0"))
        raise InputError(path, f"line {at}", None, "not text: it has a NUL byte")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = line + data.count(b"\n", 0, error.start)
        value = data[error.start : error.start + 1]
        raise InputError(path, f"line {at}", value, "not UTF-8") from None


def without_mark(data: bytes) -> bytes:
    """The data without a byte order mark, which editors of one system put in front of UTF-8."""
    return data.removeprefix(BOM)


def _refuse_binary(path: Path, start: bytes, expected: str) -> None:
    if not start:
        raise InputError(path, None, None, f"is empty; {expected} is needed")
    for magic, kind in KNOWN_BINARY.items():
        if start.startswith(magic):
            raise InputError(path, None, None, f"is {kind}; {expected} is needed")


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(path, None, None, f"cannot be read: {error.strerror or error}")
