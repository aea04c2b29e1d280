"""Telling the events of a trace file to observers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from batchlab.events import End, Event, Header, Iteration, Observer
from batchlab.explain.source import read_events, tell


def follow(trace: str | os.PathLike[str], observers: Sequence[Observer]) -> End:
    """Tell every event of a trace to the observers, in their order. Returns the last one.

    A trace that breaks off gets an end of its own, with termination `cut`; one of a recorder in a running engine, which
    writes none, `recorded`. Raises InputError for what is no trace, or one that contradicts itself.
    """
    iterations = time = number = 0
    recorded = False
    event: Event | None = None
    for number, event in read_events(trace):
        if isinstance(event, Iteration):
            iterations, time = event.iteration + 1, event.end
        elif isinstance(event, Header):
            recorded = event.recorded is not None
        tell(trace, number, event, observers)
    if isinstance(event, End):
        return event
    end = End("recorded" if recorded else "cut", iterations, time)
    tell(trace, number, end, observers)
    return end
