"""A closed loop: so many clients, each with one request at a time."""

from collections.abc import Sequence
from heapq import heappush

from batchlab.clients.due import Due
from batchlab.clients.request import Request


class Closed(Due):
    """Each client sends its next request `think_time` after its last one has ended, in whatever way.

    The requests go out in input order, whatever their own arrival says; latencies count from the sending. Such a load
    never offers more than `clients` requests at once: it slows down with the engine, which hides overload.
    """

    def __init__(self, requests: Sequence[Request], clients: int, think_time: int = 0) -> None:
        super().__init__(requests)
        self._think_time = think_time
        self._sent = min(clients, len(requests))
        self._due = [(0, position) for position in range(self._sent)]

    def ended(self, position: int, now: int, completed: bool) -> None:
        """A request has its result: its client sends the next one, if there is one left."""
        if self._sent < len(self._requests):
            heappush(self._due, (now + self._think_time, self._sent))
            self._sent += 1
