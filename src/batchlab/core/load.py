"""Requests that are known before the run, in columns: a sequence is made when somebody looks at it."""

from collections.abc import Callable
from typing import Any

from batchlab.core.sequence import Sequence

NEVER = 0x7FFF_FFFF_FFFF_FFFF  # later than any run gets; where this is compiled, a C constant


class Load:
    """Requests by their place in the order of arrival.

    All columns are buffers of 64-bit integers by position in the input. order: positions by arrival, None if the input
    is in order. priority: None for 1 everywhere. names: the id of a position.
    """

    def __init__(
        self,
        arrival: Any,
        prompt: Any,
        max_tokens: Any,
        priority: Any,
        order: Any,
        names: Callable[[int], str],
    ) -> None:
        self.arrival = arrival
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.priority = priority
        self.order = order
        self.names = names
        self.ordered = order is not None
        self.prioritised = priority is not None
        self.count = len(arrival)
        self.sent = 0  # so many have arrived
        self.due = NEVER  # when the next one comes
        self._look()

    def position(self, place: int) -> int:
        """The position in the input of who comes at this place."""
        position: int = self.order[place] if self.ordered else place
        return position

    def _look(self) -> None:
        """When does the next one come?"""
        self.due = self.arrival[self.position(self.sent)] if self.sent < self.count else NEVER

    def skip(self) -> int:
        """Let the next one come, by itself. Its position."""
        position = self.position(self.sent)
        self.sent += 1
        self._look()
        return position

    def send(self, now: int, longest_prompt: int, most_tokens: int) -> int:
        """Let all come that are due at `now`, up to the first whose lengths exceed these bounds; how many have come."""
        while self.due <= now:
            position = self.position(self.sent)
            if self.prompt[position] > longest_prompt or self.max_tokens[position] > most_tokens:
                break
            self.sent += 1
            self._look()
        return self.sent

    def make(self, place: int) -> Sequence:
        """The sequence that came at this place and waits."""
        position = self.position(place)
        arrival = self.arrival[position]
        seq = Sequence.__new__(Sequence)
        seq.position = position
        seq._id = None
        seq._names = self.names
        seq.arrival = seq.sent = arrival
        seq.prompt_tokens = seq._known = seq.prefill_target = self.prompt[position]
        seq.max_tokens = self.max_tokens[position]
        seq.priority = self.priority[position] if self.prioritised else 1
        seq.waiting = True
        seq.running = seq.ended = False
        seq._pace = seq._next = seq.tokens = seq.deadline = None
        seq._computed = seq._scheduled = seq._held = seq._joined = seq._seat = 0
        seq.preemptions = seq.placeholders = seq.swapped = seq.registered = 0
        seq.blocks = seq.chain = NOTHING
        return seq


NOTHING: list[int] = []
"""The blocks of those that have none with identity; never changed."""
