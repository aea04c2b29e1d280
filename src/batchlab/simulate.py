"""The loop: client, core, executor and events on a virtual clock. Every run goes through it."""

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchlab import policies
from batchlab.clients.listed import Listed
from batchlab.clients.request import Request
from batchlab.core.scheduler import Core, Limits, PolicyError, Step
from batchlab.core.script import Script
from batchlab.core.sequence import Sequence as CoreSequence
from batchlab.costs.base import CostModel
from batchlab.errors import BatchlabError, StalledError
from batchlab.events import LIST_LIMIT, End, Header, Iteration, Observer, Preemption


@dataclass
class Run:
    """One simulation, ready to start: what decides, how long it takes, who asks, and when to stop.

    policy: an object with `plan(view, batch)`. max_iterations: stop after so many, None for no limit.
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

    def header(self) -> Header:
        """The first event."""
        oracle = sum(request.max_tokens == request.output for request in self.requests)
        limits = self.limits
        return Header(
            engine=self.engine,
            rules=getattr(self.policy, "rules", "custom"),
            settings=self.settings,
            limits={
                "max_num_seqs": limits.max_num_seqs,
                "max_num_batched_tokens": limits.max_num_batched_tokens,
                "max_queue": limits.max_queue,
            },
            clock={"unit": self.cost.unit, "cost": self.cost.describe(), "idle": self.cost.idle},
            max_iterations=self.max_iterations,
            max_tokens_rule="output" if oracle == len(self.requests) else "mixed" if oracle else "given",
            source=self.source,
            requests=list(self.requests) if self.inline else None,
        )


def simulate(run: Run, observers: Iterable[Observer] = ()) -> End:
    """Run to the end and tell the observers every event. Returns the last one.

    Raises InputError for what the policy refuses to run, StalledError when nothing can go on, BatchlabError when a
    policy of one's own fails.
    """
    check = getattr(run.policy, "check", None)
    if check is not None:
        check(run.limits, run.requests)
    observers = list(observers)
    for observe in observers:
        observe(run.header())
    loop = _Loop(run, observers)
    try:
        termination = loop.turn_until_done()
    except PolicyError as error:
        raise BatchlabError(f"policy {run.engine}: {error}") from error
    except BatchlabError:
        raise
    except Exception as error:
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

    def __init__(self, run: Run, observers: list[Observer]) -> None:
        self.run = run
        self.observers = observers
        self.core = Core(run.limits)
        self.client = Listed(run.requests)
        self.script = Script(request.output for request in run.requests)
        self.door = policies.on_arrival(run.policy)
        self.now = 0
        self.iterations = 0

    def turn_until_done(self) -> str:
        """Iterate until every request has its result, or the iteration limit. Returns the termination."""
        limit = self.run.max_iterations
        jumps = self.run.cost.idle == "jump"
        while self.core.unfinished or self.client.next_arrival is not None:
            if limit is not None and self.iterations >= limit:
                self._announce_pending()
                return "iteration_limit"
            arrival = self.client.next_arrival
            if jumps and arrival is not None and arrival > self.now and not self.core.unfinished:
                self.now = arrival
            self._turn()
        return "all_terminal"

    def _turn(self) -> None:
        core = self.core
        core.begin(self.now)
        arrived = []
        for position, r in self.client.due(self.now):
            if not self.run.inline:
                self._tell(r)
            core.arrive(self.door, position, r.id, r.arrival, r.prompt, r.max_tokens, r.priority)
            arrived.append(r.id)
        step = core.plan(self.run.policy.plan)
        if step.entries:
            duration, finished = self.run.cost.duration(step), self.script.finished(step)
        else:
            duration, finished = self._idle_duration(step), []
        self.now += duration
        first, completed = core.commit(step, finished)
        self.iterations += 1
        if self.observers:
            self._tell(self._event(step, arrived, first, completed))

    def _idle_duration(self, step: Step) -> int:
        if self.run.cost.idle == "step":
            return 1
        arrival = self.client.next_arrival
        if arrival is not None:
            return max(arrival - self.now, 0)
        if not self.core.unfinished:
            return 0
        raise StalledError(
            f"stalled at {self.now} {self.run.cost.unit}, iteration {step.serial}: {step.idle}, with "
            f"{len(self.core.waiting)} waiting and {len(self.core.running)} active, and no arrival to come; "
            f"first waiting: {self.core.waiting.head!r}"
        )

    def _event(
        self, step: Step, arrived: list[str], first: list[CoreSequence], completed: list[CoreSequence]
    ) -> Iteration:
        core = self.core
        return Iteration(
            iteration=step.serial,
            start=step.start,
            end=self.now,
            arrived=arrived,
            rejected=[(seq.id, reason) for seq, reason in step.rejected],
            preempted=[Preemption(seq.id, mode, place, computed) for seq, mode, place, computed in step.preempted],
            admitted=[seq.id for seq in step.admitted],
            scheduled=[(seq.id, phase, tokens) for seq, phase, tokens in step.entries],
            prefill_done=[seq.id for seq in step.prefill_done],
            first_token=[seq.id for seq in first],
            completed=[seq.id for seq in completed],
            queue=_ids(core.waiting),
            active=_ids(core.running),
            unused=step.unused,
            idle=step.idle,
        )

    def _announce_pending(self) -> None:
        if not self.run.inline:
            for _, request in self.client.due(1 << 63):
                self._tell(request)

    def _tell(self, event: Any) -> None:
        for observe in self.observers:
            observe(event)


def _ids(sequences: Any) -> list[str] | int:
    count = len(sequences)
    return [seq.id for seq in sequences] if count <= LIST_LIMIT else count
