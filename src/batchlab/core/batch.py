"""The batch being built: a policy's only hands."""

from collections.abc import Callable
from operator import index

from batchlab.core.blocks import CountedBlocks, HashedBlocks
from batchlab.core.limits import NO_LIMIT, Limits
from batchlab.core.queue import WaitingQueue
from batchlab.core.sequence import ARRIVED, DECODE, DONE, PREFILL, RUNNING, WAITING, Sequence
from batchlab.core.work import Refusal, Work

MOST_PADDING = 1 << 40
MODES = ("keep", "recompute", "swap")
PLACES = ("front", "back", "key")
NO_HITS: list[int] = []


class Batch:
    """Builds one iteration's batch. Every verb keeps the invariants or refuses, all or nothing.

    One object serves all iterations; the core empties it at the start of each.
    """

    def __init__(
        self,
        limits: Limits,
        running: list[Sequence],
        waiting: WaitingQueue,
        kv: CountedBlocks | HashedBlocks | None = None,
        estimator: Callable[[Work], int] | None = None,
        holds: str = "computed",
        details: bool = False,
    ) -> None:
        self._holds = holds
        self._details = details
        self._kv = kv
        self._estimator = estimator
        self._shed = limits.shed
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
        self.dropped: list[tuple[Sequence, str, str]] = []  # (sequence, result, reason)
        self.cached: list[tuple[Sequence, int]] = []  # (sequence, tokens it found computed when it took its seat)
        self.moved_blocks = 0  # swapped out or in
        self.padding_tokens = 0
        self._hits_for: Sequence | None = None  # whose lookup `_hits` is, while nothing has changed
        self._hits = NO_HITS

    # Questions

    @property
    def tokens_left(self) -> int:
        """Token budget left in this iteration; without a budget, more than any request has."""
        return self._left

    @property
    def seats_left(self) -> int:
        """Free seats; without a cap, more than there are requests."""
        return self._seat_cap - len(self._running)

    @property
    def queue_left(self) -> int:
        """Free places in the queue; without a bound, more than there are requests."""
        return self._queue_cap - len(self._waiting)

    @property
    def unused(self) -> int | None:
        """Token budget that nobody got, None without a budget."""
        return None if self._budget == NO_LIMIT else self._left

    @property
    def free_blocks(self) -> int:
        """KV blocks without a user, cached ones included; 0 where blocks are not modelled."""
        return 0 if self._kv is None else self._kv.free

    @property
    def total_blocks(self) -> int:
        """Usable KV blocks of the pool; 0 where blocks are not modelled."""
        return 0 if self._kv is None else self._kv.num_blocks

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return 0 if self._kv is None else self._kv.blocks_for(tokens)

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens that a sequence without a seat would find in the prefix cache if it were admitted now."""
        return 0 if self._kv is None else len(self._lookup(seq)) * self._kv.block_size

    def blocks_to_admit(self, seq: Sequence, tokens: int) -> int:
        """Free blocks that admitting the sequence takes, to hold its first `tokens` tokens, its cached ones among them.

        Cached blocks that nobody uses lie in the free queue: taking them makes fewer free, too.
        """
        if self._kv is None:
            return 0
        hits = self._lookup(seq)
        return self._kv.blocks_for(tokens) - len(hits) + self._kv.evictable(hits)

    def estimate(self, seq: Sequence | None = None, tokens: int = 0) -> int | None:
        """How long the step would take as built so far, with `tokens` more prefill tokens of `seq` in it.

        In the clock's unit; None if the run has no estimator.
        """
        if self._estimator is None:
            return None
        work = self._work(Work())
        if seq is not None and tokens > 0:
            after = seq.computed + tokens
            work.prefill_tokens += tokens
            work.context_tokens += after
            work.prefill_context += after
            work.samples += after >= seq.known
            if self._details:
                work.chunks.append((tokens, seq.computed))
        return self._estimator(work)

    # Verbs

    def admit(self, seq: Sequence) -> Refusal | None:
        """Give a newcomer or a waiting sequence a seat, at the end of the running list, with or without tokens."""
        if seq.state == RUNNING or seq.state == DONE:
            return Refusal.CLOSED
        if len(self._running) >= self._seat_cap:
            return Refusal.SEATS
        if seq.state == WAITING:
            self._waiting.remove(seq)
        if seq.computed == 0:
            seq.prefill_target = seq.known
        seq.state = RUNNING
        self._running.append(seq)
        self.admitted.append(seq)
        return None

    def schedule(self, seq: Sequence, at_most: int | None = None) -> Refusal | None:
        """Give a sequence tokens in this iteration: what it has left, capped by `at_most` and by the budget left.

        A sequence without a seat is admitted first. A decoding sequence always has exactly one token left. Each
        sequence is scheduled once per iteration.
        """
        if at_most is not None:
            at_most = index(at_most)
        hits = NO_HITS
        tokens = seq.known + seq.placeholders - seq.computed
        if self._kv is not None and seq.state != RUNNING and seq.computed == 0:
            hits = self._lookup(seq)
            tokens -= len(hits) * self._kv.block_size
        if at_most is not None and at_most < tokens:
            tokens = at_most
        if seq.scheduled or tokens < 1:
            return Refusal.NOTHING
        if self._left < 1:
            return Refusal.TOKENS
        if self._left < tokens:
            tokens = self._left
        if self._kv is not None and not self._blocks_suffice(seq, tokens, hits):
            return Refusal.BLOCKS
        if seq.state != RUNNING:
            refusal = self.admit(seq)
            if refusal is not None:
                return refusal
        if self._kv is not None:
            self._allocate(seq, tokens, hits)
        self._put(seq, tokens)
        return None

    def preempt(self, seq: Sequence, mode: str = "keep", place: str = "front") -> Refusal | None:
        """Take a running sequence off its seat and back into the queue; its tokens of this iteration are refunded.

        Its KV blocks are free at once. `keep` is an idealised, free offload: all progress stays. `swap` is the same
        with a price: blocks moved out now and in again later. `recompute` drops what was computed: prompt and emitted
        output are prefilled again. The queue's bound holds for newcomers, not for work already begun; a policy for
        which it does hold asks `queue_left` first.
        """
        if mode not in MODES or place not in PLACES:
            raise ValueError(f"preempt: mode is one of {MODES}, place one of {PLACES}, not {mode!r}, {place!r}")
        if seq.state != RUNNING:
            return Refusal.CLOSED
        if seq.scheduled:
            self._refund(seq)
        self._running.remove(seq)
        self.preempted.append((seq, mode, place, seq.computed))
        if self._kv is not None:
            if mode == "recompute":
                seq.swapped = 0
            elif mode == "swap" and seq.held:  # blocks taken in this iteration hold nothing yet
                seq.swapped = self._kv.blocks_for(seq.computed)
                self.moved_blocks += seq.swapped
            self._release(seq)
        seq.state = WAITING
        seq.preemptions += 1
        if mode == "recompute":
            seq.computed = 0
        if place == "front":
            self._waiting.push_front(seq)
        else:
            self._waiting.append(seq)
        return None

    def enqueue(self, seq: Sequence) -> Refusal | None:
        """Put a newcomer at the back of the queue, if its bound allows."""
        if seq.state != ARRIVED:
            return Refusal.CLOSED
        if len(self._waiting) >= self._queue_cap and not (self._shed and self._shed_for(seq)):
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

    def fail(self, seq: Sequence, reason: str) -> None:
        """End a waiting or running sequence that can never go on, visibly, with the reason."""
        self._drop(seq, "failed", reason)

    def pad(self, tokens: int) -> None:
        """Have the step compute so many tokens for nobody, as a tied batch does for its ended members."""
        if not 0 <= index(tokens) <= MOST_PADDING:
            raise ValueError(f"pad: tokens must lie between 0 and 2^40, not {tokens}")
        self.padding_tokens += index(tokens)

    # Bulk verbs: the loops that most engines share

    def decode_all(self) -> Sequence | None:
        """Every running sequence in its decode phase gets its token, in running order, while the budget lasts.

        Stops at the first for which KV blocks are missing and returns it; called again, it goes on from there.
        """
        if self._kv is not None:
            for seq in list(self._running):
                if seq.computed >= seq.prefill_target and not seq.scheduled:
                    refusal = self.schedule(seq)
                    if refusal is Refusal.BLOCKS:
                        return seq
                    if refusal is Refusal.TOKENS:
                        break
            return None
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
        return None

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

    def _work(self, step: Work) -> Work:
        """Add up what is scheduled, before its tokens count as computed."""
        prefill = decode = context = prefill_context = samples = 0
        for seq, phase, tokens in self.entries:
            after = seq.computed + tokens
            context += after
            if phase == DECODE:
                decode += tokens
                samples += 1
                if self._details:
                    step.contexts.append(after)
                continue
            prefill += tokens
            prefill_context += after
            samples += after >= seq.known
            if self._details:
                step.chunks.append((tokens, after - tokens))
        step.prefill_tokens, step.decode_tokens = prefill, decode
        step.context_tokens, step.prefill_context, step.samples = context, prefill_context, samples
        step.moved_blocks = self.moved_blocks
        step.padding_tokens = self.padding_tokens
        return step

    def _drop(self, seq: Sequence, result: str, reason: str) -> None:
        """Take a sequence out, in whatever state it is; everything it holds is free at once."""
        if seq.state == DONE:
            return
        if seq.state == WAITING:
            self._waiting.remove(seq)
        elif seq.state == RUNNING:
            if seq.scheduled:
                self._refund(seq)
            self._running.remove(seq)
            if self._kv is not None:
                self._release(seq)
        seq.state = DONE
        self.dropped.append((seq, result, str(reason)))

    def _shed_for(self, seq: Sequence) -> bool:
        """Drop the least urgent of those that wait, the latest come among equals, if it is less urgent than `seq`.

        Work already begun is spared: a client that tries again would begin anew.
        """
        fresh = [other for other in self._waiting if other.preemptions == 0]
        least = max(fresh, key=lambda other: (other.priority, other.arrival, other.position), default=None)
        if least is None or least.priority <= seq.priority:
            return False
        self.reject(least, "shed for a more urgent request")
        return True

    def _lookup(self, seq: Sequence) -> list[int]:
        if self._hits_for is not seq:
            self._hits = NO_HITS if seq.computed or self._kv is None else self._kv.lookup(seq)
            self._hits_for = seq
        return self._hits

    def _blocks_suffice(self, seq: Sequence, tokens: int, hits: list[int]) -> bool:
        kv = self._kv
        assert kv is not None
        covered = self._held_tokens(seq, seq.computed + len(hits) * kv.block_size + tokens)
        needed = kv.blocks_for(covered) - seq.held
        return needed - len(hits) + kv.evictable(hits) <= kv.free if hits else needed <= kv.free

    def _allocate(self, seq: Sequence, tokens: int, hits: list[int]) -> None:
        kv = self._kv
        assert kv is not None
        if hits or not seq.computed:
            seq.computed = len(hits) * kv.block_size
            if not seq.held:
                self.cached.append((seq, seq.computed))
        self._hits_for = None
        kv.allocate(seq, hits, self._held_tokens(seq, seq.computed + tokens))
        kv.register(seq, min(seq.computed + tokens, seq.known))
        if seq.swapped:
            self.moved_blocks += seq.swapped
            seq.swapped = 0

    def _held_tokens(self, seq: Sequence, computed: int) -> int:
        """How many tokens a sequence with so many computed holds KV blocks for, by the engine's rule."""
        if self._holds == "max":
            return max(computed, seq.prompt_tokens + seq.max_tokens)
        if self._holds == "prompt":
            whole = seq.prefill_target if seq.computed or seq.state == RUNNING else seq.known
            return max(computed, whole)
        return computed

    def _release(self, seq: Sequence) -> None:
        assert self._kv is not None
        self._kv.release(seq)
        self._hits_for = None

    def _put(self, seq: Sequence, tokens: int) -> None:
        seq.scheduled = tokens
        self.entries.append((seq, PREFILL if seq.computed < seq.prefill_target else DECODE, tokens))
        self._left -= tokens

    def _refund(self, seq: Sequence) -> None:
        self._left += seq.scheduled
        seq.scheduled = 0
        self.entries = [entry for entry in self.entries if entry[0] is not seq]
