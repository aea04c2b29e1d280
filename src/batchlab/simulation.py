"""A run and how to start it: what decides, how long it takes, who asks, and who is told."""

import operator
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from batchlab import policies
from batchlab.clients.columns import Columns
from batchlab.clients.listed import field as requested
from batchlab.clients.request import KnownRequests, Request
from batchlab.clients.retry import Backoff
from batchlab.core.limits import Limits
from batchlab.core.scheduler import Core, PolicyError
from batchlab.core.step import Step
from batchlab.core.tally import Tally
from batchlab.costs.base import CostModel, remarks_of
from batchlab.errors import BatchlabError, SettingError, raised
from batchlab.events import LIST_LIMIT, End, Header, Observer
from batchlab.loop import Loop
from batchlab.metrics.fold import Summary
from batchlab.metrics.gaps import Gaps
from batchlab.order import QueueOrder
from batchlab.policies.stated import own_modules, unheard

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
    max_concurrency: int | None = None
    """The client holds back what would be more than so many under way."""
    list_limit: int | None = LIST_LIMIT
    """Queue and active are listed up to so many ids, beyond it only counted; None lists them all."""
    notes: tuple[str, ...] = ()
    """What a user must be told of its settings."""

    def __post_init__(self) -> None:
        if self.max_iterations is None and self.cost.idle == "step":
            self.max_iterations = STEP_LIMIT

    @property
    def reacts(self) -> bool:
        """Whether clients wait for results before they send: a closed loop, a cap, or sessions with a think time."""
        return (
            self.clients is not None
            or self.max_concurrency is not None
            or (isinstance(self.requests, Columns) and self.requests.waits)
        )

    def remarks(self) -> list[str]:
        """What a user must be told: of the settings, and after a run of the cost model."""
        return [*self.notes, *unheard(self.policy, self.engine), *remarks_of(self.cost)]

    def check(self) -> None:
        """Ask the policy whether it can run this. Raises InputError if not."""
        if getattr(self.policy, "counts_ns", False) and self.cost.unit != "ns":
            expected = f"must be 'ns': {self.engine} has times of its own"
            raise SettingError("unit", self.cost.unit, expected, "cost", beside="policy")
        own = getattr(self.policy, "check", None)
        try:
            policies.check_attributes(self.policy, self.engine)
            if own is not None:
                own(self.limits, KnownRequests(self.requests))
        except (BatchlabError, KeyboardInterrupt):
            raise
        except BaseException as error:
            if type(self.policy).__module__.startswith("batchlab."):
                raise
            raise BatchlabError(f"policy {self.engine}: check: {raised(error)}") from error

    @property
    def holds(self) -> str:
        """What a request has KV blocks for: its `computed` tokens, its whole `prompt`, or prompt and `max` output."""
        return str(getattr(self.policy, "holds", "computed"))

    @property
    def steps_in_flight(self) -> int:
        """How many steps are planned before the oldest is delivered: 2 for asynchronous scheduling."""
        return int(getattr(self.policy, "steps_in_flight", 1))

    def _oracles(self) -> int:
        """How many requests have their true length as their limit."""
        requests = self.requests
        if isinstance(requests, Columns):
            return int(np.count_nonzero(requests.max_tokens == requests.output))
        return sum(map(operator.eq, requested(requests, "max_tokens"), requested(requests, "output")))

    def header(self) -> Header:
        """The first event."""
        oracle = self._oracles()
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

    Where all that listen are summaries, and the workload is neither written out nor reacts, iterations are not
    told one by one: the results are tallied as they come, which is many times quicker and gives the same numbers. An
    observer with a method `pulse(tally)` is content with being called now and then. on_plan is called with the core and
    each step between its plan and the next delivery, for those who need to see that moment.

    Raises InputError for what the policy refuses to run, StalledError when nothing can go on, BatchlabError when a
    policy of one's own fails.
    """
    run.check()
    observers = list(observers)
    header = run.header()
    summaries = [observe for observe in observers if isinstance(observe, Summary)]
    pulses = [observe for observe in observers if hasattr(observe, "pulse")]
    tally = None
    nobody_looks = len(summaries) + len(pulses) == len(observers) > 0 and on_plan is None
    nobody_looks = nobody_looks and not any(summary.keep_times for summary in summaries)
    if nobody_looks and not run.inline and not run.reacts:  # clients that react decide on arrivals as it goes
        tally = Tally(len(run.requests), header.batching == "request")
        if any(summary.each_gap for summary in summaries):
            tally.each_gap = Gaps()
    for observe in observers:
        observe(header)
    loop = Loop(run, observers, on_plan, tally)
    if tally is not None and pulses:
        loop.pulse = lambda tally: [observe.pulse(tally) for observe in pulses]
    end = _run(run, loop)
    for summary in summaries:
        if tally is not None:
            summary.take(tally, run.requests)
    for observe in observers:
        observe(end)
    return end


def _run(run: Run, loop: Loop) -> End:
    """The loop until it ends; whatever a policy of one's own raises becomes one line."""
    try:
        termination = loop.turn_until_done()
    except PolicyError as error:
        raise BatchlabError(f"policy {run.engine}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        own = own_modules(run.policy)
        through = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)}
        if not own or (isinstance(error, BatchlabError) and own.isdisjoint(through)):  # of the run, not of its plan
            raise
        frames = list(traceback.walk_tb(error.__traceback__))
        # Where it was called, if what was called is ours: its own line says nothing to whoever wrote the policy.
        mine = [place for place in frames if place[0].f_globals.get("__name__") in own] or frames
        ours = str(frames[-1][0].f_globals.get("__name__")).startswith("batchlab.")
        frame, line = mine[-1] if ours else frames[-1]
        detail = f"{raised(error)} ({Path(frame.f_code.co_filename).name} line {line})"
        raise BatchlabError(f"policy {run.engine}: iteration {loop.iterations}: {detail}") from error
    return End(termination, loop.iterations, loop.now if loop.iterations else 0)
