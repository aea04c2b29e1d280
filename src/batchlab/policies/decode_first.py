"""Decode first, bounded queue, ideal preemption on arrival: the policy of the first worked example."""

from typing import Any, Literal

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.errors import SettingError
from batchlab.policies.base import WITHOUT_BLOCKS, Policy


class DecodeFirst(Policy):
    """Decodes get their token before any prompt gets a chunk; urgent newcomers may take a seat from less urgent ones.

    A preempted request keeps all progress: an idealised, free offload that no engine has. A newcomer takes a free seat
    at once, even while older requests wait, which is simple and not fair; with `arrivals_first=False` those who wait
    go first.

    prefill_chunk: most prompt tokens of one request in one iteration. priority_preemption: whether a newcomer may take
    a seat from a strictly less urgent request. preemption_mode: `keep` is the example's ideal; under `recompute` the
    victim has to compute its prompt and what it has emitted again.
    """

    rules = "worked example 1"
    takes = WITHOUT_BLOCKS
    coasts = True

    def __init__(
        self,
        prefill_chunk: int,
        priority_preemption: bool = True,
        arrivals_first: bool = True,
        preemption_mode: Literal["keep", "recompute"] = "keep",
    ) -> None:
        self.prefill_chunk = prefill_chunk
        self.priority_preemption = priority_preemption
        self.arrivals_first = arrivals_first
        self.preemption_mode = preemption_mode

    def check(self, limits: Limits, requests: Any) -> None:
        """A budget below the seats would starve decodes, so it is refused."""
        seats, budget = limits.max_num_seqs, limits.max_num_batched_tokens
        if seats is None or budget is None:
            missing = "max_num_seqs" if seats is None else "max_num_batched_tokens"
            raise SettingError(missing, None, "decode-first needs it, an integer of at least 1")
        if seats > budget:
            expected = f"must not exceed max_num_batched_tokens = {budget}"
            raise SettingError("max_num_seqs", seats, expected, beside="max_num_batched_tokens")
        if self.prefill_chunk < 1:
            raise SettingError("prefill_chunk", self.prefill_chunk, "must be at least 1")

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """Seat, else preempt, else queue, else reject."""
        if not self.arrivals_first:
            batch.admit_waiting()
        if batch.admit(seq) is None:
            return
        if self.priority_preemption and batch.queue_left != 0:
            victim = self.victim(seq, view)
            if victim is not None:
                batch.preempt(victim, self.preemption_mode, "front")
                batch.admit(seq)
                return
        super().on_arrival(seq, view, batch)

    def victim(self, seq: Sequence, view: View) -> Sequence | None:
        """The less urgent running request with the most remaining work, the first in running order on ties."""
        less_urgent = [other for other in view.running if other.priority > seq.priority]
        return max(less_urgent, key=lambda other: other.remaining_work, default=None)

    def plan(self, view: View, batch: Batch) -> None:
        """Fill the seats, then one token for every decode, then chunks of prompts."""
        batch.admit_waiting()
        batch.decode_all()
        batch.prefill_all(self.prefill_chunk)
