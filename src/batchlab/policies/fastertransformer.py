"""FasterTransformer with request-level batching, as the baseline of Orca.

Source: Orca (OSDI 2022), section 6: FasterTransformer behind a scheduler that takes up to max_bs requests at a time.

1. When the engine is idle it takes the earliest waiting requests, at most max_bs. Nobody joins a batch later.
2. The first step computes as many tokens of every member as the shortest prompt of the batch has.
3. From then on every member computes one token a step: what is left of its prompt, then its output. So a batch takes
   max(prompt + output) - min(prompt) steps.
4. A member that has ended costs one padding token a step until the last one has ended, and its seat stays empty.

Not modelled: KV memory, which FasterTransformer allocates for the largest batch beforehand; pipeline stages and
micro-batches; a token budget, there is none.
"""

from typing import Any, ClassVar

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.errors import SettingError
from batchlab.policies.base import Policy


class FasterTransformer(Policy):
    """A batch starts at its shortest prompt, then all compute one token a step, until the last one has ended.

    max_bs: most requests in a batch.
    """

    rules = "FasterTransformer, as in Orca (OSDI 2022), section 6"
    takes: ClassVar[dict[str, str]] = {"max_bs": "max_num_seqs"}
    own_queue = True
    batching = "request"

    def __init__(self) -> None:
        self._members = 0

    def check(self, limits: Limits, requests: Any) -> None:
        """The paper's batches are bounded."""
        if limits.max_num_seqs is None:
            raise SettingError("max_bs", None, "must be given, an integer of at least 1")
        self._members = 0

    def plan(self, view: View, batch: Batch) -> None:
        """Rules 1 and 2 in an empty engine, else rules 3 and 4."""
        tokens = 1
        if not view.num_running:
            batch.admit_waiting()
            self._members = view.num_running
            tokens = min((seq.prompt_tokens for seq in view.running), default=1)
        for seq in view.running:
            batch.schedule(seq, tokens)
        batch.pad(self._members - view.num_running)
