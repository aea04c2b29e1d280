"""Sequences that decode in step, as one: a step costs the same however many they are."""

from array import array
from typing import Any

from batchlab.core.blocks import HashedBlocks
from batchlab.core.line import Line
from batchlab.core.sequence import Pace, Sequence

NO_HITS: list[int] = []


class Steady(Pace):
    """All decoding sequences that get a token in the same steps.

    Everyone has `computed` = its own offset + the common `steps`, so a step only counts `steps` up. Who needs a KV
    block is known by class: a sequence needs one every block_size steps, and `classes[i]` counts those that need theirs
    in steps with steps % block_size == i. The context that a step reads is kept as a sum.

    Where blocks have identity, `rows[i]` are those of a class in running order: in one step each of them fills a block,
    in the next it takes another, and else nobody looks at it.

    With a step in flight (`lag` 1) everyone's last token is on its way when a step is planned. A block then counts as
    full in the step in which another one is taken.
    """

    def __init__(self, block_size: int, hashed: HashedBlocks | None = None) -> None:
        super().__init__(block_size)
        self._hashed: Any = hashed
        self._rows = [] if hashed is None else [Line() for _ in range(block_size)]
        self._taking = self._filling = 0  # so many of the rows of this step have been served
        self.size = 0
        self.context = 0  # computed tokens of all of them
        self.classes = array("q", bytes(8 * max(1, block_size)))
        self._turn = 0  # steps % block_size

    def join(self, seq: Sequence) -> None:
        """A sequence with one token left to compute falls in."""
        computed = seq._computed
        seq._computed = computed - self.steps
        seq._joined = self.steps - self.lag
        seq._pace = self
        self.size += 1
        self.context += computed
        if self.block_size:
            place = (self.steps - computed) % self.block_size
            self.classes[place] += 1
            if self._hashed is not None:
                self._rows[place].stand_in(seq)

    def leave(self, seq: Sequence) -> None:
        """A sequence falls out; its own figures are true again."""
        computed = seq._computed + self.steps
        if self.block_size:
            place = -seq._computed % self.block_size
            self.classes[place] -= 1
            if self._hashed is not None:
                self._rows[place].remove(seq)
            seq._held = (computed + self.given + self.block_size - 1) // self.block_size
        seq._computed = computed
        seq._known = computed + 1 - self.lag
        seq._scheduled = 1 if self.given else 0
        seq._pace = None
        self.size -= 1
        self.context -= computed

    def blocks_needed(self) -> int:
        """KV blocks that the next step takes."""
        return self.classes[self._turn] if self.block_size else 0

    def give(self) -> None:
        """All of them get their token in the coming step."""
        self.given = True
        self._taking = self._filling = 0

    def serve(self, before: int) -> None:
        """Blocks with identity: those who took their seats before this one take and fill theirs of the coming step."""
        taking = self._rows[self._turn]
        while self._taking < taking.count:
            seq = taking.items[self._taking]
            if seq._seat >= before:
                break
            self._hashed.allocate(seq, NO_HITS, seq._computed + self.steps + 1)
            self._taking += 1
        filling = self._rows[(self._turn + 1 - self.lag) % self.block_size]
        while self._filling < filling.count:
            seq = filling.items[self._filling]
            if seq._seat >= before:
                break
            self._hashed.register(seq, seq._computed + self.steps + 1 - self.lag)
            self._filling += 1

    def advance(self) -> None:
        """Everyone has taken its token."""
        self.given = False
        self.steps += 1
        self.context += self.size
        if self.block_size:
            self._turn += 1
            if self._turn == self.block_size:
                self._turn = 0
