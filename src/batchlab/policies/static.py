"""Static batching: the first mode of the second worked example, and two ways of padding it.

Sources: the second worked example for `padding = "none"`; for the other two, the request-level batching that Orca (OSDI
2022) and Anyscale's "How continuous batching enables 23x throughput in LLM inference" (2023) compare with.

1. A batch is formed when nothing is active: the earliest waiting requests, up to max_num_seqs. Nobody joins it later.
2. In a step all decodes go first, then every whole prompt that fits into the budget left, in order.
3. A seat whose request has ended stays empty until the last member has ended. With `none` it costs nothing, since the
   cost goes by token.
4. `batch`: until then each ended member costs one padding token in every step.
5. `all`: as with `batch`, but no batch is formed before all requests of the run have arrived, and every batch goes on,
   for nobody in the end, until max_tokens - 1 steps have followed its last prefill, with the largest max_tokens of the
   run: a batch decodes to the longest output of all batches.
6. Padding tokens take time, but no place in the budget.

Not modelled: prompts padded to one length; KV memory; the padding after the last request of the run, which ends there.
"""

from typing import Any, Literal

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.core.work import Wait
from batchlab.policies.base import WITHOUT_BLOCKS, Policy
from batchlab.policies.continuous import check_limits, check_whole_prompts, prefill_whole


class Static(Policy):
    """A batch is formed when nothing is active and runs until its last member ends; only then the next is formed.

    padding: what a seat costs whose request has ended: nothing (`none`), or one token a step until the longest of its
    batch (`batch`) or of the whole run (`all`) has ended.
    """

    rules = "worked example 2"
    takes = WITHOUT_BLOCKS
    batching = "request"

    def __init__(self, padding: Literal["none", "batch", "all"] = "none") -> None:
        self.padding = padding
        self._begin(0, 0)

    def _begin(self, longest: int, last_arrival: int) -> None:
        self._longest = longest
        self._last_arrival = last_arrival
        self._members = 0
        self._steps = 0  # of the batch, since its last prefill

    def check(self, limits: Limits, requests: Any) -> None:
        """A prompt longer than the budget could never run. Rule 5 has to know all requests."""
        check_limits(limits, requests)
        check_whole_prompts(limits, requests)
        if self.padding == "all":
            self._begin(max(r.max_tokens for r in requests), max(r.arrival for r in requests))

    def plan(self, view: View, batch: Batch) -> str | Wait | None:
        """Admit only into an empty engine, decode, then every whole prompt that fits; what has ended is padded."""
        if not view.num_running:
            if self.padding == "all":
                if self._members and self._steps < self._longest - 1:
                    batch.pad(self._members)
                    self._steps += 1
                    return "padding: every batch runs to the longest output of all"
                if view.now < self._last_arrival and len(view.waiting):
                    return Wait("waiting until all requests have arrived", self._last_arrival)
            batch.admit_waiting()
            self._members = view.num_running
        batch.decode_all()
        prefill_whole(view, batch)
        if self.padding != "none":
            batch.pad(self._members - view.num_running)
            self._steps = 0 if view.prefilling else self._steps + 1
        return None
