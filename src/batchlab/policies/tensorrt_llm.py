"""The scheduler of TensorRT-LLM 1.x: a capacity scheduler says who fits, a micro-batch scheduler says who runs.

Sources: cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp, microBatchScheduler.cpp, kvCacheManager.cpp and
utils/inflightBatchingUtils.cpp.

The active list is all unfinished requests in order of arrival, waiting ones included. A request is started in
generation and past its first chunk. Blocks:

1. A first context chunk takes the blocks of the whole prompt, however short the chunk is; after a pause those of prompt
   and generated output. Later chunks take none.
2. A generation step needs a block where the computed tokens fill those it has.
3. remain: the blocks of prompt and max_tokens less what it holds.

GUARANTEED_NO_EVICT, the default:

4. In list order, up to max_batch_size: all in generation fit, and their remain is set aside.
5. Then all others, those between two chunks too, in list order: whoever's remain is still there fits. The first that
   does not ends the walk. Nobody is ever paused.
6. STATIC_BATCH: the same, but rule 5 only where nobody is in generation. With chunked context a prompt that is half
   done waits, too.

MAX_UTILIZATION:

7. In list order: who finds the blocks of its next step, with fewer than max_batch_size before it, fits.
8. Otherwise the last started request from here to the end of the list is paused, and it and all behind it leave this
   step; then the same request tries again. With none left the walk ends.
9. So does reaching max_batch_size: whoever is started behind it is paused, be there memory or not. Where the list is in
   order of arrival nobody starts so far behind.
10. A paused request loses its blocks, keeps its place in the list and computes prompt and output again.

The micro-batch scheduler walks those that fit, in that order:

11. Without enable_chunked_context a context costs its whole prompt; with it, it is sized last and costs nothing yet. A
    generation step costs 1. The first that does not fit into max_num_tokens ends the walk.
12. If the contexts to be sized overflow what is left, they share it. FIRST_COME_FIRST_SERVED: each what it needs, or
    what is left rounded down to chunk_unit_size. EQUAL_PROGRESS: one chunk_unit_size, or what remains of the prompt, in
    turn, until a whole round adds nothing; nothing where the unit does not fit.
13. Contexts without tokens are left out; those that end here go behind those that do not. The step is contexts, then
    generation.

What the engine does not do: a request that can never get its blocks is rejected when it comes; under MAX_UTILIZATION
one that outgrows the whole pool, or without chunks max_num_tokens, fails when its turn comes.

Not modelled: block reuse, and with it the skip of a prompt that an earlier one of the step is about to cache; beams,
draft tokens, sliding windows, encoder inputs, LoRA, max_input_len, request priorities, several micro-batches in flight,
the runtime tuning of batch size and tokens.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

from batchlab.core.batch import Batch
from batchlab.core.limits import NO_LIMIT, Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.errors import SettingError
from batchlab.policies.base import Policy, exhausted


def list_order(seq: Sequence) -> tuple[int, int]:
    """The order of the active list."""
    return seq.order


class TensorRtLlm(Policy):
    """In-flight batching: who fits into memory, in order of arrival; of them decodes first, then prompts.

    max_batch_size, max_num_tokens, tokens_per_block, capacity_scheduler_policy and context_chunking_policy have the
    engine's names. num_blocks, the usable blocks, has no name there: KvCacheConfig gives max_tokens or a fraction of
    the memory. chunk_unit_size is tokens_per_block in the engine, and here where it is not given.
    """

    rules = "TensorRT-LLM 1.x"
    takes: ClassVar[dict[str, str]] = {
        "max_batch_size": "max_num_seqs",
        "max_num_tokens": "max_num_batched_tokens",
        "tokens_per_block": "block_size",
        "num_blocks": "num_gpu_blocks",
    }
    holds = "prompt"
    own_queue = True
    queue_key = staticmethod(list_order)

    def __init__(
        self,
        capacity_scheduler_policy: Literal[
            "GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"
        ] = "GUARANTEED_NO_EVICT",
        enable_chunked_context: bool = False,
        context_chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] = "FIRST_COME_FIRST_SERVED",
        chunk_unit_size: int | None = None,
    ) -> None:
        self.capacity_scheduler_policy = capacity_scheduler_policy
        self.enable_chunked_context = enable_chunked_context
        self.context_chunking_policy = context_chunking_policy
        self.chunk_unit_size = chunk_unit_size
        self._static = capacity_scheduler_policy == "STATIC_BATCH"
        self._pauses = capacity_scheduler_policy == "MAX_UTILIZATION"
        self.batching = "request" if self._static else "iteration"

    def check(self, limits: Limits, requests: Any) -> None:
        """A chunk has to be possible."""
        unit, budget = self.chunk_unit_size, limits.max_num_batched_tokens
        if unit is not None and unit < 1:
            raise SettingError("chunk_unit_size", unit, "must be at least 1")
        unit = unit or limits.block_size
        if self.enable_chunked_context and budget is not None and unit > budget:
            name = "tokens_per_block" if self.chunk_unit_size is None else "chunk_unit_size"
            expected = f"must be at most max_num_tokens = {budget}: a chunk is whole units"
            raise SettingError(name, unit, expected, beside="max_num_tokens")

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """Reject what can never run."""
        whole = seq.prompt_tokens + (0 if self._pauses else seq.max_tokens)
        if batch.blocks_for(whole) > batch.total_blocks:
            what = "the prompt" if self._pauses else "prompt and max_tokens"
            batch.reject(seq, f"the KV cache cannot hold {what}: at most {batch.total_blocks} blocks")
        elif not self.enable_chunked_context and seq.prompt_tokens > budget_of(view):
            batch.reject(seq, f"prompt exceeds max_num_tokens = {budget_of(view)} without enable_chunked_context")
        else:
            batch.enqueue(seq)

    def plan(self, view: View, batch: Batch) -> str | None:
        """Who fits, then who runs, then with how many tokens."""
        fitting = self._max_utilization(view, batch) if self._pauses else self._guaranteed(view, batch)
        contexts, generation = self._micro_batch(fitting, view)
        for seq, tokens in [*contexts, *((seq, 1) for seq in generation)]:
            refusal = batch.schedule(seq, tokens)
            assert refusal is None, f"{seq} fits, yet {refusal}"
        if batch.empty and view.waiting.head is not None:
            return "the first of the list cannot run now"
        return None

    # The capacity scheduler

    def _guaranteed(self, view: View, batch: Batch) -> list[Sequence]:
        """Rules 4 to 6."""
        most = view.limits.max_num_seqs
        started = sorted(view.running, key=list_order)
        fitting = [seq for seq in started if in_generation(seq)][:most]
        if fitting and self._static:
            return fitting
        left = batch.free_blocks - sum(remain(seq, batch) for seq in fitting)
        pending = heapq.merge((seq for seq in started if not in_generation(seq)), from_head(view), key=list_order)
        for seq in pending:
            left -= remain(seq, batch)
            if left < 0 or (most is not None and len(fitting) >= most):
                break
            fitting.append(seq)
        return fitting

    def _max_utilization(self, view: View, batch: Batch) -> list[Sequence]:
        """Rules 7 to 10."""
        most = NO_LIMIT if view.limits.max_num_seqs is None else view.limits.max_num_seqs
        started = sorted(view.running, key=list_order)
        end: tuple[int, int] | None = None  # the place of the last one paused: it and all behind it are out
        taken = 0
        fitting: list[Sequence] = []
        for seq in heapq.merge(list(started), from_head(view), key=list_order):
            if end is not None and seq.order >= end:
                break
            reason = self._outgrown(seq, view, batch)
            if reason is not None:
                batch.fail(seq, reason)
                continue
            need = next_step(seq, batch)
            while len(fitting) >= most or taken + need > batch.free_blocks:
                if not started or started[-1].order < seq.order:
                    return fitting
                last = started.pop()
                batch.preempt(last, "recompute", "key")
                end = last.order
                if last is seq:
                    return fitting
            taken += need
            fitting.append(seq)
        return fitting

    def _outgrown(self, seq: Sequence, view: View, batch: Batch) -> str | None:
        """Why a request can never go on, if it cannot."""
        if batch.blocks_for(seq.known) > batch.total_blocks:
            return exhausted(batch)
        if not self.enable_chunked_context and not seq.running and seq.known > budget_of(view):
            return f"prompt and output exceed max_num_tokens = {budget_of(view)} without enable_chunked_context"
        return None

    # The micro-batch scheduler

    def _micro_batch(
        self, fitting: Iterable[Sequence], view: View
    ) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        """Rules 11 to 13: the contexts with their tokens, and the generation requests."""
        contexts: list[Sequence] = []
        generation: list[Sequence] = []
        left = budget_of(view)
        for seq in fitting:
            decodes = in_generation(seq)
            cost = 1 if decodes else 0 if self.enable_chunked_context else seq.left
            if cost > left:
                break
            left -= cost
            (generation if decodes else contexts).append(seq)
        sizes = [seq.left for seq in contexts]
        if self.enable_chunked_context and sum(sizes) > left:
            unit = self.chunk_unit_size or view.limits.block_size
            share = equal_progress if self.context_chunking_policy == "EQUAL_PROGRESS" else first_come_first_served
            sizes = share(sizes, left, unit)
        sized = [(seq, size) for seq, size in zip(contexts, sizes, strict=True) if size > 0]
        sized.sort(key=lambda entry: entry[1] == entry[0].left)
        return sized, generation


def first_come_first_served(wanted: list[int], left: int, unit: int) -> list[int]:
    """Rule 12: each what it wants, or whole units of what is left."""
    sizes = []
    for tokens in wanted:
        size = tokens if tokens <= left else left // unit * unit
        sizes.append(size)
        left -= size
    return sizes


def equal_progress(wanted: list[int], left: int, unit: int) -> list[int]:
    """Rule 12: one unit each in turn."""
    sizes = [0] * len(wanted)
    added = True
    while added:
        added = False
        for place, tokens in enumerate(wanted):
            step = min(unit, tokens - sizes[place])
            if 0 < step <= left:
                sizes[place] += step
                left -= step
                added = True
    return sizes


def in_generation(seq: Sequence) -> bool:
    """Whether its whole context is computed."""
    return seq.running and seq.prefill_left == 0


def next_step(seq: Sequence, batch: Batch) -> int:
    """Rules 1 and 2: the blocks that its next step takes."""
    if not seq.running:
        return batch.blocks_for(seq.known)
    return batch.blocks_for(seq.computed + 1) - seq.held if in_generation(seq) else 0


def remain(seq: Sequence, batch: Batch) -> int:
    """Rule 3."""
    return batch.blocks_for(seq.prompt_tokens + seq.max_tokens) - seq.held


def budget_of(view: View) -> int:
    """max_num_tokens."""
    budget = view.limits.max_num_batched_tokens
    return NO_LIMIT if budget is None else budget


def from_head(view: View) -> Iterator[Sequence]:
    """Those that wait, in order; beyond the first they are only listed if somebody asks."""
    head = view.waiting.head
    if head is not None:
        yield head
        for seq in view.waiting:
            if seq is not head:
                yield seq
