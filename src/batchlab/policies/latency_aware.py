"""Decode first, with prompt chunks cut to what a latency target leaves room for."""

from typing import Any

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.errors import SettingError
from batchlab.policies.base import WITHOUT_BLOCKS, Policy


class LatencyAware(Policy):
    """While requests decode, prompts get the largest chunks with which the step is estimated to end within target_itl.

    A gap between two tokens of a decoding request is one step, so every gap stays within the target as long as the
    estimate is right and the budget covers all decodes. Where not even one prompt token fits, prompts wait and the
    iteration says so: either decodes alone take longer than the target, or nothing is left of it for the first prompt
    in line. While nobody decodes, no gap is at stake and prompts get the whole budget. Its own rule, no engine's.

    target_itl: largest gap wanted, in the clock's unit.
    """

    rules = "batchlab 1"
    takes = WITHOUT_BLOCKS

    def __init__(self, target_itl: int) -> None:
        self.target_itl = target_itl

    def check(self, limits: Limits, requests: Any) -> None:
        """A target below 1 can never be met; without a budget one prompt could take for ever."""
        if self.target_itl < 1:
            raise SettingError("target_itl", self.target_itl, "must be at least 1, in the clock's unit")
        if limits.max_num_batched_tokens is None:
            raise SettingError("max_num_batched_tokens", None, "must be given, an integer of at least 1")

    def plan(self, view: View, batch: Batch) -> str | None:
        """Admit, decode, then chunks while there is time left."""
        batch.admit_waiting()
        batch.decode_all()
        if batch.empty:
            batch.prefill_all()
            return None
        for seq in view.prefilling:
            tokens = self.largest_chunk(seq, batch)
            if tokens == 0:
                without = f"the step takes {batch.estimate()} without it"
                return f"no token of {seq.id!r} fits into target_itl = {self.target_itl}: {without}"
            batch.schedule(seq, tokens)
        return None

    def largest_chunk(self, seq: Sequence, batch: Batch) -> int:
        """The most tokens of the prompt with which the step keeps the target, by bisection."""
        low, high = 0, min(seq.left, batch.tokens_left)
        while low < high:
            middle = (low + high + 1) // 2
            estimate = batch.estimate(seq, middle)
            if estimate is not None and estimate > self.target_itl:
                high = middle - 1
            else:
                low = middle
        return low
