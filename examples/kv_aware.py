"""A policy that looks after KV blocks: a decode that finds none takes them from the last admitted."""

from batchlab import Batch, Policy, Refusal, Sequence, View


class KvAware(Policy):
    """Decodes first, then whole prompts from the queue, in order, as far as blocks, budget and seats go."""

    rules = "KV-aware, 1"

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """Refuse what could not be computed again in one step when it is nearly done: it would wait for ever."""
        longest = seq.prompt_tokens + seq.max_tokens - 1
        if longest > batch.tokens_left or batch.blocks_for(longest) > batch.total_blocks:
            batch.reject(seq, "too long")
        else:
            super().on_arrival(seq, view, batch)

    def plan(self, view: View, batch: Batch) -> str | None:
        """Build one iteration's batch."""
        preempted = False
        while batch.decode_all() is not None:  # somebody found no block
            batch.preempt(view.running[-1], "recompute")
            preempted = True
        if preempted:
            return "preempted, so nobody is admitted"
        for seq in list(view.waiting):
            if seq.prompt_tokens + seq.generated - batch.cached_tokens(seq) > batch.tokens_left:
                break
            refusal = batch.schedule(seq)
            if refusal is Refusal.BLOCKS:
                return "the first in line gets no KV blocks"
            if refusal:  # no seat is left
                break
        return None
