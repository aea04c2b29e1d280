"""What the scheduler knows of one request."""

from typing import Any

ARRIVED = 0  # at the door: the policy has not yet said where it goes
WAITING = 1
RUNNING = 2  # holds a seat, with or without tokens in this iteration
DONE = 3  # completed, rejected or cancelled

PREFILL = "prefill"
DECODE = "decode"


class Sequence:
    """A request as the engine sees it: its prompt and its limit, never its true output length.

    Lengths are in tokens, `arrival` is in the clock's unit. `position` is the place in the input, the last
    tie-breaker of every order. Policies read these fields; only the core writes them.
    """

    def __init__(
        self,
        position: int,
        id: str,
        arrival: int,
        prompt_tokens: int,
        max_tokens: int,
        priority: int = 1,
        sent: int | None = None,
        tokens: Any = None,
        deadline: int | None = None,
    ) -> None:
        self.position = position
        self.id = id
        self.arrival = arrival
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.priority = priority
        self.state = ARRIVED
        self.known = prompt_tokens  # prompt and the output tokens emitted so far
        self.computed = 0  # tokens whose keys and values are computed
        self.prefill_target = prompt_tokens  # below it, computing is prefill
        self.scheduled = 0  # tokens it has in the batch being built
        self.preemptions = 0
        self.sent = arrival if sent is None else sent  # the client's own time stamp
        self.placeholders = 0  # tokens sampled in steps that are not delivered yet
        self.held = 0  # KV blocks held
        self.swapped = 0  # KV blocks to move back in when it goes on
        self.blocks: list[int] = []  # which, where blocks have identity
        self.registered = 0  # of its first blocks, so many can be found by others
        self.chain: list[int] = []  # what its full blocks hold, as numbers
        self.tokens = tokens
        self.deadline = deadline  # how long after its arrival the client waits for it, None if it does not say

    @property
    def generated(self) -> int:
        """Output tokens emitted so far."""
        return self.known - self.prompt_tokens

    @property
    def left(self) -> int:
        """Tokens that can be scheduled now: what is known, or on its way, and not computed."""
        return self.known + self.placeholders - self.computed

    @property
    def prefill_left(self) -> int:
        """Tokens still to prefill, 0 in the decode phase. After a recompute preemption, emitted output counts again."""
        left = self.prefill_target - self.computed
        return left if left > 0 else 0

    @property
    def remaining_work(self) -> int:
        """Prefill tokens and output tokens still to do, as far as the engine can know: up to max_tokens."""
        return self.prefill_left + self.prompt_tokens + self.max_tokens - self.known

    @property
    def order(self) -> tuple[int, int]:
        """The total order that every other order ends in: arrival, then position in the input."""
        return (self.arrival, self.position)

    def __repr__(self) -> str:
        return f"<Sequence {self.id!r} {self.computed}/{self.known} of {self.prompt_tokens}+{self.max_tokens}>"
