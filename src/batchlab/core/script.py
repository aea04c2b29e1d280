"""The script of a simulated run: true output lengths, which no policy can see."""

from __future__ import annotations

from array import array

from batchlab.core.sequence import Sequence
from batchlab.core.steady import Steady
from batchlab.core.step import Step

BUCKETS = 4096  # a power of two; where this is compiled, a C constant


class Script:
    """Says which sequences end with a step's tokens.

    `outputs` are true lengths in tokens, by position in the input; the script counts them down where they stand.

    Of those that decode in step it knows the common step in which each emits its last token. They stand in a calendar:
    a bucket for each step, which comes round again after BUCKETS steps. With a step in flight each is due one step
    earlier, and falls out: its last token, and whether another is planned before that is known, are its own affair.
    """

    def __init__(self, outputs: array[int], steady: Steady) -> None:
        self._left = outputs  # tokens still to emit; for those in step, the common step in which they are due
        self._steady = steady
        self._buckets: list[Sequence | None] = [None] * BUCKETS
        self.next_due = 1  # nobody in step is due before this common step

    def finished(self, step: Step) -> list[Sequence]:
        """The sequences whose last token the step emits, in scheduled order."""
        return [seq for seq in step.sampled if self.emits(seq.position) == 0]

    def emits(self, position: int) -> int:
        """It emits a token by itself: how many are left."""
        tokens = self._left[position] - 1
        self._left[position] = tokens
        return tokens

    def stays(self, position: int) -> bool:
        """Whether it has tokens enough to go in step."""
        return self._left[position] > 2 * self._steady.lag

    def joined(self, seq: Sequence) -> None:
        """It decodes in step from now on."""
        due = self._steady.steps + self._left[seq.position] - 2 * self._steady.lag
        self._left[seq.position] = due
        bucket = due & (BUCKETS - 1)
        seq._next = self._buckets[bucket]
        self._buckets[bucket] = seq
        if due < self.next_due:
            self.next_due = due

    def left(self, seq: Sequence) -> None:
        """It falls out of step, before it is due."""
        due = self._left[seq.position]
        self._left[seq.position] = due - self._steady.steps + 2 * self._steady.lag
        bucket = due & (BUCKETS - 1)
        other = self._buckets[bucket]
        if other is seq:
            self._buckets[bucket] = seq._next
        else:
            while other._next is not seq:  # type: ignore[union-attr]  # it is in there
                other = other._next  # type: ignore[union-attr]
            other._next = seq._next  # type: ignore[union-attr]
        seq._next = None

    def look_ahead(self, most: int) -> int:
        """The first common step in which anyone may be due, if it is not later than `most` from now."""
        end = self._steady.steps + most
        while self.next_due < end and self._buckets[self.next_due & (BUCKETS - 1)] is None:
            self.next_due += 1
        return self.next_due

    def due(self) -> Sequence | None:
        """The first of those in step that are due now; each one's `_next` is another."""
        steps = self._steady.steps
        bucket = steps & (BUCKETS - 1)
        seq = self._buckets[bucket]
        later = ends = None
        while seq is not None:
            following = seq._next
            if self._left[seq.position] == steps:
                self._left[seq.position] = 2 * self._steady.lag
                seq._next = ends
                ends = seq
            else:
                seq._next = later
                later = seq
            seq = following
        self._buckets[bucket] = later
        self.next_due = steps + 1
        return ends
