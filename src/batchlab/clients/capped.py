"""A client that never has more than so many requests under way."""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappush

from batchlab.clients.due import Due
from batchlab.clients.listed import field
from batchlab.clients.request import Request


class Capped(Due):
    """Sends requests at their arrival times, but at most `most` before some of them have ended: the rest it holds back.

    Those go out in order of arrival as places become free. What was held back keeps its arrival, from which latencies
    count, and says until when it was held.
    """

    def __init__(self, requests: Sequence[Request], most: int) -> None:
        super().__init__(requests)
        self._arrivals = field(requests, "arrival")
        self._order = sorted(range(len(requests)), key=self._arrivals.__getitem__)
        self._placed = min(most, len(requests))
        self._due = [(self._arrivals[position], position) for position in self._order[: self._placed]]

    def ended(self, position: int, now: int, completed: bool) -> None:
        """A request has its result: its place is for the next one, at its arrival or, if that has passed, now."""
        if self._placed < len(self._order):
            following = self._order[self._placed]
            self._placed += 1
            heappush(self._due, (max(now, self._arrivals[following]), following))

    def _as_sent(self, position: int, time: int) -> Request:
        request = self._requests[position]
        return request if time == request.arrival else replace(request, held_until=time)
