"""A queue in order of prompt length that starves nobody, for the simulator and for a real vLLM (docs/real-vllm.md)."""

from batchlab import Sequence
from batchlab.policies.vllm import Vllm

SECOND = 1_000_000_000  # ns


class ShortestFirst(Vllm):
    """vLLM, with short prompts first; each second of waiting makes a request as urgent as so many tokens fewer would.

    All that wait age alike, so the order between two never changes: by prompt + tokens_per_second * arrival.
    """

    rules = "vLLM 0.32.0, shortest prompt first with linear aging, 1"

    def __init__(self, tokens_per_second: int = 100) -> None:
        super().__init__()
        self.tokens_per_second = tokens_per_second
        self.queue_key = self.urgency

    def urgency(self, seq: Sequence) -> int:
        """Lower goes first; in tokens times 10^9, so that it is an integer."""
        return seq.prompt_tokens * SECOND + self.tokens_per_second * seq.arrival
