"""Sendings that are fixed by now, of clients that wait for results before they send more."""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop

from batchlab.clients.request import Request


class Due:
    """A heap of (time, position); who derives from it adds to that as results come, in `ended`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._due: list[tuple[int, int]] = []

    @property
    def next_arrival(self) -> int | None:
        """Time of the next sending that is fixed, None if there is none."""
        return self._due[0][0] if self._due else None

    def due(self, now: int) -> list[tuple[int, int, Request]]:
        """(time, position, request) of all that were sent by `now`, by time, then input order."""
        found = []
        while self._due and self._due[0][0] <= now:
            time, position = heappop(self._due)
            found.append((time, position, self._as_sent(position, time)))
        return found

    def _as_sent(self, position: int, time: int) -> Request:
        return replace(self._requests[position], arrival=time)

    def rejected(self, position: int, request: Request, now: int) -> int | None:
        """A rejected request does not come again."""
        return None
