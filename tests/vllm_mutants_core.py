"""Rules broken in the core: pools of blocks, batches and cores with one rule left out or turned round.

They need the core's Python source: the compiled form lets nobody in.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from vllm_world import World, fails

from batchlab.core.batch import Batch
from batchlab.core.blocks import HashedBlocks
from batchlab.core.scheduler import Core

CORE_MUTANTS: dict[str, tuple[str, type]] = {}


def breaks(rule: str) -> Callable[[type], type]:
    """The class breaks the rule that this check is for."""

    def note(broken: type) -> type:
        CORE_MUTANTS[broken.__name__] = (rule, broken)
        return broken

    return note


# Pools


@breaks("rule_04_no_slot_for_the_last_token")
class OneSlotMore(HashedBlocks):
    def blocks_for(self, tokens: int) -> int:
        return super().blocks_for(tokens + 1)


@breaks("rule_14_end_and_release")
class NeverReleases(HashedBlocks):
    def release(self, seq: Any) -> None:
        seq.blocks, seq._held, seq.registered = [], 0, 0


def link_of(pool: HashedBlocks, key: tuple[int, ...]) -> int:
    """The number of a key of a mutant's own making."""
    known = vars(pool).setdefault("known", {})
    return known.setdefault(key, len(known))


@breaks("rule_15_hash_chain")
class HashWithoutParent(HashedBlocks):
    def _link(self, seq: Any, index: int) -> int:
        return link_of(self, (-1, *seq.tokens.runs(index * self.block_size, self.block_size)))


@breaks("rule_15_hash_chain")
class HashesPromptsOnly(HashedBlocks):
    def register(self, seq: Any, tokens: int) -> None:
        super().register(seq, min(tokens, seq.prompt_tokens))


@breaks("rule_15_hash_chain")
class FindsPartOfABlock(HashedBlocks):
    def _link(self, seq: Any, index: int) -> int:
        half = self.block_size // 2
        return link_of(self, (index, *seq.tokens.runs(index * self.block_size, half)))


