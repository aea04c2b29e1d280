"""One planned iteration, and what came out of one."""

from __future__ import annotations

from batchlab.core.line import Line
from batchlab.core.sequence import Sequence
from batchlab.core.work import Work


class Step(Work):
    """One planned iteration: what runs, in order, and the sums a cost model needs."""

    def __init__(self) -> None:
        super().__init__()
        self.serial = 0
        self.start = 0
        self.entries: list[tuple[Sequence, str, int]] = []  # (sequence, phase, tokens), if anyone wants to see them
        self.scheduled = Line()  # who has tokens in it, but for those in step
        self.admitted = Line()
        self.preempted: list[tuple[Sequence, str, str, int]] = []
        self.rejected: list[tuple[Sequence, str]] = []
        self.dropped: list[tuple[Sequence, str, str]] = []
        self.cached: list[tuple[Sequence, int]] = []
        self.steady = 0  # so many decode in step and are in no list
        self.works = False  # whether it computes anything
        self.wake: int | None = None  # when the policy wants to be asked again, if nothing happens before
        self.unused: int | None = None
        self.free_blocks = 0
        self.sampled: list[Sequence] = []  # sequences that emit a token at the end of this step, in scheduled order
        self.prefill_done: list[Sequence] = []  # those of them whose prefill ends here
        self.decoding: list[Sequence] = []  # and the others
        self.note: str | None = None  # what the policy said; where nothing is scheduled, why


class Delivery:
    """What came out of a step: who emitted the first token or ended a prefill, who left, whose token was discarded."""

    def __init__(self) -> None:
        self.prefill_done: list[Sequence] = []  # in scheduled order, like all but the next
        self.completed: list[Sequence] = []  # in running order
        self.first: list[Sequence] = []
        self.discarded: list[Sequence] = []
