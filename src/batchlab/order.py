"""The order of the waiting queue, for every policy that has no order of its own."""

from collections.abc import Callable, Iterable
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


def ordered(key: Callable[[Sequence], Any]) -> Callable[[Sequence], Any]:
    """The same key, but TypeError for a value that has no place in any order."""

    def checked(seq: Sequence) -> Any:
        value = key(seq)
        _refuse_unequal(value)
        return value

    return checked


def _refuse_unequal(key: Any) -> None:
    if any(part != part for part in (key if isinstance(key, tuple) else (key,))):
        raise TypeError(f"{key!r} is not equal to itself, so it has no place in a queue")


def check_key(key: Any, others: Iterable[Any]) -> None:
    """Whether a key of a policy's own has a place among those of others: in a real engine nobody else may pay for it.

    Raises what the comparison raises, and TypeError for a key that is not equal to itself, such as NaN.
    """
    _refuse_unequal(key)
    for other in (key, *others):
        bool(key < other)
        bool(other < key)
