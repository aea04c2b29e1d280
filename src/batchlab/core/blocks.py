"""KV blocks: who holds which, what is cached, and in which order free ones are taken again."""

from collections import OrderedDict
from collections.abc import Iterable

from batchlab.core.sequence import Sequence


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
    """

    def __init__(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))
        self._users = [0] * (num_blocks + 1)
        self._link_of: list[int | None] = [None] * (num_blocks + 1)
        self._blocks_of: dict[int, dict[int, None]] = {}  # chain link -> blocks that hold it, oldest first
        self._links: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}

    @property
    def free(self) -> int:
        """Blocks without a user, cached ones included."""
        return len(self._free)

    @property
    def free_queue(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return list(self._free)

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
                blocks = self._blocks_of.get(self._link(seq, index))
                if not blocks:
                    break
                hits.append(next(iter(blocks)))
        return hits

    def evictable(self, hits: list[int]) -> int:
        """How many of the hits have no user now: taking them takes free blocks too."""
        return sum(not self._users[block] for block in hits)

    def allocate(self, seq: Sequence, hits: list[int], tokens: int) -> None:
        """Let the sequence hold the hits, then new blocks from the queue's front, for its first `tokens` tokens."""
        for block in hits:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1
        seq.blocks.extend(hits)
        seq.registered = max(seq.registered, len(hits))
        for _ in range(self.blocks_for(tokens) - len(seq.blocks)):
            block, _nothing = self._free.popitem(last=False)
            self._forget(block)
            self._users[block] = 1
            seq.blocks.append(block)
        seq._held = len(seq.blocks)

    def register(self, seq: Sequence, tokens: int) -> None:
        """Make the full blocks among the first `tokens` tokens findable at once, in the same step too."""
        if self.caching:
            for index in range(seq.registered, tokens // self.block_size):
                link, block = self._link(seq, index), seq.blocks[index]
                self._link_of[block] = link
                self._blocks_of.setdefault(link, {})[block] = None
                seq.registered = index + 1

    def release(self, seq: Sequence) -> None:
        """Take all blocks back, tail to head.

        Those that no one can find again are the next to be taken, the tail block first; findable ones go to the end of
        the queue: the least recently used order, in which a sequence's tail goes before its head.
        """
        front = []
        for block in reversed(seq.blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if self._link_of[block] is None:
                front.append(block)
            else:
                self._free[block] = None
        for block in reversed(front):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        seq.blocks = []
        seq._held = 0
        seq.registered = 0

    def _forget(self, block: int) -> None:
        """A block that is taken anew loses its tokens."""
        link = self._link_of[block]
        if link is not None:
            holders = self._blocks_of[link]
            del holders[block]
            if not holders:
                del self._blocks_of[link]
            self._link_of[block] = None

    def _link(self, seq: Sequence, index: int) -> int:
        """The number of the chain that ends with the sequence's block `index`."""
        chain = seq.chain
        while len(chain) <= index:
            key = (chain[-1] if chain else -1, seq.tokens.runs(len(chain) * self.block_size, self.block_size))
            chain.append(self._links.setdefault(key, len(self._links)))
        return chain[index]


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
        self._last = 0
        position = 0
        for _, _, length in self._runs:
            self._starts.append(position)
            position += length

    def runs(self, position: int, length: int) -> tuple[tuple[int, int, int], ...]:
        """The runs that make up `length` tokens from `position` on."""
        index = self._last
        if not self._starts[index] <= position < self._starts[index] + self._runs[index][2]:
            index = self._find(position)
        self._last = index  # blocks are asked for in order, and most lie within one run
        segment, start, size = self._runs[index]
        inside = position - self._starts[index]
        if size - inside >= length:
            return ((segment, start + inside, length),)
        found = []
        while length > 0:
            segment, start, size = self._runs[index]
            inside = position - self._starts[index]
            taken = min(size - inside, length)
            found.append((segment, start + inside, taken))
            position += taken
            length -= taken
            index += 1
        return tuple(found)

    def _find(self, position: int) -> int:
        low, high = 0, len(self._starts)
        while high - low > 1:
            middle = (low + high) // 2
            if self._starts[middle] <= position:
                low = middle
            else:
                high = middle
        return low
