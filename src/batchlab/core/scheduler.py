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
        return self._core.running.everyone().as_list()

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
        self._step, self._other = Step(), Step()  # used again and again where nobody looks: two where one is in flight
        self._ended: list[tuple[int, int, Sequence]] = []  # who gives back blocks at the end of this step, by rank

    @property
    def unfinished(self) -> int:
        """Sequences that wait or hold a seat."""
        return self.running.count + self.waiting.length()

    def go_in_step(self, script: Script, tally: Tally) -> None:
        """From now on sequences that decode go in step, and these two are told of joining and leaving.

        Where this is asked for, `settle` delivers steps, or `settle_behind` if two are in flight. The lists of a step
        are only good until the next one, and its `entries` are empty: nobody is to look at single iterations.
        """
        self.quick = True
        self.steady.lag = self.steps_in_flight - 1
        self.batch._script = self.script = script
        self.tally = tally

    def tell(self, tally: Tally) -> None:
        """From now on the verbs tell this tally who sits and who stands."""
        self.batch._tally = tally

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
        batch, lag = self.batch, self.steady.lag
        if lag and self.steady.size and not self.steady.given:  # then they are no longer ahead of what is delivered
            batch._take_apart()
        if lag:
            self._step, self._other = self._other, self._step
            if self._step.sampled:
                self._step.sampled, self._step.prefill_done, self._step.decoding = [], [], []
        step = self._step if self.quick else Step()
        step.serial = self.serial
        self.serial += 1
        step.start = batch.now
        step.scheduled, step.admitted = batch._entries, batch._admitted
        step.preempted, step.cached = batch.preempted, batch.cached
        step.rejected, step.dropped = batch.rejected, batch.dropped
        if self.quick and batch._chunks:
            step.chunks = []
        batch._work(step)
        step.works = batch._entries.count > 0 or batch._steady.given or batch.padding_tokens > 0
        if self.quick:
            step.steady = batch._steady.size if batch._steady.given else 0
            step.wake = None
            if not step.works:
                self._note(step, reason)
            return step
        step.unused = batch.unused
        step.entries = batch.entries
        step.free_blocks = batch.free_blocks
        self._advance(step)
        self._note(step, reason)
        return step

    def _advance(self, step: Step) -> None:
        """What is scheduled counts as computed."""
        for seq in step.scheduled:
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
            step.sampled.append(seq)

    def _note(self, step: Step, reason: str | Wait | None) -> None:
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
            in_order = ended if self.quick else self.running.take_out_ended()
            delivery.completed = ended if ended_waiting else in_order
        return delivery

    def _finish(self, ended: list[Sequence]) -> bool:
        """These leave what they hold. Whether one of them was waiting."""
        ended_waiting = False
        for seq in ended:
            if seq.waiting:
                ended_waiting = True
                self.waiting.remove(seq)
            elif self.kv is not None:
                self.kv.release(seq)
            left = seq.running
            seq.waiting = seq.running = False
            seq.ended = True
            if left and self.quick:
                self.running.leave()
        return ended_waiting

    # The quick path

    def settle_behind(self, step: Step, delivered: Step | None, end: int) -> int:
        """Two steps in flight: `step` counts as computed, the one before is delivered. How many have ended."""
        batch, tally, script, steady = self.batch, self.tally, self.script, self.steady
        went = steady.given
        if went:
            steady.advance()
        self._advance(step)
        delivery = Delivery() if delivered is None else self.commit(delivered, script.finished(delivered))
        tally.turn(step, delivered, delivery, end)
        if steady.size:
            tally.decoded(end)
        batch._flying = step
        if batch._asked or self.running.split:
            self.running.part()
            if went and steady.steps >= script.next_due:
                seq = script.due()
                while seq is not None:
                    following = seq._next
                    seq._next = None
                    batch._stand_alone(seq)
                    self.running.rejoin(seq)
                    seq = following
            self._fall_in(step)
        return len(delivery.completed)

    def settle(self, step: Step, end: int) -> int:
        """Deliver a step that nobody else looks at, at once, and tell the tally. How many sequences have ended."""
        batch, tally, script, steady = self.batch, self.tally, self.script, self.steady
        identity = batch._hashed is not None
        joins = batch._asked or self.running.split
        if joins:
            self.running.part()
        tally.planned(step)
        ended = 0
        if steady.given:
            steady.advance()
            tally.decoded(end)
            if steady.steps >= script.next_due:
                seq = script.due()
                while seq is not None:
                    following = seq._next
                    if identity:
                        self._ended.append((1, seq._seat, seq))
                    self._end(seq, step.serial)
                    ended += 1
                    seq = following
        entries = batch._entries
        for place in range(entries.count):
            seq = entries.items[place]
            position = seq.position
            decodes = seq._computed >= seq.prefill_target
            seq._computed += seq._scheduled
            seq._scheduled = 0
            if not decodes:
                tally.scheduled(position, step.start)
                if seq._computed < seq._known:
                    continue
            seq._known += 1
            if decodes:
                tally.token(position, end)
            else:
                tally.prefilled(position, step.serial, end)
            if script.emits(position) == 0:
                if identity:
                    self._ended.append(self._rank(seq, place))
                self._end(seq, step.serial)
                ended += 1
        if self._ended:
            self._release()
        if joins:
            self._fall_in(step)
        return ended

    def _rank(self, seq: Sequence, place: int) -> tuple[int, int, Sequence]:
        """Where a scheduled sequence stands among all, those in step included."""
        if place < self.batch._place:
            return (0, place, seq)
        return (1, seq._seat, seq) if place < self.batch._until else (2, place, seq)

    def _release(self) -> None:
        """Blocks with identity are given back in scheduled order: it decides which are taken again first."""
        self._ended.sort()
        assert self.kv is not None
        for _, _, seq in self._ended:
            self.kv.release(seq)
        self._ended = []

    def _end(self, seq: Sequence, iteration: int) -> None:
        """A running sequence has its last token."""
        if seq._pace is not None:
            self.tally.left(seq)
            self.steady.leave(seq)
            seq._next = None
        counted = self.batch._counted
        if counted is not None:
            counted.release(seq)
        seq.running = False
        seq.ended = True
        self.running.leave()
        self.tally.completed(seq.position, iteration)
        self.tally.unseated(1)

    def _fall_in(self, step: Step) -> None:
        """Those that have nothing but decodes before them, and on their way, go in step."""
        batch, loose = self.batch, self.running.loose()
        kept = 0
        for place in range(loose.count):
            seq = loose.items[place]
            if not seq.running:  # it has ended
                continue
            if batch._may_fall_in(seq) and not (step.prefill_done and seq in step.prefill_done):
                self.steady.join(seq)
                self.script.joined(seq)
                self.tally.joined(seq)
            else:
                loose.items[kept] = seq
                kept += 1
        loose.count = kept
        if step.decoding:  # it is in flight, and what is on its way for those in step is so in common
            step.decoding = [seq for seq in step.decoding if seq._pace is None]
            step.sampled = [seq for seq in step.sampled if seq._pace is None]

    def coast(self) -> bool:
        """An iteration of those in step and nobody else; False, and nothing is done, if KV blocks are short."""
        batch, steady = self.batch, self.steady
        if self.kv is not None:
            blocks = steady.blocks_needed()
            if blocks > batch._free():
                return False
            if batch._counted is not None:
                batch._counted.free -= blocks
            else:
                steady.give()
                steady.serve(batch._no_limit)
        steady.advance()
        self.serial += 1
        return True
