"""Shortest prompt first: a policy of one's own in one file; docs/write-a-policy.md explains it line by line."""

from batchlab import Batch, Limits, Policy, View
from batchlab.errors import SettingError


class ShortestPromptFirst(Policy):
    """Decodes, then prompts begun, then the shortest waiting prompts; long ones may wait for ever.

    prefill_chunk: most prompt tokens of one request in one iteration.
    """

    rules = "shortest prompt first, 1"

    def __init__(self, prefill_chunk: int = 512) -> None:
        self.prefill_chunk = prefill_chunk

    def check(self, limits: Limits, requests: object) -> None:
        """A chunk of 0 tokens would never end a prompt."""
        if self.prefill_chunk < 1:
            raise SettingError("prefill_chunk", self.prefill_chunk, "must be at least 1")

    def plan(self, view: View, batch: Batch) -> None:
        """Build one iteration's batch."""
        batch.decode_all()
        batch.prefill_all(self.prefill_chunk)
        for seq in sorted(view.waiting, key=lambda seq: (seq.prompt_tokens, seq.order)):
            if batch.schedule(seq, self.prefill_chunk):  # a refusal: no seat or no token is left
                break
