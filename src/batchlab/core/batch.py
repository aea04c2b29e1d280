"""The batch being built: a policy's only hands."""

from enum import Enum
from typing import TYPE_CHECKING

from batchlab.core.queue import WaitingQueue
from batchlab.core.sequence import ARRIVED, DECODE, DONE, PREFILL, RUNNING, WAITING, Sequence

if TYPE_CHECKING:
    from batchlab.core.scheduler import Limits


class Refusal(Enum):
    """Why a verb of the batch did nothing. Engines branch on it.

    Success is None, so `if batch.admit(seq):` asks whether it was refused.
    """

    SEATS = "no free seat"
    TOKENS = "no token budget left"
    QUEUE = "queue full"
    NOTHING = "nothing of it is left to schedule in this iteration"
    CLOSED = "not in a state that allows it"


NO_LIMIT = 1 << 62
MODES = ("keep", "recompute")
PLACES = ("front", "back")


class Batch:
    """Builds one iteration's batch. Every verb keeps the invariants or refuses, all or nothing.

    One object serves all iterations; the core empties it at the start of each.
    """

    def __init__(self, limits: "Limits", running: list[Sequence], waiting: WaitingQueue) -> None:
        self._limits = limits
        self._running = running
        self._waiting = waiting
        self._seat_cap = NO_LIMIT if limits.max_num_seqs is None else limits.max_num_seqs
        self._queue_cap = NO_LIMIT if limits.max_queue is None else limits.max_queue
        self._budget = NO_LIMIT if limits.max_num_batched_tokens is None else limits.max_num_batched_tokens
        self._open(0)

    def _open(self, now: int) -> None:
        self.now = now
        self._left = self._budget
        self.entries: list[tuple[Sequence, str, int]] = []  # (sequence, phase, tokens), in scheduling order
        self.admitted: list[Sequence] = []
        self.preempted: list[tuple[Sequence, str, str, int]] = []  # (sequence, mode, place, computed before)
        self.rejected: list[tuple[Sequence, str]] = []  # (sequence, reason)

    # Questions

    @property
    def tokens_left(self) -> int | None:
        """Token budget left in this iteration, None without a budget."""
        return None if self._budget == NO_LIMIT else self._left

    @property
    def seats_left(self) -> int | None:
        """Free seats, None without a cap."""
        return None if self._seat_cap == NO_LIMIT else self._seat_cap - len(self._running)

    @property
    def queue_left(self) -> int | None:
        """Free places in the queue, None without a bound."""
        return None if self._queue_cap == NO_LIMIT else self._queue_cap - len(self._waiting)

    # Verbs

    def admit(self, seq: Sequence) -> Refusal | None:
        """Give a newcomer or a waiting sequence a seat, at the end of the running list, with or without tokens."""
        if seq.state == RUNNING or seq.state == DONE:
            return Refusal.CLOSED
        if len(self._running) >= self._seat_cap:
            return Refusal.SEATS
        if seq.state == WAITING:
            self._waiting.remove(seq)
        seq.state = RUNNING
        self._running.append(seq)
        self.admitted.append(seq)
        return None

    def schedule(self, seq: Sequence, at_most: int | None = None) -> Refusal | None:
        """Give a sequence tokens in this iteration: what it has left, capped by `at_most` and by the budget left.

        A sequence without a seat is admitted first. A decoding sequence always has exactly one token left. Each
        sequence is scheduled once per iteration.
        """
        tokens = seq.known - seq.computed
        if at_most is not None and at_most < tokens:
            tokens = at_most
        if seq.scheduled or tokens < 1:
            return Refusal.NOTHING
        if self._left < 1:
            return Refusal.TOKENS
        if self._left < tokens:
            tokens = self._left
        if seq.state != RUNNING:
            refusal = self.admit(seq)
            if refusal is not None:
                return refusal
        self._put(seq, tokens)
        return None

    def preempt(self, seq: Sequence, mode: str = "keep", place: str = "front") -> Refusal | None:
        """Take a running sequence off its seat and back into the queue; its tokens of this iteration are refunded.

        `keep` is an idealised, free offload: all progress stays. `recompute` drops what was computed: prompt and
        emitted output are prefilled again. The queue's bound holds for newcomers, not for work already begun; a
        policy for which it does hold asks `queue_left` first.
        """
        if mode not in MODES or place not in PLACES:
            raise ValueError(f"preempt: mode is one of {MODES}, place one of {PLACES}, not {mode!r}, {place!r}")
        if seq.state != RUNNING:
            return Refusal.CLOSED
        if seq.scheduled:
            self._refund(seq)
        self._running.remove(seq)
        self.preempted.append((seq, mode, place, seq.computed))
        seq.state = WAITING
        seq.preemptions += 1
        if mode == "recompute":
            seq.computed = 0
            seq.prefill_target = seq.known
        if place == "front":
            self._waiting.push_front(seq)
        else:
            self._waiting.append(seq)
        return None

    def enqueue(self, seq: Sequence) -> Refusal | None:
        """Put a newcomer at the back of the queue, if its bound allows."""
        if seq.state != ARRIVED:
            return Refusal.CLOSED
        if len(self._waiting) >= self._queue_cap:
            return Refusal.QUEUE
        seq.state = WAITING
        self._waiting.append(seq)
        return None

    def reject(self, seq: Sequence, reason: str) -> Refusal | None:
        """Refuse a newcomer or a waiting sequence for good, visibly, with a reason for the client."""
        if seq.state == RUNNING or seq.state == DONE:
            return Refusal.CLOSED
        if seq.state == WAITING:
            self._waiting.remove(seq)
        seq.state = DONE
        self.rejected.append((seq, str(reason)))
        return None

    # Bulk verbs: the loops that most engines share

    def decode_all(self) -> None:
        """Every running sequence in its decode phase gets its token, in running order, while the budget lasts."""
        left = self._left
        entries = self.entries
        for seq in self._running:
            if seq.computed >= seq.prefill_target and not seq.scheduled:
                if left < 1:
                    break
                left -= 1
                seq.scheduled = 1
                entries.append((seq, DECODE, 1))
        self._left = left

    def prefill_all(self, chunk: int | None = None) -> None:
        """Every running sequence with prefill left gets min(chunk, what is left, budget left), in running order."""
        for seq in self._running:
            if seq.computed < seq.prefill_target and self.schedule(seq, chunk) is Refusal.TOKENS:
                break

    def admit_waiting(self) -> None:
        """Waiting sequences take free seats, from the queue's front, until there is no seat or nobody waits."""
        while True:
            seq = self._waiting.head
            if seq is None or self.admit(seq) is not None:
                break

    # Mechanism

    def _put(self, seq: Sequence, tokens: int) -> None:
        seq.scheduled = tokens
        self.entries.append((seq, PREFILL if seq.computed < seq.prefill_target else DECODE, tokens))
        self._left -= tokens

    def _refund(self, seq: Sequence) -> None:
        self._left += seq.scheduled
        seq.scheduled = 0
        self.entries = [entry for entry in self.entries if entry[0] is not seq]
