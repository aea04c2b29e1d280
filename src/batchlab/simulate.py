"""The loop: client, core, executor and events on a virtual clock. Every run goes through it."""

import operator
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from batchlab import policies
from batchlab.clients.closed import Closed
from batchlab.clients.identity import tokens_of
from batchlab.clients.listed import Listed
from batchlab.clients.listed import field as requested
from batchlab.clients.request import KnownRequests, Request
from batchlab.clients.retry import Backoff, Retrying
from batchlab.core.limits import Limits
from batchlab.core.scheduler import Core, Delivery, PolicyError, Step
from batchlab.core.script import Script
from batchlab.core.sequence import DONE
from batchlab.core.sequence import Sequence as CoreSequence
from batchlab.costs.base import CostModel
from batchlab.errors import BatchlabError, SettingError
from batchlab.events import LIST_LIMIT, Dropped, End, Header, Iteration, Observer, Preemption, Rejection
from batchlab.order import QueueOrder
from batchlab.settings import LATEST
from batchlab.stall import StallWatch

STEP_LIMIT = 1_000_000
"""Iteration limit where time passes only by iterating and none is given: an idle gap must not run for ever."""

OnPlan = Callable[[Core, Step], object]


@dataclass
class Run:
    """One simulation, ready to start: what decides, how long it takes, who asks, and when to stop.

    policy: an object with `plan(view, batch)`. max_iterations: stop after so many, None for no limit. queue: the order
    of the waiting queue, where the policy has none of its own. retry: whether rejected clients come again. deadlines:
    `keep` works on a request whose deadline has passed, `drop` ends it.
    """

    policy: Any
    limits: Limits
    cost: CostModel
    requests: Sequence[Request]
    max_iterations: int | None = None
    engine: str = "custom"
    settings: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=lambda: {"name": None, "sha256": None, "requests": None})
    inline: bool = True
    """Whether the workload is small and written out: the trace's header then lists it, and token times are kept."""
    queue: QueueOrder = field(default_factory=QueueOrder)
    retry: Backoff | None = None
    deadlines: str = "keep"
    clients: int | None = None
    """A closed loop of so many clients instead of the requests' own arrivals; each waits think_time in between."""
    think_time: int = 0
    list_limit: int | None = LIST_LIMIT
    """Queue and active are listed up to so many ids, beyond it only counted; None lists them all."""

    def __post_init__(self) -> None:
        if self.max_iterations is None and self.cost.idle == "step":
            self.max_iterations = STEP_LIMIT

    def check(self) -> None:
        """Ask the policy whether it can run this. Raises InputError if not."""
        if getattr(self.policy, "counts_ns", False) and self.cost.unit != "ns":
            raise SettingError("unit", self.cost.unit, f"must be 'ns': {self.engine} has times of its own", "cost")
        own = getattr(self.policy, "check", None)
        try:
            if own is not None:
                own(self.limits, KnownRequests(self.requests))
            policies.check_attributes(self.policy, self.engine)
        except BatchlabError:
            raise
        except Exception as error:
            if type(self.policy).__module__.startswith("batchlab."):
                raise
            raise BatchlabError(f"policy {self.engine}: check: {type(error).__name__}: {error}") from error

    @property
    def holds(self) -> str:
        """What a request has KV blocks for: its `computed` tokens, its whole `prompt`, or prompt and `max` output."""
        return str(getattr(self.policy, "holds", "computed"))

    @property
    def steps_in_flight(self) -> int:
        """How many steps are planned before the oldest is delivered: 2 for asynchronous scheduling."""
        return int(getattr(self.policy, "steps_in_flight", 1))

    def header(self) -> Header:
        """The first event."""
        oracle = sum(map(operator.eq, requested(self.requests, "max_tokens"), requested(self.requests, "output")))
        limits = {name: value for name, value in vars(self.limits).items() if name not in ("shed", "track_blocks")}
        if self.limits.num_gpu_blocks is None:
            limits = {k: limits[k] for k in ("max_num_seqs", "max_num_batched_tokens", "max_queue", "max_model_len")}
        own_order = getattr(self.policy, "queue_key", None) is not None
        return Header(
            engine=self.engine,
            rules=str(getattr(self.policy, "rules", "custom")),
            settings=self.settings,
            limits=limits,
            clock={"unit": self.cost.unit, "cost": self.cost.describe(), "idle": self.cost.idle},
            max_iterations=self.max_iterations,
            max_tokens_rule="output" if oracle == len(self.requests) else "mixed" if oracle else "given",
            source=self.source,
            requests=list(self.requests) if self.inline else None,
            queue={"order": "policy"} if own_order else {**asdict(self.queue), "shed": self.limits.shed},
            deadlines=self.deadlines,
            retry=None if self.retry is None else asdict(self.retry),
            steps_in_flight=self.steps_in_flight,
            batching=str(getattr(self.policy, "batching", "iteration")),
            holds=self.holds,
        )


