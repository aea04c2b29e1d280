"""Engines under data parallelism that wait for each other in every step, because they share the experts of each layer.

Each engine is a simulation of its own, in a thread of its own. Whenever one wants to know how long its step takes it
waits here until all others have said what they do next; then the earliest of these steps begins, with all engines that
can begin by then. An engine that comes later computes for nobody meanwhile and joins the step after. Which thread runs
first changes nothing: nothing is decided before all have spoken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from batchlab.core.work import Work
from batchlab.costs.base import CostModel

Joint = Callable[[Sequence[Work | None]], int]
"""How long a step of all engines takes; None stands for an idle one."""


class Stopped(Exception):
    """Another engine's simulation has failed."""


def joint_duration(cost: CostModel) -> Joint:
    """A cost model's own, or the longest of its times for the engines that have work."""
    own: Joint | None = getattr(cost, "together", None)
    return own or (lambda works: max(cost.duration(work) for work in works if work is not None))


class Lockstep:
    """Where the engines meet."""

    def __init__(self, cost: CostModel, ranks: int) -> None:
        self.cost = cost
        self._joint = joint_duration(cost)
        self._meeting = threading.Condition()
        self._wanted: list[tuple[int, Work] | None] = [None] * ranks
        self._ends: list[int | None] = [None] * ranks
        self._left = [False] * ranks
        self._free = 0
        self._error: BaseException | None = None

    def run(self, engines: Sequence[Callable[[], object]]) -> None:
        """Run the simulations to their ends. Raises what the first of them that failed raised."""

        def engine(rank: int) -> None:
            try:
                engines[rank]()
            except BaseException as error:
                with self._meeting:
                    if not isinstance(error, Stopped) and self._error is None:
                        self._error = error
            finally:
                with self._meeting:
                    self._left[rank] = True
                    self._begin()

        for rank in range(len(engines), len(self._left)):
            self._left[rank] = True  # nobody ever sends it anything
        threads = [threading.Thread(target=engine, args=(rank,), daemon=True) for rank in range(len(engines))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def end_of(self, rank: int, ready: int, work: Work) -> int:
        """When an engine's step ends that could begin at `ready`."""
        with self._meeting:
            self._wanted[rank], self._ends[rank] = (ready, work), None
            self._begin()
            self._meeting.wait_for(lambda: self._ends[rank] is not None or self._error is not None)
            end = self._ends[rank]
            if end is None:
                raise Stopped
            return end

    def _begin(self) -> None:
        """The next step, once all have spoken or left."""
        if self._error is None and all(w is not None or left for w, left in zip(self._wanted, self._left, strict=True)):
            starts = {rank: max(w[0], self._free) for rank, w in enumerate(self._wanted) if w is not None}
            if not starts:
                return
            start = min(starts.values())
            works = [w[1] if w is not None and starts[rank] == start else None for rank, w in enumerate(self._wanted)]
            try:
                self._free = start + self._joint(works)
            except BaseException as error:
                self._error = error
            for rank, work in enumerate(works):
                if work is not None:
                    self._wanted[rank], self._ends[rank] = None, self._free
        self._meeting.notify_all()


class InStep:
    """The cost model of one of the engines: its step takes until all are through."""

    def __init__(self, meeting: Lockstep, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank
        self._free = 0
        cost = meeting.cost
        self.unit, self.idle, self.details = cost.unit, cost.idle, cost.details

    def duration(self, work: Any) -> int:
        """From the moment at which this engine alone could begin the step, which says when it was planned."""
        ready: int = max(work.start, self._free)
        self._free = self._meeting.end_of(self._rank, ready, work)
        return self._free - ready

    def describe(self) -> dict[str, Any]:
        """The cost model's."""
        return self._meeting.cost.describe()
