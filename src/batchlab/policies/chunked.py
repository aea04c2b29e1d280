"""Continuous batching with chunked prefill: the third mode of the second worked example."""

from typing import Any

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.errors import SettingError
from batchlab.policies.base import WITHOUT_BLOCKS, Policy
from batchlab.policies.continuous import check_limits


class Chunked(Policy):
    """Seats are refilled every iteration; decodes first, then prompts in chunks.

    prefill_chunk: most prompt tokens of one request in one iteration.
    """

    rules = "worked example 2"
    takes = WITHOUT_BLOCKS
    coasts = True

    def __init__(self, prefill_chunk: int) -> None:
        self.prefill_chunk = prefill_chunk

    def check(self, limits: Limits, requests: Any) -> None:
        """Chunks make any prompt fit."""
        check_limits(limits, requests)
        if self.prefill_chunk < 1:
            raise SettingError("prefill_chunk", self.prefill_chunk, "must be at least 1")

    def plan(self, view: View, batch: Batch) -> None:
        """Admit, decode, then a chunk of every prompt while the budget lasts."""
        batch.admit_waiting()
        batch.decode_all()
        batch.prefill_all(self.prefill_chunk)
