"""Requests that are known before the run."""

from collections.abc import Sequence
from typing import Any

from batchlab.clients.request import Request


class Listed:
    """Sends the given requests at their arrival times; those of the same time go in input order."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self._arrivals = field(requests, "arrival")
        self._order = sorted(range(len(requests)), key=self._arrivals.__getitem__)
        self._sent = 0

    @property
    def next_arrival(self) -> int | None:
        """Time of the next arrival, None if all have been sent."""
        return self._arrivals[self._order[self._sent]] if self._sent < len(self._order) else None

    def due(self, now: int) -> list[tuple[int, int, Request]]:
        """(time, position, request) of all that came by `now` and were not sent yet, by time, then input order."""
        found = []
        while self._sent < len(self._order):
            position = self._order[self._sent]
            time = self._arrivals[position]
            if time > now:
                break
            self._sent += 1
            found.append((time, position, self.requests[position]))
        return found

    def rejected(self, position: int, request: Request, now: int) -> int | None:
        """A rejected request does not come again."""
        return None

    def ended(self, position: int, now: int, completed: bool) -> None:
        """A request has its result, which changes nothing here: all arrivals are known before."""


def field(requests: Sequence[Request], name: str) -> list[int]:
    """One numeric field of all requests; quick where they lie in columns."""
    columns: Any = getattr(requests, "field", None)
    return [getattr(request, name) for request in requests] if columns is None else columns(name)
