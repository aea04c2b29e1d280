"""The verbs of a batch: what a policy can ask, and do with a single sequence."""

from operator import index

from batchlab.core.building import Building
from batchlab.core.limits import NO_LIMIT
from batchlab.core.sequence import DECODE, PREFILL, Sequence
from batchlab.core.work import Refusal, Work

MOST_PADDING = 1 << 40
MODES = ("keep", "recompute", "swap")
PLACES = ("front", "back", "key")

SEATS = Refusal.SEATS
QUEUE = Refusal.QUEUE
CLOSED = Refusal.CLOSED


class Verbs(Building):
    """Builds one iteration's batch. Every verb keeps the invariants or refuses, all or nothing."""

    # Questions

    @property
    def tokens_left(self) -> int:
        """Token budget left in this iteration; without a budget, more than any request has."""
        return self._left

    @property
    def empty(self) -> bool:
        """Whether nothing is scheduled so far."""
        return not self._entries.count and not self._steady.given

    @property
    def admitted(self) -> list[Sequence]:
        """Who has taken a seat in this iteration, in that order. A copy."""
        return self._admitted.as_list()

    @property
    def entries(self) -> list[tuple[Sequence, str, int]]:
        """What is scheduled so far, in order: (sequence, `prefill` or `decode`, tokens)."""
        if self._steady.given:
            self._take_apart()
        return [(seq, PREFILL if seq.computed < seq.prefill_target else DECODE, seq.scheduled) for seq in self._entries]

    @property
    def seats_left(self) -> int:
        """Free seats; without a cap, more than there are requests."""
        return self._seat_cap - self._running.count

    @property
    def queue_left(self) -> int:
        """Free places in the queue; without a bound, more than there are requests."""
        return self._queue_cap - self._waiting.length()

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
            if self._chunks:
                work.chunks.append((tokens, seq.computed))
        return self._estimator(work)

    # Verbs

    def admit(self, seq: Sequence) -> Refusal | None:
        """Give a newcomer or a waiting sequence a seat, at the end of the running list, with or without tokens."""
        if seq.running or seq.ended:
            return CLOSED
        if self._running.count >= self._seat_cap:
            return SEATS
        self._take_seat(seq)
        return None

    def schedule(self, seq: Sequence, at_most: int | None = None) -> Refusal | None:
        """Give a sequence tokens in this iteration: what it has left, capped by `at_most` and by the budget left.

        A sequence without a seat is admitted first. A decoding sequence always has exactly one token left. Each
        sequence is scheduled once per iteration.
        """
        return self._schedule(seq, self._no_limit if at_most is None else min(index(at_most), NO_LIMIT))

    def preempt(self, seq: Sequence, mode: str = "keep", place: str = "front") -> Refusal | None:
        """Take a running sequence off its seat and back into the queue; its tokens of this iteration are refunded.

        Its KV blocks are free at once. `keep` is an idealised, free offload: all progress stays. `swap` is the same
        with a price: blocks moved out now and in again later. `recompute` drops what was computed: prompt and emitted
        output are prefilled again. The queue's bound holds for newcomers, not for work already begun; a policy for
        which it does hold asks `queue_left` first.
        """
        if mode not in MODES or place not in PLACES:
            raise ValueError(f"preempt: mode is one of {MODES}, place one of {PLACES}, not {mode!r}, {place!r}")
        if not seq.running:
            return CLOSED
        if seq._pace is not None:
            self._fall_out(seq)
        if seq._scheduled:
            self._refund(seq)
        self._running.remove(seq)
        self.preempted.append((seq, mode, place, seq._computed))
        if self._tally is not None:
            self._tally.stands(seq.position, mode == "recompute", seq._computed)
        if self._kv is not None:
            if mode == "recompute":
                seq.swapped = 0
            elif mode == "swap" and seq._held:  # blocks taken in this iteration hold nothing yet
                seq.swapped = self._kv.blocks_for(seq._computed)
                self.moved_blocks += seq.swapped
            self._release(seq)
        seq.running = False
        seq.waiting = True
        seq.preemptions += 1
        if mode == "recompute":
            seq._computed = 0
        if place == "front":
            self._waiting.push_front(seq)
        else:
            self._waiting.append(seq)
        return None

    def enqueue(self, seq: Sequence) -> Refusal | None:
        """Put a newcomer at the back of the queue, if its bound allows."""
        if not seq.at_the_door:
            return CLOSED
        if self._waiting.length() >= self._queue_cap and not (self._shed and self._shed_for(seq)):
            return QUEUE
        seq.running = False
        seq.waiting = True
        self._waiting.append(seq)
        return None

    def reject(self, seq: Sequence, reason: str) -> Refusal | None:
        """Refuse a newcomer or a waiting sequence for good, visibly, with a reason for the client."""
        if seq.running or seq.ended:
            return CLOSED
        if seq.waiting:
            self._waiting.remove(seq)
        seq.waiting = seq.running = False
        seq.ended = True
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
