"""Continuous batching without chunks: the second mode of the second worked example."""

from collections.abc import Iterable
from typing import Any

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.errors import RequestError, SettingError
from batchlab.policies.base import WITHOUT_BLOCKS, Policy


class Continuous(Policy):
    """Seats are refilled every iteration; decodes first, then whole prompts.

    A prompt that does not fit into the budget left is skipped in this iteration, and shorter ones behind it may pass.
    """

    rules = "worked example 2"
    takes = WITHOUT_BLOCKS
    coasts = True

    def check(self, limits: Limits, requests: Any) -> None:
        """A prompt longer than the budget could never run."""
        check_limits(limits, requests)
        check_whole_prompts(limits, requests)

    def plan(self, view: View, batch: Batch) -> None:
        """Admit, decode, then every whole prompt that fits."""
        batch.admit_waiting()
        batch.decode_all()
        prefill_whole(view, batch)


def prefill_whole(view: View, batch: Batch) -> None:
    """Give every prefilling request all it has left, or nothing in this iteration."""
    for seq in view.prefilling:
        if seq.prefill_left <= batch.tokens_left:
            batch.schedule(seq)


def check_limits(limits: Limits, requests: Any) -> None:
    """What all three modes need: requests, and a budget."""
    if not requests:
        raise SettingError("requests", [], "at least one request is needed", section="workload")
    if limits.max_num_batched_tokens is None:
        raise SettingError("max_num_batched_tokens", None, "must be given, an integer of at least 1")


def check_whole_prompts(limits: Limits, requests: Iterable[Any]) -> None:
    """Without chunks a prompt longer than the token budget could never run: refuse it by name."""
    budget = limits.max_num_batched_tokens
    for request in requests:
        if budget is not None and request.prompt > budget:
            raise RequestError(
                request.id,
                "prompt",
                request.prompt,
                f"without chunked prefill a prompt must not exceed max_num_batched_tokens = {budget}",
            )
