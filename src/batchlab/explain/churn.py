"""Troubles of those that run: tokens that do not come, and work that is done twice."""

from __future__ import annotations

from collections import Counter

from batchlab.errors import shorten_id
from batchlab.events import End
from batchlab.explain.blocking import OWNED_SHARE
from batchlab.explain.finding import MOST_NAMED, Finding, Stretches, Trouble, entries
from batchlab.explain.state import State
from batchlab.explain.verdict import Moment, Verdict
from batchlab.units import counted, were

THRASHED = 3
"""Preemptions of one request: once is bad luck, twice may be; then it is a pattern."""
TAX = 0.05
"""Recomputed tokens of all computed ones: below that, fewer preemptions would hardly be felt in the throughput."""
LIVELOCKED = 3
"""Preemptions of one request while nobody gets a token, nobody comes and nobody ends."""
FELT_SHARE = 0.01
"""Of the iterations in which somebody decodes: from there on the P99 of the inter-token latency is among them."""
FELT_FACTOR = 2
"""How many times as long as one with decodes alone such an iteration lasts, on average."""


class DecodeStall(Trouble):
    """Somebody in its decode phase got no token while others got prefill tokens. One is enough: an order without any
    exists, if the budget covers all decodes.
    """

    name = "decode stall"

    def __init__(self) -> None:
        self._stalled = Stretches()
        self._iterations = 0
        self._count = 0
        self._run: dict[str, tuple[int, int]] = {}
        self._longest = (0, "", 0)
        self._held: dict[int, list[str]] = {}

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """Those with a seat that got nothing."""
        stalled = moment.stalled
        if stalled:
            self._held[moment.line.iteration] = [life.id for life in stalled]

    def ran(self, moment: Moment) -> None:
        """How long that took."""
        number = moment.line.iteration
        stalled = self._held.pop(number, ())
        self._iterations += bool(stalled)
        for id in stalled:
            self._count += 1
            self._stalled.add(id, moment, moment.took, moment.owner[1])
            last, length = self._run.get(id, (-2, 0))
            length = length + 1 if last == number - 1 else 1
            self._run[id] = (number, length)
            self._longest = max(self._longest, (length, id, number), key=lambda entry: entry[0])

    def finding(self, state: State, end: End) -> Finding | None:
        """How many, of how many requests, and the longest in a row."""
        if not self._count:
            return None
        worst = self._stalled.longest(1)
        length, id, last = self._longest
        text = (
            f"{self._count:,} decode tokens of {counted(len(worst), 'request')} were put off for prefills, in "
            f"{counted(self._iterations, 'iteration')}; longest: {shorten_id(id)} for {length:,} in a row, "
            f"{last - length + 1:,} to {last:,}"
        )
        evidence = {
            "stalls": self._count,
            "iterations": self._iterations,
            "requests": len(worst),
            "longest": {"request": id, "iterations": length, "first": last - length + 1, "last": last},
            "worst": entries(worst, "request", "prefill"),
        }
        return Finding(self.name, text, evidence)


class PrefillOwned(Trouble):
    """Iterations that a prefill makes long for those who decode in them, or wait for them."""

    name = "prefill-owned iterations"

    def __init__(self) -> None:
        self._owned = [0, 0]
        self._pure = [0, 0]
        self._decodes = 0
        self._slowest = (0, 0, 0)
        self._held: set[int] = set()

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """Whether somebody who decodes waits for a prefill."""
        if moment.stalled:
            self._held.add(moment.line.iteration)

    def ran(self, moment: Moment) -> None:
        """Times of iterations with decodes, with and without an owner."""
        held = moment.line.iteration in self._held
        self._held.discard(moment.line.iteration)
        if not moment.decode and not held:
            return
        self._decodes += 1
        kind = self._pure
        if moment.prefill:
            if moment.prefill < OWNED_SHARE * (moment.prefill + moment.decode):
                return
            kind = self._owned
            self._slowest = max(self._slowest, (moment.took, moment.prefill, -moment.line.iteration))
        kind[0] += 1
        kind[1] += moment.took

    def finding(self, state: State, end: End) -> Finding | None:
        """Only where they are long, and many enough for the P99."""
        owned, pure = self._owned, self._pure
        if not pure[0] or owned[0] < FELT_SHARE * self._decodes or not owned[0]:
            return None
        mean, without = owned[1] / owned[0], pure[1] / pure[0]
        if mean < FELT_FACTOR * without:
            return None
        text = (
            f"{owned[0]:,} of {counted(self._decodes, 'iteration')} with decodes "
            f"({owned[0] / self._decodes:.1%}) {were(owned[0])} mostly "
            f"prefill and lasted {state.shown(mean)} on average, against {state.shown(without)} with decodes alone: "
            "they make the tail of ITL"
        )
        evidence = {
            "iterations": owned[0],
            "of": self._decodes,
            "mean_time": mean,
            "mean_time_decodes_alone": without,
            "slowest": {"iteration": -self._slowest[2], "time": self._slowest[0], "prefill": self._slowest[1]},
        }
        return Finding(self.name, text, evidence)


