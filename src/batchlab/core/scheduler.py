"""The core: sequences, queue and seats, and the life of a step from plan to commit.

No clock, no files, no random numbers: time and requests come in, values go out.
"""

from __future__ import annotations

from collections.abc import Callable

from batchlab.core.batch import Batch
from batchlab.core.queue import WaitingQueue
from batchlab.core.sequence import ARRIVED, DECODE, DONE, RUNNING, Sequence


class PolicyError(Exception):
    """A policy broke the contract of its verbs."""


class Limits:
    """The bounds that the batch keeps, whatever the policy does. None means no bound.

    max_num_seqs: sequences holding a seat. max_num_batched_tokens: token budget of an iteration. max_queue: newcomers
    are refused a place in the queue beyond it.
    """

    def __init__(
        self,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_queue: int | None = None,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_queue = max_queue


class Step:
    """One planned iteration, a value: what runs, in order, and the sums a cost model needs."""

    def __init__(self, serial: int, batch: Batch) -> None:
        self.serial = serial
        self.start = batch.now
        self.entries = batch.entries
        self.admitted = batch.admitted
        self.preempted = batch.preempted
        self.rejected = batch.rejected
        self.unused = batch.tokens_left
        self.sampled: list[Sequence] = []  # sequences that emit a token at the end of this step, in scheduled order
        self.prefill_done: list[Sequence] = []  # those of them whose prefill ends here
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.context_tokens = 0  # keys and values read: over all entries, the tokens computed after the step
        self.idle: str | None = None  # why nothing is scheduled


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

    The loop calls begin, arrive, plan and commit; a policy decides in between.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self.batch = Batch(limits, self.running, self.waiting)
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
    ) -> Sequence:
        """A request comes to the door, where the policy's `on_arrival` says where it goes. Returns its sequence."""
        seq = Sequence(position, id, arrival, prompt_tokens, max_tokens, priority)
        on_arrival(seq, self.view, self.batch)
        if seq.state == ARRIVED:
            raise PolicyError(f"on_arrival left request {id!r} at the door: enqueue, admit or reject it")
        return seq

    def plan(self, plan: Callable[[View, Batch], str | None]) -> Step:
        """Let the policy's `plan` build the batch, then close it.

        What is scheduled counts as computed from here on, as in vLLM.
        """
        reason = plan(self.view, self.batch)
        step = Step(self.serial, self.batch)
        self.serial += 1
        prefill = decode = context = 0
        for seq, phase, tokens in step.entries:
            computed = seq.computed + tokens
            seq.computed = computed
            seq.scheduled = 0
            context += computed
            if phase == DECODE:
                decode += tokens
            else:
                prefill += tokens
                if computed < seq.known:
                    continue
                step.prefill_done.append(seq)
            step.sampled.append(seq)
        step.prefill_tokens, step.decode_tokens, step.context_tokens = prefill, decode, context
        if not step.entries:
            step.idle = reason or ("no work" if not self.unfinished else "the policy scheduled nothing")
        return step

    def commit(self, step: Step, finished: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Deliver a step's tokens: every sampled sequence has one more; those in `finished` leave their seats.

        Returns (first, completed): sequences that emitted their first token, in scheduled order, and those that left,
        in running order.
        """
        first: list[Sequence] = []
        completed: list[Sequence] = []
        for seq in step.sampled:
            seq.known += 1
        for seq in step.prefill_done:
            if seq.known == seq.prompt_tokens + 1:
                first.append(seq)
        if finished:
            for seq in finished:
                seq.state = DONE
            completed = [seq for seq in self.running if seq.state == DONE]
            self.running[:] = [seq for seq in self.running if seq.state == RUNNING]
        return first, completed
