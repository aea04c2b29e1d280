"""Sarathi-Serve: stall-free batching.

Source: Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve (OSDI 2024), Algorithm 3.

1. Each iteration has token_budget tokens. First every decode gets its token, in running order.
2. Then prefills already begun get a chunk each, in running order: what they have left or what the budget has left.
3. Then waiting requests are admitted from the front and get a chunk by the same rule, while seats and budget last.
4. A budget below the seats is refused: decodes would have to stall. So whoever decodes gets a token in every iteration.

The paper's budgets: 512 under its strict objective, 2048 under the relaxed one (1536 for LLaMA2-70B), with batches of
up to 128.

Not modelled: KV memory and preemption, for which the paper's system has vLLM's; pipeline stages; cutting a chunk to a
multiple of the GPU's tile size.
"""

from typing import Any, ClassVar

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import View
from batchlab.policies.base import Policy, require_budget


class Sarathi(Policy):
    """Decodes first, then the prefill in progress, then new requests in chunks, within one token budget: no stalls.

    token_budget: most tokens of an iteration, decodes and chunks together.
    """

    rules = "Sarathi-Serve (OSDI 2024), Algorithm 3"
    takes: ClassVar[dict[str, str]] = {"max_num_seqs": "max_num_seqs", "token_budget": "max_num_batched_tokens"}
    own_queue = True
    coasts = True

    def check(self, limits: Limits, requests: Any) -> None:
        """Rule 4."""
        require_budget(limits, "token_budget", ": decodes would stall")

    def plan(self, view: View, batch: Batch) -> None:
        """Rules 1 to 3."""
        batch.decode_all()
        batch.prefill_all()
        batch.schedule_waiting()
