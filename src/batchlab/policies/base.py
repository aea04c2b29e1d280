"""What every policy starts from."""

from typing import Any, ClassVar

from batchlab.core.batch import Batch
from batchlab.core.scheduler import Limits, View
from batchlab.core.sequence import Sequence


class Policy:
    """Decides, iteration by iteration, what runs; never touches state itself: `batch` is its only hands.

    A subclass takes its settings as keyword arguments of `__init__`, under its engine's own names and with annotations;
    those of the core (max_num_seqs, max_num_batched_tokens, max_queue) come to the core by themselves. A class of
    one's own need not derive from this one: `plan` alone is enough.
    """

    rules: ClassVar[str] = "custom"
    """Whose rules these are, with their version; written into every trace."""

    def check(self, limits: Limits, requests: Any) -> None:
        """Refuse a configuration that these rules cannot run: raise SettingError, or RequestError for one request."""

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """A request is at the door. By default it goes to the back of the queue, or is rejected if that is full."""
        if batch.enqueue(seq):
            batch.reject(seq, "queue full")

    def plan(self, view: View, batch: Batch) -> str | None:
        """Build this iteration's batch. If nothing is scheduled, the answer may say why."""
        raise NotImplementedError
