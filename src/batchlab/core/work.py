"""What a step computes, and what the batch and a policy say to each other."""

from enum import Enum
from typing import NamedTuple


class Refusal(Enum):
    """Why a verb of the batch did nothing. Engines branch on it.

    Success is None, so `if batch.admit(seq):` asks whether it was refused.
    """

    SEATS = "no free seat"
    TOKENS = "no token budget left"
    BLOCKS = "not enough free KV blocks"
    QUEUE = "queue full"
    NOTHING = "nothing of it is left to schedule in this iteration"
    CLOSED = "not in a state that allows it"


class Work:
    """What a step computes, in the sums that a cost model needs; single requests only where it asks for them."""

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.decode_tokens = 0  # one for each decoding sequence
        self.context_tokens = 0  # keys and values read: over all entries, the tokens computed after the step
        self.prefill_context = 0  # of these, what belongs to prefilling sequences
        self.samples = 0  # sequences that get an output token
        self.moved_blocks = 0  # swapped out or in
        self.padding_tokens = 0  # computed for ended members of a tied batch, for nobody
        self.chunks: list[tuple[int, int]] = []  # of each prefilling sequence: tokens, and those computed before
        self.contexts: list[int] = []  # of each decoding sequence: tokens computed after the step


class Wait(NamedTuple):
    """A plan's answer when it schedules nothing on purpose: why, and until when, in the clock's unit."""

    reason: str
    until: int
