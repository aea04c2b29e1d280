"""A recorded run on the simulated engine: the times of its requests, and its state over time."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batchlab import scenario
from batchlab.core.work import Work
from batchlab.costs.base import CostModel
from batchlab.errors import InputError
from batchlab.events import Event, Iteration, Observer
from batchlab.metrics.fold import Summary
from batchlab.simulate import Run, simulate
from batchlab.validate.recorded import NS, Recorded


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
        return max(1, round(self._cost.duration(work) * self._factor))

    def describe(self) -> dict[str, Any]:
        """The other's, and the factor."""
        return {**self._cost.describe(), "factor": self._factor}


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
    states: list[tuple[float, int, int, float | None]] = field(default_factory=list)
    """After each step: time, running, waiting, share of KV blocks in use."""

    def state_at(self, time: float) -> tuple[float, int, int, float | None]:
        """After the last step that had ended by then."""
        place = bisect_right(self.states, time, key=lambda state: state[0]) - 1
        return self.states[place] if place >= 0 else (0.0, 0, 0, 0.0)


def prepare(run: Recorded, cost: CostModel, settings: Mapping[str, Any]) -> Run:
    """The run, ready to simulate. settings: of [engine], instead of the recorded ones. Raises InputError."""
    if cost.unit != "ns":
        raise InputError(None, "cost.unit", cost.unit, "must be 'ns' to be compared with measured times")
    document = {
        "engine": {"policy": "vllm", **run.engine, **settings},
        "cost": {"model": "unit"},
        "workload": {"requests": [{"id": "0", "arrival": 0, "prompt": 1, "output": 1}]},
    }
    (one,) = scenario.build(document, run.folder.name).runs
    source = {"name": "requests.jsonl", "sha256": None, "requests": len(run.requests)}
    return replace(one, cost=cost, requests=run.requests, source=source, inline=False, max_iterations=None)


def replay(run: Run, observers: Iterable[Observer] = ()) -> Replay:
    """Simulate it. Raises InputError where a request is refused: a measured one was served."""
    summary = Summary()
    found = Replay()
    queued: dict[str, int] = {}
    blocks = run.limits.num_gpu_blocks

    def watch(event: Event) -> None:
        if not isinstance(event, Iteration):
            return
        for id in event.arrived:
            queued[id] = event.start
        found.steps += bool(event.scheduled)
        used = None if event.kv is None or blocks is None else 1 - event.kv["free_after"] / blocks
        running = event.active if isinstance(event.active, int) else len(event.active)
        found.states.append((event.end / NS, running, event.queue_length, used))

    simulate(run, [summary, watch, *observers])
    for request in run.requests:
        result = summary.by_id[request.id]
        if result.first_time is None or result.completed_time is None:
            reason = result.reason or result.result
            raise InputError(None, f"request {request.id}", None, f"was served, but not in the simulation: {reason}")
        found.sent.append(request.arrival / NS)
        found.queued.append(queued[request.id] / NS)
        found.first.append(result.first_time / NS)
        found.last.append(result.completed_time / NS)
    found.preemptions, found.cached_tokens = summary.preemptions, summary.cached_tokens
    return found


def load_cost(path: Path) -> CostModel:
    """The cost model of a --cost file."""
    from batchlab import costs

    return costs.load(path)
