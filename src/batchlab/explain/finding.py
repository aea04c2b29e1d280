"""What a detector of trouble is, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from batchlab.events import End
from batchlab.explain.state import State
from batchlab.explain.verdict import Moment, Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """A trouble that a run shows: its name, one sentence, and the evidence with times in the clock's unit."""

    name: str
    text: str
    evidence: dict[str, Any]


class Trouble:
    """Looks out for one kind of trouble: at every iteration, and once at the end."""

    name: ClassVar[str]

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """One iteration after its plan. found: what holds up the queue, None if nobody new waits in it."""

    def ran(self, moment: Moment) -> None:
        """The step that an iteration planned is over, so that `moment.took` says how long it took."""

    def finding(self, state: State, end: End) -> Finding | None:
        """What it has found in all, None if there is no trouble of this kind."""
        raise NotImplementedError


@dataclass(slots=True)
class Stretch:
    """Iterations in which the same thing went on: how many, between which, and how long they lasted."""

    first: int
    last: int
    count: int = 0
    time: int = 0
    who: str = ""

    @property
    def place(self) -> str:
        """Between which iterations."""
        return f"{self.first:,} to {self.last:,}"

    def add(self, number: int, time: int, who: str = "") -> None:
        """One more."""
        self.last = number
        self.count += 1
        self.time += time
        self.who = self.who or who


class Stretches:
    """One stretch for each name, such as a request's id."""

    def __init__(self) -> None:
        self.by_name: dict[str, Stretch] = {}

    def add(self, name: str, moment: Moment, time: int, who: str = "") -> None:
        """It went on in this iteration, too, for so long."""
        number = moment.line.iteration
        self.by_name.setdefault(name, Stretch(number, number)).add(number, time, who)

    def longest(self, least: int) -> list[tuple[str, Stretch]]:
        """Those of at least so many iterations, the longest first."""
        long = [entry for entry in self.by_name.items() if entry[1].count >= least]
        return sorted(long, key=lambda entry: (-entry[1].count, entry[1].first))


def entries(stretches: list[tuple[str, Stretch]], name: str, who: str) -> list[dict[str, Any]]:
    """The first few stretches as evidence."""
    return [
        {name: id, who: s.who, "iterations": s.count, "first": s.first, "last": s.last, "time": s.time}
        for id, s in stretches[:MOST_NAMED]
    ]


MOST_NAMED = 5
"""Examples that a finding names."""
