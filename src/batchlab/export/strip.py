"""What the iterations did over time, in a bounded number of parts: the fold behind every chart over time."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from batchlab.events import End, Event, Header, Iteration
from batchlab.steps import Step, Steps

MOST = 2048
"""Parts at most; then two neighbours become one."""


@dataclass(slots=True)
class Part:
    """Some iterations that follow each other: sums over them.

    start, end: times in the clock's unit. decode, prefill, unused: of the steps that ended in it. *_area: a number of
    requests or blocks, times the time for which it held. batch: requests in the step that ran. queue: requests that
    waited at an iteration's end. used: KV blocks that were held after its plan. seats: requests with one at its end.
    """

    start: int
    end: int
    iterations: int = 0
    decode: int = 0
    prefill: int = 0
    unused: int = 0
    batch_area: int = 0
    queue_area: int = 0
    used_area: int = 0
    batch_most: int = 0
    queue_most: int = 0
    used_most: int = 0
    seats: int = 0

    def mean(self, name: str) -> float:
        """The mean of `batch`, `queue` or `used` over the part's time, gaps between iterations included."""
        time = self.end - self.start
        return float(getattr(self, f"{name}_area") / time if time else getattr(self, f"{name}_most"))


SUMS = [
    each.name for each in fields(Part) if each.name not in ("start", "end", "seats") and not each.name.endswith("_most")
]
MOSTS = [each.name for each in fields(Part) if each.name.endswith("_most")]


@dataclass
class Strip:
    """An observer that keeps the run's iterations as parts: one each in a short run, in a long one several together."""

    most: int = MOST
    parts: list[Part] = field(default_factory=list)
    budget: int | None = None
    blocks: int | None = None
    """KV blocks that there are, if they are modelled."""
    _each: int = 1
    _steps: Steps = field(default_factory=Steps)

    def __call__(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Header):
            self.budget = event.limits["max_num_batched_tokens"]
            self.blocks = event.limits.get("num_gpu_blocks")
        elif isinstance(event, Iteration):
            self._add(event)
        elif isinstance(event, End):
            for step in self._steps.left():
                self._count(step)

    def most_of(self, name: str) -> int:
        """The largest `batch`, `queue` or `used` of any iteration."""
        return max((int(getattr(part, f"{name}_most")) for part in self.parts), default=0)

    def _add(self, it: Iteration) -> None:
        if len(self.parts) == self.most and self.parts[-1].iterations == self._each:
            self._halve()
        if not self.parts or self.parts[-1].iterations == self._each:
            self.parts.append(Part(it.start, it.end))
        part, time = self.parts[-1], it.end - it.start
        part.end = it.end
        part.iterations += 1
        part.seats = it.active if isinstance(it.active, int) else len(it.active)
        self._steps.take(it)
        for step in self._steps.over:
            self._count(step)
        used = 0 if it.kv is None or self.blocks is None else self.blocks - it.kv["free"]
        for name, value in (
            ("batch", len(self._steps.running.line.scheduled)),
            ("queue", it.queue_length),
            ("used", used),
        ):
            setattr(part, f"{name}_area", getattr(part, f"{name}_area") + value * time)
            setattr(part, f"{name}_most", max(getattr(part, f"{name}_most"), value))

    def _count(self, step: Step) -> None:
        """The tokens of a step that is over."""
        part = self.parts[-1]
        for _, phase, tokens in step.line.scheduled:
            if phase == "decode":
                part.decode += tokens
            else:
                part.prefill += tokens
        part.unused += step.line.unused or 0

    def _halve(self) -> None:
        """Two neighbours become one; the last may stay alone."""
        joined = []
        for place in range(0, len(self.parts), 2):
            first, *rest = self.parts[place : place + 2]
            for second in rest:
                first.end, first.seats = second.end, second.seats
                for name in SUMS:
                    setattr(first, name, getattr(first, name) + getattr(second, name))
                for name in MOSTS:
                    setattr(first, name, max(getattr(first, name), getattr(second, name)))
            joined.append(first)
        self.parts = joined
        self._each *= 2
