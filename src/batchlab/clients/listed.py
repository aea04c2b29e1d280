"""Requests that are known before the run."""

from collections.abc import Iterator, Sequence

from batchlab.clients.request import Request


class Listed:
    """Sends the given requests at their arrival times; those of the same time go in input order."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self._order = sorted(range(len(requests)), key=lambda position: requests[position].arrival)
        self._sent = 0

    @property
    def next_arrival(self) -> int | None:
        """Time of the next arrival, None if all have been sent."""
        return self.requests[self._order[self._sent]].arrival if self._sent < len(self._order) else None

    def due(self, now: int) -> Iterator[tuple[int, Request]]:
        """The requests that have arrived by `now` and were not sent yet, with their positions in the input."""
        while self._sent < len(self._order):
            position = self._order[self._sent]
            request = self.requests[position]
            if request.arrival > now:
                return
            self._sent += 1
            yield position, request
