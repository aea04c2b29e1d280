"""What a verifier knows: of one request, and of the queue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Known:
    """One request and all that follows about it from the lines so far."""

    index: int
    id: str
    arrival: int
    prompt: int
    output: int
    priority: int
    prefill_target: int
    """Tokens that its prefill has to compute: the prompt, after a recompute also what it had emitted."""
    state: str = "pending"
    computed: int = 0
    emitted: int = 0
    scheduled: int = 0
    recomputed: int = 0
    preemptions: int = 0
    reason: str | None = None
    first_start: int | None = None
    first_output: int | None = None
    first_time: int | None = None
    last_time: int | None = None
    max_gap: int = 0
    completed: int | None = None
    output_times: list[int] | None = None

    @property
    def prefill_left(self) -> int:
        """Tokens that prefill entries may still get."""
        return max(self.prefill_target - self.computed, 0)

    @property
    def key(self) -> tuple[int, int, int]:
        """Its place in a queue by urgency."""
        return self.priority, self.arrival, self.index

    def lose_progress(self) -> None:
        """A preemption that recomputes: start again, with the emitted tokens as part of the prompt."""
        self.recomputed += self.computed
        self.computed = 0
        self.prefill_target = self.prompt + self.emitted

    def emit(self, iteration: int, time: int) -> None:
        """One output token appears."""
        self.emitted += 1
        if self.last_time is None:
            self.first_output, self.first_time = iteration, time
        else:
            self.max_gap = max(self.max_gap, time - self.last_time)
        self.last_time = time
        if self.output_times is not None:
            self.output_times.append(time)
        if self.emitted == self.output:
            self.state, self.completed = "completed", iteration


def known_from(obj: dict[str, Any], index: int, keep_times: bool) -> Known:
    """A request as its line introduces it."""
    return Known(
        index=index,
        id=obj["id"],
        arrival=obj["arrival"],
        prompt=obj["prompt"],
        output=obj["output"],
        priority=obj["priority"],
        prefill_target=obj["prompt"],
        output_times=[] if keep_times else None,
    )


class Waiting:
    """The waiting ids, front first, as far as their order is certain.

    A line does not say how one iteration's arrivals, preemptions and admissions interleave. Certain is: who
    stayed keeps the relative order; who was preempted to the front stands before them, the last one first;
    who was preempted to the back and who arrived stand behind them, each kind in its order, the two kinds
    mixed in any way. A queue may also be ordered by (priority, arrival, input): as long as nobody was moved
    to front or back, that order is right too. After the first preemption to a place by key, only the set is
    certain.
    """

    def __init__(self) -> None:
        self.ids: OrderedDict[str, None] = OrderedDict()
        self._order_known = True
        self._any_key = True
        """Whether ordering by key is still possible: nobody was moved to the front or the back."""
        self._by_key = False
        self._stayed = 0
        self._front: list[str] = []
        self._back: list[str] = []
        self._new: list[str] = []

    def __len__(self) -> int:
        return len(self.ids)

    def change(self, left: Iterable[str], front: list[str], back: list[str], key: list[str], new: list[str]) -> None:
        """Take out who left or moved, put in who came. `front` has the last preempted one first."""
        for name in left:
            self.ids.pop(name, None)
        self._stayed = len(self.ids)
        for name in reversed(front):
            self.ids[name] = None
            self.ids.move_to_end(name, last=False)
        for name in (*back, *key, *new):
            self.ids[name] = None
        self._front, self._back, self._new = front, back, new
        self._any_key = self._any_key and not front and not back
        self._by_key = self._by_key or bool(key)

    def check(self, given: list[str] | int, requests: dict[str, Known]) -> str | None:
        """What is wrong with the recorded queue, or None. A list of the right ids is believed henceforth."""
        if isinstance(given, int):
            if self._back and self._new:
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
        if self._by_key or not self._order_known:
            return None
        certain = len(self._front) + self._stayed
        back, new = set(self._back), set(self._new)
        if (
            given[:certain] == derived[:certain]
            and [name for name in given[certain:] if name in back] == self._back
            and [name for name in given[certain:] if name in new] == self._new
        ):
            return None
        if self._any_key:
            keys = [requests[name].key for name in given]
            if keys == sorted(keys):
                return None
        return f"order {_few(given)}, but {_few(derived)} follows"


def _few(ids: list[str]) -> str:
    shown = ", ".join(repr(name) for name in ids[:6])
    return f"[{shown}{', ...' if len(ids) > 6 else ''}]"
