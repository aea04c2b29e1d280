"""Sessions: requests whose prompt is the conversation so far and something new."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchlab.clients.request import TokenIdentity

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sessions:
    """What the prompts of requests begin with, by their position.

    previous: the turn before, -1 for a first turn. prefix: tokens at the very beginning that all requests of the same
    `kind` share. new: prompt tokens that no request before had.
    """

    previous: Integers
    prefix: Integers
    kind: Integers
    new: Integers

    def tokens(self, position: int, output: Integers) -> TokenIdentity:
        """The identity of a request's tokens: the kind's prefix, then new tokens and output of each turn before it."""
        chain = []
        turn = position
        while turn >= 0:
            chain.append(turn)
            turn = int(self.previous[turn])
        first = chain[-1]
        runs = [(int(self.kind[first]), 0, int(self.prefix[first]))]
        for turn in reversed(chain[1:]):
            runs += [(own_segment(turn), 0, int(self.new[turn])), (output_segment(turn), 0, int(output[turn]))]
        runs.append((own_segment(position), 0, int(self.new[position])))
        return TokenIdentity(tuple(run for run in runs if run[2]), output_segment(position))

    def take(self, chosen: Integers) -> "Sessions":
        """Those at the given positions, in the given order. No turn can be taken without those before it."""
        places = np.full(len(self.previous) + 1, -1, np.int64)  # one more, for the -1 of a first turn
        places[chosen] = np.arange(len(chosen))
        previous = places[self.previous[chosen]]
        if ((previous < 0) & (self.previous[chosen] >= 0)).any():
            raise ValueError("a turn of a session stays without the turn before it")
        return Sessions(
            previous,
            self.prefix[chosen],
            self.kind[chosen],
            self.new[chosen],
        )


def own_segment(position: int) -> int:
    """The number of the tokens that a request alone brings."""
    return -2 * position - 1


def output_segment(position: int) -> int:
    """The number of the tokens that a request gives."""
    return -2 * position - 2
