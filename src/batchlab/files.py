"""Files read whole, and files that are complete or absent: written beside their final name, renamed at the end."""

import contextlib
import os
import secrets
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from batchlab.errors import InputError

ODD = "backslashreplace"
"""What becomes of half of a surrogate pair, which JSON can hold and a file cannot: an escape."""


def encodable(text: str) -> str:
    """The text as a file can hold it."""
    return text.encode("utf-8", ODD).decode()


def read_toml(path: str | os.PathLike[str]) -> tuple[dict[str, Any], bytes]:
    """A TOML file's tables as they stand there, and its bytes. Raises InputError."""
    text, data = _decoded(path, "a scenario is a TOML text file")
    try:
        return tomllib.loads(text), data
    except (ValueError, RecursionError) as error:
        raise InputError(path, None, None, f"not valid TOML: {error}") from error


def read_text(path: str | os.PathLike[str], expected: str) -> str:
    """A text file. expected: what it should be, for an error. Raises InputError where it is not UTF-8 or not there."""
    return _decoded(path, expected)[0]


def _decoded(path: str | os.PathLike[str], expected: str) -> tuple[str, bytes]:
    try:
        data = Path(path).read_bytes()
        return data.decode("utf-8"), data
    except OSError as error:
        raise unreadable(path, error, expected) from error
    except UnicodeDecodeError as error:
        raise InputError(path, f"byte {error.start}", None, f"not UTF-8; {expected}") from error


def unreadable(path: str | os.PathLike[str], error: OSError, expected: str) -> InputError:
    """The error for a path that cannot be opened or read. expected: what it should be, as a sentence."""
    if isinstance(error, IsADirectoryError):
        return InputError(path, None, None, f"is a directory; {expected}")
    return InputError(path, None, None, f"cannot be read: {error.strerror or error}")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """A text file to write. It gets its name only if the block ends without an error; a killed run leaves no such file.

    Raises InputError where it cannot be written.
    """
    if not os.fspath(path):  # it would be the current folder
        raise InputError(None, None, None, "the name of the file to write is empty")
    target = Path(os.path.realpath(path))  # a link stays one: what it leads to is written
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "it is a directory")
        if str(path).startswith("/dev/") or (target.exists() and not target.is_file()):  # nothing to rename
            with open(path, "w", encoding="utf-8", errors=ODD) as direct:
                yield direct
            return
        # Its name is known before it is there: an interrupt at any moment finds what to remove. It is short, also
        # where the file's own is as long as one may be.
        temporary = target.with_name(f".{target.name:.50}.{secrets.token_hex(8)}.partial")
        try:
            with open(temporary, "x", encoding="utf-8", errors=ODD, newline="\n") as file:
                yield file
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(path, None, None, f"cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def whole_bytes(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """The same for a file of bytes."""
    with whole_file(path) as file:
        yield file.buffer


def flush(file: IO[Any], path: str | os.PathLike[str]) -> None:
    """Write out what is buffered. Where several files belong together, none gets its name if one cannot be written."""
    try:
        file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(path, None, None, f"cannot be written: {error.strerror}") from error


def allow_many_files() -> None:
    """Open files up to the hard limit, where the system has such limits: every connection is one."""
    try:
        import resource
    except ImportError:  # Windows has none
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
