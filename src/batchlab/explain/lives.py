"""What is known of one request while its trace is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from batchlab.clients.request import Request
from batchlab.explain.reasons import Reason


@dataclass(slots=True)
class Span:
    """A stretch of a request's life with one reason.

    first, last: the iterations it covers, None before the first. who: the requests that the reason names. facts: what
    the trace says about it, in numbers.
    """

    reason: Reason
    start: int
    end: int
    first: int | None
    last: int | None
    who: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Loss:
    """One preemption of a request: when, how, the computed tokens it lost, and for whom it had to go.

    certain: whether the trace leaves no doubt about whom; else they are those that it may have been. alone: KV blocks
    are modelled, and nobody else took one in that iteration.
    """

    iteration: int
    mode: str
    computed: int
    whom: tuple[str, ...]
    certain: bool
    alone: bool = False


@dataclass(slots=True)
class Life:
    """One request and its times so far. `times` is a list by Reason; at any settled moment it adds up to its age."""

    request: Request
    state: str = "pending"
    """pending, waiting, active, retrying, or a result."""
    index: int = -1
    """Place in the order of coming, of its last attempt."""
    attempts: int = 0
    computed: int = 0
    target: int = 0
    """Tokens that its prefill has to compute."""
    high: int = 0
    """The most that it had computed before a preemption: below it, prefill is done again."""
    emitted: int = 0
    in_flight: int = 0
    last_run: int = -1
    """The last iteration that scheduled it."""
    joined: list[int] | None = None
    """The queue clock's reading when it joined the queue."""
    parked: bool = False
    """Whether it waits after a preemption."""
    ticket: int = 0
    """Its last place in the queue."""
    times: list[int] = field(default_factory=lambda: [0] * len(Reason))
    until_first: list[int] | None = None
    """`times` when its first token appeared."""
    out_since: int = 0
    again_at: int | None = None
    first_start: int | None = None
    first_time: int | None = None
    end: int | None = None
    reason: str | None = None
    preemptions: int = 0
    lost: int = 0
    """Computed tokens that its recompute preemptions dropped."""
    loss: Loss | None = None
    """The last preemption."""
    overtaken_by: int = 0
    """Requests that came later and got a seat while it waited for its first one."""
    spans: list[Span] | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def left(self) -> int:
        """Prefill tokens that are left."""
        return max(self.target - self.computed, 0)

    @property
    def waits(self) -> bool:
        """Whether it waits and was not preempted."""
        return self.state == "waiting" and not self.parked

    @property
    def ttft(self) -> int | None:
        """Time to first token, None if there was none."""
        return None if self.first_time is None else self.first_time - self.request.arrival

    @property
    def e2el(self) -> int | None:
        """Time to the last token, None if it was not completed."""
        return None if self.end is None or self.state != "completed" else self.end - self.request.arrival
