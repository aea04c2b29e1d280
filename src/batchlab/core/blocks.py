"""KV blocks: who holds which, what is cached, and in which order free ones are taken again."""

from array import array
from collections.abc import Iterable

from batchlab.core.arrays import longer
from batchlab.core.links import Links
from batchlab.core.sequence import Sequence

NO_LINK = -1  # where this is compiled, a C constant


class CountedBlocks:
    """Blocks as a number: all that matters while no two sequences share one."""

    caching = False

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free = num_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return (tokens + self.block_size - 1) // self.block_size

    def lookup(self, seq: Sequence) -> list[int]:
        """Cached blocks that the sequence's tokens begin with: none, without identity."""
        return []

    def evictable(self, hits: list[int]) -> int:
        """How many of the hits have no user now: taking them takes free blocks too."""
        return 0

    def allocate(self, seq: Sequence, hits: list[int], tokens: int) -> None:
        """Let the sequence hold the blocks for its first `tokens` tokens; the caller knows that they are free."""
        held = self.blocks_for(tokens)
        if held > seq._held:
            self.free -= held - seq._held
            seq._held = held

    def register(self, seq: Sequence, tokens: int) -> None:
        """Make the full blocks among the first `tokens` tokens findable."""

    def release(self, seq: Sequence) -> None:
        """Take all of a sequence's blocks back."""
        self.free += seq._held
        seq._held = 0


