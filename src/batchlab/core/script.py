"""The script of a simulated run: true output lengths, which no policy can see."""

from collections.abc import Iterable

from batchlab.core.scheduler import Step
from batchlab.core.sequence import Sequence


class Script:
    """Says which sequences end with a step's tokens. `outputs` are true lengths in tokens, by position in the input."""

    def __init__(self, outputs: Iterable[int]) -> None:
        self._left = list(outputs)

    def finished(self, step: Step) -> list[Sequence]:
        """The sequences whose last token the step emits, in scheduled order."""
        done = []
        left = self._left
        for seq in step.sampled:
            position = seq.position
            tokens = left[position] - 1
            left[position] = tokens
            if tokens == 0:
                done.append(seq)
        return done
