"""What a client sends."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Lengths in tokens, arrival in the clock's unit; a lower priority number is more urgent.

    output: the true output length, which no policy sees. max_tokens: the limit that the policy sees.
    """

    id: str
    arrival: int
    prompt: int
    output: int
    max_tokens: int
    priority: int = 1
