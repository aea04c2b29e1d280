"""What a verifier knows of one request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from batchlab.trace.terms import Terms

HERE = ("waiting", "active")


@dataclass(slots=True)
class Known:
    """One request and all that follows about it from the lines so far."""

    index: int
    id: str
    arrival: int
    prompt: int
    output: int
    priority: int
    max_tokens: int
    due: int
    """The output tokens after which it ends: `output`, or fewer where max_model_len cuts it."""
    open_end: bool
    """Whether its output is not known beforehand: it ends when it is said to, with `due` tokens at the latest."""
    prefill_target: int
    """Tokens that its prefill has to compute: the prompt, after a recompute also what it had emitted."""
    comes_at: int
    """When the client comes, or comes again."""
    cancel_at: int | None = None
    deadline_at: int | None = None
    group: str | None = None
    held_until: int | None = None
    """When it was sent, where its client held it back for a time."""
    state: str = "pending"
    attempts: int = 0
    came: int = 0
    """When the client came the last time."""
    computed: int = 0
    emitted: int = 0
    in_flight: int = 0
    """Its tokens that are on their way: sampled in steps that are not delivered yet."""
    scheduled: int = 0
    lost: int = 0
    """Computed tokens that recompute preemptions dropped; `dropped`: by the last one, until it sits again."""
    dropped: int = 0
    cached: int = 0
    recomputed: int = 0
    """As the totals count it: less what was found again in the prefix cache."""
    preempted: bool = False
    """Whether it was, since it came."""
    fresh: bool = False
    """Whether it has had no tokens since it took its seat."""
    held: int = 0
    """KV blocks."""
    swapped_least: int = 0
    swapped_most: int = 0
    """KV blocks to move in when it goes on; a line may leave open which of the two."""
    preemptions: int = 0
    reason: str | None = None
    first_start: int | None = None
    first_output: int | None = None
    first_time: int | None = None
    last_time: int | None = None
    max_gap: int = 0
    completed: int | None = None
    output_times: list[int] | None = None
    gaps: Counter[int] | None = None
    """Of all requests together: how often each time between two consecutive tokens occurred."""

    @property
    def here(self) -> bool:
        """Whether it waits or holds a seat."""
        return self.state in HERE

    @property
    def known(self) -> int:
        """Its tokens: prompt and emitted output."""
        return self.prompt + self.emitted

    @property
    def prefill_left(self) -> int:
        """Tokens that prefill entries may still get."""
        return max(self.prefill_target - self.computed, 0)

    def come(self) -> None:
        """The client comes, the first time or again: nothing is left of an attempt before."""
        self.state = "waiting"
        self.attempts += 1
        self.came = self.comes_at
        self.prefill_target = self.prompt
        self.computed = self.emitted = self.in_flight = self.scheduled = 0
        self.lost = self.dropped = self.cached = self.held = self.swapped_least = self.swapped_most = 0
        self.preempted = self.fresh = False

    def sit(self) -> None:
        """Take a seat."""
        self.state, self.fresh = "active", True
        if self.computed == 0:
            self.prefill_target = self.known

    def stand(self, recompute: bool) -> None:
        """Be preempted. One that recomputes starts again, with the emitted tokens as part of the prompt."""
        self.state, self.fresh, self.preempted = "waiting", False, True
        self.preemptions += 1
        if recompute:
            self.recomputed += self.computed
            self.lost += self.computed
            self.dropped, self.computed = self.computed, 0
            self.prefill_target = self.known

    def find_cached(self, tokens: int) -> int:
        """Tokens turn out to be computed already. Returns how many of them the last preemption had dropped."""
        again = min(tokens, self.dropped)
        self.computed = tokens
        self.cached += tokens
        self.recomputed -= again
        self.dropped = 0
        return again

    def emit(self, iteration: int, time: int, last: bool) -> None:
        """One output token appears. last: whether it is said to be the last, which decides where the end is open."""
        self.emitted += 1
        if self.last_time is None:
            self.first_output, self.first_time = iteration, time
        else:
            self.max_gap = max(self.max_gap, time - self.last_time)
            if self.gaps is not None:
                self.gaps[time - self.last_time] += 1
        self.last_time = time
        if self.output_times is not None:
            self.output_times.append(time)
        if self.open_end and last:
            self.output = self.due = self.emitted
        if self.emitted == self.due:
            self.state, self.completed = "completed", iteration


def known_from(
    obj: dict[str, Any], index: int, terms: Terms, keep_times: bool, gaps: Counter[int] | None = None
) -> Known:
    """A request as its line introduces it."""
    deadline = obj.get("deadline")
    return Known(
        index=index,
        id=obj["id"],
        arrival=obj["arrival"],
        prompt=obj["prompt"],
        output=obj.get("output", 0),
        priority=obj["priority"],
        max_tokens=obj["max_tokens"],
        due=terms.due_output(obj["prompt"], obj.get("output", obj["max_tokens"])),
        open_end="output" not in obj,
        prefill_target=obj["prompt"],
        comes_at=obj.get("held_until", obj["arrival"]),
        held_until=obj.get("held_until"),
        cancel_at=obj.get("cancel_at"),
        deadline_at=None if deadline is None else obj["arrival"] + deadline,
        group=obj.get("group"),
        output_times=[] if keep_times else None,
        gaps=gaps,
    )
