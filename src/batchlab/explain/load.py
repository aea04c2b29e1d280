"""Troubles of load and capacity: too much comes, or what there is lies idle."""

from __future__ import annotations

from collections import Counter

from batchlab.errors import shorten_id
from batchlab.events import End
from batchlab.explain.finding import Finding, Trouble
from batchlab.explain.reasons import Reason
from batchlab.explain.state import State
from batchlab.explain.verdict import Moment, Verdict
from batchlab.units import counted

IDLE_SHARE = 0.01
"""Of the run's time: below that, seats that stay empty beside a queue cost less than what is measured as noise."""
LEAST_ARRIVALS = 8
"""Rates and trends of fewer requests say nothing."""
GROWN = 1.5
"""The queue in the last fifth of the arrivals against the middle fifth; under steady overload it is 0.9 / 0.5 = 1.8."""
LONG_QUEUE = 10
"""A shorter queue may grow by chance."""
REJECTED_SHARE = 0.1
"""Of all attempts: a bounded queue shows overload as rejections."""
REACHED = 0.9
"""Completions a time against arrivals a time; a run that keeps up misses only its drain."""
DRAINED = 2
"""After the last arrival, how many times as long as the longest request took to compute; alone, the last takes one."""
STORM_SHARE = 0.5
"""Of all attempts: from there on the queue's door is busier with those it sends away than with those it lets in."""
IDLING = (Reason.DELAY, Reason.POLICY, Reason.UNKNOWN, Reason.BATCH)


class IdleSeats(Trouble):
    """Free seats beside a queue, with no limit that would explain it."""

    name = "idle seats while work waits"

    def __init__(self) -> None:
        self._iterations = 0
        self._time = 0
        self._seat_time = 0
        self._span = 0
        self._by: Counter[str] = Counter()
        self._first: int | None = None
        self._last = 0

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """How many seats could have been taken, and for how long."""
        self._span += moment.time
        seats = state.terms.seats
        if found is None or seats is None or found.reason not in IDLING or moment.seats >= seats:
            return
        number = moment.line.iteration
        self._first = number if self._first is None else self._first
        self._last = number
        self._iterations += 1
        self._time += moment.time
        self._seat_time += moment.time * min(seats - moment.seats, len(state.fresh))
        self._by[found.reason.label] += moment.time

    def finding(self, state: State, end: End) -> Finding | None:
        """Only where it is a share of the run that matters."""
        if not self._time or self._time < IDLE_SHARE * self._span:
            return None
        why = ", ".join(f"{reason} {time / self._time:.0%}" for reason, time in self._by.most_common())
        text = (
            f"in {counted(self._iterations, 'iteration')} ("
            f"{state.shown(self._time)}, {self._time / self._span:.0%} of the run) "
            f"requests waited beside free seats; why: {why}"
        )
        evidence = {
            "iterations": self._iterations,
            "first": self._first,
            "last": self._last,
            "time": self._time,
            "seat_time": self._seat_time,
            "by_reason": dict(self._by),
        }
        return Finding(self.name, text, evidence)


class Overload(Trouble):
    """More comes than is served: the queue grows for as long as requests come, or they are turned away."""

    name = "overload"

    def __init__(self) -> None:
        self._queue: list[int] = []
        self._attempts = 0
        self._rejected = 0

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """The queue as each newcomer leaves it."""
        line = moment.line
        if line.arrived:
            self._attempts += len(line.arrived)
            self._queue += [len(state.fresh) + len(state.parked)] * len(line.arrived)
        self._rejected += len(line.rejected)

    def finding(self, state: State, end: End) -> Finding | None:
        """The trend of the queue, and the rejections."""
        count = len(self._queue)
        if count < LEAST_ARRIVALS:
            return None
        fifth = count // 5 or 1
        middle = sum(self._queue[2 * fifth : 3 * fifth]) / fifth
        last = sum(self._queue[-fifth:]) / fifth
        grows = last >= LONG_QUEUE and last >= GROWN * middle
        refused = self._rejected / self._attempts
        if not grows and refused < REJECTED_SHARE:
            return None
        said = []
        if grows:
            said.append(
                f"the queue grew from {middle:,.1f} in the middle fifth of the arrivals to {last:,.1f} in the last"
            )
        if refused >= REJECTED_SHARE:
            said.append(f"{self._rejected:,} of {counted(self._attempts, 'attempt')} ({refused:.0%}) were rejected")
        evidence = {
            "queue_middle_fifth": middle,
            "queue_last_fifth": last,
            "attempts": self._attempts,
            "rejected": self._rejected,
        }
        return Finding(self.name, "; ".join(said), evidence)


