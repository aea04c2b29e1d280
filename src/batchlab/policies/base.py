"""What every policy starts from."""

from typing import Any, ClassVar

from batchlab.core.batch import Batch
from batchlab.core.limits import NO_LIMIT, Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.core.work import Wait
from batchlab.errors import SettingError
from batchlab.settings import LimitSettings

WITHOUT_BLOCKS = ("max_num_seqs", "max_num_batched_tokens", "max_queue")
"""What a policy takes that does not look at KV blocks."""


def require_budget(limits: Limits, name: str = "max_num_batched_tokens", because: str = "") -> None:
    """Seats and a token budget, here called `name`, have to be given, with a token for every seat."""
    seats, budget = limits.max_num_seqs, limits.max_num_batched_tokens
    if seats is None or budget is None:
        raise SettingError("max_num_seqs" if seats is None else name, None, "must be given, an integer of at least 1")
    if budget < seats:
        raise SettingError(name, budget, f"must be at least max_num_seqs = {seats}{because}", beside="max_num_seqs")


def exhausted(batch: Batch) -> str:
    """Why a request ends that needs more KV blocks than there are."""
    return f"KV cache exhausted: a request can hold {batch.total_blocks} blocks at most"


class Policy:
    """Decides, iteration by iteration, what runs; never touches state itself: `batch` is its only hands.

    A subclass takes its settings as keyword arguments of `__init__`, under its engine's own names and with annotations;
    those of the core (max_num_seqs, num_gpu_blocks, ...; see `takes`) come to the core by themselves. A class of
    one's own need not derive from this one: `plan` alone is enough.
    """

    rules: ClassVar[str] = "custom"
    """Whose rules these are, with their version; written into every trace."""

    takes: ClassVar[tuple[str, ...] | dict[str, str]] = tuple(LimitSettings.model_fields)
    """The core's settings that make sense with it; as a dict, the engine's own name of each -> the core's."""

    fixes: ClassVar[dict[str, int]] = {}
    """The core's settings that the rules themselves set, such as a block_size of 1 where KV memory is in slots."""

    holds: ClassVar[str] = "computed"
    """What a request has KV blocks for: `computed` tokens, its whole `prompt`, or prompt and `max` output."""

    steps_in_flight: int = 1
    """How many steps are planned before the oldest is delivered."""

    pipeline_stages: int = 1
    """A step passes so many stages; the next may follow when the first one is free."""

    own_queue: ClassVar[bool] = False
    """Whether the order and the bound of the queue are the engine's own, so that a scenario's [queue] has no place."""

    batching: str = "iteration"
    """`request` where a batch is formed once and runs to its end, so that a seat whose request has ended stays open."""

    counts_ns: bool = False
    """Whether it has times of its own, so that the clock has to count ns."""

    coasts: ClassVar[bool] = False
    """Whether its plan stays the same while nothing happens: as long as all that run decode, and nobody arrives, ends
    or lacks a KV block, everybody gets a token, and whoever was not let in stays out. The loop then need not ask."""

    reserved_blocks: ClassVar[int] = 0
    """KV blocks of num_gpu_blocks that the engine keeps for itself."""

    def check(self, limits: Limits, requests: Any) -> None:
        """Refuse a configuration that these rules cannot run: raise SettingError, or RequestError for one request."""

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """A request is at the door. By default it goes to the back of the queue, or is rejected if that is full."""
        if batch.enqueue(seq):
            batch.reject(seq, "queue full")

    def open_door(self, limits: Limits, batch: Batch) -> tuple[int, int] | None:
        """Bounds of prompt and max_tokens within which a newcomer surely goes to the back of the queue.

        None if `on_arrival` has to look at everyone; so it is for a subclass with a door of its own that says nothing.
        """
        return NO_LIMIT, NO_LIMIT

    def plan(self, view: View, batch: Batch) -> str | Wait | None:
        """Build this iteration's batch. The answer may say why; a Wait says until when nothing is to be scheduled."""
        raise NotImplementedError
