"""The core: sequences, queue and seats, and the life of a step from plan to commit.

No clock, no files, no random numbers: time and requests come in, values go out.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.queue import WaitingQueue
from batchlab.core.sequence import ARRIVED, DECODE, DONE, RUNNING, WAITING, Sequence
from batchlab.core.work import Wait, Work

LONGEST_NOTE = 1000
"""Characters of what a policy says about an iteration."""


class PolicyError(Exception):
    """A policy broke the contract of its verbs."""


class Step(Work):
    """One planned iteration, a value: what runs, in order, and the sums a cost model needs."""

    def __init__(self, serial: int, batch: Batch) -> None:
        super().__init__()
        self.serial = serial
        self.start = batch.now
        self.entries = batch.entries
        self.admitted = batch.admitted
        self.preempted = batch.preempted
        self.rejected = batch.rejected
        self.dropped = batch.dropped
        self.cached = batch.cached
        self.works = bool(batch.entries) or batch.padding_tokens > 0
        self.wake: int | None = None  # when the policy wants to be asked again, if nothing happens before
        self.unused = batch.unused
        self.free_blocks = batch.free_blocks
        self.sampled: list[Sequence] = []  # sequences that emit a token at the end of this step, in scheduled order
        self.prefill_done: list[Sequence] = []  # those of them whose prefill ends here
        self.note: str | None = None  # what the policy said; where nothing is scheduled, why


class Delivery:
    """What came out of a step: who emitted the first token or ended a prefill, who left, whose token was discarded."""

    def __init__(self) -> None:
        self.prefill_done: list[Sequence] = []  # in scheduled order, like all but the next
        self.completed: list[Sequence] = []  # in running order
        self.first: list[Sequence] = []
        self.discarded: list[Sequence] = []


class View:
    """What a policy may look at. The lists are copies in the core's order: they do not change under a loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.limits = core.limits

    @property
    def now(self) -> int:
        """Start of the iteration being planned, in the clock's unit."""
        return self._core.batch.now

    @property
    def running(self) -> list[Sequence]:
        """Sequences holding a seat, in admission order."""
        return list(self._core.running)

    @property
    def num_running(self) -> int:
        """How many sequences hold a seat."""
        return len(self._core.running)

    @property
    def prefilling(self) -> list[Sequence]:
        """Running sequences with prefill left, in admission order."""
        return [seq for seq in self._core.running if seq.computed < seq.prefill_target]

    @property
    def decoding(self) -> list[Sequence]:
        """Running sequences in their decode phase, in admission order."""
        return [seq for seq in self._core.running if seq.computed >= seq.prefill_target]

    @property
    def waiting(self) -> WaitingQueue:
        """The queue: len(), iteration from the front, and `head` (None if nobody waits)."""
        return self._core.waiting


class Core:
    """State and mechanism of one scheduler.

    The loop calls begin, arrive, cancel, plan and commit; a policy decides in between. queue_key orders the queue by a
    key that is fixed while a sequence waits; without it, first come, first served. steps_in_flight: how many steps are
    planned before the oldest is committed. estimator: says how long some work takes, for policies that ask.
    holds: what a sequence has KV blocks for: `computed` tokens, its whole `prompt` from the first chunk on, or prompt
    and `max` output from the start. details: whether each step lists its chunks and contexts.
    """

    def __init__(
        self,
        limits: Limits,
        queue_key: Callable[[Sequence], Any] | None = None,
        steps_in_flight: int = 1,
        estimator: Callable[[Work], int] | None = None,
        holds: str = "computed",
        details: bool = False,
    ) -> None:
        self.limits = limits
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue(queue_key)
        self.kv = limits.make_blocks()
        self.steps_in_flight = steps_in_flight
        self.batch = Batch(limits, self.running, self.waiting, self.kv, estimator, holds, details)
        self.view = View(self)
        self.serial = 0

    @property
    def unfinished(self) -> int:
        """Sequences that wait or hold a seat."""
        return len(self.running) + len(self.waiting)

    def begin(self, now: int) -> None:
        """Open the batch of the iteration that starts at `now`."""
        self.batch._open(now)

    def arrive(
        self,
        on_arrival: Callable[[Sequence, View, Batch], object],
        position: int,
        id: str,
        arrival: int,
        prompt_tokens: int,
        max_tokens: int,
        priority: int,
        sent: int | None = None,
        tokens: Any = None,
        deadline: int | None = None,
    ) -> Sequence:
        """A request comes to the door, where the policy's `on_arrival` says where it goes. Returns its sequence."""
        seq = Sequence(position, id, arrival, prompt_tokens, max_tokens, priority, sent, tokens, deadline)
        longest = self.limits.max_model_len
        if longest is not None and prompt_tokens >= longest:  # no room for a single output token
            self.batch.reject(seq, f"prompt does not fit max_model_len: at most {longest - 1} tokens")
        else:
            on_arrival(seq, self.view, self.batch)
        if seq.state == ARRIVED:
            raise PolicyError(f"on_arrival left request {id!r} at the door: enqueue, admit or reject it")
        return seq

    def cancel(self, seq: Sequence, result: str, reason: str) -> None:
        """Take a sequence out in whatever state it is, unless it has ended: seat and blocks are free at once."""
        self.batch._drop(seq, result, reason)

    def plan(self, plan: Callable[[View, Batch], str | Wait | None]) -> Step:
        """Let the policy's `plan` build the batch, then close it.

        What is scheduled counts as computed from here on, as in vLLM.
        """
        reason = plan(self.view, self.batch)
        step = Step(self.serial, self.batch)
        self.serial += 1
        self.batch._work(step)
        for seq, phase, tokens in step.entries:
            seq.computed += tokens
            seq.scheduled = 0
            if phase != DECODE:
                if seq.computed < seq.known:
                    continue
                step.prefill_done.append(seq)
            seq.placeholders += 1
            step.sampled.append(seq)
        if isinstance(reason, Wait):
            step.note, step.wake = str(reason.reason), index(reason.until)
        else:
            step.note = None if reason is None else str(reason)[:LONGEST_NOTE]
        if reason is None and not step.entries:
            step.note = "the policy scheduled nothing" if self.unfinished else "no work"
        return step

    def commit(self, step: Step, finished: list[Sequence]) -> Delivery:
        """Deliver a step's tokens: every sampled sequence has one more; those in `finished` leave what they hold.

        A sequence that was preempted meanwhile gets its token all the same, and may end while it waits; for one that
        ended meanwhile the token is discarded.
        """
        delivery = Delivery()
        for seq in step.sampled:
            if seq.state == DONE:
                delivery.discarded.append(seq)
                continue
            seq.placeholders -= 1
            seq.known += 1
            if self.steps_in_flight > 1 and self.kv is not None and seq.state == RUNNING:
                self.kv.register(seq, seq.computed - seq.placeholders)
        for seq in step.prefill_done:
            if seq.state != DONE:
                delivery.prefill_done.append(seq)
                if seq.known == seq.prompt_tokens + 1:
                    delivery.first.append(seq)
        if finished:
            self._finish(finished, delivery)
        return delivery

    def _finish(self, finished: list[Sequence], delivery: Delivery) -> None:
        ended_waiting = False
        ended = [seq for seq in finished if seq.state != DONE]
        for seq in ended:
            if seq.state == WAITING:
                ended_waiting = True
                self.waiting.remove(seq)
            elif self.kv is not None:
                self.kv.release(seq)
            seq.state = DONE
        delivery.completed = ended if ended_waiting else [seq for seq in self.running if seq.state == DONE]
        self.running[:] = [seq for seq in self.running if seq.state == RUNNING]
