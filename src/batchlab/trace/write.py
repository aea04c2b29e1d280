"""Writing a trace: one line an event, as it happens; memory stays flat."""

import json
from typing import IO

from batchlab.events import End, Event
from batchlab.metrics.fold import Summary
from batchlab.trace.encode import encode, encode_end


class TraceWriter:
    """An observer that writes docs/trace-format.md. It stands behind the summary whose totals close the trace."""

    def __init__(self, file: IO[str], summary: Summary) -> None:
        self._file = file
        self._summary = summary

    def __call__(self, event: Event) -> None:
        """Write the event's line."""
        if isinstance(event, End):
            line = encode_end(event, self._summary.result_counts(), self._summary.totals())
        else:
            line = encode(event)
        self._file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
