"""Events in an order that a trace allows, although nobody knows at its arrival when a client will hang up."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from batchlab.clients.request import Request
from batchlab.events import End, Event, Iteration, Observer


class Held:
    """Tells observers every event in order, but holds back what follows a request until that request has ended.

    A trace states a request, with the time at which its client gives up, before the first iteration that names it.
    Memory is bounded by what happens during the longest life of a request.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._events: deque[Event] = deque()
        self._open: set[str] = set()
        self._gave_up: dict[str, int] = {}

    def gave_up(self, id: str, time: int) -> None:
        """The client of a request hung up at this time."""
        self._gave_up[id] = time

    def __call__(self, event: Event) -> None:
        """Take in the next event, and pass on all that can be told by now."""
        self._events.append(event)
        if isinstance(event, Request):
            self._open.add(event.id)
        elif isinstance(event, Iteration):
            cancelled = {drop.id for drop in event.dropped if drop.result == "cancelled"}
            ended = [*event.completed, *(r.id for r in event.rejected), *(drop.id for drop in event.dropped)]
            for id in ended:
                self._open.discard(id)
                if id not in cancelled:  # it hung up too late for anybody to notice
                    self._gave_up.pop(id, None)
        elif isinstance(event, End):
            self._open.clear()
        self._pass_on()

    def _pass_on(self) -> None:
        while self._events:
            event = self._events[0]
            if isinstance(event, Request):
                if event.id in self._open:
                    return
                event = replace(event, cancel_at=self._gave_up.pop(event.id, None))
            self._events.popleft()
            for observe in self._observers:
                observe(event)
