"""The loop: client, core, executor and events on a virtual clock. Every run goes through it, turn by turn.

Where nobody looks at single iterations, results are tallied as they come and no event is made.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Any

from batchlab import policies
from batchlab.announce import iteration_event
from batchlab.clients.columns import load_of, outputs_of
from batchlab.clients.identity import tokens_of
from batchlab.clients.request import Request
from batchlab.clients.sender import client_of
from batchlab.core.blocks import HashedBlocks
from batchlab.core.limits import NO_LIMIT
from batchlab.core.load import Load
from batchlab.core.scheduler import Core
from batchlab.core.script import Script
from batchlab.core.sequence import Sequence as CoreSequence
from batchlab.core.step import Delivery, Step
from batchlab.core.tally import Tally
from batchlab.core.work import Work
from batchlab.costs.base import timer
from batchlab.errors import BatchlabError
from batchlab.events import Observer, Rejection
from batchlab.settings import LATEST
from batchlab.stall import StallWatch

PULSE = 4096
"""After so many iterations without events, those who want to know how far the run is are told."""


class Loop:
    """One run in progress. With a tally nobody else is told of requests and iterations, but for `pulse`."""

    def __init__(self, run: Any, observers: list[Observer], on_plan: Any, tally: Tally | None) -> None:
        self.run = run
        self.observers = observers
        self.on_plan = on_plan
        self.pulse: Any = None
        self.depth = run.steps_in_flight
        self.stage_free = [0] * int(getattr(run.policy, "pipeline_stages", 1))
        self.stages = len(self.stage_free)
        self.free_at = 0  # when the only stage is free, where there is but one
        key = policies.queue_key(run.policy) or run.queue.key()
        self.core = Core(run.limits, key, self.depth, run.cost.duration, run.holds, run.cost.details)
        self.script = Script(outputs_of(run.requests, run.limits.max_model_len), self.core.steady)
        self.plan = run.policy.plan
        self.door = policies.on_arrival(run.policy)
        self.jumps = run.cost.idle == "jump"
        self.counted = run.cost.unit == "iteration"
        self.time = timer(run.cost)
        self.never = 0x7FFF_FFFF_FFFF_FFFF  # as a load says it
        self.latest = LATEST
        self.now = 0
        self.iterations = 0
        self.limit = NO_LIMIT if run.max_iterations is None else run.max_iterations
        self.in_flight: deque[tuple[Step, int]] = deque()
        self.give_up: list[tuple[int, int, int, CoreSequence, str, str]] = []  # time, position, serial, who, ...
        self.serials = count()  # one request can have several entries: one for each attempt
        self.sent: dict[int, Request] = {}  # where clients react: the requests with the times at which they were sent
        self.watch = StallWatch(self.core, run.cost.unit, run.policy)
        self.tally: Any = tally
        self.load: Load | None = None
        self.longest_prompt = self.most_tokens = NO_LIMIT
        self.budgeted = run.limits.max_num_batched_tokens is not None
        self.coasts = False
        self.identity = isinstance(self.core.kv, HashedBlocks)
        self.still = False  # whether the last turn admitted nobody, ended nobody and met nobody at the door
        self.ahead = Work()
        if tally is not None:
            self.core.tell(tally)
            self._prepare(key)
        self.client: Any = (
            None
            if self.load is not None
            else client_of(run.requests, run.clients, run.think_time, run.retry, run.max_concurrency)
        )

    def _prepare(self, key: Any) -> None:
        """Nobody looks at single iterations: use what is quicker, where these policy, blocks and cost allow it."""
        run, core = self.run, self.core
        if (
            self.depth > 2
            or "contexts" in run.cost.details
            or (isinstance(core.kv, HashedBlocks) and run.holds == "max")
        ):
            return
        self.tally._steady = core.steady
        core.go_in_step(self.script, self.tally)
        self.coasts = policies.coasts(run.policy) and self.stages == 1 and not self.counted
        door = None if run.limits.enable_prefix_caching else policies.open_door(run.policy, run.limits, core.batch)
        if door is not None and key is None and run.retry is None and run.limits.max_queue is None:
            self.load = load_of(run.requests)
            self.longest_prompt, self.most_tokens = door
            if run.limits.max_model_len is not None:
                self.longest_prompt = min(self.longest_prompt, run.limits.max_model_len - 1)

    def turn_until_done(self) -> str:
        """Iterate until every request has its result, or the iteration limit. Returns the termination."""
        pulse = 0
        while True:
            idle = self.core.running.count + self.core.waiting.length() == 0
            if idle and self.in_flight:
                self._drain()
            arrival = self._next_arrival()
            if idle and arrival == self.never:
                return "all_terminal"
            if self.iterations >= self.limit:
                self._announce_pending()
                return "iteration_limit"
            if idle and self.jumps and arrival > self.now:
                self.now = arrival
            if self.pulse is not None and self.iterations >= pulse:
                pulse = self.iterations + PULSE
                self.pulse(self.tally)
            if self.coasts and arrival > self.now and self.core.steady.size:
                self._coast(arrival)
                if self.iterations >= self.limit or arrival <= self.now:
                    continue
            if self.core.quick:
                self._quick_turn()
            else:
                self._turn()

    def _next_arrival(self) -> int:
        """When the next request comes, `never` if none is known to come."""
        if self.load is not None:
            return self.load.due
        arrival = self.client.next_arrival
        return self.never if arrival is None else arrival

    def _coast(self, arrival: int) -> None:
        """While only those in step run, nobody can get in and the policy would say the same again: their next tokens.

        The iteration in which somebody ends, or lacks a block, is not among these.
        """
        core, tally, work = self.core, self.tally, self.ahead
        steady = core.steady
        if core.running.loose().count:
            return
        if core.waiting.length() and (not self.still or self.identity):  # a block that gets full may be what they need
            return
        until = min(arrival, self.latest)
        if self.give_up:
            until = min(until, self.give_up[0][0])
        budget, size = core.batch._budget, steady.size
        if size > budget:
            return
        most = min(self.script.look_ahead(1 << 16) - steady.steps - 1, self.limit - self.iterations)
        work.decode_tokens = work.samples = size
        taken = 0
        while taken < most and self.now < until and core.coast():
            work.context_tokens = steady.context
            landed = self.free_at  # where a step is in flight, that one is delivered
            self.free_at = max(self.now, landed) + self.time.duration(work)
            self.now = self.free_at if self.depth == 1 else max(self.now, landed)
            tally.decoded(self.now)
            taken += 1
        if taken and self.depth > 1:
            self.in_flight[0] = (self.in_flight[0][0], self.free_at)  # who else had a token in it has ended
        self.iterations += taken
        tally.coasted(taken, size)
        if self.budgeted:
            tally.unused(taken, budget - size)
        if self.now > self.latest:
            self._too_late(core.serial - 1)

    def _quick_turn(self) -> None:
        """Arrivals, cancellations, plan and delivery of a step that nobody looks at."""
        core, tally = self.core, self.tally
        core.batch._open(self.now)
        arrived = False
        if self.load is None:
            arrived = bool(self._arrivals())
        elif self.load.due <= self.now:
            arrived = self._quick_arrivals(self.load)
        if self.give_up:
            self._cancellations()
        step = core.plan(self.plan)
        delivered: Step | None = step
        end = self._end_of(step)
        if self.depth > 1:
            delivered, end = self._oldest(step, end)
        self._pass_time(step, delivered, end)
        if step.rejected:
            self._refuse(step)
        ended = core.settle(step, self.now) if self.depth == 1 else core.settle_behind(step, delivered, self.now)
        if self.budgeted:
            tally.unused(1, core.batch._left)
        tally.queued(core.waiting.length())
        moved = arrived or ended or step.admitted.count or step.preempted or step.dropped
        self.still = step.steady > 0 and not (step.prefill_tokens or moved)
        if step.preempted:
            self._watch(step, arrived)

    def _turn(self) -> None:
        """Arrivals, cancellations, plan, then the delivery of the oldest step in flight if enough are."""
        core = self.core
        core.batch._open(self.now)
        arrived = self._arrivals()
        self._cancellations()
        step = core.plan(self.plan)
        if self.on_plan is not None:
            self.on_plan(core, step)
        end = self._end_of(step)
        delivered: Step | None = step
        if self.depth > 1:
            delivered, end = self._oldest(step, end)
        delivery = self._deliver(delivered)
        self._pass_time(step, delivered, end)
        if self.tally is not None:
            self._count(step, delivered, delivery)
        else:
            self._announce(step, arrived, delivered, delivery)
        if step.preempted:
            self._watch(step, arrived)

    def _oldest(self, step: Step, end: int) -> tuple[Step | None, int]:
        """A step takes off that ends then: which one is delivered now, if any is, and its end."""
        self.in_flight.append((step, end))
        return self.in_flight.popleft() if len(self.in_flight) >= self.depth else (None, self.now)

    def _watch(self, step: Step, arrived: Any) -> None:
        """After a preemption: whether the run still gets anywhere."""
        pending = self._next_arrival() != self.never or self._next_give_up() is not None
        self.watch.preempted(step, quiet=not (arrived or step.samples or step.dropped or pending))

    def _end_of(self, step: Step) -> int:
        """When a step planned now has passed all stages: equal shares of its time, each once that stage is free."""
        if not step.works:
            return self.now
        duration = self.time.duration(step)
        if self.stages == 1:
            self.free_at = max(self.now, self.free_at) + duration
            return self.free_at
        time, free = self.now, self.stage_free
        for stage in range(self.stages):
            share = duration * (stage + 1) // self.stages - duration * stage // self.stages
            time = free[stage] = max(time, free[stage]) + share
        return time

    def _arrivals(self) -> list[str]:
        """The ids of those who come."""
        arrived = []
        for time, position, r in self.client.due(self.now):
            if self.tally is None and not self.run.inline and time == r.comes:
                self._tell(r)
            self._arrive(time, position, r)
            arrived.append(r.id)
        return arrived

    def _quick_arrivals(self, load: Load) -> bool:
        """Whether anybody comes. All stand in line but for those that the door has to look at."""
        first = load.sent
        while load.due <= self.now:
            start = load.sent
            if load.send(self.now, self.longest_prompt, self.most_tokens) > start:
                self.core.waiting.pend(load, start, load.sent)
            else:
                position = load.skip()
                r = self.run.requests[position]
                self._arrive(r.arrival, position, r)
        return load.sent > first

    def _arrive(self, time: int, position: int, r: Request) -> None:
        run = self.run
        tokens = tokens_of(run.requests, position, r) if run.limits.enable_prefix_caching else None
        if self.tally is not None:
            self.tally.arrived(position)
        seq = self.core.arrive(
            self.door, position, r.id, time, r.prompt, r.max_tokens, r.priority, r.sent, tokens, r.deadline
        )
        if run.reacts:
            self.sent[position] = r
        if r.cancel_at is not None:
            self._give_up_at(r.cancel_at, seq, "cancelled", "by its client")
        if r.deadline is not None and run.deadlines == "drop":
            self._give_up_at(r.arrival + r.deadline, seq, "expired", "deadline passed")

    def _give_up_at(self, time: int, seq: CoreSequence, result: str, reason: str) -> None:
        heappush(self.give_up, (time, seq.position, next(self.serials), seq, result, reason))

    def _cancellations(self) -> None:
        while self.give_up and self.give_up[0][0] <= self.now:
            _, _, _, seq, result, reason = heappop(self.give_up)
            self.core.cancel(seq, result, reason)

    def _deliver(self, step: Step | None) -> Delivery:
        return Delivery() if step is None else self.core.commit(step, self.script.finished(step))

    def _pass_time(self, step: Step, delivered: Step | None, end: int) -> None:
        """Move the clock to the end of this turn. Raises StalledError if nothing runs and nothing can change that."""
        self.iterations += 1
        delivers = delivered is not None and delivered.works
        waits_until = self.now
        if not delivers and self.jumps:
            waits_until = self._wait(step)
        if self.counted:
            self.now += 1
        elif delivers:
            self.now = max(self.now, end)
        else:
            self.now = max(self.now, waits_until)
        if self.now > self.latest:
            self._too_late(step.serial)

    def _too_late(self, iteration: int) -> None:
        raise BatchlabError(f"iteration {iteration}: the time has passed 2^62 {self.run.cost.unit}")

    def _wait(self, step: Step) -> int:
        """Nothing is delivered in this turn: when the next one begins."""
        flying = step.works or any(flying.works for flying, _ in self.in_flight)
        if step.preempted or step.dropped or flying or not self.core.unfinished:
            return self.now
        arrival = self._next_arrival()
        known = (None if arrival == self.never else arrival, self._next_give_up(), step.wake)
        return self.watch.next_event(step, *known)

    def _next_give_up(self) -> int | None:
        while self.give_up and self.give_up[0][3].ended:
            heappop(self.give_up)
        return self.give_up[0][0] if self.give_up else None

    def _drain(self) -> None:
        """Nothing is unfinished: deliver what is still in flight, whose tokens nobody waits for."""
        while self.in_flight:
            delivered, end = self.in_flight.popleft()
            if not delivered.prefill_tokens + delivered.decode_tokens or self.iterations >= self.limit:
                continue
            self.core.begin(self.now)
            step = self.core.plan(lambda view, batch: "drain")
            delivery = self._deliver(delivered)
            self.iterations += 1
            if not self.counted:
                self.now = max(self.now, end)
            if self.tally is not None:
                self._count(step, delivered, delivery)
            else:
                self._announce(step, [], delivered, delivery)

    def _count(self, step: Step, delivered: Step | None, delivery: Delivery) -> None:
        """Take an iteration into the tally, where nobody else is told of it."""
        tally = self.tally
        self._refuse(step)
        tally.turn(step, delivered, delivery, self.now)
        if self.budgeted:
            tally.unused(1, self.core.batch._left)
        tally.queued(self.core.waiting.length())

    def _refuse(self, step: Step) -> None:
        for seq, reason in step.rejected:
            self.tally.rejected(seq.position, reason, self._retry(seq, step.start) is not None)

    def _announce(self, step: Step, arrived: Any, delivered: Step | None, delivery: Delivery) -> None:
        rejected = [Rejection(seq.id, reason, self._retry(seq, step.start)) for seq, reason in step.rejected]
        self._ended(step, delivery, rejected)
        if not self.observers:
            return
        event = iteration_event(step, self.now, arrived, rejected, delivered, delivery, self.core, self.run.list_limit)
        self._tell(event)

    def _ended(self, step: Step, delivery: Delivery, rejected: list[Rejection]) -> None:
        """Tell the clients who has a result."""
        for seq in delivery.completed:
            self.client.ended(seq.position, self.now, True)
        for seq, _, _ in step.dropped:
            self.client.ended(seq.position, self.now, False)
        for (seq, _), rejection in zip(step.rejected, rejected, strict=True):
            if rejection.retry_at is None:
                self.client.ended(seq.position, self.now, False)

    def _retry(self, seq: CoreSequence, now: int) -> int | None:
        if seq.preemptions or self.client is None:  # its work is begun; a new attempt would begin anew
            return None
        sent = self.sent.get(seq.position) or self.run.requests[seq.position]
        again: int | None = self.client.rejected(seq.position, sent, now)
        return again

    def _announce_pending(self) -> None:
        """The iteration limit: who has not come yet is told of, and who waits unseen is known to wait."""
        if self.tally is not None:
            if self.core.steady.size:
                self.core.batch._take_apart()
            for seq in self.core.waiting:
                self.tally.arrived(seq.position)
        elif not self.run.inline:
            for time, _, request in self.client.due(1 << 63):
                if time == request.comes:
                    self._tell(request)

    def _tell(self, event: Any) -> None:
        for observe in self.observers:
            observe(event)
