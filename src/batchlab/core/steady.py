"""Sequences that decode in step, as one: a step costs the same however many they are."""

from array import array

from batchlab.core.sequence import Pace, Sequence


class Steady(Pace):
    """All decoding sequences that get a token in the same steps.

    Everyone has `computed` = its own offset + the common `steps`, so a step only counts `steps` up. Who needs a KV
    block is known by class: a sequence needs one every block_size steps, and `classes[i]` counts those that need theirs
    in steps with steps % block_size == i. The context that a step reads is kept as a sum.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.size = 0
        self.context = 0  # computed tokens of all of them
        self.classes = array("q", bytes(8 * max(1, block_size)))
        self._turn = 0  # steps % block_size

    def join(self, seq: Sequence) -> None:
        """A sequence with one token left to compute falls in."""
        computed = seq._computed
        seq._computed = computed - self.steps
        seq._joined = self.steps
        seq._pace = self
        self.size += 1
        self.context += computed
        if self.block_size:
            self.classes[(self.steps - computed) % self.block_size] += 1

    def leave(self, seq: Sequence) -> None:
        """A sequence falls out; its own figures are true again."""
        computed = seq._computed + self.steps
        if self.block_size:
            self.classes[-seq._computed % self.block_size] -= 1
            seq._held = (computed + self.given + self.block_size - 1) // self.block_size
        seq._computed = computed
        seq._known = computed + 1
        seq._scheduled = 1 if self.given else 0
        seq._pace = None
        self.size -= 1
        self.context -= computed

    def blocks_needed(self) -> int:
        """KV blocks that the next step takes."""
        return self.classes[self._turn] if self.block_size else 0

    def advance(self) -> None:
        """Everyone has taken its token."""
        self.given = False
        self.steps += 1
        self.context += self.size
        if self.block_size:
            self._turn += 1
            if self._turn == self.block_size:
                self._turn = 0
