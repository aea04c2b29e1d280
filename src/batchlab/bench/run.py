"""A measured run from beginning to end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchlab.bench.client import MOST_COUNTED, Client, Clock
from batchlab.bench.figures import Result, result_of
from batchlab.bench.load import Load, Plan
from batchlab.bench.prompts import Prompts
from batchlab.bench.scrape import PATIENCE, Scraper
from batchlab.bench.target import credentials, find, session
from batchlab.clients.listed import field as requested
from batchlab.clients.request import Request
from batchlab.errors import InputError
from batchlab.files import allow_many_files


@dataclass(frozen=True)
class Where:
    """Which server, and how it is spoken to. path: instead of the backend's own. extra: more fields of every body.

    scrape_interval: seconds between two looks at its metrics, 0 for none. timeout: seconds that a request may take.
    token_ids: whether to ask which tokens a chunk holds, as vLLM can say. vocab: token ids of prompts lie below it.
    """

    url: str
    backend: str = "openai"
    path: str | None = None
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    scrape_interval: float = 0.5
    timeout: float = 600.0
    token_ids: bool = True
    vocab: int = 1000


async def bench(
    where: Where,
    requests: Sequence[Request],
    plan: Plan,
    seed: int = 0,
    done: Callable[[int, int], None] = lambda ready, of: None,
    keep: bool = False,
) -> Result:
    """Send requests, whose times count in ns, to a server and measure. seed: of the prompts' tokens.

    done: is told how many of how many requests have ended. keep: cancelled, it gives what was measured by then. Raises
    InputError where the server is not what it should be.
    """
    for name in ("prompt", "output", "max_tokens"):
        longest = int(max(requested(requests, name), default=0))
        if longest > MOST_COUNTED:
            raise InputError("the load", name, longest, f"at most {MOST_COUNTED:,} tokens can be sent in a request")
    allow_many_files()
    clock = Clock()
    async with session({**credentials(where.url), **where.headers}) as http:
        target = await find(http, where.url, where.backend, where.path, where.model, where.extra, where.timeout)
        client = Client(http, target, clock, where.timeout, where.token_ids)
        load = Load(requests, Prompts(requests, seed, where.vocab), client, clock, plan)
        await load.warm_up()
        scraper = Scraper(http, target.base, min(PATIENCE, where.timeout), clock.now)
        looking = None
        if where.scrape_interval:
            await scraper.before()
            looking = asyncio.create_task(scraper.during(where.scrape_interval))
        try:
            measured = await load.send_all(done, keep)
        except* InputError as group:  # the first is as good as any
            raise _first(group) from None
        finally:
            if looking is not None:
                looking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await looking
        if measured.cut is None:  # who interrupts it does not want to wait for another look
            await _look_again(scraper, keep)
    return result_of(target, plan, requests, measured, scraper.samples)


async def _look_again(scraper: Scraper, keep: bool) -> None:
    """keep: cancelled, it ends without one: all is measured by then."""
    try:
        await scraper.after()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not keep or task is None:
            raise
        task.uncancel()


def _first(group: BaseExceptionGroup[InputError]) -> InputError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, InputError)
    return error
