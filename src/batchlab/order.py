"""The order of the waiting queue, for every policy that has no order of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchlab.core.sequence import Sequence


@dataclass(frozen=True)
class QueueOrder:
    """order: `arrival`, or `priority` with arrival among equals.

    aging: with `priority`, so much waiting makes a request one level more urgent. Waiting ages all alike, so the order
    is fixed: by priority * aging + arrival. Nobody who arrives more than (difference in priority) * aging after a
    request is served before it, which bounds starvation; without aging there is no bound.
    """

    order: str = "arrival"
    aging: int | None = None

    def key(self) -> Callable[[Sequence], Any] | None:
        """What the queue sorts by, None for first come, first served."""
        if self.order == "arrival":
            return None
        aging = self.aging
        if aging is None:
            return lambda seq: (seq.priority, seq.arrival)
        return lambda seq: (seq.priority * aging + seq.arrival, seq.arrival)
