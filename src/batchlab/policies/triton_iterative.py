"""Iterative sequences of Triton Inference Server (core 24.x): continuous batching by a backend that reschedules.

Sources: sequence_batch_scheduler.cc, sequence_utils.cc and dynamic_batch_scheduler.cc of the core repository; the
settings are those of ModelSequenceBatching in model_config.proto, with iterative_sequence = true.

NVIDIA calls this continuous or in-flight batching. The backend computes one token for each request of an execution,
then releases it with RESCHEDULE: the server puts it back into the queue for the next one. A plain release ends it.

1. A request is a sequence and holds a slot, here its seat, from the moment it gets one to its plain release: one of
   max_batch_size slots (direct) or of max_candidate_sequences (oldest). Without a free slot it waits in the backlog,
   first come, first served.
2. One execution runs at a time. It computes the whole prompt of who runs for the first time, one token of all others.
3. A rescheduled request goes to the back of the queue and its age is 0 again.
4. At the end of an execution: who has come up to then has taken the slots that were free all along; then come the
   rescheduled ones, in the order of the execution; then the backlog takes the slots of those that have ended.
5. direct: the lowest free slot is taken. All slots with a request are ready. They run at once if
   minimum_slot_utilization or max_queue_delay_microseconds is 0; else when ready slots / max_batch_size is at least
   minimum_slot_utilization, or the oldest of them is older than the delay, not just as old. Age counts from the
   arrival, in the backlog too.
6. direct: empty slots below the highest ready one are padded with a token each, so that everybody keeps its slot.
7. oldest: those with a slot go through the dynamic batcher (rules 6 to 9 of triton), with preferred_batch_size and
   max_queue_delay_microseconds, in the order in which they came into its queue. Age counts from then. Who is not in the
   batch keeps its slot and waits.

Microseconds are thousands of the clock's unit, so the clock has to count ns.

Not modelled: sequences of several requests, control inputs, several instances, max_sequence_idle_microseconds, a
timeout in the backlog, preserve_ordering, KV memory, which is the backend's own business.
"""

from typing import Any, Literal

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.core.work import Wait
from batchlab.errors import SettingError
from batchlab.policies.base import Policy
from batchlab.policies.triton import MICROSECOND, build, check_window


class TritonIterative(Policy):
    """Sequences keep a slot and are scheduled again after each token.

    All settings have the names of model_config.proto; strategy names the one that is chosen there by its presence.
    """

    rules = "Triton Inference Server 24.x, iterative sequences"
    takes = ()
    own_queue = True

    def __init__(
        self,
        max_batch_size: int,
        strategy: Literal["direct", "oldest"] = "direct",
        minimum_slot_utilization: float = 0.0,
        max_queue_delay_microseconds: int = 0,
        max_candidate_sequences: int | None = None,
        preferred_batch_size: list[int] | None = None,
    ) -> None:
        self.max_batch_size = max_batch_size
        self.strategy = strategy
        self.minimum_slot_utilization = minimum_slot_utilization
        self.counts_ns = max_queue_delay_microseconds > 0
        self.max_queue_delay_microseconds = max_queue_delay_microseconds
        self.max_candidate_sequences = max_candidate_sequences
        self.preferred_batch_size = preferred_batch_size
        self._slot_count = max_batch_size if strategy == "direct" else max_candidate_sequences or 0
        self._begin()

    def _begin(self) -> None:
        self._slots: list[Sequence | None] = []  # direct: up to the highest that was ever taken
        self._queue: list[Sequence] = []  # oldest: the dynamic batcher's
        self._since: dict[Sequence, int] = {}  # everybody with a slot -> its age counts from then
        self._ran: list[Sequence] = []  # the last execution

    def check(self, limits: Limits, requests: Any) -> None:
        """Refuse what Triton refuses when it loads a model."""
        if self.max_batch_size < 1:
            raise SettingError("max_batch_size", self.max_batch_size, "must be at least 1")
        check_window(self.max_batch_size, self.preferred_batch_size, self.max_queue_delay_microseconds)
        candidates, direct = self.max_candidate_sequences, self.strategy == "direct"
        if not 0 <= self.minimum_slot_utilization <= 1:
            raise SettingError("minimum_slot_utilization", self.minimum_slot_utilization, "must be from 0 to 1")
        if not direct and (candidates is None or candidates < 1):
            expected = "must be given for oldest, at least 1"
            raise SettingError("max_candidate_sequences", candidates, expected, beside="strategy")
        given = {
            "max_candidate_sequences": direct and candidates is not None,
            "preferred_batch_size": direct and self.preferred_batch_size is not None,
            "minimum_slot_utilization": not direct and self.minimum_slot_utilization > 0,
        }
        for name, wrong in given.items():
            if wrong:
                expected = f"is no setting of strategy {self.strategy!r}"
                raise SettingError(name, getattr(self, name), expected, beside="strategy")
        self._begin()

    def plan(self, view: View, batch: Batch) -> str | Wait | None:
        """Rules 3 and 4, then one execution, or none yet."""
        self._take_slots(view, batch)
        ran = [seq for seq in self._ran if seq.running]
        self._since = {seq: since for seq, since in self._since.items() if seq.running}
        for seq in ran:
            self._since[seq] = view.now
        self._queue = [seq for seq in self._queue if seq.running] + ran
        self._slots = [None if seq is None or not seq.running else seq for seq in self._slots]
        self._take_slots(view, batch, waited=True)
        taken, until = self._direct(view, batch) if self.strategy == "direct" else self._oldest(view)
        for seq in taken:
            batch.schedule(seq)
        self._ran = taken
        return None if until is None else Wait("waiting for more sequences", until)

    def _take_slots(self, view: View, batch: Batch, waited: bool = False) -> None:
        """Rule 1. waited: whether they get their slots only now, and not as they came."""
        while len(self._since) < self._slot_count and view.waiting.head is not None:
            seq = view.waiting.head
            batch.admit(seq)
            if self.strategy == "direct":
                if None not in self._slots:
                    self._slots.append(None)
                self._slots[self._slots.index(None)] = seq
                self._since[seq] = seq.arrival
            else:
                self._queue.append(seq)
                self._since[seq] = view.now if waited else seq.arrival

    def _direct(self, view: View, batch: Batch) -> tuple[list[Sequence], int | None]:
        """Rules 5 and 6."""
        ready = [seq for seq in self._slots if seq is not None]
        if not ready:
            return [], None
        delay = self.max_queue_delay_microseconds * MICROSECOND
        least = self.minimum_slot_utilization
        ripe = min(self._since[seq] for seq in ready) + delay + 1  # older than the delay, not as old
        if delay > 0 and least > 0 and view.now < ripe and len(ready) / self.max_batch_size < least:
            return [], ripe
        highest = max(place for place, seq in enumerate(self._slots) if seq is not None)
        batch.pad(highest + 1 - len(ready))
        return ready, None

    def _oldest(self, view: View) -> tuple[list[Sequence], int | None]:
        """Rule 7."""
        most = self.max_batch_size
        delay = self.max_queue_delay_microseconds * MICROSECOND
        taken, until = build(
            self._queue, most, self.preferred_batch_size or [most], delay, view.now, self._since.__getitem__, no_timeout
        )
        gone = set(taken)
        self._queue = [seq for seq in self._queue if seq not in gone]
        return taken, until


def no_timeout(seq: Sequence) -> None:
    """Sequences have none here."""
