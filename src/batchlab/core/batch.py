"""The batch being built: a policy's only hands."""

from collections.abc import Callable
from operator import index

from batchlab.core.building import NO_HITS
from batchlab.core.limits import NO_LIMIT
from batchlab.core.sequence import Sequence
from batchlab.core.verbs import Verbs
from batchlab.core.work import Refusal

TOKENS = Refusal.TOKENS
BLOCKS = Refusal.BLOCKS
SEATS = Refusal.SEATS
NOTHING = Refusal.NOTHING


class Batch(Verbs):
    """Verbs for single sequences, and here the bulk verbs: the loops that most engines share.

    A bulk verb does what the loop in its description would do, and costs less: those that decode in step are served at
    once where budget and blocks suffice for everybody.
    """

    def decode_all(self) -> Sequence | None:
        """Every running sequence in its decode phase gets its token, in running order, while the budget lasts.

        Stops at the first for which KV blocks are missing and returns it; called again, it goes on from there.
        """
        self._asked = True
        if self._steady.size and not self._steady.given:
            if self._decode_in_step():
                return None
            self._take_apart()
        loose = self._running.loose()
        for place in range(loose.count):
            seq: Sequence = loose.items[place]
            if seq._computed >= seq.prefill_target and not seq._scheduled:
                refusal = self._schedule(seq, self._no_limit)
                if refusal is BLOCKS:
                    return seq
                if refusal is TOKENS:
                    break
        return None

    def prefill_all(self, chunk: int | None = None) -> None:
        """Every running sequence with prefill left gets min(chunk, what is left, budget left), in running order."""
        most = self._no_limit if chunk is None else self._capped(chunk)
        loose = self._running.loose()
        for place in range(loose.count):
            seq: Sequence = loose.items[place]
            if seq._computed < seq.prefill_target and self._schedule(seq, most) is TOKENS:
                break

    def schedule_running(
        self, chunk: int | None = None, most_of: Callable[[Sequence], int] | None = None, at_end: bool = False
    ) -> Sequence | None:
        """Every running sequence gets min(chunk, what is left, budget left), in running order, decoding or not.

        most_of: the most that a sequence may get, 0 to pass it over. at_end: a promise that it passes over nobody who
        decodes, but for one whose token on the way may be its last; so it is not asked about everybody. Stops at the
        first for which KV blocks are missing and returns it; called again, it goes on from there, and that one gets no
        more than it would have got before, which `wanted` says.
        """
        self._asked = True
        most = self._no_limit if chunk is None else self._capped(chunk)
        if most < 1:
            return None
        if self._steady.size and not self._steady.given:
            if (most_of is None or at_end) and self._all_in_step(most, most_of):
                return None
            self._take_apart()
        loose = self._running.loose()
        place = 0
        while place < loose.count:  # `most_of` may do anything
            seq: Sequence = loose.items[place]
            place += 1
            if seq._scheduled:
                continue
            allowed = most
            if most_of is not None:
                allowed = min(most, most_of(seq))
            if seq is self._stopped_at:
                allowed = min(allowed, self.wanted)
            left = self._left
            refusal = self._schedule(seq, allowed)
            if refusal is BLOCKS:
                self._stopped_at = seq
                self.wanted = min(allowed, left, seq._known + seq.placeholders - seq._computed)
                return seq
            if refusal is TOKENS:
                break
        return None

    def admit_waiting(self) -> None:
        """Waiting sequences take free seats, from the queue's front, until there is no seat or nobody waits."""
        while self._running.count < self._seat_cap:
            seq = self._waiting.front()
            if seq is None or self.admit(seq) is not None:
                break

    def schedule_waiting(
        self, chunk: int | None = None, whole: bool = False, spare: int = 0, for_all: bool = False
    ) -> Refusal | None:
        """Waiting sequences get a seat and min(chunk, what is left, budget left), in order: the head or nobody.

        whole: nobody gets a part of what the chunk allows. spare: while anyone is running, so many KV blocks stay free.
        for_all: there have to be free blocks for all known tokens, not only for the chunk. Returns what the head is
        refused for; None if nobody waits any more.
        """
        self._asked = True
        most = self._no_limit if chunk is None else self._capped(chunk)
        while self._left > 0:
            if self._running.count >= self._seat_cap:
                return SEATS
            seq = self._waiting.front()
            if seq is None:
                return None
            refusal = self._serve(seq, most, whole, spare if self._running.count else 0, for_all)
            if refusal is not None:
                return refusal
        return TOKENS

    # Mechanism

    def _capped(self, chunk: int) -> int:
        return min(index(chunk), NO_LIMIT)

    def _serve(self, seq: Sequence, most: int, whole: bool, spare: int, for_all: bool) -> Refusal | None:
        """Schedule the head of the queue, or say what it is refused for."""
        cached = 0
        counted = self._counted
        if self._hashed is not None:
            if self._hashed.blocks_for(seq._known) > self._hashed.num_blocks:
                return BLOCKS
            cached = self.cached_tokens(seq)
        elif counted is not None and seq._known > counted.num_blocks * counted.block_size:
            return BLOCKS
        tokens = min(seq._known + seq.placeholders - seq._computed - cached, most)
        if tokens > self._left:
            if whole:
                return TOKENS
            tokens = self._left
        if self._hashed is not None:
            free = self._hashed.free - spare
            if for_all and self.blocks_to_admit(seq, seq._known) > free:
                return BLOCKS
            if self.blocks_to_admit(seq, seq._computed + cached + tokens) > free:
                return BLOCKS
            return self._schedule(seq, tokens)
        held = seq._computed + tokens
        if counted is not None:
            if max(held, seq._known if for_all else 0) > (counted.free - spare) * counted.block_size:
                return BLOCKS
            if not self._holds_computed and not self._blocks_suffice(seq, tokens, NO_HITS):
                return NOTHING if tokens < 1 else BLOCKS
        if tokens < 1:
            return NOTHING
        self._waiting.remove(seq)
        self._sit(seq)
        if counted is not None:
            if self._script is None or seq.swapped or not self._holds_computed:
                self._allocate(seq, tokens, NO_HITS)
            else:
                counted.allocate(seq, NO_HITS, held)
        self._grant(seq, tokens)
        return None

    def _decode_in_step(self) -> bool:
        """Serve all that decode at once, if all are in step and budget and blocks suffice for them."""
        if self._steady.size > self._left:
            return False
        if self._kv is not None and self._steady.blocks_needed() > self._free():
            return False
        loose = self._running.loose()
        for place in range(loose.count):
            seq: Sequence = loose.items[place]
            if seq._computed >= seq.prefill_target and not seq._scheduled:
                return False
        self._give()
        if self._hashed is not None:
            self._steady.serve(self._no_limit)
        self._place = self._until = self._entries.count
        return True

    def _all_in_step(self, most: int, most_of: Callable[[Sequence], int] | None) -> bool:
        """Serve all that run at once, if blocks suffice for all and nobody but the last one is short of budget."""
        tokens = self._steady.size
        blocks = self._steady.blocks_needed()
        loose = self._running.loose()
        last = loose.items[loose.count - 1] if loose.count else None
        each: list[int] | None = None if most_of is None else []  # the most that each of the others may get
        for place in range(loose.count):
            seq: Sequence = loose.items[place]
            more = 0 if seq._scheduled else min(seq._known + seq.placeholders - seq._computed, most)
            if each is not None and most_of is not None:
                more = min(more, most_of(seq)) if more else 0
                each.append(more)
            if more < 1:
                continue
            if seq is last and seq is self._running.last():
                more = max(0, min(more, self._left - tokens))
            tokens += more
            blocks += self._blocks_more(seq, more)
        if tokens > self._left or (self._kv is not None and blocks > self._free()):
            return False
        self._place = self._entries.count
        self._give()
        for place in range(loose.count):
            seq = loose.items[place]
            if not seq._scheduled:
                if self._hashed is not None:
                    self._steady.serve(seq._seat)
                self._schedule(seq, most if each is None else each[place])
        if self._hashed is not None:
            self._steady.serve(self._no_limit)
        self._until = self._entries.count
        return True

    def _give(self) -> None:
        """Those in step get their token."""
        steady = self._steady
        steady.give()
        self._left -= steady.size
        if self._counted is not None:
            self._counted.free -= steady.blocks_needed()
        self._hits_for = None  # other blocks are cached than before, perhaps

    def _free(self) -> int:
        """Free KV blocks, where they are modelled."""
        return self._counted.free if self._counted is not None else self._hashed.free  # type: ignore[union-attr]

    def _blocks_more(self, seq: Sequence, tokens: int) -> int:
        """KV blocks that a running sequence lacks for so many tokens more."""
        if self._kv is None:
            return 0
        held = self._held_tokens(seq, seq._computed + tokens)
        if self._counted is not None:
            return self._counted.blocks_for(held) - seq._held
        return int(self._kv.blocks_for(held)) - seq._held

    def _holds_its_blocks(self, seq: Sequence) -> bool:
        if self._kv is None:
            return True
        size = self._counted.block_size if self._counted is not None else self._hashed.block_size  # type: ignore[union-attr]
        return seq._held * size >= self._held_tokens(seq, seq._computed)

    def _may_fall_in(self, seq: Sequence) -> bool:
        """Whether a sequence has nothing before it but decodes."""
        lag = self._steady.lag
        return (
            seq.running
            and seq._computed >= seq.prefill_target
            and seq._known == seq._computed + 1 - lag
            and seq.placeholders == lag
            and self._script.stays(seq.position)
            and not seq.swapped
            and self._holds_its_blocks(seq)  # who comes back with its progress may not hold its blocks yet
        )
