"""Troubles of order: who stands in whose way."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from batchlab.errors import shorten_id
from batchlab.events import End
from batchlab.explain.finding import MOST_NAMED, Finding, Stretch, Stretches, Trouble, entries
from batchlab.explain.lives import Life
from batchlab.explain.reasons import DISPLACED, Reason
from batchlab.explain.state import State
from batchlab.explain.verdict import Moment, Verdict, need
from batchlab.units import counted, were

OWNED_SHARE = 0.5
"""Of an iteration's tokens: who has at least so much owns it. More than all others together."""
HELD_ITERATIONS = 3
"""Every prompt takes an iteration, and the one before may have ended in it; from three on it is a queue behind one."""
INVERTED_ITERATIONS = 10
"""Without preemption a more urgent request waits until some seat is free; a few iterations of that are no trouble."""
STARVED_BY = 10
"""Overtaken by so many, a request was not just beaten by one burst of more urgent ones, one batch in size."""


class BudgetBlocking(Trouble):
    """A prefill that owns the budget, while one waits for it that needs no more than the owner gets."""

    name = "head-of-line blocking (budget)"

    def __init__(self) -> None:
        self._owners = Stretches()
        self._held: dict[int, str] = {}

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """Whether there is an owner, and somebody small enough behind it."""
        tokens, _ = moment.owner
        if moment.line.unused != 0 or tokens < OWNED_SHARE * (moment.prefill + moment.decode):
            return
        held = [life for life in moment.idle if 0 < life.left <= tokens]
        if not held and found is not None and found.reason is Reason.BUDGET:
            head = found.head or next(iter(state.fresh.values()))
            held = [head] if head.waits and head.left <= tokens else []
        if held:
            self._held[moment.line.iteration] = held[0].id

    def ran(self, moment: Moment) -> None:
        """How long that took."""
        held = self._held.pop(moment.line.iteration, None)
        if held is not None:
            self._owners.add(moment.owner[1], moment, moment.took, held)

    def finding(self, state: State, end: End) -> Finding | None:
        """The owners."""
        long = self._owners.longest(HELD_ITERATIONS)
        if not long:
            return None
        owner, worst = long[0]
        text = (
            f"the prefill of {shorten_id(owner)} took most of {worst.count:,} iterations' budget ({worst.place}, "
            f"{state.shown(worst.time)}), while {shorten_id(worst.who)} waited with less to prefill{_of(long)}"
        )
        evidence = {"owners": len(long), "worst": entries(long, "owner", "held")}
        return Finding(self.name, text, evidence)


class AdmissionBlocking(Trouble):
    """The head of the queue does not fit, somebody behind it would, and nobody behind it is tried."""

    name = "head-of-line blocking (admission)"

    def __init__(self) -> None:
        self._heads = Stretches()
        self._blocks: list[tuple[int, int]] = []
        self._tokens: list[tuple[int, int]] = []

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """Whether the smallest of those behind the head would fit."""
        line = moment.line
        for id in line.arrived:
            life = state.lives[id]
            if line.kv is not None:
                heappush(self._blocks, (need(life, state), life.index))
            heappush(self._tokens, (life.request.prompt, life.index))
        if found is None or found.behind is None or found.head is None:
            return
        by_blocks = found.behind is Reason.BEHIND_BLOCKS
        smallest = _first(self._blocks if by_blocks else self._tokens, state)
        left = found.facts.get("free" if by_blocks else "unused", 0)
        if smallest is not None and smallest[1] is not found.head and smallest[0] <= left:
            self._heads.add(found.head.id, moment, moment.time, smallest[1].id)

    def finding(self, state: State, end: End) -> Finding | None:
        """The heads."""
        long = self._heads.longest(HELD_ITERATIONS)
        if not long:
            return None
        head, worst = long[0]
        text = (
            f"{shorten_id(head)} at the head of the queue did not fit for {counted(worst.count, 'iteration')} ("
            f"{worst.place}, {state.shown(worst.time)}); {shorten_id(worst.who)} behind it would have "
            f"fitted, but nobody behind the head is tried{_of(long)}"
        )
        evidence = {"heads": len(long), "worst": entries(long, "head", "would_fit")}
        return Finding(self.name, text, evidence)


def _of(long: Sequence[tuple[str, Stretch]]) -> str:
    """Of how many it is the worst that is told."""
    return "" if len(long) == 1 else f" (the worst of {len(long):,})"


def _first(heap: list[tuple[int, int]], state: State) -> tuple[int, Life] | None:
    while heap and heap[0][1] not in state.fresh:
        heappop(heap)
    return (heap[0][0], state.fresh[heap[0][1]]) if heap else None


class PriorityInversion(Trouble):
    """A more urgent request waits for a place while a less urgent one has a seat."""

    name = "priority inversion"

    def __init__(self) -> None:
        self._urgent = Stretches()
        self._waiting: list[tuple[int, int]] = []
        self._seated: list[tuple[int, int, str]] = []

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """The most urgent that waits against the least urgent with a seat."""
        line, lives = moment.line, state.lives
        for id in line.arrived:
            heappush(self._waiting, (lives[id].request.priority, lives[id].index))
        for id in line.admitted:
            heappush(self._seated, (-lives[id].request.priority, lives[id].index, id))
        if found is None or found.reason not in DISPLACED or found.reason is Reason.UNKNOWN:
            return
        urgent = _first(self._waiting, state)
        seated = self._seated
        while seated and (seated[0][2] not in state.active or lives[seated[0][2]].index != seated[0][1]):
            heappop(seated)
        if urgent is not None and seated and urgent[0] < -seated[0][0]:
            self._urgent.add(urgent[1].id, moment, moment.time, seated[0][2])

    def finding(self, state: State, end: End) -> Finding | None:
        """Who waited longest."""
        long = self._urgent.longest(INVERTED_ITERATIONS)
        if not long:
            return None
        id, worst = long[0]
        urgent, other = (state.lives[name].request.priority for name in (id, worst.who))
        text = (
            f"{shorten_id(id)} (priority {urgent}) waited {counted(worst.count, 'iteration')} ({worst.place}, "
            f"{state.shown(worst.time)}) while {shorten_id(worst.who)} (priority {other}, less urgent) held a seat: "
            f"nobody was preempted for it{_of(long)}"
        )
        evidence = {"requests": len(long), "worst": entries(long, "urgent", "seated")}
        return Finding(self.name, text, evidence)


class Starvation(Trouble):
    """A request that many who came later went before."""

    name = "starvation"

    def finding(self, state: State, end: End) -> Finding | None:
        """Counted when a request gets its first seat; for those that have none, now."""
        starved = []
        for life in state.lives.values():
            by = life.overtaken_by if life.first_start is not None or not life.waits else _passed(life, state)
            if by >= STARVED_BY:
                until = life.first_start if life.first_start is not None else life.end or end.time
                starved.append((by, until - life.request.arrival, life))
        if not starved:
            return None
        starved.sort(key=lambda entry: (-entry[0], entry[2].index))
        by, wait, life = starved[0]
        named = [
            {"request": one.id, "priority": one.request.priority, "overtaken_by": count, "wait": time}
            for count, time, one in starved[:MOST_NAMED]
        ]
        text = (
            f"{counted(len(starved), 'request')} {were(len(starved))} "
            f"overtaken by {STARVED_BY} or more that came later; {shorten_id(life.id)} "
            f"(priority {life.request.priority}) by {by:,}, in {state.shown(wait)} without tokens"
        )
        return Finding(self.name, text, {"requests": len(starved), "worst": named})


def _passed(life: Life, state: State) -> int:
    return state.seated_later.above(life.index)
