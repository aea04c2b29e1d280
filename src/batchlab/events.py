"""The vocabulary of events. Every output (trace, summary, table) is a fold over this stream, live or read from a file.

The fields are those of docs/trace-format.md, where each is defined.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
    rejected: list[tuple[str, str]]
    preempted: list[Preemption]
    admitted: list[str]
    scheduled: list[tuple[str, str, int]]
    prefill_done: list[str]
    first_token: list[str]
    completed: list[str]
    queue: list[str] | int
    active: list[str] | int
    unused: int | None
    idle: str | None

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
