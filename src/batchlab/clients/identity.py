"""Which tokens a request consists of, where a run needs to know."""

from collections.abc import Sequence
from typing import Any

from batchlab.clients.request import Request
from batchlab.core.blocks import Tokens

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
