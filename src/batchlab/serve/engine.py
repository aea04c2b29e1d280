"""The live loop: the scheduler core on the wall clock, with requests that come and go as they like.

Step times come from the cost model, as in a simulation; the loop waits until they have passed. It keeps a clock of its
own, in ns since the start, on which each step begins exactly where the one before ended: what happens between two
requests depends on their times alone and not on how promptly this process wakes up. So a trace of it is the simulation
of the requests that came, to the nanosecond.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any

from batchlab import policies
from batchlab.announce import iteration_event
from batchlab.clients.identity import tokens_of
from batchlab.clients.request import KnownRequests, Request
from batchlab.core.scheduler import Core
from batchlab.core.sequence import Sequence as CoreSequence
from batchlab.core.step import Delivery, Step
from batchlab.costs.base import timer
from batchlab.errors import InputError
from batchlab.events import End, Observer, Rejection
from batchlab.serve.held import Held
from batchlab.simulation import Run
from batchlab.units import NS_IN_S

SHUTDOWN = "the server shuts down"
HUNG_UP = "by its client"


class Live:
    """A request that is being served. tokens: its output so far, of `total` to come. result: None while it runs."""

    def __init__(self, request: Request, position: int, total: int) -> None:
        self.request = request
        self.position = position
        self.total = total
        self.seq: CoreSequence | None = None
        self.at_the_door = True
        self.gone = False
        self.tokens = 0
        self.result: str | None = None
        self.reason = ""
        self._changed = asyncio.Event()

    async def decided(self) -> None:
        """Wait until the scheduler has let it in or not."""
        while self.at_the_door:
            await self._change()

    async def beyond(self, tokens: int) -> None:
        """Wait until it has this many output tokens, or has ended."""
        while self.tokens < tokens and self.result is None:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def wake(self) -> None:
        """Something about it has changed."""
        self._changed.set()

    def end(self, result: str, reason: str = "") -> None:
        """It has its result."""
        self.result, self.reason = result, reason
        self.at_the_door = False
        self.wake()


class Engine:
    """One scheduler, served. It lives in the event loop that it is made in, on the clock of that.

    run: its policy, limits, cost and queue; its requests, retries and iteration limit do not matter here. observers are
    told the events of a run, each request when it has ended. Raises InputError where the policy refuses the limits, or
    the clock does not count ns.
    """

    def __init__(self, run: Run, observers: Sequence[Observer] = ()) -> None:
        if run.cost.unit != "ns":
            raise InputError(None, "cost.unit", run.cost.unit, "must be 'ns': a server answers in real time")
        nobody = {"name": None, "sha256": None, "requests": None}
        self.run = run = replace(
            run,
            requests=[],
            inline=False,
            max_iterations=None,
            retry=None,
            clients=None,
            max_concurrency=None,
            source=nobody,
        )
        if getattr(run.policy, "padding", None) == "all":
            expected = "needs to know all requests before the first comes, and a server does not"
            raise InputError(None, "engine.padding", "all", expected)
        checker = deepcopy(run.policy)  # a check may begin a run anew: this one never has any
        self._check = getattr(checker, "check", None)
        replace(run, requests=[Request("any", 0, 1, 1, 1)]).check()  # some want to see at least one
        self.depth = run.steps_in_flight
        key = getattr(run.policy, "queue_key", None) or run.queue.key()
        self.core = Core(run.limits, key, self.depth, run.cost.duration, run.holds, run.cost.details)
        self._door = policies.on_arrival(run.policy)
        self._time = timer(run.cost)
        self._stage_free = [0] * int(getattr(run.policy, "pipeline_stages", 1))
        self._observer = Held(observers) if observers else None
        self._in_flight: deque[tuple[Step, int]] = deque()
        self._coming: deque[Live] = deque()  # not yet at the door, by arrival
        self._lives: dict[int, Live] = {}
        self._give_up: list[tuple[int, int, int, Live, str, str]] = []  # time, position, number, who, ...
        self._news = asyncio.Event()
        self._stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._started = -1  # when the last step began
        self._due = 0  # when the step that is waited for ends
        self._count = 0
        self._numbers = 0
        self.now = 0
        self.iterations = self.preemptions = self.prompt_tokens = self.output_tokens = 0
        self.ended: dict[str, int] = {}
        self.stopping = False

    # For those who serve

    def submit(self, id: str, prompt: int, max_tokens: int, **more: Any) -> Live:
        """A request comes. more: `priority`, `deadline` (ns) and `tokens` of a Request. Its id must be new.

        Raises InputError for one that the policy cannot run.
        """
        request = Request(id, self._stamp(), prompt, max_tokens, max_tokens, **more)
        if self._check is not None:
            self._check(self.run.limits, KnownRequests([request]))
        longest = self.run.limits.max_model_len
        live = Live(request, self._count, max_tokens if longest is None else min(max_tokens, longest - prompt))
        self._count += 1
        self._lives[live.position] = live
        self._coming.append(live)
        self._news.set()
        return live

    def cancel(self, live: Live, reason: str = HUNG_UP) -> None:
        """Its client is gone: seat and blocks are free when the next step is planned. Nothing if it has ended."""
        if live.result is None and not live.gone:  # the first time counts
            live.gone = True
            at = self._stamp()
            if self._observer is not None:
                self._observer.gave_up(live.request.id, at)
            self._give_up_at(at, live, "cancelled", reason)
            self._news.set()

    def stop(self) -> None:
        """Cancel all that is left; `serve` then returns, without waiting for the times of the steps that are left."""
        self.stopping = True
        self._stopped.set()
        for live in list(self._lives.values()):
            self.cancel(live, SHUTDOWN)
        self._news.set()

    @property
    def observed(self) -> bool:
        """Whether anybody is told its events."""
        return self._observer is not None

    @property
    def lag(self) -> float:
        """Seconds that the engine's own clock is behind: above 0 for long where this machine is too slow."""
        busy = self.core.unfinished > 0
        return max(0.0, (self._clock() - self._due) / NS_IN_S) if busy else 0.0

    @property
    def waiting(self) -> int:
        """Requests that wait for a seat. As in vLLM, who came during a step is seen when the next one begins."""
        return len(self.core.waiting)

    async def serve(self) -> None:
        """Run until `stop`, and tell the observers that it is over."""
        self._tell(self.run.header())
        while True:
            if not self.core.unfinished:
                await self._drain()
                while not self._coming and not self.stopping:
                    await self._until_news(None)
                if not self._coming:
                    break
                self.now = max(self.now, self._coming[0].request.arrival)
            await self._turn()
        self._tell(End("all_terminal", self.iterations, self.now))

    # The loop

    async def _turn(self) -> None:
        """One iteration, as a simulation takes it; see batchlab.loop."""
        core, start = self.core, self.now
        self._started = start
        core.begin(start)
        arrived = self._arrivals()
        while self._give_up and self._give_up[0][0] <= start:
            _, _, _, live, result, reason = heappop(self._give_up)
            if live.seq is not None and live.result is None:
                core.cancel(live.seq, result, reason)
        step = core.plan(self.run.policy.plan)
        self._decided(step, arrived)
        end = self._end_of(step)
        delivered: Step | None = step
        if self.depth > 1:
            self._in_flight.append((step, end))
            delivered, end = self._in_flight.popleft() if len(self._in_flight) >= self.depth else (None, start)
        if delivered is not None and delivered.works:
            await self._until(end)
        else:
            end = await self._pause(step)
        self._finish(step, arrived, delivered, end)

    def _arrivals(self) -> list[Live]:
        """All that came by now go to the door."""
        arrived = []
        while self._coming and self._coming[0].request.arrival <= self.now:
            live = self._coming.popleft()
            r, position = live.request, live.position
            self._tell(r)
            tokens = tokens_of([], position, r) if self.run.limits.enable_prefix_caching else None
            live.seq = self.core.arrive(
                self._door, position, r.id, r.arrival, r.prompt, r.max_tokens, r.priority, None, tokens, r.deadline
            )
            if r.deadline is not None and self.run.deadlines == "drop":
                self._give_up_at(r.arrival + r.deadline, live, "expired", "deadline passed")
            arrived.append(live)
        return arrived

    def _decided(self, step: Step, arrived: Sequence[Live]) -> None:
        """Those who are refused or dropped hear of it at once, and so do those who are let in."""
        for seq, reason in step.rejected:
            self._ends(seq, "rejected", reason)
        for seq, result, reason in step.dropped:
            self._ends(seq, result, reason)
        for live in arrived:
            live.at_the_door = False
            live.wake()
        self.preemptions += len(step.preempted)

    def _ends(self, seq: CoreSequence, result: str, reason: str = "") -> None:
        self._lives.pop(seq.position).end(result, reason)
        self.ended[result] = self.ended.get(result, 0) + 1

    def _end_of(self, step: Step) -> int:
        """When a step planned now has passed all stages: equal shares of its time, each once that stage is free."""
        if not step.works:
            return self.now
        duration, time, free = self._time.duration(step), self.now, self._stage_free
        stages = len(free)
        for stage in range(stages):
            share = duration * (stage + 1) // stages - duration * stage // stages
            time = free[stage] = max(time, free[stage]) + share
        return time

    def _finish(self, step: Step, arrived: Sequence[Live], delivered: Step | None, end: int) -> None:
        """Tokens come out."""
        self.now = max(self.now, end)
        self.iterations += 1
        delivery = Delivery() if delivered is None else self.core.commit(delivered, self._last_tokens(delivered))
        self._announce(step, [live.request.id for live in arrived], delivered, delivery)
        for seq in delivery.completed:
            self._ends(seq, "completed")

    def _last_tokens(self, delivered: Step) -> list[CoreSequence]:
        """Everybody in the step has its next token. Returns for whom it is the last one."""
        last = []
        for seq in delivered.sampled:
            live = self._lives.get(seq.position)
            if live is None:  # it has ended meanwhile
                continue
            live.tokens += 1
            if live.tokens == 1:  # as vLLM counts: once, with what the prefix cache had
                self.prompt_tokens += live.request.prompt
            self.output_tokens += 1
            if live.tokens == live.total:
                last.append(seq)
            live.wake()
        return last

    async def _drain(self) -> None:
        """Nothing is unfinished: deliver what is in flight, whose tokens nobody waits for."""
        while self._in_flight:
            delivered, end = self._in_flight.popleft()
            if delivered.prefill_tokens or delivered.decode_tokens:
                self._started = self.now
                self.core.begin(self.now)
                step = self.core.plan(lambda view, batch: "drain")
                await self._until(end)
                self._finish(step, [], delivered, end)

    # Time

    def _clock(self) -> int:
        return round((self._loop.time() - self._origin) * NS_IN_S)

    def _stamp(self) -> int:
        """Now, and after the beginning of every step that is planned: what it has decided stays."""
        return max(self._clock(), self._started + 1)

    def _give_up_at(self, at: int, live: Live, result: str, reason: str) -> None:
        self._numbers += 1
        heappush(self._give_up, (at, live.position, self._numbers, live, result, reason))
        if len(self._give_up) > 2 * len(self._lives) + 64:  # mostly of those that ended before their deadlines
            self._give_up = [entry for entry in self._give_up if entry[3].result is None]
            heapify(self._give_up)

    def _next_give_up(self) -> int | None:
        while self._give_up and self._give_up[0][3].result is not None:
            heappop(self._give_up)
        return self._give_up[0][0] if self._give_up else None

    async def _until(self, end: int) -> None:
        """Wait for a time on the engine's clock, or the end of all; others get a turn even if it has passed."""
        self._due = end
        while (left := end - self._clock()) > 0 and not self.stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left / NS_IN_S):
                    await self._stopped.wait()
        await asyncio.sleep(0)

    async def _pause(self, step: Step) -> int:
        """Nothing is delivered: when the next turn begins. In a simulation all that comes is known; here it is not."""
        flying = step.works or any(flying.works for flying, _ in self._in_flight)
        if step.preempted or step.dropped or flying or not self.core.unfinished:
            await asyncio.sleep(0)
            return self.now
        while True:
            arrival = self._coming[0].request.arrival if self._coming else None
            known = [t for t in (arrival, self._next_give_up(), step.wake) if t is not None]
            if known and min(known) <= self._clock():
                await asyncio.sleep(0)
                return min(known)
            await self._until_news(min(known) if known else None)

    async def _until_news(self, end: int | None) -> None:
        """Wait until a client comes or goes, at most until a time on the engine's clock."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if end is None else max(end - self._clock(), 0) / NS_IN_S):
                await self._news.wait()

    # Events

    def _tell(self, event: Any) -> None:
        if self._observer is not None:
            self._observer(event)

    def _announce(self, step: Step, arrived: list[str], delivered: Step | None, delivery: Delivery) -> None:
        if self._observer is None:
            return
        rejected = [Rejection(seq.id, reason) for seq, reason in step.rejected]
        event = iteration_event(step, self.now, arrived, rejected, delivered, delivery, self.core, self.run.list_limit)
        self._tell(event)