class OfferedRate(Trouble):
    """Fewer were completed a time than came. Whoever measures from a later send than the arrival does not see it."""

    name = "offered rate not reached"

    def finding(self, state: State, end: End) -> Finding | None:
        """Both rates, per second where the clock counts ns."""
        came = [life.request.arrival for life in state.lives.values() if life.state != "pending"]
        done = [life.end for life in state.lives.values() if life.state == "completed" and life.end is not None]
        if len(came) < LEAST_ARRIVALS or not done or max(came) == min(came):
            return None
        second, per = (10**9, "s") if state.header.clock["unit"] == "ns" else (1, state.header.clock["unit"])
        offered = (len(came) - 1) / (max(came) - min(came)) * second
        reached = len(done) / (max(done) - min(came)) * second
        longest = max(sum(life.times[Reason.PREFILL :]) for life in state.lives.values())
        if reached >= REACHED * offered or max(done) - max(came) < DRAINED * longest:
            return None
        text = (
            f"{offered:,.4g} requests/{per} came, {reached:,.4g} requests/{per} were completed: who "
            "measures from a send that waits for a result does not see it"
        )
        evidence = {"offered": offered, "reached": reached, "per": per, "came": len(came), "completed": len(done)}
        return Finding(self.name, text, evidence)


class RetryStorm(Trouble):
    """Rejected clients come again, and most attempts are rejected."""

    name = "retry storm"

    def __init__(self) -> None:
        self._attempts = 0
        self._rejected = 0
        self._again = 0

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """Count attempts."""
        self._attempts += len(moment.line.arrived)
        for rejection in moment.line.rejected:
            self._rejected += 1
            self._again += rejection.retry_at is not None

    def finding(self, state: State, end: End) -> Finding | None:
        """The share of the rejected."""
        if not self._again or self._attempts < LEAST_ARRIVALS or self._rejected < STORM_SHARE * self._attempts:
            return None
        requests = sum(life.attempts > 0 for life in state.lives.values())
        most = max(state.lives.values(), key=lambda life: life.attempts)
        text = (
            f"{counted(requests, 'request')} made {counted(self._attempts, 'attempt')}, of which {self._rejected:,} "
            f"({self._rejected / self._attempts:.0%}) were rejected; {shorten_id(most.id)} came {most.attempts:,} times"
        )
        evidence = {
            "requests": requests,
            "attempts": self._attempts,
            "rejected": self._rejected,
            "most": {"request": most.id, "attempts": most.attempts},
        }
        return Finding(self.name, text, evidence)


class PriorityWithoutEffect(Trouble):
    """Priorities are given, but nobody ever waited for a place: they order admissions, not the share of tokens."""

    name = "priority without effect"

    def __init__(self) -> None:
        self._waited = False

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """Whether there was anything to order."""
        self._waited = self._waited or found is not None or bool(state.parked)

    def finding(self, state: State, end: End) -> Finding | None:
        """Only with more than one level."""
        levels = {life.request.priority for life in state.lives.values() if life.attempts}
        if self._waited or len(levels) < 2:
            return None
        text = (
            f"{len(levels)} priorities, and nobody ever waited: priority orders admissions, it gives nobody more tokens"
        )
        return Finding(self.name, text, {"priorities": sorted(levels)[:20]})
