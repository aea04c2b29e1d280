"""The first scheduler of vLLM (V0), prefill first, without chunked prefill.

Source: vllm/core/scheduler.py (_schedule_default) and block_manager.py of vLLM 0.6.

1. If nobody is swapped out, the queue is walked from its head: a request is admitted while a seat is free, its known
   tokens fit into what max_num_batched_tokens has left, and watermark blocks stay free after it has taken the blocks
   for all of them. The first that fails ends the walk.
2. If any was admitted the step is these prefills only, each whole. Nobody decodes in it.
3. Otherwise all that run decode, in order of arrival. The budget is at least max_num_seqs, so it never cuts here.
4. A request needs a block when its computed tokens fill the blocks it has. While none is free, the latest arrived of
   those not yet served in this walk is preempted, in the end the request itself.
5. `recompute`: a victim loses all its blocks, goes to the front of the queue and computes prompt and output again.
   `swap`: its blocks move out and it waits in front of the queue, where the trace shows it too.
6. After a walk without preemption those swapped out come back in order of arrival, while a seat is free and watermark
   blocks stay free after they have their blocks, and the next one if they need it; they decode in this same step. No
   prefill is admitted before all are back.
7. watermark blocks = int(watermark * num_gpu_blocks). They are kept at admissions and swap-ins, not from who runs.
8. Rejected at arrival: a prompt that the budget, or the pool less the watermark blocks, cannot hold.
9. A request that can never go on ends as failed, as soon as its turn comes: who needs a next block and holds the whole
   pool; and who was preempted and has since grown beyond what rule 8, or the watermark of rule 6, lets in.

What V0 does not do: it lets a request hang that was swapped out and can never come back because of the watermark.

Not modelled: swap space with an end (here it has none), several sequences for one request, chunked prefill, prefix
caching, LoRA, delay_factor, priority, multi-step scheduling.
"""

from typing import Any, Literal

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.errors import SettingError
from batchlab.policies.base import Policy, exhausted, require_budget


class VllmV0(Policy):
    """A step is all prefills that can be admitted, or else all decodes; blocks for a decode are taken from the latest.

    The settings have vLLM's names, but all num_gpu_blocks are usable. watermark: fraction of the blocks that stays free
    at admissions. preemption_mode: `recompute`, V0's choice for requests of one sequence, or `swap`.
    """

    rules = "vLLM V0 (0.6)"
    takes = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks", "max_model_len")
    own_queue = True
    coasts = True

    def __init__(self, watermark: float = 0.01, preemption_mode: Literal["recompute", "swap"] = "recompute") -> None:
        self.watermark = watermark
        self.preemption_mode = preemption_mode

    def check(self, limits: Limits, requests: Any) -> None:
        """Refuse what V0 refuses at start."""
        require_budget(limits)
        budget, longest = limits.max_num_batched_tokens, limits.max_model_len
        if budget is not None and longest is not None and budget < longest:
            expected = f"must be at least max_model_len = {longest}: prompts are not cut into chunks"
            raise SettingError("max_num_batched_tokens", budget, expected, beside="max_model_len")
        if not 0 <= self.watermark < 1:
            raise SettingError("watermark", self.watermark, "must be a fraction, at least 0 and below 1")

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """Rule 8."""
        refusal = self._too_long(seq, view, batch)
        if refusal is not None:
            batch.reject(seq, f"prompt {refusal}")
        else:
            batch.enqueue(seq)

    def plan(self, view: View, batch: Batch) -> str | None:
        """Rules 1 to 3."""
        reason = self._prefill(view, batch)
        if batch.empty:
            self._decode(view, batch)
            self._swap_in(view, batch)
        return reason

    def _prefill(self, view: View, batch: Batch) -> str | None:
        """Rule 1; returns what ended the walk."""
        while view.waiting.head is not None and not _swapped_out(view.waiting.head):
            seq = view.waiting.head
            refusal = self._too_long(seq, view, batch)
            if refusal is not None:  # rule 9
                batch.fail(seq, f"preempted, and what it has to compute again {refusal}")
                continue
            if batch.seats_left < 1:
                return "no seat is free for the head of the queue"
            if seq.known > batch.tokens_left:
                return "the head of the queue needs more tokens than the budget has left"
            if batch.free_blocks - batch.blocks_for(seq.known) < self._reserve(batch):
                return "the head of the queue cannot get KV blocks above the watermark"
            batch.schedule(seq)
        return None

    def _decode(self, view: View, batch: Batch) -> None:
        """Rules 3 and 4. Who runs came before all that wait, so admission order is order of arrival."""
        while (short := batch.decode_all()) is not None:
            if batch.blocks_for(short.computed + 1) > batch.total_blocks:  # rule 9
                batch.fail(short, exhausted(batch))
            else:
                batch.preempt(view.running[-1], self.preemption_mode, "front")

    def _swap_in(self, view: View, batch: Batch) -> None:
        """Rule 6."""
        reserve = self._reserve(batch)
        while not batch.preempted and view.waiting.head is not None and _swapped_out(view.waiting.head):
            seq = view.waiting.head
            needed = batch.blocks_for(seq.computed + 1)
            if needed > batch.total_blocks - reserve:  # rule 9
                batch.fail(seq, f"swapped out, and needs {needed} blocks to come back: at most {self._most(batch)}")
                continue
            if batch.seats_left < 1 or batch.free_blocks - needed < reserve:
                break
            batch.schedule(seq)

    def _too_long(self, seq: Sequence, view: View, batch: Batch) -> str | None:
        """Why a request could not be admitted into an empty engine."""
        budget = view.limits.max_num_batched_tokens
        if budget is not None and seq.known > budget:
            return f"exceeds max_num_batched_tokens = {budget}"
        if batch.blocks_for(seq.known) > self._most(batch):
            return f"does not fit the KV cache: at most {self._most(batch) * view.limits.block_size} tokens"
        return None

    def _most(self, batch: Batch) -> int:
        return batch.total_blocks - self._reserve(batch)

    def _reserve(self, batch: Batch) -> int:
        return int(self.watermark * batch.total_blocks)


def _swapped_out(seq: Sequence) -> bool:
    """Whether a waiting request has kept what it had computed. Those stand before all others."""
    return seq.computed > 0
