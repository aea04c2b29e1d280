"""Who stands at the front of the waiting queue."""

from __future__ import annotations

from heapq import heappop, heappush

from batchlab.events import Iteration
from batchlab.explain.lives import Life
from batchlab.trace.terms import Terms

Entry = tuple[tuple[int, ...], int, Life]
"""Its key, the ticket that it got with it, and who."""
SPARE = 1000
"""Stale entries that the heap may hold before it is made anew."""


class Front:
    """The head of the queue: as the line lists it, else as the header's order gives it, else unknown."""

    def __init__(self, terms: Terms) -> None:
        self._order = terms.order
        self._aging = terms.aging
        self._heap: list[Entry] = []
        self._most = SPARE
        self._tickets = 0

    def push(self, life: Life, place: str) -> None:
        """It joins the queue: at the `front`, or else where the order puts it."""
        self._tickets += 1
        life.ticket = self._tickets
        if self._order not in ("arrival", "priority"):
            return
        key: tuple[int, ...] = (1, self._tickets)
        if place == "front":
            key = (0, -self._tickets)
        elif self._order == "priority":
            request = life.request
            aged = request.priority * self._aging + request.arrival if self._aging is not None else request.priority
            key = (1, aged, request.arrival, life.index)
        heappush(self._heap, (key, self._tickets, life))
        if len(self._heap) > self._most:  # most of it may be stale
            self._heap = sorted(entry for entry in self._heap if _stands(entry))
            self._most = 2 * len(self._heap) + SPARE

    def head(self, line: Iteration, lives: dict[str, Life]) -> Life | None:
        """The first in the queue at the end of the line; None where nobody waits or the trace does not tell."""
        if isinstance(line.queue, list):
            return lives.get(line.queue[0]) if line.queue else None
        heap = self._heap
        while heap and not _stands(heap[0]):
            heappop(heap)
        return heap[0][2] if heap else None


def _stands(entry: Entry) -> bool:
    _, ticket, life = entry
    return life.state == "waiting" and life.ticket == ticket