class HashedBlocks:
    """Blocks by identity, as in vLLM's block pool (v1/core/block_pool.py, kv_cache_manager.py of 0.32.0).

    Full blocks are findable by a hash chain over (what comes before, the block's tokens). Here the chain is exact:
    equal numbers mean equal tokens. Block numbers start at 1: vLLM keeps block 0 as its null block.

    Two kinds of linked lists run through arrays by block number, 0 standing for their ends: the free queue, and for
    each link of the chain the blocks that hold it, oldest first.
    """

    def __init__(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self.free = num_blocks
        """Blocks without a user, cached ones included."""
        self._next = array("q", [*range(1, num_blocks + 1), 0])  # in the free queue, front to back
        self._previous = array("q", [num_blocks, *range(num_blocks)])
        self._users = array("q", bytes(8 * (num_blocks + 1)))
        self._link_of = array("q", [NO_LINK]) * (num_blocks + 1)
        self._newer = array("q", bytes(8 * (num_blocks + 1)))  # among the blocks that hold the same link
        self._older = array("q", bytes(8 * (num_blocks + 1)))
        self._oldest = array("q", bytes(8 * 1024))  # by link
        self._newest = array("q", bytes(8 * 1024))
        self._links = Links()

    @property
    def free_queue(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        found = []
        block = self._next[0]
        while block:
            found.append(block)
            block = self._next[block]
        return found

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return (tokens + self.block_size - 1) // self.block_size

    def lookup(self, seq: Sequence) -> list[int]:
        """The longest chain of cached blocks that the sequence's known tokens begin with.

        The last known token is never taken from the cache: it has to be computed to sample the next one, so that a
        prompt which is cached whole recomputes its entire last block.
        """
        hits: list[int] = []
        if self.caching:
            for index in range((seq._known - 1) // self.block_size):
                link = self._link(seq, index)  # first: it may make the columns longer
                block = self._oldest[link]
                if not block:
                    break
                hits.append(block)
        return hits

    def evictable(self, hits: list[int]) -> int:
        """How many of the hits have no user now: taking them takes free blocks too."""
        count = 0
        for block in hits:
            if not self._users[block]:
                count += 1
        return count

    def allocate(self, seq: Sequence, hits: list[int], tokens: int) -> None:
        """Let the sequence hold the hits, then new blocks from the queue's front, for its first `tokens` tokens."""
        if not seq.blocks:  # perhaps the one that all who have none share
            seq.blocks = []
        blocks = seq.blocks
        missing = self.blocks_for(tokens) - len(blocks) - len(hits)
        if missing <= 0 and not hits:
            return
        for block in hits:
            if not self._users[block]:
                self._take(block)
            self._users[block] += 1
        if hits:
            blocks.extend(hits)
            seq.registered = max(seq.registered, len(hits))
        for _ in range(missing):
            block = self._next[0]
            self._take(block)
            if self._link_of[block] != NO_LINK:
                self._forget(block)
            self._users[block] = 1
            blocks.append(block)
        seq._held = len(blocks)

    def register(self, seq: Sequence, tokens: int) -> None:
        """Make the full blocks among the first `tokens` tokens findable at once, in the same step too."""
        if not self.caching:
            return
        full = min(tokens // self.block_size, len(seq.blocks))  # who comes back with its progress holds none at first
        for index in range(seq.registered, full):
            link, block = self._link(seq, index), seq.blocks[index]
            newest = self._newest[link]
            self._link_of[block] = link
            self._newer[block] = 0
            self._older[block] = newest
            if newest:
                self._newer[newest] = block
            else:
                self._oldest[link] = block
            self._newest[link] = block
            seq.registered = index + 1

    def release(self, seq: Sequence) -> None:
        """Take all blocks back, tail to head.

        Those that no one can find again are the next to be taken, the tail block first; findable ones go to the end of
        the queue: the least recently used order, in which a sequence's tail goes before its head.
        """
        front = 0  # the last of those that are the next to be taken
        for block in reversed(seq.blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if self._link_of[block] == NO_LINK:
                self._put_after(front, block)
                front = block
            else:
                self._put_after(self._previous[0], block)
        seq.blocks = []
        seq._held = 0
        seq.registered = 0

    def _take(self, block: int) -> None:
        """Out of the free queue."""
        after, before = self._next[block], self._previous[block]
        self._next[before] = after
        self._previous[after] = before
        self.free -= 1

    def _put_after(self, before: int, block: int) -> None:
        """Into the free queue."""
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._next[block] = after
        self._previous[block] = before
        self.free += 1

    def _forget(self, block: int) -> None:
        """A block that is taken anew loses its tokens."""
        link = self._link_of[block]
        newer, older = self._newer[block], self._older[block]
        if newer:
            self._older[newer] = older
        else:
            self._newest[link] = older
        if older:
            self._newer[older] = newer
        else:
            self._oldest[link] = newer
        self._link_of[block] = NO_LINK

    def _link(self, seq: Sequence, index: int) -> int:
        """The number of the chain that ends with the sequence's block `index`."""
        if not seq.chain:
            seq.chain = []
        chain = seq.chain
        while len(chain) <= index:
            link = chain[-1] if chain else NO_LINK
            position, missing = len(chain) * self.block_size, self.block_size
            tokens = seq.tokens
            while missing > 0:
                taken = tokens.piece(position, missing)
                link = self._links.number(link, tokens.segment, tokens.first, taken)
                position += taken
                missing -= taken
            while self._links.count > len(self._oldest):
                self._more_links()
            chain.append(link)
        return chain[index]

    def _more_links(self) -> None:
        as_many = len(self._oldest)
        self._oldest = longer(self._oldest, as_many)
        self._newest = longer(self._newest, as_many)


class Tokens:
    """Which tokens a sequence consists of, as runs of numbered segments: equal runs are equal tokens, never text.

    `prompt` lists (segment, start, length); output token k is (output_segment, k).
    """

    def __init__(self, prompt: Iterable[tuple[int, int, int]], output_segment: int) -> None:
        self._runs: list[tuple[int, int, int]] = []
        for segment, start, length in [*prompt, (output_segment, 0, 1 << 62)]:
            last = self._runs[-1] if self._runs else None
            if last is not None and last[0] == segment and last[1] + last[2] == start:  # one run, however it is written
                self._runs[-1] = (segment, last[1], last[2] + length)
            elif length > 0:
                self._runs.append((segment, start, length))
        self._starts = []
        self.segment = self.first = 0  # of the piece last asked for: the segment, and where in it that begins
        self._begin = self._start = self._end = (
            0  # the run that it is of: where it begins in its segment, its positions
        )
        position = 0
        for _, _, length in self._runs:
            self._starts.append(position)
            position += length

    def piece(self, position: int, length: int) -> int:
        """How many of these tokens are of one run; `segment` and `first` then say which they are."""
        if not self._start <= position < self._end:
            self._find(position)
        self.first = self._begin + position - self._start
        return min(self._end - position, length)

    def runs(self, position: int, length: int) -> tuple[int, ...]:
        """The runs that make up `length` tokens from `position` on: segment, start and length of each in turn."""
        found: list[int] = []
        while length > 0:
            taken = self.piece(position, length)
            found += [self.segment, self.first, taken]
            position += taken
            length -= taken
        return tuple(found)

    def _find(self, position: int) -> None:
        """Blocks are asked for in order, and most lie within one run: that one is at hand."""
        low, high = 0, len(self._starts)
        while high - low > 1:
            middle = (low + high) // 2
            if self._starts[middle] <= position:
                low = middle
            else:
                high = middle
        self.segment, self._begin, size = self._runs[low]
        self._start = self._starts[low]
        self._end = self._start + size
