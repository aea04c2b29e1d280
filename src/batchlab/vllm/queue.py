"""vLLM's waiting queue, in the order of a policy."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue


class KeyQueue(RequestQueue):
    """Ordered by a key that is fixed while a request waits, equals by coming, as our own core's queue.

    place: (1 or more, key, position) of a request, where the position tells equals apart. in_front: whether a preempted
    request comes back before all others; else to its place.
    """

    def __init__(self, place: Callable[[Any], tuple[int, Any, int]], in_front: bool) -> None:
        self._place = place
        self._in_front = in_front
        self._order: list[tuple[int, Any, int]] = []  # (0, -n, position) for those put in front
        self._requests: dict[int, Any] = {}
        self._fronts = count(1)

    def add_request(self, request: Any) -> None:
        """To the place of its key."""
        self._insert(request, self._place(request))

    def prepend_request(self, request: Any) -> None:
        """It comes back after a preemption."""
        if self._in_front:
            self._insert(request, (0, -next(self._fronts), self._place(request)[2]))
        else:
            self.add_request(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        """They were passed over in this step, the last one stands first here; they go back to where they stood."""
        for request in requests:
            if request.num_preemptions:
                self.prepend_request(request)
            else:
                self.add_request(request)

    def peek_request(self) -> Any:
        """The first."""
        return self._requests[self._order[0][2]]

    def pop_request(self) -> Any:
        """The first, taken out."""
        return self._requests.pop(self._order.pop(0)[2])

    def remove_request(self, request: Any) -> None:
        """Take it out."""
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Take out those of them that are here."""
        gone = {self._place(request)[2] for request in requests} & self._requests.keys()
        if gone:  # found by position: whatever keys are, taking out compares none
            self._order = [entry for entry in self._order if entry[2] not in gone]
            for position in gone:
                del self._requests[position]

    def __bool__(self) -> bool:
        return bool(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        return iter([self._requests[entry[2]] for entry in self._order])

    def _insert(self, request: Any, entry: tuple[int, Any, int]) -> None:
        insort(self._order, entry)
        self._requests[entry[2]] = request
