"""Errors that a user can mend: something is wrong with a file, an option, a setting or a request."""

from __future__ import annotations

import difflib
import os
import re
import zlib
from collections.abc import Iterable

MAX_VALUE_CHARS = 80
ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
"""Where an object lies, in its repr: another place in every process."""


class BatchlabError(Exception):
    """Base of every error that is told to the user in one line, without a traceback."""


class StalledError(BatchlabError):
    """The run cannot go on: nothing is scheduled and nothing will happen that could change that."""


class InputError(BatchlabError):
    """A wrong input, told in one line: which file, where in it, what stands there, what was expected."""

    def __init__(
        self,
        file: str | os.PathLike[str] | None = None,
        place: str | None = None,
        value: object = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(file, place, value, expected)
        self.file = None if file is None else os.fspath(file)
        self.place = place
        self.value = value
        self.expected = expected

    def __str__(self) -> str:
        value = None if self.value is None else shorten(self.value)
        parts = (self.file, self.place, value, self.expected)
        return ": ".join(one_line(part) for part in parts if part is not None)


class SettingError(InputError):
    """A setting that a policy or a cost model refuses; whoever read the file adds its name.

    beside: the other setting with which it does not go together; None where the value is wrong by itself.
    """

    def __init__(
        self, name: str, value: object, expected: str, section: str = "engine", beside: str | None = None
    ) -> None:
        super().__init__(None, f"{section}.{name}", value, expected)
        self.beside = beside


class RequestError(InputError):
    """A request that a policy refuses to run with: which, and what about it."""

    def __init__(self, id: str, field: str, value: object, expected: str) -> None:
        super().__init__(None, f"request {shorten(id)}: {field}", value, expected)


def one_line(text: str) -> str:
    """The text with line breaks and everything else that does not print as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shorten(value: object) -> str:
    """The value's repr on one line, cut to 80 characters, without addresses; for one that has none, its type."""
    try:
        text = one_line(repr(value))
    except Exception:
        text = f"<{type(value).__name__} object>"
    text = text if isinstance(value, str) else ADDRESS.sub("", text)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


def raised(error: BaseException) -> str:
    """An exception of somebody else's code as one text: its type, and what it says, without addresses."""
    try:
        said = ADDRESS.sub("", str(error))
    except Exception:
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def fingerprint(text: str) -> str:
    """Four hexadecimal digits, by which texts that are too long to be shown can be told apart."""
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')) & 0xFFFF:04x}"


def shorten_id(id: str) -> str:
    """Like `shorten`; one that is cut has its fingerprint behind it, as tables show it."""
    text = shorten(id)
    return f"{text}~{fingerprint(id)}" if len(repr(id)) > MAX_VALUE_CHARS else text


def nearest(name: str, choices: Iterable[str]) -> str:
    """` (did you mean 'x'?)` with the choice most like the name, or nothing if none is like it."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
