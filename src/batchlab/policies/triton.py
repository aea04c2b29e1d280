"""The dynamic batcher of Triton Inference Server (core 24.x): request-level batching in a delay window.

Sources: dynamic_batch_scheduler.cc and scheduler_utils.cc of the core repository; the settings are those of
ModelDynamicBatching and ModelQueuePolicy in model_config.proto.

This is not continuous batching: a batch is put together from the queue before it runs, and then runs to its end. Nobody
joins it, and nobody's place is free for others, until its last member has ended. The delay only decides how long
requests wait for company. Batches that are decided anew after each token are those of triton-iterative.

1. Defaults: preferred_batch_size none = max_batch_size alone; max_queue_delay_microseconds 0; timeout_action REJECT;
   default_timeout_microseconds 0 = none; max_queue_size 0 = no bound; priority_levels 0 = one queue for all.
2. One queue a level, 1 before 2. A request's priority number is its level; 0 and what is out of range means
   default_priority_level; one that is not given is 1 in a scenario, so give 0 for the default level. A level has its
   own policy if priority_queue_policy has one, else default_queue_policy.
3. Who finds max_queue_size requests in its level's queue is rejected at once. A timeout runs from the arrival. A
   request's own one, here its deadline, only counts with allow_timeout_override and if it is not 0 and shorter than
   the default; hence never where the default is 0.
4. A timeout is noticed when the cursor comes to the request while a batch is built, not earlier; it is over when it has
   passed in full. REJECT: the request is rejected. DELAY: it goes to the end of its level's delayed requests, which are
   served after all others of the level, before lower levels, and have no timeout any more.
5. A batch is built when none is running.
6. The cursor takes one request after the other. Where a preferred size is reached, that is the best batch so far. The
   cursor stops in front of the request that would exceed max_batch_size: then the batch has to go now.
7. The delay is exceeded if it is not 0 and the oldest of those taken has been there for so long.
8. The first that applies: a best batch and the delay not exceeded: it goes. Nobody taken: nothing. The batch has to go
   now, or is as large as the largest preferred size: all that were taken go. The delay exceeded, or 0: they go. Else
   wait for the end of the delay or the next timeout among them.
9. Whoever comes, and a timeout in the meantime, makes it build anew, from the first request.
10. A batch runs whole prompts in its first step, then decodes.

A delay or a timeout needs a clock that counts ns.

Not modelled: requests of more than one, several instances, a batch that grows while it waits for its instance, shapes,
custom batching, preserve_ordering, the response cache, and the sweep that ends expired requests every 500 ms while no
instance is free.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.core.sequence import Sequence
from batchlab.core.work import Wait
from batchlab.errors import SettingError
from batchlab.policies.base import Policy
from batchlab.settings import CountOrZero, Table

MICROSECOND = 1000
"""In ns."""


class QueuePolicy(Table):
    """ModelQueuePolicy."""

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_microseconds: CountOrZero = 0
    allow_timeout_override: bool = False
    max_queue_size: CountOrZero = 0


Level = Annotated[str, Field(pattern="^[1-9][0-9]*$")]


class Triton(Policy):
    """Dynamic batching: requests wait for company up to a delay, then run to the end together.

    All settings have the names of model_config.proto. priority_queue_policy is a table from level to policy.
    """

    rules = "Triton Inference Server 24.x, dynamic batcher"
    takes: ClassVar[dict[str, str]] = {"max_batch_size": "max_num_seqs"}
    own_queue = True
    batching = "request"

    def __init__(
        self,
        preferred_batch_size: list[int] | None = None,
        max_queue_delay_microseconds: int = 0,
        priority_levels: int = 0,
        default_priority_level: int = 0,
        default_queue_policy: QueuePolicy | None = None,
        priority_queue_policy: dict[Level, QueuePolicy] | None = None,
    ) -> None:
        default = QueuePolicy.model_validate(default_queue_policy or {})
        levels = {str(k): QueuePolicy.model_validate(value) for k, value in (priority_queue_policy or {}).items()}
        self.preferred_batch_size = preferred_batch_size
        self.max_queue_delay_microseconds = max_queue_delay_microseconds
        self.priority_levels = priority_levels
        self.default_priority_level = default_priority_level
        self.default_queue_policy = default.model_dump()
        self.priority_queue_policy = {level: policy.model_dump() for level, policy in levels.items()}
        self.queue_key = self._key if priority_levels > 0 else None
        self._default = default
        timeouts = any(policy.default_timeout_microseconds for policy in (default, *levels.values()))
        self.counts_ns = timeouts or max_queue_delay_microseconds > 0
        self._policies = {int(level): policy for level, policy in levels.items()}
        self._delayed: dict[Sequence, None] = {}  # rule 4, in the order in which they were delayed

    def check(self, limits: Limits, requests: Any) -> None:
        """Refuse what Triton refuses when it loads a model."""
        check_window(limits.max_num_seqs, self.preferred_batch_size, self.max_queue_delay_microseconds)
        levels, default = self.priority_levels, self.default_priority_level
        if levels < 0:
            raise SettingError("priority_levels", levels, "must be at least 0")
        if not min(levels, 1) <= default <= levels:
            expected = f"must be a level, 1 to {levels}" if levels else "must be 0 where there are no levels"
            raise SettingError("default_priority_level", default, expected, beside="priority_levels")
        for level in self._policies:
            if level > levels:
                expected = f"must be for levels from 1 to {levels}"
                raise SettingError("priority_queue_policy", level, expected, beside="priority_levels")

    def on_arrival(self, seq: Sequence, view: View, batch: Batch) -> None:
        """Rule 3."""
        level = self._level(seq)
        most = self._policy(level).max_queue_size
        if most and sum(self._level(other) == level for other in view.waiting) >= most:
            batch.reject(seq, "max_queue_size")
        else:
            batch.enqueue(seq)

    def plan(self, view: View, batch: Batch) -> str | Wait | None:
        """Rules 5 and 10."""
        if view.num_running:
            batch.decode_all()
            return None
        most = view.limits.max_num_seqs
        assert most is not None
        preferred = self.preferred_batch_size or [most]
        delay = self.max_queue_delay_microseconds * MICROSECOND
        taken, until = build(self._cursor(view, batch), most, preferred, delay, view.now, arrival, self._expires)
        for seq in taken:
            batch.schedule(seq)
        return None if until is None else Wait("waiting for a larger batch", until)

    def _cursor(self, view: View, batch: Batch) -> Iterator[Sequence]:
        """Rules 2 and 4: those that wait, in the order in which they are served, without those that expire here."""
        waiting = list(view.waiting)
        here = set(waiting)
        self._delayed = {seq: None for seq in self._delayed if seq in here}
        for level, members in groupby(waiting, self._level):
            action = self._policy(level).timeout_action
            for seq in members:
                if seq in self._delayed:
                    continue
                expires = self._expires(seq)
                if expires is None or view.now < expires:
                    yield seq
                elif action == "DELAY":
                    self._delayed[seq] = None
                else:
                    batch.reject(seq, "timeout")
            yield from [seq for seq in self._delayed if self._level(seq) == level]

    def _expires(self, seq: Sequence) -> int | None:
        """Rule 3: when its timeout is over, None without one."""
        if seq in self._delayed:
            return None
        policy = self._policy(self._level(seq))
        timeout = policy.default_timeout_microseconds * MICROSECOND
        if policy.allow_timeout_override and seq.deadline and seq.deadline < timeout:
            timeout = seq.deadline
        return seq.arrival + timeout if timeout else None

    def _level(self, seq: Sequence) -> int:
        if self.priority_levels == 0:
            return 0
        return seq.priority if 1 <= seq.priority <= self.priority_levels else self.default_priority_level

    def _policy(self, level: int) -> QueuePolicy:
        return self._policies.get(level, self._default)

    def _key(self, seq: Sequence) -> tuple[int, int, int]:
        return (self._level(seq), *seq.order)


def build(
    cursor: Iterable[Sequence],
    most: int,
    preferred: list[int],
    delay: int,
    now: int,
    came: Callable[[Sequence], int],
    expires: Callable[[Sequence], int | None],
) -> tuple[list[Sequence], int | None]:
    """Rules 6 to 8: whom to send now, or else until when to wait; neither if nobody is there.

    most: max_batch_size. came: since when a request is in the queue. expires: when its timeout is over.
    """
    taken: list[Sequence] = []
    best = 0
    full = False
    for seq in cursor:
        if len(taken) == most:
            full = True
            break
        taken.append(seq)
        if len(taken) in preferred:
            best = len(taken)
    if not taken:
        return [], None
    ripe = min(map(came, taken)) + delay
    exceeded = delay != 0 and now >= ripe
    if best and not exceeded:
        return taken[:best], None
    if full or len(taken) >= max(preferred) or exceeded or delay == 0:
        return taken, None
    return [], min([ripe, *(time for time in map(expires, taken) if time is not None)])


def arrival(seq: Sequence) -> int:
    """Since when a request is in the dynamic batcher's queue."""
    return seq.arrival


def check_window(most: int | None, preferred: list[int] | None, delay: int) -> None:
    """Refuse sizes and a delay that the batcher cannot have."""
    if most is None:
        raise SettingError("max_batch_size", None, "must be given, an integer of at least 1")
    for size in preferred or ():
        if not 1 <= size <= most:
            expected = f"must be from 1 to max_batch_size = {most}"
            beside = None if size < 1 else "max_batch_size"
            raise SettingError("preferred_batch_size", size, expected, beside=beside)
    if delay < 0:
        raise SettingError("max_queue_delay_microseconds", delay, "must be at least 0")
