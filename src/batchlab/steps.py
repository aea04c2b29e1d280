"""When each step ran. One planned before the one ahead of it has come out begins only when that one ends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batchlab.events import Iteration


@dataclass(slots=True)
class Step:
    """What one iteration planned, and when it ran: from start to end.

    out: the iteration at whose end its tokens came out, None if they did not. A step without tokens takes no time, but
    where nothing else is under way it takes its iteration's.
    """

    line: Iteration
    start: int
    end: int
    out: Iteration | None = None


class Steps:
    """Follows the steps of a run, iteration by iteration.

    An iteration plans a step at its start, and at its end a step's tokens come out. With one step in flight that is the
    same step. With several (asynchronous scheduling) it is one that was planned before, and the time in between is that
    one's: it runs from its plan, or from the end of the step before it if that is later. Everything that says how long
    a step took has it from here. Pipeline stages overlap; there a step's time is what it adds to the steps before it.
    """

    def __init__(self) -> None:
        self.running: Step
        """The step that runs from the last iteration's start to its end."""
        self.over: list[Step] = []
        """The steps that ended with the last iteration, oldest first. In all, each step is among them once."""
        self._flying: deque[Step] = deque()
        self._free = 0

    def take(self, line: Iteration) -> None:
        """The next iteration."""
        flying = self._flying
        newest = Step(line, line.start, line.start)
        flying.append(newest)
        running = self.running = next((step for step in flying if step.line.scheduled), newest)
        running.start, running.end = max(running.line.start, self._free), line.end
        self.over = []
        while flying and self._ends(flying[0], line):
            step = flying.popleft()
            if step is not running:
                step.start = step.end = line.end
            step.out = line if step.line.scheduled else None
            self._free = line.end
            self.over.append(step)

    def left(self) -> list[Step]:
        """The steps that are still in flight when the run ends: the first has run up to here, the others not at all."""
        left, self._flying = list(self._flying), deque()
        for step in left:
            if step is not self.running:
                step.start = step.end = self.running.end
        return left

    def _ends(self, step: Step, line: Iteration) -> bool:
        return not step.line.scheduled or (line.delivers is not None and step.line.iteration <= line.delivers)
