"""Schedulers of published baselines that no engine in batchlab.policies follows."""

from batchlab.core.batch import Batch
from batchlab.core.scheduler import View
from batchlab.policies.base import Policy


class Buddies:
    """A buddy allocator: blocks of powers of two, split to serve and joined again when both halves are free."""

    def __init__(self, slots: int, smallest: int) -> None:
        self.smallest = smallest
        self.free: dict[int, list[int]] = {}
        start = 0
        for power in range(slots.bit_length() - 1, -1, -1):
            size = 1 << power
            if size >= smallest and slots - start >= size:
                self.free[size] = [start]
                start += size

    def size_for(self, slots: int) -> int:
        """The block that holds so many slots."""
        return max(self.smallest, 1 << (slots - 1).bit_length())

    def take(self, size: int) -> int | None:
        """The start of a free block of this size, from the smallest that has room; None if there is none."""
        found = min((have for have, starts in self.free.items() if have >= size and starts), default=None)
        if found is None:
            return None
        start = min(self.free[found])
        self.free[found].remove(start)
        while found > size:
            found //= 2
            self.free.setdefault(found, []).append(start + found)
        return start

    def give(self, start: int, size: int) -> None:
        """Take a block back; with its buddy free it becomes one of twice the size."""
        while start ^ size in self.free.get(size, ()):
            self.free[size].remove(start ^ size)
            start &= ~size
            size *= 2
        self.free.setdefault(size, []).append(start)


class BuddyOrca(Policy):
    """The Orca of vLLM's paper: prompt + max_tokens in one block of a buddy allocator, first come, first served.

    Max, Pow2 and Oracle differ in the max_tokens that their requests come with.
    """

    rules = "Orca as in vLLM (SOSP 2023), section 6"
    takes = ()
    own_queue = True

    def __init__(self, slots: int, smallest: int = 16) -> None:
        self._pool = Buddies(slots, smallest)
        self._held: dict[int, tuple[int, int]] = {}

    def plan(self, view: View, batch: Batch) -> None:
        """Take back what those who have ended held, run all, and admit from the front while a block is free."""
        running = view.running
        seated = {seq.position for seq in running}
        for position in [position for position in self._held if position not in seated]:
            self._pool.give(*self._held.pop(position))
        for seq in running:
            batch.schedule(seq)
        while view.waiting.head is not None:
            seq = view.waiting.head
            size = self._pool.size_for(seq.prompt_tokens + seq.max_tokens)
            start = self._pool.take(size)
            if start is None:
                break
            self._held[seq.position] = (start, size)
            batch.schedule(seq)


class TakingTurns(Policy):
    """Chunked prefill without mixing, as in the ablation of Sarathi-Serve: a step of chunks, then one of decodes.

    Source: simple_chunking_scheduler.py of its artifact. Prompts already begun go before new ones; where one side has
    nothing to do the other goes on.
    """

    rules = "Sarathi-Serve (OSDI 2024), chunked prefills only"
    takes = ("max_num_seqs", "max_num_batched_tokens")
    own_queue = True

    def __init__(self) -> None:
        self._prefill_next = True

    def plan(self, view: View, batch: Batch) -> None:
        """Chunks if it is their turn and there are any, else decodes."""
        if self._prefill_next or not view.decoding:
            batch.prefill_all()
            if not batch.entries:
                while view.waiting.head is not None and batch.schedule(view.waiting.head) is None:
                    pass
        self._prefill_next = not batch.entries
        if not batch.entries:
            batch.decode_all()
