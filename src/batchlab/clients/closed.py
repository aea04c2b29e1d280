"""A closed loop: so many clients, each with one request at a time."""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

from batchlab.clients.request import Request


class Closed:
    """Each client sends its next request `think_time` after its last one has ended, in whatever way.

    The requests go out in input order, whatever their own arrival says; latencies count from the sending. Such a load
    never offers more than `clients` requests at once: it slows down with the engine, which hides overload.
    """

    def __init__(self, requests: Sequence[Request], clients: int, think_time: int = 0) -> None:
        self._requests = requests
        self._think_time = think_time
        self._sent = min(clients, len(requests))
        self._due = [(0, position) for position in range(self._sent)]

    @property
    def next_arrival(self) -> int | None:
        """Time of the next sending that is fixed, None if there is none."""
        return self._due[0][0] if self._due else None

    def due(self, now: int) -> list[tuple[int, int, Request]]:
        """(time, position, request) of all that were sent by `now`, by time, then input order."""
        found = []
        while self._due and self._due[0][0] <= now:
            time, position = heappop(self._due)
            found.append((time, position, replace(self._requests[position], arrival=time)))
        return found

    def rejected(self, position: int, request: Request, now: int) -> int | None:
        """A rejected request does not come again."""
        return None

    def ended(self, position: int, now: int, completed: bool) -> None:
        """A request has its result: its client sends the next one, if there is one left."""
        if self._sent < len(self._requests):
            heappush(self._due, (now + self._think_time, self._sent))
            self._sent += 1
