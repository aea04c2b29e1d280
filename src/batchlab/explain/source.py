"""The events of a trace file, checked for their form and their order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from batchlab.events import Event
from batchlab.trace.encode import decode
from batchlab.trace.fields import check_line
from batchlab.trace.read import BadLine, read_trace

DEFAULTS: dict[str, Any] = {"queue": {}, "deadlines": "keep", "retry": None, "steps_in_flight": 1}
"""Header fields that a recorder may leave out."""


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
