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
from batchlab.core.running import Running
from batchlab.core.script import Script
from batchlab.core.sequence import Sequence
from batchlab.core.step import Delivery, Step
from batchlab.core.tally import Tally
from batchlab.core.work import Wait, Work

LONGEST_NOTE = 1000
"""Characters of what a policy says about an iteration."""


class PolicyError(Exception):
    """A policy broke the contract of its verbs."""


class View:
    """What a policy may look at. The lists are copies in the core's order: they do not change under a loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.limits = core.limits

    @property
    def now(self) -> int:
        """Start of the iteration being planned, in the clock's unit."""
        now: int = self._core.batch.now
        return now

    @property
    def running(self) -> list[Sequence]:
        """Sequences holding a seat, in admission order."""
        return list(self._core.running.everyone())

    @property
    def num_running(self) -> int:
        """How many sequences hold a seat."""
        return self._core.running.count

    @property
    def prefilling(self) -> list[Sequence]:
        """Running sequences with prefill left, in admission order."""
        return [seq for seq in self._core.running.loose() if seq.computed < seq.prefill_target]

    @property
    def decoding(self) -> list[Sequence]:
        """Running sequences in their decode phase, in admission order."""
        return [seq for seq in self._core.running.everyone() if seq.computed >= seq.prefill_target]

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
    and `max` output from the start. details: what each step lists, of
    `chunks` and `contexts`.
    """

    def __init__(
        self,
        limits: Limits,
        queue_key: Callable[[Sequence], Any] | None = None,
        steps_in_flight: int = 1,
        estimator: Callable[[Work], int] | None = None,
        holds: str = "computed",
        details: tuple[str, ...] = (),
    ) -> None:
        self.limits = limits
        self.running = Running()
        self.waiting = WaitingQueue(queue_key)
        self.kv = limits.make_blocks()
        self.steps_in_flight = steps_in_flight
        self.batch = Batch(limits, self.running, self.waiting, self.kv, estimator, holds, details)
        self.steady = self.batch._steady
        self.view = View(self)
        self.serial = 0
        self.quick = False
        self.script: Any = None
        self.tally: Any = None
        self._step = Step()
        self._delivery = Delivery()

    @property
    def unfinished(self) -> int:
        """Sequences that wait or hold a seat."""
        return self.running.count + self.waiting.length()

    def go_in_step(self, script: Script, tally: Tally) -> None:
        """From now on sequences that decode go in step, and these two are told of joining and leaving.

        Where this is asked for, the lists of a step and of a delivery are only good until the next one, and `entries`
        is empty: nobody is to look at single iterations.
        """
        self.quick = True
        self.batch._script = self.script = script
        self.batch._tally = self.tally = tally

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
        if seq.at_the_door:
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
        batch = self.batch
        step = self._step if self.quick else Step()
        step.serial = self.serial
        self.serial += 1
        step.start = batch.now
        step.scheduled = batch._entries
        step.admitted, step.preempted, step.cached = batch.admitted, batch.preempted, batch.cached
        step.rejected, step.dropped = batch.rejected, batch.dropped
        if self.quick:
            self._clean(step)
        batch._work(step)
        step.works = bool(batch._entries) or batch._steady.given or batch.padding_tokens > 0
        if not self.quick:
            step.unused = batch.unused
            step.entries = batch.entries
            step.free_blocks = batch.free_blocks
        self._advance(step)
        if not self.quick or reason is not None or not step.works:
            self._note(step, reason)
        return step

    def _clean(self, step: Step) -> None:
        """Empty lists for a step that is used again."""
        step.wake = None
        if step.chunks:
            step.chunks = []
        if step.prefill_done:
            step.prefill_done = []
        if step.decoding:
            step.decoding = []

    def _advance(self, step: Step) -> None:
        """What is scheduled counts as computed."""
        batch = self.batch
        for seq in batch._entries:
            decodes = seq._computed >= seq.prefill_target
            seq._computed += seq._scheduled
            seq._scheduled = 0
            if decodes:
                step.decoding.append(seq)
            elif seq._computed < seq._known:
                continue
            else:
                step.prefill_done.append(seq)
            seq.placeholders += 1
            if not self.quick:
                step.sampled.append(seq)
        step.steady = 0
        if batch._steady.given:
            step.steady = batch._steady.size
            batch._steady.advance()

    def _note(self, step: Step, reason: str | Wait | None) -> None:
        if self.quick and step.works:  # nobody reads it
            return
        if isinstance(reason, Wait):
            step.note, step.wake = str(reason.reason), index(reason.until)
        else:
            step.note = None if reason is None else str(reason)[:LONGEST_NOTE]
        if reason is None and not step.prefill_tokens and not step.decode_tokens:
            step.note = "the policy scheduled nothing" if self.unfinished else "no work"

    def commit(self, step: Step, finished: list[Sequence]) -> Delivery:
        """Deliver a step's tokens: every sampled sequence has one more; those in `finished` leave what they hold.

        A sequence that was preempted meanwhile gets its token all the same, and may end while it waits; for one that
        ended meanwhile the token is discarded.
        """
        if self.quick:
            return self._commit_quickly(step, finished)
        delivery = Delivery()
        for seq in step.sampled:
            if seq.ended:
                delivery.discarded.append(seq)
                continue
            seq.placeholders -= 1
            seq._known += 1
            if self.steps_in_flight > 1 and self.kv is not None and seq.running:
                self.kv.register(seq, seq._computed - seq.placeholders)
        for seq in step.prefill_done:
            if not seq.ended:
                delivery.prefill_done.append(seq)
                if seq._known == seq.prompt_tokens + 1:
                    delivery.first.append(seq)
        if finished:
            ended = [seq for seq in finished if not seq.ended]
            ended_waiting = self._finish(ended)
            in_order = self.running.take_out_ended()
            delivery.completed = ended if ended_waiting else in_order
        return delivery

    def _commit_quickly(self, step: Step, finished: list[Sequence]) -> Delivery:
        """The same for a step that nobody else looks at: it is delivered at once, and orders do not matter."""
        delivery = self._delivery
        for seq in step.prefill_done:
            seq.placeholders -= 1
            seq._known += 1
        for seq in step.decoding:
            seq.placeholders -= 1
            seq._known += 1
        delivery.prefill_done = step.prefill_done
        delivery.completed = finished
        if finished:
            self._finish(finished)
        return delivery

    def _finish(self, ended: list[Sequence]) -> bool:
        """These leave what they hold. Whether one of them was waiting."""
        counted = self.batch._counted
        ended_waiting = False
        for seq in ended:
            in_step = seq._pace is not None
            if in_step:
                self.tally.left(seq)
                self.steady.leave(seq)
            if seq.waiting:
                ended_waiting = True
                self.waiting.remove(seq)
            elif counted is not None:
                counted.release(seq)
            elif self.kv is not None:
                self.kv.release(seq)
            if self.quick:
                self.running.leave(seq, in_step)
            seq.waiting = seq.running = False
            seq.ended = True
        return ended_waiting

    def coast(self) -> bool:
        """An iteration of those in step and nobody else; False, and nothing is done, if KV blocks are short."""
        counted, steady = self.batch._counted, self.steady
        if counted is not None:
            blocks = steady.blocks_needed()
            if blocks > counted.free:
                return False
            counted.free -= blocks
        steady.advance()
        self.serial += 1
        return True

    def fall_in(self) -> None:
        """After a delivery: those that have nothing but decodes before them go in step, if bulk verbs serve them."""
        batch, running = self.batch, self.running
        if not batch._asked and not running.split:
            return
        before = running.loose()
        if running.split and not before:
            return
        loose = []
        for seq in before:
            if batch._may_fall_in(seq):
                self.steady.join(seq)
                self.script.joined(seq)
                self.tally.joined(seq)
            else:
                loose.append(seq)
        running.part(loose)
