"""Who waits and who holds a seat, followed from line to line; and the time that passes for each."""

from __future__ import annotations

from collections import Counter, OrderedDict
from heapq import heappop, heappush

from batchlab.clients.request import Request
from batchlab.errors import InputError, shorten
from batchlab.events import Header, Iteration, Preemption
from batchlab.explain.clocks import Above, QueueClock
from batchlab.explain.front import Front
from batchlab.explain.lives import Life, Loss
from batchlab.explain.reasons import Reason
from batchlab.explain.source import VERIFY
from batchlab.trace.encode import encode
from batchlab.trace.terms import terms_of
from batchlab.units import duration

SPARE = 1000
"""Stale entries that a heap may hold before it is made anew."""


class State:
    """The requests of a run up to some line. Memory grows with them, not with the lines."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.terms = terms_of(encode(header))
        self.lives: dict[str, Life] = {}
        self.active: dict[str, Life] = {}
        self.fresh: OrderedDict[int, Life] = OrderedDict()
        """Those that wait and were not preempted, in order of coming."""
        self.parked: dict[str, Life] = {}
        self.front = Front(self.terms)
        self.reserved = 0
        """KV blocks that prompt and max_tokens of all with a seat would take."""
        self.time: int | None = None
        self.seated_later = Above()
        """First admissions, at their places in the order of coming."""
        self._comers = 0
        self._clock = QueueClock()
        self._parked_clock = QueueClock()
        self._latest: list[tuple[int, str]] = []
        for request in header.requests or ():
            self.add(request)

    def add(self, request: Request) -> None:
        """A request becomes known."""
        if request.id in self.lives:
            raise InputError(None, f"request {shorten(request.id)}", None, "given twice, each only once expected")
        self.lives[request.id] = Life(request)

    def find(self, id: str, *states: str) -> Life:
        """The request of this id, in one of these states. Raises InputError where the trace contradicts itself."""
        life = self.lives.get(id)
        if life is None or (states and life.state not in states):
            state = "unknown" if life is None else life.state
            expected = f"{' or '.join(states) or 'a known request'} expected; {VERIFY}"
            raise InputError(None, f"request {shorten(id)}", state, expected)
        return life

    @property
    def latest(self) -> Life | None:
        """The latest comer among those that hold a seat."""
        heap = self._latest
        while heap and (heap[0][1] not in self.active or self.active[heap[0][1]].index != -heap[0][0]):
            heappop(heap)
        return self.active[heap[0][1]] if heap else None

    def shown(self, time: float) -> str:
        """A time as people read it."""
        return duration(time, self.header.clock["unit"])

    # One line, in the order of events

    def begin(self, line: Iteration) -> None:
        """Time passes up to the line's start."""
        if line.end < line.start or (self.time is not None and line.start < self.time):
            raise InputError(None, "start, end", [line.start, line.end], f"times that rise expected, from {self.time}")
        gap = 0 if self.time is None else line.start - self.time
        if gap:
            self._clock.add(Reason.BETWEEN, gap)
            self._parked_clock.add(Reason.BETWEEN, gap)
            for life in self.active.values():
                life.times[Reason.BETWEEN] += gap

    def free_from(self, due: int) -> int:
        """When the iteration that was under way at `due` had ended: `due` itself if none was."""
        return due if self.time is None else max(due, self.time)

    def move(self, line: Iteration) -> None:
        """Who comes, sits, stands and goes at the line's start."""
        for id in line.arrived:
            self._come(self.find(id, "pending", "retrying"), line.start)
        if line.preempted:
            self._shuffle(line)
        else:
            for id in line.admitted:
                self._sit(self.find(id, "waiting"))
        for entry in line.rejected:
            life = self.find(entry.id, "waiting")
            self._leave_queue(life)
            life.reason = entry.reason
            if entry.retry_at is None:
                self._end(life, "rejected", line.start)
            else:
                life.state, life.out_since, life.again_at = "retrying", line.start, entry.retry_at
        self.drop(line, late=False)

    def drop(self, line: Iteration, late: bool) -> None:
        """Those end that end at the line's start, or `late`: while it is under way, which counts whole."""
        for drop in line.dropped:
            if drop.late(line.start) is late:
                life = self.find(drop.id, "waiting", "active")
                life.reason = drop.reason
                self.finish(life, drop.result, line.end if late else line.start)

    def wait(self, reason: Reason, time: int, latest: int) -> None:
        """Time passes for all that wait and were not preempted; those who came before `latest` are overtaken."""
        self._clock.add(reason, time, latest)

    def park(self, time: int) -> None:
        """Time passes for all that wait after a preemption."""
        self._parked_clock.add(Reason.PREEMPTED, time)

    def settle(self, life: Life) -> None:
        """Bring its times up to date."""
        if life.joined is not None:
            clock = self._parked_clock if life.parked else self._clock
            now = clock.read(life.index)
            for reason, (after, before) in enumerate(zip(now, life.joined, strict=True)):
                life.times[reason] += after - before
            life.joined = now

    def finish(self, life: Life, result: str, time: int) -> None:
        """It ends, wherever it is."""
        if life.state == "active":
            self._leave_seat(life)
        else:
            self._leave_queue(life)
        self._end(life, result, time)

    # Mechanism

    def _come(self, life: Life, start: int) -> None:
        due = life.request.comes
        if life.state == "retrying" and life.again_at is not None:
            due = life.again_at
            life.times[Reason.RETRY] += due - life.out_since
        else:
            life.times[Reason.HELD] += due - life.request.arrival
        if due > start:
            raise InputError(None, f"request {shorten(life.id)}", due, f"it is seen at {start} already")
        free = self.free_from(due)
        life.times[Reason.UNDER_WAY] += free - due
        life.times[Reason.BETWEEN] += start - free
        life.attempts += 1
        life.index, self._comers = self._comers, self._comers + 1
        life.computed = life.emitted = life.high = life.in_flight = 0
        life.target = life.request.prompt
        life.again_at = None
        self._join_queue(life, "back", parked=False)

    def _shuffle(self, line: Iteration) -> None:
        """Preemptions and admissions of one line. Where one request has several, they can only alternate."""
        outs: dict[str, list[Preemption]] = {}
        for entry in line.preempted:
            outs.setdefault(entry.id, []).append(entry)
        ins = Counter(line.admitted)
        for id in dict.fromkeys([*outs, *ins]):
            life, left = self.find(id, "waiting", "active"), outs.get(id, [])
            while True:
                if life.state == "active" and left:
                    self._stand(life, left.pop(0), line.iteration)
                elif life.state == "waiting" and ins[id]:
                    ins[id] -= 1
                    self._sit(life)
                else:
                    break
            if left or ins[id]:
                expected = f"taking a seat and losing it in turn expected; {VERIFY}"
                raise InputError(None, f"request {shorten(id)}", life.state, expected)

    def _sit(self, life: Life) -> None:
        first = life.first_start is None and not life.parked
        self._leave_queue(life)
        if first:
            life.overtaken_by = self.seated_later.above(life.index)
            self.seated_later.add(life.index, 1)
        if life.computed == 0:
            life.target = life.request.prompt + life.emitted
        life.state = "active"
        self.active[life.id] = life
        self.reserved += self._most(life)
        heappush(self._latest, (-life.index, life.id))
        if len(self._latest) > SPARE + 4 * len(self.active):  # most of it is stale
            self._latest = sorted((-other.index, other.id) for other in self.active.values())

    def _stand(self, life: Life, entry: Preemption, iteration: int) -> None:
        self._leave_seat(life)
        life.preemptions += 1
        lost = entry.computed if entry.mode == "recompute" else 0
        life.lost += lost
        life.loss = Loss(iteration, entry.mode, lost, (), False)
        if entry.mode == "recompute":
            life.high = max(life.high, entry.computed)
            life.computed = 0
        self._join_queue(life, entry.place, parked=True)

    def _join_queue(self, life: Life, place: str, parked: bool) -> None:
        life.state, life.parked = "waiting", parked
        if parked:
            self.parked[life.id] = life
            life.joined = self._parked_clock.read(life.index)
        else:
            self.fresh[life.index] = life
            life.joined = self._clock.read(life.index)
        self.front.push(life, place)

    def _leave_queue(self, life: Life) -> None:
        self.settle(life)
        life.joined = None
        if life.parked:
            del self.parked[life.id]
        else:
            del self.fresh[life.index]
        life.parked = False

    def _leave_seat(self, life: Life) -> None:
        del self.active[life.id]
        self.reserved -= self._most(life)

    def _end(self, life: Life, result: str, time: int) -> None:
        life.state, life.end = result, time

    def _most(self, life: Life) -> int:
        return self.terms.blocks_for(life.request.prompt + life.request.max_tokens)
