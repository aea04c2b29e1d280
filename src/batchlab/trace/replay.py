"""Go through a trace's iterations and derive from the decisions in them everything else that they state."""

from __future__ import annotations

from typing import Any

from batchlab.errors import shorten
from batchlab.trace.batch import Batches
from batchlab.trace.clients import Clients
from batchlab.trace.flight import Flight
from batchlab.trace.kv import Pool
from batchlab.trace.ledger import Ledger
from batchlab.trace.rules import Findings
from batchlab.trace.seats import Seats
from batchlab.trace.timing import duration, first_due, late_start

NO_WORK = "no work"
DRAIN = "drain"
_HAPPENINGS = ("arrived", "rejected", "preempted", "admitted", "dropped")


class Replay(Ledger):
    """The derived state of a run. `iteration` takes one line through its phases, in the order of events."""

    def __init__(self, header: dict[str, Any], findings: Findings, keep_times: bool) -> None:
        super().__init__(header, findings, keep_times)
        pool = Pool(self)
        self._pool = pool
        self.clients = Clients(self)
        self._seats = Seats(self, pool)
        self._batches = Batches(self, pool)
        self.flight = Flight(self, pool)

    def iteration(self, obj: dict[str, Any]) -> None:
        """Check one iteration line and move on to the state at its end."""
        self.findings.iteration = obj["iteration"]
        if obj["iteration"] != self.count:
            self.bad("numbering", f"iteration {obj['iteration']}, but {self.count} expected")
        if self.count == self.terms.max_iterations:
            self.bad("limit", f"iteration number {self.count + 1} of the run, but max_iterations is {self.count}")
        self._pool.begin(obj)
        was_idle, due = not self.active and not len(self.waiting), first_due(obj, self)
        self._moves(obj)
        self._idle(obj)
        sampled = self._batches.take(obj)
        self._pool.check_plan(obj)
        self.flight.launch(obj, sampled)
        self._late_drops(obj)
        self._clock(obj, self.flight.land(obj), late_start(obj["start"], self, self.time, was_idle, due))
        self._pool.check_end(obj)
        self._queue(obj)
        self._active(obj)
        self.time = obj["end"]
        if obj["idle"] != DRAIN:
            self.last_start = obj["start"]
        self.count += 1
        self.findings.iteration = None

    def _moves(self, obj: dict[str, Any]) -> None:
        """Arrivals, seats, refusals and other ends, and what follows for the queue."""
        before = len(self.waiting)
        self.batch = (self.batch if self.active else 0) + len(obj["admitted"]) - len(obj["preempted"])
        new = self.clients.arrivals(obj)
        place = self._seats.change(obj)
        refused, dropped = self.clients.rejections(obj), self.clients.drops(obj)
        for request in dropped:
            self._pool.drop(request)
        for request in (*refused, *dropped):
            self.active.pop(request.id, None)
            self.track(request)
        self._seats.check_limit()
        if obj["scheduled"]:
            self.slots_opened += self.batch if self.terms.tied else len(self.active)
        else:
            self.slots_opened += obj.get("padding", 0)
        left = {*place, *(request.id for request in (*refused, *dropped))}
        moved = [(name, where) for name, where in place.items() if self.requests[name].state == "waiting"]
        came = [name for name in new if self.requests[name].state == "waiting" and name not in left]
        self.waiting.change(left, moved, came)
        self._bound(came, before, len(obj["preempted"]))

    def _late_drops(self, obj: dict[str, Any]) -> None:
        """Those that ended while the step was under way: nobody gets the token that it brings them."""
        for request in self.clients.drops(obj, late=True):
            self._pool.drop(request)
            self.active.pop(request.id, None)
            self.waiting.remove(request.id)
            self.track(request)

    def _bound(self, came: list[str], before: int, preempted: int) -> None:
        """Whoever came and waits found a place: those who were there all the time and those who came left one.

        Where a full queue sheds, a newcomer may take the place of one that had it beyond the bound, by a preemption.
        """
        bound, stayed = self.terms.max_queue, self.waiting.stayed
        if bound is None or not came:
            return
        most = max(bound, before) + preempted if self.terms.sheds else bound
        if stayed + len(came) > most:
            self.bad("queue-bound", f"{len(came)} queue behind {stayed}, but max_queue is {bound}", came[-1])

    def _clock(self, obj: dict[str, Any], delivered: bool, late: str | None) -> None:
        start, end = obj["start"], obj["end"]
        if not self.terms.jumps:
            if start != self.time:
                self.bad("clock", f"start {start}, but the previous end {self.time} expected: it steps")
        elif start < self.time:
            self.bad("clock", f"start {start}, but the previous iteration ended at {self.time}")
        elif late is not None:
            self.bad("clock", late)
        if self.terms.counted:
            lasts = 0 if obj["idle"] == DRAIN else 1
            if end != start + lasts:
                self.bad("clock", f"end {end}, but an iteration lasts {lasts}: {start + lasts} expected")
        elif end < start or (end == start and delivered):
            self.bad("clock", f"end {end}, but {'> ' if delivered else '>= '}{start} expected")
        elif (lasting := duration(obj, self)) is not None and end != start + lasting:
            self.bad("clock", f"end {end}, but the cost makes it last {lasting}: {start + lasting} expected")

    def _idle(self, obj: dict[str, Any]) -> None:
        idle = obj["idle"]
        if obj["scheduled"]:
            if idle is not None:
                self.bad("idle", f"idle {shorten(idle)}, but tokens were scheduled: null expected")
            return
        if idle is None:
            self.bad("idle", "idle null, but nothing was scheduled: a reason expected")
        if "note" in obj:
            self.bad("idle", f"note {shorten(obj['note'])}, but nothing was scheduled: idle says why")
        happens = any(obj.get(field) for field in _HAPPENINGS)
        if idle in (NO_WORK, DRAIN) and (len(self.waiting) or self.active):
            self.bad("idle", f"idle {idle!r}, but {len(self.waiting)} wait and {len(self.active)} hold a seat")
        elif idle == NO_WORK and self.terms.jumps and not happens:
            self.bad("jump", f"idle {NO_WORK!r}, but the clock jumps over such iterations")
        elif idle == DRAIN and (happens or obj.get("delivers") is None):
            self.bad("idle", f"idle {DRAIN!r}, but only a step in flight is delivered in such an iteration")

    def _queue(self, obj: dict[str, Any]) -> None:
        problem = self.waiting.check(obj["queue"], self.requests)
        if problem is not None:
            self.bad("queue", f"queue: {problem}")
        self.max_queue_length = max(self.max_queue_length, len(self.waiting))

    def _active(self, obj: dict[str, Any]) -> None:
        given = obj["active"]
        if isinstance(given, int):
            if given != len(self.active):
                self.bad("active", f"active {given}, but {len(self.active)} hold a seat")
        elif len(given) != len(self.active) or given != list(self.active):
            derived = list(self.active) if len(self.active) <= 256 else len(self.active)
            self.bad("active", f"active {shorten(given)}, but {shorten(derived)} follows")