def simulate(run: Run, observers: Iterable[Observer] = (), on_plan: OnPlan | None = None) -> End:
    """Run to the end and tell the observers every event. Returns the last one.

    on_plan is called with the core and each step between its plan and the next delivery, for those who need to see
    that moment. Raises InputError for what the policy refuses to run, StalledError when nothing can go on,
    BatchlabError when a policy of one's own fails.
    """
    run.check()
    observers = list(observers)
    header = run.header()
    for observe in observers:
        observe(header)
    loop = _Loop(run, observers, on_plan)
    try:
        termination = loop.turn_until_done()
    except PolicyError as error:
        raise BatchlabError(f"policy {run.engine}: {error}") from error
    except BatchlabError:
        raise
    except (Exception, SystemExit) as error:
        if type(run.policy).__module__.startswith("batchlab."):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({Path(where.filename).name} line {where.lineno})"
        raise BatchlabError(f"policy {run.engine}: iteration {loop.iterations}: {detail}") from error
    end = End(termination, loop.iterations, loop.now if loop.iterations else 0)
    for observe in observers:
        observe(end)
    return end


class _Loop:
    """One run in progress."""

    def __init__(self, run: Run, observers: list[Observer], on_plan: OnPlan | None) -> None:
        self.run = run
        self.observers = observers
        self.on_plan = on_plan
        self.depth = run.steps_in_flight
        self.stage_free = [0] * int(getattr(run.policy, "pipeline_stages", 1))
        key = getattr(run.policy, "queue_key", None) or run.queue.key()
        self.core = Core(run.limits, key, self.depth, run.cost.duration, run.holds, run.cost.details)
        self.client: Listed | Closed | Retrying = Listed(run.requests)
        if run.clients is not None:
            self.client = Closed(run.requests, run.clients, run.think_time)
        if run.retry is not None:
            self.client = Retrying(self.client, run.retry)
        longest = run.limits.max_model_len
        outputs = requested(run.requests, "output")
        if longest is not None:
            outputs = [min(o, longest - p) for o, p in zip(outputs, requested(run.requests, "prompt"), strict=True)]
        self.script = Script(outputs)
        self.door = policies.on_arrival(run.policy)
        self.jumps = run.cost.idle == "jump"
        self.counted = run.cost.unit == "iteration"
        self.now = 0
        self.iterations = 0
        self.in_flight: deque[tuple[Step, int]] = deque()
        self.give_up: list[tuple[int, int, int, CoreSequence, str, str]] = []  # time, position, serial, who, ...
        self.serials = count()  # one request can have several entries: one for each attempt
        self.sent: dict[int, Request] = {}  # in a closed loop: the requests with the times at which they were sent
        self.watch = StallWatch(self.core, run.cost.unit, run.policy)

    def turn_until_done(self) -> str:
        """Iterate until every request has its result, or the iteration limit. Returns the termination."""
        limit = self.run.max_iterations
        while True:
            idle = not self.core.unfinished
            if idle:
                self._drain()
            arrival = self.client.next_arrival
            if idle and arrival is None:
                return "all_terminal"
            if limit is not None and self.iterations >= limit:
                self._announce_pending()
                return "iteration_limit"
            if idle and self.jumps and arrival is not None and arrival > self.now:
                self.now = arrival
            self._turn()

    def _turn(self) -> None:
        """Arrivals, cancellations, plan, then the delivery of the oldest step in flight if enough are."""
        core = self.core
        core.begin(self.now)
        arrived = self._arrivals()
        self._cancellations()
        step = core.plan(self.run.policy.plan)
        if self.on_plan is not None:
            self.on_plan(core, step)
        self.in_flight.append((step, self._end_of(step)))
        end = self.now
        delivered = None
        if len(self.in_flight) >= self.depth:
            delivered, end = self.in_flight.popleft()
        delivery = self._deliver(delivered)
        self._pass_time(step, delivered, end)
        self._announce(step, arrived, delivered, delivery)
        if step.preempted:
            pending = self.client.next_arrival is not None or self._next_give_up() is not None
            self.watch.preempted(step, quiet=not (arrived or step.sampled or step.dropped or pending))

    def _end_of(self, step: Step) -> int:
        """When a step planned now has passed all stages: equal shares of its time, each once that stage is free."""
        time = self.now
        if step.works:
            duration, free = self.run.cost.duration(step), self.stage_free
            for stage in range(len(free)):
                share = duration * (stage + 1) // len(free) - duration * stage // len(free)
                time = free[stage] = max(time, free[stage]) + share
        return time

    def _arrivals(self) -> list[str]:
        arrived = []
        run = self.run
        for time, position, r in self.client.due(self.now):
            if not run.inline and time == r.arrival:
                self._tell(r)
            tokens = tokens_of(run.requests, position, r) if run.limits.enable_prefix_caching else None
            seq = self.core.arrive(
                self.door, position, r.id, time, r.prompt, r.max_tokens, r.priority, r.sent, tokens, r.deadline
            )
            arrived.append(r.id)
            if run.clients is not None:
                self.sent[position] = r
            if r.cancel_at is not None:
                self._give_up_at(r.cancel_at, seq, "cancelled", "by its client")
            if r.deadline is not None and run.deadlines == "drop":
                self._give_up_at(r.arrival + r.deadline, seq, "expired", "deadline passed")
        return arrived

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
        moves = delivers or step.preempted or step.dropped or any(flying.works for flying, _ in self.in_flight)
        waits_until = self.now
        if not moves and self.core.unfinished and self.jumps:
            known = (self.client.next_arrival, self._next_give_up(), step.wake)
            waits_until = self.watch.next_event(step, *known)
        if self.counted:
            self.now += 1
        elif delivers:
            self.now = max(self.now, end)
        else:
            self.now = max(self.now, waits_until)
        if self.now > LATEST:
            raise BatchlabError(f"iteration {step.serial}: the time has passed 2^62 {self.run.cost.unit}")

    def _next_give_up(self) -> int | None:
        while self.give_up and self.give_up[0][3].state == DONE:
            heappop(self.give_up)
        return self.give_up[0][0] if self.give_up else None

    def _drain(self) -> None:
        """Nothing is unfinished: deliver what is still in flight, whose tokens nobody waits for."""
        limit = self.run.max_iterations
        while self.in_flight:
            delivered, end = self.in_flight.popleft()
            if not delivered.entries or (limit is not None and self.iterations >= limit):
                continue
            self.core.begin(self.now)
            step = self.core.plan(lambda view, batch: "drain")
            delivery = self._deliver(delivered)
            self.iterations += 1
            if not self.counted:
                self.now = max(self.now, end)
            self._announce(step, [], delivered, delivery)

    def _announce(self, step: Step, arrived: list[str], delivered: Step | None, delivery: Delivery) -> None:
        rejected = [Rejection(seq.id, reason, self._retry(seq, step.start)) for seq, reason in step.rejected]
        for _ in range(len(delivery.completed) + len(step.dropped) + sum(r.retry_at is None for r in rejected)):
            self.client.ended(self.now)
        if not self.observers:
            return
        core = self.core
        event = Iteration(
            iteration=step.serial,
            start=step.start,
            end=self.now,
            arrived=arrived,
            rejected=rejected,
            dropped=[Dropped(seq.id, result, reason) for seq, result, reason in step.dropped],
            preempted=[Preemption(seq.id, mode, place, computed) for seq, mode, place, computed in step.preempted],
            admitted=[seq.id for seq in step.admitted],
            cached=[(seq.id, tokens) for seq, tokens in step.cached],
            scheduled=[(seq.id, phase, tokens) for seq, phase, tokens in step.entries],
            delivers=None if delivered is None else delivered.serial,
            prefill_done=[seq.id for seq in delivery.prefill_done],
            first_token=[seq.id for seq in delivery.first],
            completed=[seq.id for seq in delivery.completed],
            discarded=[seq.id for seq in delivery.discarded],
            queue=_ids(core.waiting, self.run.list_limit),
            active=_ids(core.running, self.run.list_limit),
            unused=step.unused,
            padding=step.padding_tokens,
            idle=None if step.entries else step.note,
            note=step.note if step.entries else None,
            kv=None
            if core.kv is None
            else {"free": step.free_blocks, "free_after": core.kv.free, "moved": step.moved_blocks},
        )
        self._tell(event)

    def _retry(self, seq: CoreSequence, now: int) -> int | None:
        if seq.preemptions:  # its work is begun; a new attempt would begin anew
            return None
        sent = self.sent.get(seq.position) or self.run.requests[seq.position]
        return self.client.rejected(seq.position, sent, now)

    def _announce_pending(self) -> None:
        if not self.run.inline:
            for time, _, request in self.client.due(1 << 63):
                if time == request.arrival:
                    self._tell(request)

    def _tell(self, event: Any) -> None:
        for observe in self.observers:
            observe(event)


def _ids(sequences: Any, most: int | None) -> list[str] | int:
    count = len(sequences)
    return [seq.id for seq in sequences] if most is None or count <= most else count
