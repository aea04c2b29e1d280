"""What a verifier knows of the waiting queue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from batchlab.trace.state import Known


class Waiting:
    """The waiting ids, front first, as far as their order is certain.

    A line does not say how one iteration's arrivals, preemptions and admissions interleave. Certain is in a queue
    ordered by arrival: who stayed keeps the relative order; who was preempted to the front stands before them, the
    last one first; who was preempted to anywhere else and who arrived stand behind them, each kind in its order, the
    two kinds mixed in any way. By priority: those put in front in this way, then all others by their key. In a policy's
    own order: who stayed keeps the relative order, and new ones in front stand before all.

    If the header does not name the order, either of the first two is right, the second as long as nobody was moved
    to front or back; and after the first preemption to a place by key, only the set is certain.
    """

    def __init__(self, order: str | None = None, aging: int | None = None, listed: bool = True) -> None:
        """listed: whether the header lists all requests, so that their input order is known; else ties are open."""
        self.ids: OrderedDict[str, None] = OrderedDict()
        self._order = order
        self._aging = aging
        self._listed = listed
        self._order_known = True
        self._any_key = order is None
        """Whether an order that is not named may still be one by key: nobody was moved to the front or the back."""
        self._by_key = False
        self._in_front: OrderedDict[str, None] = OrderedDict()
        """All that stand in front of a queue by priority."""
        self._front: list[str] = []
        self._back: list[str] = []
        self._new: list[str] = []

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def stayed(self) -> int:
        """How many have been there since before the last change."""
        return len(self.ids) - len(self._front) - len(self._back) - len(self._new)

    def change(self, left: Iterable[str], moved: list[tuple[str, str]], new: list[str]) -> None:
        """Take out who left or moved, put in who came. `moved`: (id, place) of those preempted, in order."""
        for name in left:
            self.ids.pop(name, None)
            self._in_front.pop(name, None)
        front = [name for name, place in reversed(moved) if place == "front"]
        back = [name for name, place in moved if place != "front"]
        for name in reversed(front):
            for ids in (self.ids, self._in_front):
                ids[name] = None
                ids.move_to_end(name, last=False)
        for name in (*back, *new):
            self.ids[name] = None
        self._front, self._back, self._new = front, back, list(new)
        if self._order is None:
            self._any_key = self._any_key and all(place == "key" for _, place in moved)
            self._by_key = self._by_key or any(place == "key" for _, place in moved)

    def remove(self, name: str) -> None:
        """Take out one that ends while it waits, after the change."""
        if name in self.ids:
            del self.ids[name]
            self._in_front.pop(name, None)
            for group in (self._front, self._back, self._new):
                if name in group:
                    group.remove(name)

    def check(self, given: list[str] | int, requests: dict[str, Known]) -> str | None:
        """What is wrong with the recorded queue, or None. A list of the right ids is believed henceforth."""
        if isinstance(given, int):
            if self._order == "policy":
                self._order_known = self._order_known and not (self._back or self._new)
            elif self._back and self._new:
                self._order_known = False
            return None if given == len(self.ids) else f"{given} waiting, but {len(self.ids)} follow"
        if len(given) != len(self.ids) or any(name not in self.ids for name in given):
            extra = [name for name in given if name not in self.ids]
            named = set(given)
            lacking = [name for name in self.ids if name not in named]
            return f"wrong ids: {_few(extra)} not waiting, {_few(lacking)} missing"
        problem = self._order_problem(given, list(self.ids), requests)
        self.ids = OrderedDict.fromkeys(given)
        self._order_known = True
        return problem

    def _order_problem(self, given: list[str], derived: list[str], requests: dict[str, Known]) -> str | None:
        if self._order == "priority":
            others = [name for name in given if name not in self._in_front]
            right = [*self._in_front, *sorted(others, key=lambda name: self._key(requests[name]))]
        elif self._order == "policy":
            came = {*self._back, *self._new}
            right = [name for name in derived if name not in came] if self._order_known else self._front
            given_old = [name for name in given if name not in came] if self._order_known else given[: len(right)]
            if given_old == right and given[: len(self._front)] == self._front:
                return None
        elif self._by_key or not self._order_known or self._by_arrival(given, derived):
            return None
        else:
            right = derived
            if self._any_key:
                keys = [self._key(requests[name]) for name in given]
                if keys == sorted(keys):
                    return None
        return None if given == right else f"order {_few(given)}, but {_few(right)} follows"

    def _by_arrival(self, given: list[str], derived: list[str]) -> bool:
        certain = len(self._front) + self.stayed
        back, new = set(self._back), set(self._new)
        return (
            given[:certain] == derived[:certain]
            and [name for name in given[certain:] if name in back] == self._back
            and [name for name in given[certain:] if name in new] == self._new
        )

    def _key(self, request: Known) -> tuple[int, int, int]:
        urgency = request.priority
        if self._aging is not None:
            urgency = request.priority * self._aging + request.came
        return urgency, request.came, request.index if self._listed else 0


def _few(ids: list[str]) -> str:
    shown = ", ".join(repr(name) for name in ids[:6])
    return f"[{shown}{', ...' if len(ids) > 6 else ''}]"
