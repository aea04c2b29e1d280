"""What a client sends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """Which tokens a request consists of, for prefix caching: never text.

    prompt: runs (segment, start, length); equal runs are equal tokens. output_segment: output token k is (segment, k).
    """

    prompt: tuple[tuple[int, int, int], ...]
    output_segment: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Lengths in tokens, times in the clock's unit; a lower priority number is more urgent.

    output: the true output length, which no policy sees; 0 where a recording does not say it. max_tokens: the limit
    that the policy sees. deadline: the client wants the last token within this time after the arrival. cancel_at: the
    client gives up at this time. sent: the client's own time stamp where it differs from the arrival at the scheduler.
    tokens: their identity, if known. group: the class it belongs to, if there are several. after, think_time: it is a
    turn of a session, sent so long after the last token of the request of that id; its arrival follows from that, and
    is not known before. blocks: in a recording, names of the prompt's full KV blocks. held_until: when it was sent,
    where that is after its arrival because the client had too many under way.
    """

    id: str
    arrival: int
    prompt: int
    output: int
    max_tokens: int
    priority: int = 1
    deadline: int | None = None
    cancel_at: int | None = None
    sent: int | None = None
    tokens: TokenIdentity | None = None
    group: str | None = None
    after: str | None = None
    think_time: int | None = None
    blocks: tuple[str, ...] | None = None
    held_until: int | None = None

    @property
    def comes(self) -> int:
        """When the engine first sees it."""
        return self.arrival if self.held_until is None else self.held_until


class KnownRequest(NamedTuple):
    """What an engine knows of a request: everything but its true output length."""

    id: str
    arrival: int
    prompt: int
    max_tokens: int
    priority: int


class KnownRequests:
    """Requests as an engine may know them."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[KnownRequest]:
        for r in self._requests:
            yield KnownRequest(r.id, r.arrival, r.prompt, r.max_tokens, r.priority)
