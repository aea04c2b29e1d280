"""A recorded run on the simulated engine: the times of its requests, and its state over time."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from batchlab import scenario
from batchlab.clients.columns import Columns
from batchlab.clients.request import Request
from batchlab.core.work import Work
from batchlab.costs.base import CostModel, whole
from batchlab.errors import InputError
from batchlab.events import Event, Iteration, Observer
from batchlab.metrics.fold import Summary
from batchlab.simulation import Run, simulate
from batchlab.units import NS_IN_S
from batchlab.validate.lockstep import InStep, Lockstep, joint_duration
from batchlab.validate.recorded import Recorded

GIVEN_UP = ("cancelled", "expired")
"""Results of requests that their clients waited no longer for."""


class Scaled:
    """Another cost model whose steps take `factor` times as long."""

    def __init__(self, cost: CostModel, factor: float) -> None:
        self._cost = cost
        self._factor = factor
        self.unit = cost.unit
        self.idle = cost.idle
        self.details = cost.details

    def duration(self, work: Work) -> int:
        """The other's, scaled."""
        return whole(self._cost.duration(work) * self._factor)

    def together(self, works: Sequence[Work | None]) -> int:
        """The other's for engines in step, scaled."""
        return whole(joint_duration(self._cost)(works) * self._factor)

    def describe(self) -> dict[str, Any]:
        """The other's, and the factor."""
        return {**self._cost.describe(), "factor": self._factor}


class State(NamedTuple):
    """An engine at a moment: requests running and waiting, share of KV blocks in use."""

    time: float
    running: int
    waiting: int
    kv_used: float | None


@dataclass
class Replay:
    """What the simulation says, times in s from the first arrival on, by position of the request."""

    sent: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    itl: dict[str, Any] | None = None
    """Figures of the gaps between tokens in ns; of one engine only."""
    unserved: dict[int, str] = field(default_factory=dict)
    """Whom the engine refused, and why. Their times are NaN, and those of who gave up."""
    states: list[list[State]] = field(default_factory=list)
    """Of each rank, after each step."""

    def state_at(self, time: float) -> State:
        """After the last step of each rank that had ended by then: sums over the ranks, of the KV share the mean."""
        last = []
        for states in self.states:
            place = bisect_right(states, time, key=lambda state: state.time) - 1
            last.append(states[place] if place >= 0 else State(0.0, 0, 0, 0.0))
        used = [state.kv_used for state in last if state.kv_used is not None]
        return State(
            time,
            sum(state.running for state in last),
            sum(state.waiting for state in last),
            sum(used) / len(used) if used else None,
        )


def prepare(run: Recorded, cost: CostModel, settings: Mapping[str, Any]) -> Run:
    """The run, ready to simulate. settings: of [engine], instead of the recorded ones. Raises InputError."""
    if cost.unit != "ns":
        expected = "must be 'ns' to be compared with measured times"
        raise InputError(_file_of(cost), "cost.unit", cost.unit, expected)
    _same_gpus(run, cost)
    document = {
        **run.sections,
        "engine": {"policy": "vllm", **run.engine, **settings},
        "cost": {},
        "workload": {
            **run.sections.get("workload", {}),
            "requests": [{"id": "0", "arrival": 0, "prompt": 1, "output": 1}],
        },
    }
    source = {"name": run.folder.name, "sha256": None, "requests": len(run.requests)}
    try:
        (one,) = scenario.build(document, run.folder.name, cost=cost).runs
        one = replace(one, requests=run.requests, source=source, inline=False, max_iterations=None)
        one.check()
    except InputError as error:
        name = (error.place or "").removeprefix("engine.")
        recorded_in = run.folder / "meta.json" if run.folder.is_dir() else run.folder
        error.file = error.file or ("--set" if name in settings else str(recorded_in))
        raise
    return one


def _file_of(cost: CostModel) -> str | None:
    return next(reversed(getattr(cost, "inputs", ())), None)


def _same_gpus(run: Recorded, cost: CostModel) -> None:
    """A cost for another number of GPUs would predict another system. Raises InputError."""
    settings = cost.describe()
    experts = run.ranks if run.lockstep else 1
    for name, measured in (("tensor_parallel", run.tensor_parallel), ("expert_parallel", experts)):
        given = settings.get(name)
        if None not in (given, measured) and given != measured:
            raise InputError(_file_of(cost), f"cost.{name}", given, f"must be {measured}, as in the measured run")


