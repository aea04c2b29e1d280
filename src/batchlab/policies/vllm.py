"""The scheduler of vLLM V1, version 0.32.0, rule by rule.

Sources: v1/core/sched/scheduler.py and async_scheduler.py, v1/core/kv_cache_manager.py, v1/core/block_pool.py. Proven
against steps recorded from that very scheduler: every decision, block number and free queue is equal.

1. A step walks the running list in admission order, then the queue, under one budget, max_num_batched_tokens.
2. A running request gets what it has left, cut to the cap of rule 3, to the budget left and to max_model_len; with
   nothing to get it is passed over.
3. long_prefill_token_threshold caps any request's tokens in a step, unless at most one request is there. Adaptive: the
   cap is at least an equal share of the budget over running and waiting requests.
4. A request holds blocks for what is computed and scheduled, so its last output token never takes a place.
5. A running request that finds no block has a victim preempted and tries again, until it fits or is the victim itself;
   then the walk ends. fcfs: the last in the running list. priority: the largest (priority, time stamp), the first such;
   tokens that the victim had in this step go back to the budget.
6. A preempted request frees all its blocks and computes everything again, its output so far included. fcfs puts it in
   front of the queue, priority to the place of its key.
7. After a preemption nobody is admitted in the same step.
8. The queue is served from its head, and if the head cannot be served, nobody is. priority orders by (priority, time
   stamp, id); lower is more urgent.
9. max_num_seqs counts all that hold a seat, those without tokens in the step included.
10. A waiting request gets what is not cached, cut to the cap and the budget. Without chunked prefill the walk ends at
    one that does not fit whole.
11. scheduler_reserve_full_isl: at admission there have to be free blocks for all known tokens, not only for the chunk.
    They are only looked for, not set aside.
12. watermark: a fraction of the blocks stays free at admissions, unless nobody is running.
13. What is scheduled counts as computed at once; a token is sampled when all known tokens are computed.
14. Tokens are delivered in scheduled order; a request ends at max_tokens or max_model_len, and its blocks are free for
    the next step.
15. Full blocks, of output too, are findable by a hash chain over all that comes before.
16. A request looks for the longest cached chain whenever it is admitted, never taking its last known token from it. Of
    blocks with equal tokens the one entered first is found.
17. Blocks are findable as soon as they are allocated, for others in the same step too; under asynchronous scheduling
    also when their tokens are delivered.
18. Found blocks that nobody uses lie in the free queue: taking them uses up free blocks.
19. Freed blocks without a hash go to the front of the free queue, the tail of the request first; hashed ones go to its
    end. A block loses its hash when it is taken again.
20. async_scheduling plans a step before the tokens of the one before are delivered. Who is sure to end with a token in
    flight is passed over; who is preempted still gets it.
21. A cancelled request frees its blocks at once.
22. One block is set aside: num_gpu_blocks - 1 are usable. A pool that cannot hold max_model_len, and a request that
    exceeds it, are refused.
23. The door counts: max_num_queued_reqs bounds waiting and running requests, max_num_queued_tokens the prompt tokens
    still to prefill.

What vLLM does not do: a prompt that the whole pool cannot hold is refused, and a request that can never get its next
block ends with an error; vLLM lets both wait for ever.

Not modelled: speculative decoding, encoder inputs, LoRA, KV connectors, several KV cache groups such as sliding
windows, structured output.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from batchlab.core.batch import Batch
from batchlab.core.limits import NO_LIMIT, Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.core.work import Refusal
from batchlab.errors import SettingError
from batchlab.policies.base import Policy, exhausted, require_budget
from batchlab.policies.victims import VictimRule, rule_named

TOKENS = Refusal.TOKENS
BLOCKS = Refusal.BLOCKS


HANDED_ON = (
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "enable_chunked_prefill",
    "scheduling_policy",
    "watermark",
    "scheduler_reserve_full_isl",
    "async_scheduling",
    "preemption_mode",
)
"""Settings that a step knows from the constructor alone: another value set later would be in the trace only."""


class Walk:
    """A step: rules 1 to 12. Compiled where that is possible.

    Its methods are no places for rules of one's own: what `coasts` and `open_door` promise is about these.
    """

    def __init__(
        self,
        cap: int,
        adaptive: bool,
        chunked: bool,
        watermark: float,
        reserve_all: bool,
        victim: VictimRule,
        mode: str,
        place: str,
        in_flight: bool,
    ) -> None:
        self._cap = cap
        self._adaptive = adaptive
        self._chunked = chunked
        self._watermark = watermark
        self._reserve_all = reserve_all
        self._victim = victim
        self._mode = mode
        self._place = place
        self._in_flight = in_flight

    def plan(self, view: View, batch: Batch) -> str | None:
        """Rule 1: the running list, then the queue; rule 7: no admission in a step that preempted."""
        cap = self._chunk_cap(view, batch) if self._cap else None
        most_of = partial(self._most, view, batch) if self._in_flight else None
        short = batch.schedule_running(cap, most_of, True)
        if short is not None:
            self._make_room(short, view, batch, cap, most_of)
        if batch.preempted:
            return "preempted, so nobody is admitted in this step"
        held_up = self._walk_waiting(view, batch, cap)
        if self._in_flight and held_up is None and batch.empty and view.num_running:
            return "waits for a step in flight"
        return held_up

    def _chunk_cap(self, view: View, batch: Batch) -> int | None:
        """Rule 3: the most tokens of any one request, None without a cap."""
        count = view.num_running + len(view.waiting)
        if count <= 1:
            return None
        return max(self._cap, batch.tokens_left // count) if self._adaptive else self._cap

    def _most(self, view: View, batch: Batch, seq: Sequence) -> int:
        """Rules 2 and 20: what a running request may get at most while a step is in flight."""
        computed, left = seq.computed, seq.left
        if seq.placeholders and computed + 2 - seq.placeholders >= seq.prompt_tokens + seq.max_tokens:
            return 0  # its last token is on its way
        if seq.placeholders and batch.blocks_for(computed + left) > batch.total_blocks:
            return 0  # the token on its way may be its last
        longest = view.limits.max_model_len
        return left if longest is None else longest - computed - 1

    def _make_room(
        self,
        short: Sequence | None,
        view: View,
        batch: Batch,
        cap: int | None,
        most_of: Callable[[Sequence], int] | None,
    ) -> None:
        """Rule 5: while a running request lacks blocks a victim is preempted, in the end the request itself."""
        while short is not None:
            if batch.blocks_for(short.computed + batch.wanted) > batch.total_blocks:
                batch.fail(short, exhausted(batch))
            else:
                victim = self._victim(view.running)
                batch.preempt(victim, self._mode, self._place)
                if victim is short:
                    return
            short = batch.schedule_running(cap, most_of)

    def _walk_waiting(self, view: View, batch: Batch, cap: int | None) -> str | None:
        """Rules 8 to 12: the head or nobody. Returns what holds the head up."""
        spare = int(self._watermark * (batch.total_blocks + 1)) if self._watermark else 0  # rule 12
        while True:
            refusal = batch.schedule_waiting(cap, not self._chunked, spare, self._reserve_all)
            if refusal is TOKENS and not self._chunked and batch.tokens_left:  # rule 10
                return "the head of the queue needs more tokens than the budget has left"
            if refusal is not BLOCKS:
                return None
            seq = view.waiting.head
            assert seq is not None
            if batch.blocks_for(seq.known) <= batch.total_blocks:
                return self._lack(seq, batch, spare if view.num_running else 0)
            batch.fail(seq, exhausted(batch))

    def _lack(self, seq: Sequence, batch: Batch, spare: int) -> str:
        if self._reserve_all and batch.blocks_to_admit(seq, seq.known) > batch.free_blocks - spare:  # rule 11
            return "the head of the queue cannot get KV blocks for all its tokens"
        return "the head of the queue cannot get KV blocks"


class Vllm(Walk, Policy):
    """Running requests first, in admission order, then waiting ones, under one token budget; preemption by recompute.

    The settings have vLLM's names; `scheduling_policy` is its `--scheduling-policy`. num_gpu_blocks counts the null
    block too, as vLLM does: one fewer is usable. Two settings leave vLLM's rules: `victim`, another choice of whom to
    preempt, and `preemption_mode`, where `keep` and `swap` save what was computed.
    """

    rules = "vLLM 0.32.0"
    takes = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "num_gpu_blocks",
        "enable_prefix_caching",
        "max_model_len",
    )
    own_queue = True
    reserved_blocks = 1
    coasts = True

    def __init__(
        self,
        long_prefill_token_threshold: int = 0,
        long_prefill_token_threshold_adaptive: bool = False,
        enable_chunked_prefill: bool = True,
        scheduling_policy: Literal["fcfs", "priority"] = "fcfs",
        watermark: float = 0.0,
        scheduler_reserve_full_isl: bool = True,
        async_scheduling: bool = False,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        victim: Literal["last-admitted", "priority", "most-remaining", "least-computed"] | None = None,
        preemption_mode: Literal["recompute", "keep", "swap"] = "recompute",
    ) -> None:
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.long_prefill_token_threshold_adaptive = long_prefill_token_threshold_adaptive
        self.enable_chunked_prefill = enable_chunked_prefill
        self.scheduling_policy = scheduling_policy
        self.watermark = watermark
        self.scheduler_reserve_full_isl = scheduler_reserve_full_isl
        self.async_scheduling = async_scheduling
        self.max_num_queued_reqs = max_num_queued_reqs
        self.max_num_queued_tokens = max_num_queued_tokens
        self.victim = victim
        self.preemption_mode = preemption_mode
        by_priority = scheduling_policy == "priority"
        self.steps_in_flight = 2 if async_scheduling else 1  # rule 20
        self.queue_key = priority_key if by_priority else None
        rule = rule_named(("priority" if by_priority else "last-admitted") if victim is None else victim)
        place = "key" if by_priority else "front"  # rule 6
        Walk.__init__(
            self,
            long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive,
            enable_chunked_prefill,
            watermark,
            scheduler_reserve_full_isl,
            rule,
            preemption_mode,
            place,
            async_scheduling,
        )
        self.victim_rule = f"{rule.__doc__}".split(",")[0].strip(". ") + f" ({scheduling_policy})"
        self.handed_on = {name: getattr(self, name) for name in HANDED_ON}

    def open_door(self, limits: Limits, batch: Batch) -> tuple[int, int] | None:
        """Rules 22 and 23 as bounds of prompt and max_tokens; with a bounded door everyone is looked at."""
        if self.max_num_queued_reqs is not None or self.max_num_queued_tokens is not None:
            return None
        prompt = NO_LIMIT if limits.num_gpu_blocks is None else batch.total_blocks * limits.block_size
        if not self.enable_chunked_prefill and limits.max_num_batched_tokens is not None:
            prompt = min(prompt, limits.max_num_batched_tokens)
        return prompt, NO_LIMIT if limits.max_model_len is None else limits.max_model_len

    def check(self, limits: Limits, requests: Any) -> None:
        """Refuse what vLLM refuses at start, and what has no meaning."""
        require_budget(limits)
        for name in ("long_prefill_token_threshold", "max_num_queued_reqs", "max_num_queued_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingError(name, value, "must be at least 0")
        if not 0 <= self.watermark < 1:
            raise SettingError("watermark", self.watermark, "must be a fraction, at least 0 and below 1")
        longest, blocks = limits.max_model_len, limits.num_gpu_blocks
        if longest is None or blocks is None:
            return
        if blocks * limits.block_size < longest:  # rule 22
            raise SettingError(
                "max_model_len",
                longest,
                f"one request must fit into the KV cache: {blocks} usable blocks of {limits.block_size} hold "
                f"{blocks * limits.block_size} tokens",
                beside="num_gpu_blocks",
            )

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """Rules 22 and 23, and what vLLM leaves to hang: a prompt that the whole pool cannot hold is refused."""
        refusal = self._refusal(seq, view, batch)
        if refusal is not None:
            batch.reject(seq, refusal)
        else:
            batch.enqueue(seq)

    def _refusal(self, seq: Sequence, view: View, batch: Batch) -> str | None:
        longest = view.limits.max_model_len
        if longest is not None and seq.max_tokens > longest:
            return f"max_tokens exceeds max_model_len: at most {longest}"
        if not self.enable_chunked_prefill and seq.prompt_tokens > batch.tokens_left:
            return f"prompt does not fit the budget without chunked prefill: at most {batch.tokens_left} tokens"
        if batch.blocks_for(seq.prompt_tokens) > batch.total_blocks:
            return f"prompt does not fit the KV cache: at most {batch.total_blocks * view.limits.block_size} tokens"
        requests, tokens = self.max_num_queued_reqs, self.max_num_queued_tokens
        if requests is not None and view.num_running + len(view.waiting) >= requests:
            return "max_num_queued_reqs reached"
        if tokens is not None:
            queued = sum(other.prefill_left for other in [*view.running, *view.waiting])
            if queued + seq.prompt_tokens > tokens:
                return "max_num_queued_tokens reached"
        return None


def priority_key(seq: Sequence) -> tuple[int, int, str]:
    """Rule 8: the heap's key."""
    return (seq.priority, seq.sent, seq.id)
