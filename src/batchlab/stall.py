"""Noticing that a run cannot go on, and saying why."""

from typing import Any

from batchlab.core.scheduler import Core
from batchlab.core.step import Step
from batchlab.errors import StalledError, shorten

REPEATS = 3
"""So often the very same state has to come back, with no token and no arrival in between, to be called a livelock."""


class StallWatch:
    """Watches one run for two ways of getting nowhere: nothing scheduled for ever, and preemption in circles."""

    def __init__(self, core: Core, unit: str, policy: Any) -> None:
        self._core = core
        self._unit = unit
        self._rule = getattr(policy, "victim_rule", "the policy's choice of a victim")
        self._seen: dict[Any, int] = {}

    def next_event(self, step: Step, *times: int | None) -> int:
        """Nothing runs while work exists: the time of the next thing that could change that. Raises StalledError."""
        known = [time for time in times if time is not None]
        if known:
            return min(known)
        core = self._core
        first = {"waiting": core.waiting.head, "active": core.running[0] if core.running else None}
        shown = [f"first {where}: {shorten(seq.id)}" for where, seq in first.items() if seq is not None]
        raise StalledError(
            f"stalled in iteration {step.serial}, at time {step.start} ({self._unit}): {step.note}; "
            f"{len(core.waiting)} waiting and {len(core.running)} active, nothing more to arrive; {', '.join(shown)}"
        )

    def preempted(self, step: Step, quiet: bool) -> None:
        """A step with preemptions, `quiet` if it brought no token and no arrival. Raises StalledError on a livelock."""
        if not quiet:
            self._seen.clear()
            return
        core = self._core
        state = (
            tuple((seq.position, seq.computed, seq.known) for seq in core.running),
            tuple((seq.position, seq.computed, seq.known) for seq in core.waiting),
        )
        self._seen[state] = self._seen.get(state, 0) + 1
        if self._seen[state] < REPEATS:
            return
        ids = sorted({entry[0].id for entry in step.preempted} | {seq.id for seq in core.running})
        raise StalledError(
            f"livelock in iteration {step.serial}, at time {step.start} ({self._unit}): requests "
            f"{', '.join(shorten(id) for id in ids[:8])} evict each other for ever; rule: {self._rule}"
        )
