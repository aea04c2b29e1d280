"""A small engine in which single rules of vLLM can be looked at, and broken."""

from collections.abc import Callable
from typing import Any

import pytest

from batchlab.clients.request import Request, TokenIdentity
from batchlab.conform.vllm import replay
from batchlab.core.blocks import HashedBlocks
from batchlab.core.limits import Limits
from batchlab.costs.unit import Unit
from batchlab.errors import StalledError
from batchlab.policies.vllm import Vllm
from batchlab.simulation import Run

Step = dict[str, Any]


def ask(id: str, prompt: int | list[tuple[int, int, int]], output: int, arrival: int = 0, **more: Any) -> Request:
    """A request; a prompt given as runs (segment, start, length) says which tokens it has. max_tokens is its output.

    Without runs its tokens are its own; output token k of a request is (1000 + its segment, k), see `segment`.
    """
    runs = [(segment(id), 0, prompt)] if isinstance(prompt, int) else prompt
    tokens = TokenIdentity(tuple(runs), 1000 + segment(id))
    length = sum(size for _, _, size in runs)
    fields: dict[str, Any] = {"max_tokens": output, "priority": 0, "tokens": tokens, **more}
    return Request(id, arrival, length, output, **fields)


def segment(id: str) -> int:
    """The segment of a request's own tokens."""
    return int.from_bytes(id.encode(), "big")


class World:
    """Runs requests under a policy class and a pool class; a broken rule is another class in one of the two places."""

    def __init__(self, policy: type[Vllm] = Vllm, pool: type[HashedBlocks] = HashedBlocks) -> None:
        self.policy = policy
        self.pool = pool

    def steps(
        self,
        *requests: Request,
        seqs: int = 4,
        budget: int = 16,
        size: int = 1,
        blocks: int = 100,
        caching: bool = False,
        model_len: int | None = None,
        stop: int = 40,
        **settings: Any,
    ) -> list[Step]:
        """Every step, in the shape of the recordings: scheduled, preempted, running, blocks, free_queue, ..."""
        pool = self.pool

        class OwnPool(Limits):
            def make_blocks(self) -> Any:
                return pool(blocks, size, caching)

        limits = OwnPool(seqs, budget, None, False, blocks, size, caching, model_len, True)
        run = Run(self.policy(**settings), limits, Unit(idle="jump"), list(requests), stop, list_limit=None)
        return replay(run, record_blocks=True)


def scheduled(steps: list[Step]) -> list[dict[str, int]]:
    """Who got how many tokens, step by step; the order counts too where lists are compared."""
    return [step["scheduled"] for step in steps]


SEEN = (AssertionError, LookupError, StopIteration, StalledError, pytest.fail.Exception)
"""How a check fails: other steps than it expects, too few of them, an empty pool, or an engine that cannot go on."""


def fails(check: Callable[[World], None], world: World) -> bool:
    """Whether a check fails in this world. Any other error is raised: then the mutant does not fit the code."""
    try:
        check(world)
    except SEEN:
        return True
    return False