class Thrash(Trouble):
    """A request that is taken off its seat again and again."""

    name = "preemption thrash"

    def finding(self, state: State, end: End) -> Finding | None:
        """Who was preempted how often, and what it lost."""
        hit = [life for life in state.lives.values() if life.preemptions >= THRASHED]
        if not hit:
            return None
        hit.sort(key=lambda life: (-life.preemptions, -life.lost, life.index))
        worst = hit[0]
        named = [{"request": one.id, "preemptions": one.preemptions, "lost": one.lost} for one in hit[:MOST_NAMED]]
        text = (
            f"{counted(len(hit), 'request')} {were(len(hit))} preempted {THRASHED} times or more; "
            f"{shorten_id(worst.id)} "
            f"{worst.preemptions:,} times, with {worst.lost:,} computed tokens lost"
        )
        total = sum(life.preemptions for life in state.lives.values())
        return Finding(self.name, text, {"requests": len(hit), "preemptions": total, "worst": named})


class RecomputeTax(Trouble):
    """Tokens computed a second time, as a share of all."""

    name = "recompute tax"

    def __init__(self) -> None:
        self.computed = 0
        self.again = 0

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """Count them."""
        self.computed += moment.prefill + moment.decode
        self.again += moment.again

    def finding(self, state: State, end: End) -> Finding | None:
        """The share."""
        if not self.again or self.again < TAX * self.computed:
            return None
        share = self.again / self.computed
        text = (
            f"{self.again:,} of {self.computed:,} computed tokens ({share:.1%}) had been computed before a preemption"
        )
        return Finding(self.name, text, {"recomputed": self.again, "computed": self.computed, "share": share})


class Livelock(Trouble):
    """Preemptions in circles: the same requests, and no token for anybody."""

    name = "livelock"

    def __init__(self) -> None:
        self._since: Counter[str] = Counter()
        self._first = 0
        self._worst: tuple[int, int, int, list[str]] = (0, 0, 0, [])

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """Count since the last progress of anybody."""
        line = moment.line
        if moment.decode or line.prefill_done or line.completed or line.dropped or line.arrived or line.rejected:
            self._since.clear()
            return
        if not line.preempted:
            return
        if not self._since:
            self._first = line.iteration
        self._since.update(entry.id for entry in line.preempted)
        most = max(self._since.values())
        if most > self._worst[0]:
            self._worst = (most, self._first, line.iteration, list(self._since))

    def finding(self, state: State, end: End) -> Finding | None:
        """The longest such stretch."""
        most, first, last, ids = self._worst
        if most < LIVELOCKED:
            return None
        shown = ", ".join(shorten_id(id) for id in ids[:MOST_NAMED])
        text = (
            f"from iteration {first:,} to {last:,} {counted(len(ids), 'request')} ({shown}) "
            f"{were(len(ids))} preempted up to {most:,} times "
            "each, and nobody got a token"
        )
        return Finding(
            self.name, text, {"first": first, "last": last, "preemptions": most, "requests": ids[:MOST_NAMED]}
        )
