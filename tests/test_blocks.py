"""The pool of KV blocks against a naive model, written from rules 15 to 19 of docs/engines.md.

The model keeps every block's tokens as text would be kept, and finds prefixes by comparing them.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchlab.core.blocks import CountedBlocks, HashedBlocks, Tokens
from batchlab.core.sequence import Sequence

PROMPTS = [[(1, 6)], [(1, 12)], [(1, 3), (2, 5)], [(1, 4), (3, 4)], [(2, 9)], [(1, 1)], [(1, 8), (2, 2)]]


@dataclass
class Block:
    """What the model knows of one block: who uses it, and the whole prefix that it ends, once that can be found."""

    users: int = 0
    prefix: tuple | None = None
    born: int = 0  # when its prefix became findable


@dataclass
class Model:
    """A list of blocks and a list of free ones."""

    size: int
    caching: bool
    blocks: dict[int, Block] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    clock: int = 0

    def lookup(self, tokens: list, known: int) -> list[int]:
        hits: list[int] = []
        while self.caching and (len(hits) + 1) * self.size <= known - 1:
            prefix = tuple(tokens[: (len(hits) + 1) * self.size])
            holders = [number for number, block in self.blocks.items() if block.prefix == prefix]
            if not holders:
                break
            hits.append(min(holders, key=lambda number: self.blocks[number].born))
        return hits

    def allocate(self, held: list[int], hits: list[int], tokens: int) -> list[int]:
        for number in hits:
            if number in self.free:
                self.free.remove(number)
            self.blocks[number].users += 1
        taken = held + hits
        while len(taken) * self.size < tokens:
            number = self.free.pop(0)
            self.blocks[number] = Block(users=1)
            taken.append(number)
        return taken

    def register(self, held: list[int], tokens: list, upto: int) -> None:
        for index in range(upto // self.size if self.caching else 0):
            block = self.blocks[held[index]]
            if block.prefix is None:
                self.clock += 1
                block.prefix, block.born = tuple(tokens[: (index + 1) * self.size]), self.clock

    def release(self, held: list[int]) -> None:
        tail_first = held[::-1]
        for number in tail_first:
            self.blocks[number].users -= 1
        unused = [number for number in tail_first if self.blocks[number].users == 0]
        front = [number for number in unused if self.blocks[number].prefix is None]
        back = [number for number in unused if self.blocks[number].prefix is not None]
        self.free = front + self.free + back


@dataclass
class Life:
    """A sequence in both worlds."""

    seq: Sequence
    counted: Sequence
    tokens: list
    held: list[int] = field(default_factory=list)


class Pools(RuleBasedStateMachine):
    """Sequences come, grow, end and come again in all three: the pool, the counting pool without caching, the model."""

    @initialize(size=st.integers(1, 4), blocks=st.integers(1, 12), caching=st.sampled_from([True, True, False]))
    def start(self, size: int, blocks: int, caching: bool) -> None:
        self.pool = HashedBlocks(blocks, size, caching)
        self.counted = None if caching else CountedBlocks(blocks, size)
        numbers = range(1, blocks + 1)
        self.model = Model(size, caching, {number: Block() for number in numbers}, list(numbers))
        self.running: list[Life] = []
        self.waiting: list[Life] = []
        self.total = blocks
        self.serial = 0

    @rule(prompt=st.sampled_from(PROMPTS))
    def come(self, prompt: list[tuple[int, int]]) -> None:
        self.serial += 1
        own = 100 + self.serial
        tokens = [(segment, place) for segment, length in prompt for place in range(length)]
        length = len(tokens)
        tokens += [(own, place) for place in range(200)]
        identity = Tokens([(segment, 0, size) for segment, size in prompt], own)
        seq = Sequence(self.serial, f"r{self.serial}", 0, length, 200, tokens=identity)
        self.waiting.append(Life(seq, Sequence(self.serial, "", 0, length, 200), tokens))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), chunk=st.integers(1, 12))
    def admit(self, data: st.DataObject, chunk: int) -> None:
        """As the batch does: look up, see whether it fits, take the hits and the rest, make findable what is full."""
        life = data.draw(st.sampled_from(self.waiting))
        seq = life.seq
        hits = self.pool.lookup(seq)
        assert hits == self.model.lookup(life.tokens, seq.known)
        assert self.pool.evictable(hits) == sum(number in self.model.free for number in hits)
        upto = min(len(hits) * self.pool.block_size + chunk, seq.known)
        needed = self.pool.blocks_for(upto) - len(hits) + self.pool.evictable(hits)
        if needed > self.pool.free:
            return
        self.waiting.remove(life)
        self.running.append(life)
        self.take(life, hits, upto)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), chunk=st.integers(1, 12))
    def grow(self, data: st.DataObject, chunk: int) -> None:
        life = data.draw(st.sampled_from(self.running))
        seq = life.seq
        upto = min(seq.computed + chunk, seq.known)
        if upto > seq.computed and self.pool.blocks_for(upto) - seq.held <= self.pool.free:
            self.take(life, [], upto)

    def take(self, life: Life, hits: list[int], upto: int) -> None:
        self.pool.allocate(life.seq, hits, upto)
        life.held = self.model.allocate(life.held, hits, upto)
        self.pool.register(life.seq, upto)
        self.model.register(life.held, life.tokens, upto)
        if self.counted is not None:
            self.counted.allocate(life.counted, [], upto)
        life.seq._computed = upto

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(1, 3))
    def emit(self, data: st.DataObject, tokens: int) -> None:
        life = data.draw(st.sampled_from(self.running))
        if life.seq.computed == life.seq.known:
            life.seq._known += tokens

    @precondition(lambda self: self.running)
    @rule(data=st.data(), again=st.booleans())
    def release(self, data: st.DataObject, again: bool) -> None:
        """It ends, or is preempted and comes again with all it has said."""
        life = data.draw(st.sampled_from(self.running))
        self.running.remove(life)
        self.pool.release(life.seq)
        self.model.release(life.held)
        if self.counted is not None:
            self.counted.release(life.counted)
        life.held, life.seq._computed = [], 0
        assert (life.seq.held, life.seq.blocks) == (0, [])
        if again:
            self.waiting.append(life)

    @invariant()
    def same_blocks(self) -> None:
        for life in getattr(self, "running", ()):
            assert life.seq.blocks == life.held and life.seq.held == len(life.held)

    @invariant()
    def same_free_queue(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.free_queue == self.model.free
            assert self.pool.free == len(self.model.free)

    @invariant()
    def every_block_once(self) -> None:
        """Free or used, never both, never neither; a block's users are those that hold it."""
        if not hasattr(self, "pool"):
            return
        held = [number for life in self.running for number in life.seq.blocks]
        assert sorted({*held, *self.pool.free_queue}) == list(range(1, self.total + 1))
        assert len(set(self.pool.free_queue)) == self.pool.free == self.total - len(set(held))
        assert all(len(set(life.seq.blocks)) == len(life.seq.blocks) for life in self.running)
        assert all(block.users == held.count(number) for number, block in self.model.blocks.items())

    @invariant()
    def what_can_be_found(self) -> None:
        """Every sequence, wherever it is, would find the same in both: no hash without its block, none missing."""
        for life in [*getattr(self, "running", ()), *getattr(self, "waiting", ())]:
            assert self.pool.lookup(life.seq) == self.model.lookup(life.tokens, life.seq.known)

    @invariant()
    def counting_agrees(self) -> None:
        if getattr(self, "counted", None) is not None:
            assert self.counted.free == self.pool.free
            assert all(life.counted.held == life.seq.held for life in self.running)
            assert not any(self.counted.lookup(life.counted) for life in self.waiting)


Pools.TestCase.settings = settings(
    derandomize=True,
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestPools = Pools.TestCase


def test_without_caching_all_go_to_the_front() -> None:
    pool = HashedBlocks(5, 2, caching=False)
    first, second = (Sequence(n, f"r{n}", 0, 4, 9, tokens=Tokens([(1, 0, 4)], 7 + n)) for n in range(2))
    for seq in (first, second):
        assert pool.lookup(seq) == []
        pool.allocate(seq, [], 4)
        pool.register(seq, 4)
    assert (first.blocks, second.blocks, pool.free_queue) == ([1, 2], [3, 4], [5])
    pool.release(first)
    assert pool.free_queue == [2, 1, 5]
    pool.release(second)
    assert pool.free_queue == [4, 3, 2, 1, 5]
