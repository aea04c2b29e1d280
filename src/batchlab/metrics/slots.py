"""Slot waste: how many seats a run opened for how many output tokens."""

from typing import Any

from batchlab.events import Iteration


class Slots:
    """Counts the slots that a run opens: in every iteration with tokens, one for each request it has to carry.

    In one with padding only that is one for each padding token.

    An iteration-level engine carries those that hold a seat. A request-level engine ties a batch together: it carries
    everybody admitted since it was last empty, those that have ended since included.
    """

    def __init__(self) -> None:
        self.opened = 0
        self.tied = False
        """Whether the engine batches by request."""
        self._seated = 0
        self._batch = 0

    def iteration(self, event: Iteration, dropped: int, completed: int) -> None:
        """Take in an iteration. dropped, completed: how many of those that ended in it held a seat."""
        if not self._seated:
            self._batch = 0
        change = len(event.admitted) - len(event.preempted)
        self._batch += change
        self._seated += change - dropped
        if event.scheduled:
            self.opened += self._batch if self.tied else self._seated
        else:
            self.opened += event.padding
        self._seated -= completed

    def figures(self, useful: int) -> dict[str, Any]:
        """The entry of the summary; useful: output tokens that were emitted."""
        opened = self.opened
        wasted = opened - useful
        return {"opened": opened, "useful": useful, "wasted": wasted, "waste": wasted / opened if opened else None}
