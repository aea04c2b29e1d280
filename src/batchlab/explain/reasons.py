"""What a request does, or waits for, at any moment of its life."""

from enum import IntEnum


class Reason(IntEnum):
    """One for each moment between arrival and end; `labels` and `MEANINGS` say what they mean.

    The number is a place in lists of times by reason.
    """

    UNDER_WAY = 0
    SEATS = 1
    BUDGET = 2
    BLOCKS = 3
    BEHIND_BUDGET = 4
    BEHIND_BLOCKS = 5
    ORDER = 6
    BATCH = 7
    DELAY = 8
    POLICY = 9
    PREEMPTED = 10
    RETRY = 11
    HELD = 12
    STALL = 13
    BETWEEN = 14
    UNKNOWN = 15
    PREFILL = 16
    AGAIN = 17
    DECODE = 18
    BESIDE = 19
    IN_FLIGHT = 20

    @property
    def label(self) -> str:
        """Its name in tables and in JSON."""
        return LABELS[self]

    @property
    def works(self) -> bool:
        """Whether the request's own tokens were computed, or on their way."""
        return self >= Reason.PREFILL


LABELS = {
    Reason.UNDER_WAY: "iteration under way",
    Reason.SEATS: "seats",
    Reason.BUDGET: "token budget",
    Reason.BLOCKS: "KV blocks",
    Reason.BEHIND_BUDGET: "head of line (budget)",
    Reason.BEHIND_BLOCKS: "head of line (blocks)",
    Reason.ORDER: "order",
    Reason.BATCH: "batch closed",
    Reason.DELAY: "delay window",
    Reason.POLICY: "policy",
    Reason.PREEMPTED: "preempted",
    Reason.RETRY: "retry backoff",
    Reason.HELD: "held back by client",
    Reason.STALL: "decode stall",
    Reason.BETWEEN: "between iterations",
    Reason.UNKNOWN: "not determined",
    Reason.PREFILL: "prefill",
    Reason.AGAIN: "prefill again",
    Reason.DECODE: "decode",
    Reason.BESIDE: "decode beside prefill",
    Reason.IN_FLIGHT: "step in flight",
}

MEANINGS = {
    Reason.UNDER_WAY: "came during an iteration, unseen until the next one begins",
    Reason.SEATS: "every seat was taken",
    Reason.BUDGET: "the iteration's token budget was used up, or what was left too small for a prompt that is not cut",
    Reason.BLOCKS: "the free KV blocks did not suffice for it",
    Reason.BEHIND_BUDGET: "the head of the queue did not fit into the budget left, and nobody behind it is tried",
    Reason.BEHIND_BLOCKS: "the head of the queue did not get its KV blocks, and nobody behind it is tried",
    Reason.ORDER: "somebody who came later had a place that it could have had",
    Reason.BATCH: "a batch that is formed once ran to its end",
    Reason.DELAY: "the policy waited on purpose, for more requests",
    Reason.POLICY: "the policy gave a reason of its own",
    Reason.PREEMPTED: "it was taken off its seat and had not got one back",
    Reason.RETRY: "it was rejected, and its client had not come again",
    Reason.HELD: "its client had too many in flight to send it",
    Reason.STALL: "it was in its decode phase and got no token, while others got prefill tokens",
    Reason.BETWEEN: "no iteration ran",
    Reason.UNKNOWN: "not determined by the trace",
    Reason.PREFILL: "its prompt was computed",
    Reason.AGAIN: "what a preemption had dropped was computed again",
    Reason.DECODE: "it got an output token in each iteration",
    Reason.BESIDE: "the same, in iterations that also held prefill tokens of others and took longer for it",
    Reason.IN_FLIGHT: "its step was planned already, and had to wait for one that still ran",
}

DISPLACED = frozenset(
    {
        Reason.SEATS,
        Reason.BUDGET,
        Reason.BLOCKS,
        Reason.BEHIND_BUDGET,
        Reason.BEHIND_BLOCKS,
        Reason.BATCH,
        Reason.UNKNOWN,
    }
)
"""Where the wait is for a place, and somebody who came later has one, the order is the reason."""
