"""What the scheduler knows of one request."""

from typing import Any

PREFILL = "prefill"
DECODE = "decode"


class Pace:
    """What sequences that decode in step have in common: the steps they have taken together, and the one to come."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size  # 0 where they take no more KV blocks as they go on
        self.steps = 0
        self.given = False  # whether they all have their token in the batch being built
        self.lag = 0  # of the steps they have taken, so many last ones are not delivered yet when the next is planned


class Sequence:
    """A request as the engine sees it: its prompt and its limit, never its true output length.

    Lengths are in tokens, `arrival` is in the clock's unit. `position` is the place in the input, the last
    tie-breaker of every order. Policies read these fields; only the core writes them.

    A sequence with a `_pace` decodes in step with others. Its own figures then are those from before the common steps,
    so that a step does not have to touch it; who asks from outside always gets the present ones.
    """

    def __init__(
        self,
        position: int,
        id: str | None,
        arrival: int,
        prompt_tokens: int,
        max_tokens: int,
        priority: int = 1,
        sent: int | None = None,
        tokens: Any = None,
        deadline: int | None = None,
    ) -> None:
        self.position = position
        self._id = id
        self._names: Any = None  # who knows the id, where it is not written down
        self.arrival = arrival
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.priority = priority
        self.waiting = False
        self.running = False  # holds a seat, with or without tokens in this iteration
        self.ended = False  # completed, rejected or cancelled
        self._known = prompt_tokens
        self._computed = 0
        self._scheduled = 0
        self._held = 0
        self._pace: Pace | None = None
        self._joined = 0  # after how many common steps it fell in
        self._seat = 0  # in which order the seats were taken
        self._next: Sequence | None = None  # the next in the same bucket of the script
        self.prefill_target = prompt_tokens  # below it, computing is prefill
        self.preemptions = 0
        self.sent = arrival if sent is None else sent  # the client's own time stamp
        self.placeholders = 0  # tokens sampled in steps that are not delivered yet
        self.swapped = 0  # KV blocks to move back in when it goes on
        self.blocks: list[int] = []  # which, where blocks have identity
        self.registered = 0  # of its first blocks, so many can be found by others
        self.chain: list[int] = []  # what its full blocks hold, as numbers
        self.tokens = tokens
        self.deadline = deadline  # how long after its arrival the client waits for it, None if it does not say

    @property
    def id(self) -> str:
        """Its name in the input."""
        if self._id is None:
            self._id = self._names(self.position)
        return self._id

    @property
    def at_the_door(self) -> bool:
        """Whether the policy has not yet said where it goes."""
        return not (self.waiting or self.running or self.ended)

    @property
    def known(self) -> int:
        """Prompt and the output tokens emitted so far."""
        return self._known if self._pace is None else self._computed + self._pace.steps + 1 - self._pace.lag

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are computed."""
        return self._computed if self._pace is None else self._computed + self._pace.steps

    @property
    def scheduled(self) -> int:
        """Tokens it has in the batch being built."""
        return self._scheduled if self._pace is None else int(self._pace.given)

    @property
    def held(self) -> int:
        """KV blocks held."""
        if self._pace is None or not self._pace.block_size:
            return self._held
        return -(-(self.computed + self._pace.given) // self._pace.block_size)

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