def replay(run: Run, observers: Iterable[Observer] = (), ranks: int = 1, lockstep: bool = False) -> Replay:
    """Simulate it.

    ranks: engines under data parallelism. Requests go to them in turn, as vLLM's balancing does as long as they are
    equally busy. lockstep: whether they wait for each other in every step (lockstep.py); else each is alone.
    """
    parts = [Replay(states=[[]]) for _ in range(ranks)]
    times: dict[int, tuple[float, float, float]] = {}
    meeting = Lockstep(run.cost, ranks) if lockstep and ranks > 1 else None
    engines: list[Callable[[], object]] = []
    for rank in range(ranks):
        positions = range(rank, len(run.requests), ranks)
        if not positions:
            continue
        part = run if ranks == 1 else replace(run, requests=_picked(run.requests, positions))
        if meeting is not None:
            part = replace(part, cost=InStep(meeting, len(engines)))
        engines.append(partial(_replay_rank, part, observers, positions, parts[rank], times))
    if meeting is not None:
        meeting.run(engines)
    else:
        for engine in engines:
            engine()
    found = Replay(states=[states for part in parts for states in part.states])
    for total in ("steps", "preemptions", "cached_tokens"):
        setattr(found, total, sum(getattr(part, total) for part in parts))
    found.itl = parts[0].itl if ranks == 1 else None
    found.unserved = {place: why for one in parts for place, why in one.unserved.items()}
    for position, request in enumerate(run.requests):
        queued, first, last = times[position]
        found.sent.append(request.arrival / NS_IN_S)
        found.queued.append(queued)
        found.first.append(first)
        found.last.append(last)
    return found


def check_served(run: Recorded, found: Replay) -> None:
    """Raises InputError where the simulation refuses a request that was served, or leaves nothing to compare."""
    refused = [why for position, why in found.unserved.items() if math.isfinite(run.last[position])]
    if refused:
        expected = f"{len(refused):,} of the requests that were served are refused in the simulation: {refused[0]}"
        raise InputError(run.folder, None, None, expected)
    if not any(math.isfinite(one) and math.isfinite(other) for one, other in zip(run.last, found.last, strict=True)):
        raise InputError(run.folder, None, None, "no request that was served is completed in the simulation")


def _picked(requests: Sequence[Request], positions: Sequence[int]) -> Sequence[Request]:
    """Some of the requests, with their block hashes where they have such."""
    if isinstance(requests, Columns):
        return requests.take(np.array(positions, np.int64))
    return [requests[position] for position in positions]


def _replay_rank(
    run: Run,
    observers: Iterable[Observer],
    positions: Sequence[int],
    found: Replay,
    times: dict[int, tuple[float, float, float]],
) -> None:
    summary = Summary()
    queued: dict[str, int] = {}
    (states,) = found.states
    blocks = run.limits.num_gpu_blocks

    def watch(event: Event) -> None:
        if not isinstance(event, Iteration):
            return
        for id in event.arrived:
            queued[id] = event.start
        found.steps += bool(event.scheduled)
        used = None if event.kv is None or blocks is None else 1 - event.kv["free_after"] / blocks
        running = event.active if isinstance(event.active, int) else len(event.active)
        states.append(State(event.end / NS_IN_S, running, event.queue_length, used))

    simulate(run, [summary, watch, *observers])
    by_id, totals = summary.by_id, summary.totals()
    for position, request in zip(positions, run.requests, strict=True):
        result = by_id[request.id]
        if result.first_time is None or result.completed_time is None:
            times[position] = (math.nan, math.nan, math.nan)
            if result.result not in GIVEN_UP:
                found.unserved[position] = f"request {request.id}: {result.reason or result.result}"
            continue
        times[position] = (queued[request.id] / NS_IN_S, result.first_time / NS_IN_S, result.completed_time / NS_IN_S)
    found.itl = summary.document(False)["latency"]["itl"]
    found.preemptions += totals["preemptions"]
    found.cached_tokens += totals["cached_tokens"]
