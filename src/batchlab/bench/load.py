"""The load: when which request goes out. Open loop by its own times, closed loop as answers come."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from batchlab.bench.client import Client, Clock, Outcome
from batchlab.bench.prompts import Prompts
from batchlab.clients.columns import Columns
from batchlab.clients.listed import field
from batchlab.clients.request import Request
from batchlab.clients.turns import turns_after
from batchlab.units import NS_IN_MS, NS_IN_S

WAIT = 1.0
"""Seconds before another attempt where a refusal does not say how long."""

Done = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """How the requests are sent. Sessions with a think time: each turn so long after the last token of the one before.

    max_concurrency: an open loop holds back what would be more at once. clients: a closed loop of so many instead, each
    sending its next request think_time ns after its last. max_retries: further attempts of a refused request, after
    what Retry-After says, unless that is longer than a request may take. num_warmups: copies of the first request sent
    before, which do not count. exact: the true output length is asked for and ignore_eos set; else max_tokens is the
    request's own. text: prompts as words.
    """

    max_concurrency: int | None = None
    clients: int | None = None
    think_time: int = 0
    max_retries: int = 0
    num_warmups: int = 0
    exact: bool = False
    text: bool = False


@dataclass
class Measured:
    """outcomes: of all that went out, by position. A turn of a session whose last one was not answered never does.

    elapsed: ns until the last one ended. busy: share of a core that this process used.

    most: most requests that were in flight at once. cut: where it was interrupted, how many were under way then and are
    left out; None where it ran to its end.
    """

    outcomes: list[Outcome]
    elapsed: int
    busy: float
    most: int
    cut: int | None = None


class Load:
    """Sends the requests of one run."""

    def __init__(self, requests: Sequence[Request], prompts: Prompts, client: Client, clock: Clock, plan: Plan) -> None:
        self._requests = requests
        self._prompts = prompts
        self._client = client
        self._clock = clock
        self._plan = plan
        self._with_priority = len(set(field(requests, "priority"))) > 1
        self._after: dict[int, tuple[int, int]] = {}
        if plan.clients is None and isinstance(requests, Columns) and requests.waits:
            self._after = turns_after(requests)
        self._outcomes: dict[int, Outcome] = {}
        self._flying = self._most = 0
        self._start = 0

    async def warm_up(self) -> None:
        """What is sent before; a refusal of it does not matter."""
        count = self._plan.num_warmups
        body = self._body(0) if count else b""
        dummies = [Outcome(-1, 0, 0) for _ in range(count)]
        await asyncio.gather(*(self._client.send(o, f"warm-up-{k}", body, None) for k, o in enumerate(dummies)))

    async def send_all(self, done: Done = lambda ready, of: None, keep: bool = False) -> Measured:
        """All of them, until the last has ended. done: is told how many of how many have.

        keep: cancelled, it gives those that have ended by then, if there are any.
        """
        self._done = done
        done(0, len(self._requests))
        self._start = self._clock.now()
        used = time.process_time()
        sending = asyncio.ensure_future(self._send())
        cut = None
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            cut = self._flying
            sending.cancel()
            await asyncio.wait([sending])
            task = asyncio.current_task()
            if not keep or not self._outcomes or task is None:
                raise
            task.uncancel()
        elapsed = self._clock.now() - self._start
        busy = (time.process_time() - used) * NS_IN_S / max(elapsed, 1)
        return Measured([outcome for _, outcome in sorted(self._outcomes.items())], elapsed, busy, self._most, cut)

    async def _send(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._plan.clients is None:
                await self._open_loop(group)
            else:
                places = iter(range(len(self._requests)))
                for _ in range(min(self._plan.clients, len(self._requests))):
                    group.create_task(self._closed_loop(places))

    async def _open_loop(self, group: asyncio.TaskGroup) -> None:
        cap = self._plan.max_concurrency
        places = None if cap is None else asyncio.Semaphore(cap)
        arrivals = field(self._requests, "arrival")
        later = {position for position, _ in self._after.values()}
        first = (position for position in range(len(arrivals)) if position not in later)
        for position in sorted(first, key=arrivals.__getitem__):
            full = places is not None and places.locked()
            body = None if full else self._body(position)  # before its time, so that it costs none
            await self._clock.until(self._start + arrivals[position])
            group.create_task(self._at_its_time(position, arrivals[position], body, places))
            await asyncio.sleep(0)  # behind its times it does not wait, but those before go out and are read

    async def _at_its_time(
        self, position: int, intended: int, body: bytes | None, places: asyncio.Semaphore | None
    ) -> None:
        full = places is not None and places.locked()
        async with places or contextlib.nullcontext():
            ready = self._now() if full else intended
            outcome = Outcome(position, intended, ready)
            await self._attempts(outcome, body or self._body(position, ready - intended))
        while outcome.result == "completed" and outcome.position in self._after:
            following, think = self._after[outcome.position]
            at, body = outcome.chunks[-1][0] + think, self._body(following)
            outcome = Outcome(following, at, at)
            await self._clock.until(self._start + at)
            await self._attempts(outcome, body)

    async def _closed_loop(self, places: Iterator[int]) -> None:
        think = 0  # before the first, and after the last, nobody has anything to think about
        for position in places:
            body = self._body(position)
            await self._clock.until(self._clock.now() + think)
            now = self._now()
            await self._attempts(Outcome(position, now, now), body)
            think = self._plan.think_time

    async def _attempts(self, outcome: Outcome, body: bytes) -> None:
        """One request until it has its result."""
        request = self._requests[outcome.position]
        intended, cancel = self._start + outcome.intended, request.cancel_at
        give_up = None if cancel is None else intended + cancel - request.arrival
        too_late = [at for at in (give_up, request.deadline and intended + request.deadline) if at is not None]
        self._flying += 1
        self._most = max(self._most, self._flying)
        try:
            while True:
                await self._client.send(outcome, request.id, body, give_up)
                if not outcome.retries:
                    outcome.first_sent = outcome.sent
                if not outcome.busy or outcome.retries >= self._plan.max_retries:
                    break
                wait = WAIT if outcome.retry_after is None else outcome.retry_after
                if wait > self._client.timeout:  # nobody would wait so long for an answer either
                    break
                again = self._clock.now() + round(wait * NS_IN_S)
                if any(again >= at for at in too_late):
                    break
                await self._clock.until(again)
                outcome.retries += 1
                outcome.waits.append(wait)
                if request.deadline is not None:
                    body = self._body(outcome.position, self._now() - outcome.intended)
        finally:
            self._flying -= 1
        outcome.first_sent -= self._start
        outcome.sent -= self._start
        outcome.end -= self._start
        outcome.chunks = [(at - self._start, tokens) for at, tokens in outcome.chunks]
        self._outcomes[outcome.position] = outcome
        self._done(len(self._outcomes), len(self._requests))

    def _now(self) -> int:
        return self._clock.now() - self._start

    def _body(self, position: int, late: int = 0) -> bytes:
        """late: ns after the time from which its deadline counts."""
        request = self._requests[position]
        more: dict[str, int | bool] = {"ignore_eos": True} if self._plan.exact else {}
        if self._with_priority:
            more["priority"] = request.priority
        if request.deadline is not None:
            more["deadline_ms"] = max(1, (request.deadline - late) // NS_IN_MS)
        prompt = self._prompts.text(position) if self._plan.text else self._prompts.ids(position)
        return self._client.body(prompt, request.output if self._plan.exact else request.max_tokens, more)
