"""The batch being built, from the inside: what stands behind every verb."""

from collections.abc import Callable
from typing import Any

from batchlab.core.blocks import CountedBlocks, HashedBlocks
from batchlab.core.limits import NO_LIMIT, Limits
from batchlab.core.line import Line
from batchlab.core.queue import WaitingQueue
from batchlab.core.running import Running
from batchlab.core.sequence import Sequence
from batchlab.core.steady import Steady
from batchlab.core.step import Step
from batchlab.core.work import Refusal, Work

NO_HITS: list[int] = []

SEATS = Refusal.SEATS
TOKENS = Refusal.TOKENS
BLOCKS = Refusal.BLOCKS
NOTHING = Refusal.NOTHING
CLOSED = Refusal.CLOSED


class Building:
    """State and mechanism of one iteration's batch. Whoever calls keeps the rules: the verbs do.

    One object serves all iterations; the core empties it at the start of each.
    """

    def __init__(
        self,
        limits: Limits,
        running: Running,
        waiting: WaitingQueue,
        kv: CountedBlocks | HashedBlocks | None = None,
        estimator: Callable[[Work], int] | None = None,
        holds: str = "computed",
        details: tuple[str, ...] = (),
    ) -> None:
        self._holds = holds
        self._holds_computed = holds == "computed"
        self._chunks = "chunks" in details
        self._contexts = "contexts" in details
        self._kv = kv
        self._counted = kv if isinstance(kv, CountedBlocks) else None
        self._hashed = kv if isinstance(kv, HashedBlocks) else None
        self._estimator = estimator
        self._steady = Steady(kv.block_size if kv is not None and holds != "max" else 0, self._hashed)
        self._script: Any = None  # has to know who joins and leaves those in step, if any do
        self._tally: Any = None  # where results are tallied as they come
        self._flying: Step | None = None  # the step that is not delivered yet when the next is planned
        self.plain_steps = 0
        """Steps in which those in step had to be taken apart, since they had to be looked at one by one."""
        self._no_limit = NO_LIMIT
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
        self._asked = False  # whether a bulk verb was used, so that it pays to let sequences go in step
        self._place = 0  # behind how many entries those in step were served ...
        self._until = 0  # ... and among those up to here, in running order
        self._stopped_at: Sequence | None = None  # where schedule_running stopped for want of blocks ...
        self.wanted = 0  # ... and the tokens it would have got
        self.moved_blocks = 0  # swapped out or in
        self.padding_tokens = 0
        self._hits_for: Sequence | None = None  # whose lookup `_hits` is, while nothing has changed
        self._hits = NO_HITS
        if self._script is None:  # a step keeps its lists ...
            self._entries = Line()  # in scheduling order, without those in step
            self._admitted = Line()
            self._new_lists()
        else:  # ... unless the core uses one step again and again
            self._entries.count = self._admitted.count = 0
            if self.preempted or self.rejected or self.dropped or self.cached:
                self._new_lists()

    def _new_lists(self) -> None:
        self.preempted: list[tuple[Sequence, str, str, int]] = []  # (sequence, mode, place, computed before)
        self.rejected: list[tuple[Sequence, str]] = []  # (sequence, reason)
        self.dropped: list[tuple[Sequence, str, str]] = []  # (sequence, result, reason)
        self.cached: list[tuple[Sequence, int]] = []  # (sequence, tokens it found computed when it took its seat)

    def _take_seat(self, seq: Sequence) -> None:
        if seq.waiting:
            self._waiting.remove(seq)
        self._sit(seq)

    def _sit(self, seq: Sequence) -> None:
        """Take a seat, at the end of the running list."""
        if seq._computed == 0:
            seq.prefill_target = seq._known
        seq.waiting = False
        seq.running = True
        self._running.append(seq)
        self._admitted.push(seq)
        if self._tally is not None:
            self._tally.sits(seq.position)

    def _schedule(self, seq: Sequence, most: int) -> Refusal | None:
        if seq._pace is not None:
            if seq._pace.given:
                return NOTHING
            self._take_apart()
        hits = NO_HITS
        tokens = seq._known + seq.placeholders - seq._computed
        if self._kv is not None and not seq.running and seq._computed == 0 and self._counted is None:
            hits = self._lookup(seq)
            tokens -= len(hits) * self._kv.block_size
        if most < tokens:
            tokens = most
        if seq._scheduled or tokens < 1:
            return NOTHING
        if self._left < 1:
            return TOKENS
        if self._left < tokens:
            tokens = self._left
        if self._kv is not None and not self._blocks_suffice(seq, tokens, hits):
            return BLOCKS
        if not seq.running:
            if seq.ended:
                return CLOSED
            if self._running.count >= self._seat_cap:
                return SEATS
            self._take_seat(seq)
        if self._kv is not None:
            self._allocate(seq, tokens, hits)
        self._grant(seq, tokens)
        return None

    def _grant(self, seq: Sequence, tokens: int) -> None:
        """So many tokens of this iteration are its own."""
        seq._scheduled = tokens
        self._entries.push(seq)
        self._left -= tokens

    def _work(self, step: Work) -> Work:
        """Add up what is scheduled, before its tokens count as computed."""
        prefill = decode = context = prefill_context = samples = 0
        if self._steady.given:
            decode = samples = self._steady.size
            context = self._steady.context + decode
        entries = self._entries
        for place in range(entries.count):
            seq = entries.items[place]
            tokens = seq._scheduled
            after = seq._computed + tokens
            context += after
            if seq._computed >= seq.prefill_target:
                decode += tokens
                samples += 1
                if self._contexts:
                    step.contexts.append(after)
                continue
            prefill += tokens
            prefill_context += after
            samples += after >= seq._known
            if self._chunks:
                step.chunks.append((tokens, seq._computed))
        step.prefill_tokens, step.decode_tokens = prefill, decode
        step.context_tokens, step.prefill_context, step.samples = context, prefill_context, samples
        step.moved_blocks = self.moved_blocks
        step.padding_tokens = self.padding_tokens
        return step

    def _fall_out(self, seq: Sequence) -> None:
        """One of those in step is looked at by itself from now on."""
        self._script.left(seq)
        self._stand_alone(seq)

    def _stand_alone(self, seq: Sequence) -> None:
        """One that has left the script's calendar falls out of step."""
        self._tally.left(seq)
        if self._flying is not None:  # its token on the way is delivered as its own
            self._flying.decoding.append(seq)
            self._flying.sampled.append(seq)
        self._left += self._steady.given  # nobody counts its token of this iteration any more ...
        self._steady.leave(seq)
        if seq._scheduled:  # ... but as its own
            self._left -= 1
            self._entries.push(seq)
        if not self._steady.size:
            self._steady.given = False

    def _take_apart(self) -> None:
        """All of those in step are looked at one by one from now on, in this iteration at least."""
        self.plain_steps += 1
        before, place, until = self._entries.as_list(), self._place, self._until
        among = before[place:until]
        self._entries.count = place
        for seq in self._running.everyone():
            if seq._pace is not None:
                self._fall_out(seq)
            elif seq in among:
                self._entries.push(seq)
        for seq in before[until:]:
            self._entries.push(seq)
        self._steady.given = False
        self._running.reunite()

    def _drop(self, seq: Sequence, result: str, reason: str) -> None:
        """Take a sequence out, in whatever state it is; everything it holds is free at once."""
        if seq.ended:
            return
        if seq.waiting:
            self._waiting.remove(seq)
        elif seq.running:
            if seq._pace is not None:
                self._fall_out(seq)
            if seq._scheduled:
                self._refund(seq)
            self._running.remove(seq)
            if self._kv is not None:
                self._release(seq)
        seq.waiting = seq.running = False
        seq.ended = True
        self.dropped.append((seq, result, str(reason)))

    def _lookup(self, seq: Sequence) -> list[int]:
        if self._hits_for is not seq:
            self._hits = NO_HITS if seq._computed or self._kv is None else self._kv.lookup(seq)
            self._hits_for = seq
        return self._hits

    def _blocks_suffice(self, seq: Sequence, tokens: int, hits: list[int]) -> bool:
        if self._counted is not None:
            covered = self._held_tokens(seq, seq._computed + tokens)
            return self._counted.blocks_for(covered) - seq._held <= self._counted.free
        kv = self._hashed
        assert kv is not None
        covered = self._held_tokens(seq, seq._computed + len(hits) * kv.block_size + tokens)
        needed = kv.blocks_for(covered) - seq._held
        return needed - len(hits) + kv.evictable(hits) <= kv.free if hits else needed <= kv.free

    def _allocate(self, seq: Sequence, tokens: int, hits: list[int]) -> None:
        if self._counted is not None:
            if not seq._computed and not seq._held and self._script is None:  # where nobody counts, there is a reader
                self.cached.append((seq, 0))
            self._counted.allocate(seq, NO_HITS, self._held_tokens(seq, seq._computed + tokens))
        else:
            kv = self._hashed
            assert kv is not None
            if hits or not seq._computed:
                seq._computed = len(hits) * kv.block_size
                if not seq._held:
                    self.cached.append((seq, seq._computed))
            self._hits_for = None
            kv.allocate(seq, hits, self._held_tokens(seq, seq._computed + tokens))
            kv.register(seq, min(seq._computed + tokens, seq._known))
        if seq.swapped:
            self.moved_blocks += seq.swapped
            seq.swapped = 0

    def _held_tokens(self, seq: Sequence, computed: int) -> int:
        """How many tokens a sequence with so many computed holds KV blocks for, by the engine's rule."""
        if self._holds_computed:
            return computed
        if self._holds == "max":
            return max(computed, seq.prompt_tokens + seq.max_tokens)
        whole = seq.prefill_target if seq._computed or seq.running else seq._known
        return max(computed, whole)

    def _release(self, seq: Sequence) -> None:
        assert self._kv is not None
        self._kv.release(seq)
        self._hits_for = None

    def _refund(self, seq: Sequence) -> None:
        self._left += seq._scheduled
        seq._scheduled = 0
        place = self._entries.remove(seq)
        self._place -= place < self._place
        self._until -= place < self._until
