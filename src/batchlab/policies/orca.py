"""Orca: iteration-level scheduling with memory reserved for the longest output.

Source: Orca: A Distributed Serving System for Transformer-Based Generative Models (OSDI 2022), Algorithm 1.

1. The pool is all unfinished requests in order of arrival. Each step walks it from the front and selects up to max_bs.
2. A request in flight is passed over: its token is still on its way.
3. A request that was never scheduled is selected only if prompt + max_tokens of it fit into the n_slots KV slots beside
   all that is reserved. If not, the walk ends: nobody behind it passes it.
4. What it needs is reserved when it is first scheduled, and released when it ends. So nobody is ever preempted.
5. A selected request runs its whole prompt (initiation) or one token (increment); both share a batch (selective
   batching).
6. n_workers pipeline stages: so many batches are in flight. Batch k is planned, then batch k - n_workers + 1 delivered.
7. A request that could never fit, prompt + max_tokens > n_slots, is rejected at arrival.

The trace shows slots as KV blocks of one token. Without n_slots, memory is not modelled and only max_bs decides.

Not modelled: the engine's own time for control messages; splitting a model over workers, beyond the stages; early
stopping, apart from outputs shorter than max_tokens.
"""

from typing import Any, ClassVar

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.core.work import Refusal
from batchlab.errors import SettingError
from batchlab.policies.base import Policy


class Orca(Policy):
    """Every iteration takes the earliest requests, whole prompts and single tokens mixed; memory is reserved in full.

    max_bs: most requests in a batch. n_slots: KV slots of one token each. n_workers: pipeline stages, each with a batch
    of its own in flight.
    """

    rules = "Orca (OSDI 2022), Algorithm 1"
    takes: ClassVar[dict[str, str]] = {"n_slots": "num_gpu_blocks"}
    fixes: ClassVar[dict[str, int]] = {"block_size": 1}
    holds = "max"
    own_queue = True

    def __init__(self, max_bs: int, n_workers: int = 1) -> None:
        self.max_bs = max_bs
        self.n_workers = n_workers
        self.steps_in_flight = self.pipeline_stages = n_workers

    def check(self, limits: Limits, requests: Any) -> None:
        """Sizes of at least 1, and slots of one token."""
        for name in ("max_bs", "n_workers"):
            if getattr(self, name) < 1:
                raise SettingError(name, getattr(self, name), "must be at least 1")
        if self.n_workers > 64:
            raise SettingError("n_workers", self.n_workers, "must be at most 64")
        if limits.num_gpu_blocks is not None and limits.block_size != 1:
            expected = "must be 1: Orca counts memory in slots of one token"
            raise SettingError("block_size", limits.block_size, expected, beside="num_gpu_blocks")

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """Rule 7."""
        if batch.blocks_for(seq.prompt_tokens + seq.max_tokens) > batch.total_blocks:
            batch.reject(seq, f"prompt + max_tokens exceeds n_slots = {batch.total_blocks}")
        else:
            batch.enqueue(seq)

    def plan(self, view: View, batch: Batch) -> str | None:
        """Rules 1 to 3. Those that run are the front of the pool, since nobody passes anybody in it."""
        selected = 0
        for seq in view.running:
            if selected == self.max_bs:
                return None
            if not seq.placeholders:
                batch.schedule(seq)
                selected += 1
        while selected < self.max_bs and view.waiting.head is not None:
            if batch.schedule(view.waiting.head) is Refusal.BLOCKS:
                return "the first that waits needs more slots than are free"
            selected += 1
        return None if selected or not view.num_running else "all that run are in flight"
