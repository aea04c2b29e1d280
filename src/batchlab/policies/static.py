"""Static batching: the first mode of the second worked example."""

from typing import Any

from batchlab.core.batch import Batch
from batchlab.core.scheduler import Limits, View
from batchlab.policies.base import Policy
from batchlab.policies.continuous import check_limits, check_whole_prompts, prefill_whole


class Static(Policy):
    """A batch is formed when nothing is active and runs until its last member ends; only then the next is formed.

    A seat whose request has ended stays empty until then; it costs nothing here, since the cost goes by token.
    """

    rules = "worked example 2"
    batching = "request"

    def check(self, limits: Limits, requests: Any) -> None:
        """A prompt longer than the budget could never run."""
        check_limits(limits, requests)
        check_whole_prompts(limits, requests)

    def plan(self, view: View, batch: Batch) -> None:
        """Admit only into an empty engine, decode, then every whole prompt that fits."""
        if not view.running:
            batch.admit_waiting()
        batch.decode_all()
        prefill_whole(view, batch)
