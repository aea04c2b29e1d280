"""The vocabulary of events. Every output (trace, summary, table) is a fold over this stream, live or read from a file.

The fields are those of docs/trace-format.md, where each is defined.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batchlab.clients.request import Request

LIST_LIMIT = 256
"""Queue and active are listed up to this many ids, beyond it only counted."""


@dataclass(slots=True)
class Header:
    """The run begins: everything that a reader or a verifier must know about it."""

    engine: str
    rules: str
    settings: dict[str, Any]
    limits: dict[str, int | None]
    clock: dict[str, Any]
    max_iterations: int | None
    max_tokens_rule: str
    source: dict[str, Any]
    requests: list[Request] | None
    queue: dict[str, Any]
    deadlines: str
    retry: dict[str, int] | None
    steps_in_flight: int
    batching: str = "iteration"
    holds: str = "computed"
    recorded: dict[str, int] | None = None


@dataclass(slots=True)
class Rejection:
    """One rejection: who, why, and when the client tries again; None if that was its last attempt."""

    id: str
    reason: str
    retry_at: int | None = None


@dataclass(slots=True)
class Dropped:
    """A request that ended without its last token after it had been taken in: `cancelled`, `expired` or `failed`."""

    id: str
    result: str
    reason: str
    at: int | None = None

    def late(self, start: int) -> bool:
        """Whether it ended while the iteration that starts then was under way, after the plan."""
        return self.at is not None and self.at > start


@dataclass(slots=True)
class Preemption:
    """One preemption: who, how, to where, and the tokens it had computed."""

    id: str
    mode: str
    place: str
    computed: int


@dataclass(slots=True)
class Iteration:
    """One iteration, complete: written when its tokens are out."""

    iteration: int
    start: int
    end: int
    arrived: list[str]
    rejected: list[Rejection]
    dropped: list[Dropped]
    preempted: list[Preemption]
    admitted: list[str]
    cached: list[tuple[str, int]]
    scheduled: list[tuple[str, str, int]]
    delivers: int | None
    prefill_done: list[str]
    first_token: list[str]
    completed: list[str]
    discarded: list[str]
    queue: list[str] | int
    active: list[str] | int
    unused: int | None
    idle: str | None
    note: str | None = None
    kv: dict[str, int] | None = None
    padding: int = 0
    filled: list[tuple[str, str]] = field(default_factory=list)

    @property
    def queue_length(self) -> int:
        """Requests waiting at the end."""
        return self.queue if isinstance(self.queue, int) else len(self.queue)


@dataclass(slots=True)
class End:
    """The run is over."""

    termination: str
    iterations: int
    time: int


Event = Header | Request | Iteration | End
Observer = Callable[[Event], None]
