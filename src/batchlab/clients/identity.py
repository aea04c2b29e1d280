"""Which tokens a request consists of, where a run needs to know."""

from collections.abc import Sequence
from typing import Any

from batchlab.clients.request import Request, TokenIdentity
from batchlab.core.blocks import Tokens
from batchlab.events import Event, Header, Iteration

HASHED_TOKENS = 512
"""Tokens that one block hash of a Mooncake trace stands for."""


def tokens_of(requests: Sequence[Request], position: int, request: Request) -> Tokens:
    """The identity of a request's tokens: as it says, else from the trace's block hashes, else shared with nobody."""
    if request.tokens is not None:
        return Tokens(request.tokens.prompt, request.tokens.output_segment)
    own: Any = getattr(requests, "tokens", None)
    known = None if own is None else own(position)
    if known is not None:
        return Tokens(known.prompt, known.output_segment)
    block_hashes: Any = getattr(requests, "block_hashes", None)
    hashes = [] if block_hashes is None else block_hashes(position)
    if not hashes:
        return Tokens([(-2 * position - 1, 0, request.prompt)], -2 * position - 2)
    runs = [(hash, 0, HASHED_TOKENS) for hash in hashes[:-1]]
    runs.append((hashes[-1], 0, request.prompt - HASHED_TOKENS * len(runs)))
    return Tokens(runs, -2 * position - 2)


def prompt_runs(requests: Sequence[Request], position: int, request: Request) -> list[tuple[int, int, int]]:
    """A prompt's tokens as runs (segment, start, length): equal runs are equal tokens."""
    flat = tokens_of(requests, position, request).runs(0, request.prompt)
    return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))


class NamedBlocks:
    """An observer of a recording, which names the full KV blocks of each request: equal names, equal tokens."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._numbers: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Header):
            for request in event.requests or ():
                self(request)
        elif isinstance(event, Request) and event.blocks is not None:
            self._names[event.id] = list(event.blocks)
        elif isinstance(event, Iteration):
            for id, name in event.filled:
                self._names.setdefault(id, []).append(name)

    def identity(self, request: Request, position: int, block_size: int) -> TokenIdentity | None:
        """Its full blocks by name, once the recording has been read; what follows after them is equal to nobody's.

        None where the recording names none of the request.
        """
        if request.blocks is None:
            return None
        numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in self._names[request.id]]
        return TokenIdentity(tuple((number, 0, block_size) for number in numbers), -2 * position - 2)