@breaks("rule_16_at_most_all_but_one_token")
class AllButOneBlock(HashedBlocks):
    def lookup(self, seq: Any) -> list[int]:
        return super().lookup(seq)[: seq.known // self.block_size - 1]


@breaks("rule_16_at_most_all_but_one_token")
class WholePromptCached(HashedBlocks):
    def lookup(self, seq: Any) -> list[int]:
        seq._known += 1
        hits = super().lookup(seq)
        seq._known -= 1
        return hits


@breaks("rule_16_resumes_look_too")
class LooksUpOnce(HashedBlocks):
    def lookup(self, seq: Any) -> list[int]:
        return [] if seq.preemptions else super().lookup(seq)


@breaks("rule_16_duplicates_are_not_merged")
class NewestDuplicate(HashedBlocks):
    def lookup(self, seq: Any) -> list[int]:
        return [self._newest[self._link_of[block]] for block in super().lookup(seq)]


@breaks("rule_16_the_older_duplicate_is_gone")
class RegistersOneOfEach(HashedBlocks):
    def register(self, seq: Any, tokens: int) -> None:
        for index in range(seq.registered, tokens // self.block_size):
            if self._oldest[self._link(seq, index)]:
                seq.registered = index + 1
            else:
                super().register(seq, (index + 1) * self.block_size)


@breaks("rule_18_evictable_hits")
class HitsAreFree(HashedBlocks):
    def evictable(self, hits: list[int]) -> int:
        return 0


@breaks("rule_18_evictable_hits")
class HitsStayFree(HashedBlocks):
    def allocate(self, seq: Any, hits: list[int], tokens: int) -> None:
        super().allocate(seq, hits, tokens)
        for block in hits:
            if block not in self.free_queue:
                self._put_after(self._previous[0], block)


def reordered(name: str, order: Callable[[HashedBlocks, list[int], list[int]], list[int]]) -> None:
    """A pool in which a release puts the blocks elsewhere: order(pool, queue before, blocks) is the queue after."""

    class Reordered(HashedBlocks):
        def release(self, seq: Any) -> None:
            before, blocks = self.free_queue, list(seq.blocks)
            super().release(seq)
            new = order(self, before, blocks)
            if sorted(new) != sorted(self.free_queue):
                raise ValueError("the same blocks, in another order")
            for block in self.free_queue:
                self._take(block)
            for block in new:
                self._put_after(self._previous[0], block)

    CORE_MUTANTS[name] = ("rule_19_free_queue", Reordered)


reordered("AllToTheBack", lambda pool, before, blocks: [*before, *reversed(blocks)])
reordered("AllToTheFront", lambda pool, before, blocks: [*reversed(blocks), *before])
reordered(
    "HeadFirst",
    lambda pool, before, blocks: [
        *(block for block in blocks if pool._link_of[block] < 0),
        *before,
        *(block for block in blocks if pool._link_of[block] >= 0),
    ],
)


@breaks("rule_19_free_queue")
class ForgetsAtRelease(HashedBlocks):
    def release(self, seq: Any) -> None:
        blocks = list(seq.blocks)
        super().release(seq)
        for block in blocks:
            if self._link_of[block] >= 0:
                self._forget(block)


# Cores and batches


@breaks("rule_13_a_token_where_all_is_computed")
class SamplesEveryChunk(Core):
    def plan(self, plan: Any) -> Any:
        step = super().plan(plan)
        for seq, _, _ in step.entries:
            if seq not in step.sampled:
                step.sampled.append(seq)
                seq.placeholders += 1
        return step


@breaks("rule_17_registered_at_allocation")
class RegistersAfterTheStep(Core):
    def plan(self, plan: Any) -> Any:
        late: list[Any] = []
        with patch.object(HashedBlocks, "register", lambda pool, *arguments: late.append((pool, *arguments))):
            step = super().plan(plan)
        for arguments in late:
            HashedBlocks.register(*arguments)
        return step


@breaks("rule_17_async_registers_after_update")
class RegistersOnlyAtAllocation(Core):
    def commit(self, step: Any, finished: Any) -> Any:
        depth, self.steps_in_flight = self.steps_in_flight, 1
        try:
            return super().commit(step, finished)
        finally:
            self.steps_in_flight = depth


@breaks("rule_20_a_victims_token_is_delivered")
class VictimsTokenIsLost(Core):
    def commit(self, step: Any, finished: Any) -> Any:
        lost = [seq for seq in step.sampled if seq.waiting]
        for seq in lost:
            seq.placeholders = 0
        step.sampled = [seq for seq in step.sampled if seq not in lost]
        return super().commit(step, [seq for seq in finished if seq not in lost])


@breaks("rule_21_aborts_free_at_once")
class AbortsAfterTheStep(Core):
    def cancel(self, *arguments: Any) -> None:
        self.late = [*getattr(self, "late", []), arguments]

    def plan(self, plan: Any) -> Any:
        step = super().plan(plan)
        for arguments in getattr(self, "late", []):
            super().cancel(*arguments)
        return step


@breaks("rule_05_a_victims_tokens_go_back")
class NoRefund(Batch):
    def _refund(self, seq: Any) -> None:
        left = self._left
        super()._refund(seq)
        self._left = left


@breaks("rule_09_seats_count_all_running")
class SeatsOfTheScheduled(Batch):
    def schedule_waiting(self, *arguments: Any) -> Any:
        cap = self._seat_cap
        self._seat_cap = cap + sum(not seq.scheduled for seq in self._running)
        refusal = super().schedule_waiting(*arguments)
        self._seat_cap = cap
        return refusal


def verdicts(checks: dict[str, Callable[[World], None]]) -> dict[str, bool]:
    """Whether each broken pool, core or batch makes its check fail."""
    found = {}
    for name, (rule, broken) in CORE_MUTANTS.items():
        if issubclass(broken, HashedBlocks):
            found[name] = fails(checks[rule], World(pool=broken))
        else:
            place = "batchlab.core.scheduler.Batch" if issubclass(broken, Batch) else "batchlab.loop.Core"
            with patch(place, broken):
                found[name] = fails(checks[rule], World())
    return found
