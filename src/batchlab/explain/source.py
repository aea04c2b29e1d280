"""The events of a trace file, checked for their form and their order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from batchlab.errors import InputError
from batchlab.events import Event, Observer
from batchlab.trace.encode import decode
from batchlab.trace.fields import check_line
from batchlab.trace.read import BadLine, read_trace

DEFAULTS: dict[str, Any] = {"queue": {}, "deadlines": "keep", "retry": None, "steps_in_flight": 1}
"""Header fields that a recorder may leave out."""
VERIFY = "batchlab verify says what is wrong"


def read_events(path: str | os.PathLike[str]) -> Iterator[tuple[int, Event]]:
    """Each event of a trace with its line number. Raises InputError at the first line that is none.

    A file that breaks off, without its end line or within a line, gives the events up to there.
    """
    kind = None
    try:
        for number, obj in read_trace(path):
            for place, problem in check_line(obj):
                raise BadLine(path, number, None, f"{place}: {problem}")
            if (kind is None) != (obj["type"] == "header"):
                expected = "the header expected in the first line, and only there"
                raise BadLine(path, number, obj["type"], expected)
            if kind == "end":
                raise BadLine(path, number, obj["type"], "nothing expected after the end line")
            kind = obj["type"]
            yield number, decode(DEFAULTS | obj if kind == "header" else obj)
    except BadLine as error:
        if not error.truncated or kind is None:
            raise


def tell(path: str | os.PathLike[str], number: int, event: Event, observers: Sequence[Observer]) -> None:
    """Tell the event of line `number` to observers, in their order.

    Raises InputError with that line where it contradicts those before it, such as a token for one without a seat.
    """
    for observe in observers:
        try:
            observe(event)
        except InputError as error:
            if error.file is None:
                error.file, error.place = os.fspath(path), f"line {number}: {error.place}"
            raise
        except (LookupError, ValueError, OverflowError) as error:
            raise InputError(
                path, f"line {number}", None, f"this line contradicts those before it; {VERIFY}"
            ) from error
