"""What a header lays down for the whole run, with the defaults of what it leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits and rules of one run. None means no limit."""

    seats: int | None
    budget: int | None
    max_queue: int | None
    max_model_len: int | None
    num_blocks: int | None
    """Usable KV blocks, None if blocks are not modelled."""
    block_size: int
    caching: bool
    counted: bool
    """Whether the clock counts iterations."""
    jumps: bool
    order: str | None
    """`arrival`, `priority` or `policy`; None if the header does not say."""
    aging: int | None
    sheds: bool
    drops_late: bool
    """Whether a request ends at its deadline."""
    retry: dict[str, int] | None
    depth: int
    """Steps in flight."""
    max_iterations: int | None
    recorded: bool
    """Whether a recorder inside a real engine wrote it: it learned of ends as they came, and has no end line."""
    tied: bool
    """Whether a batch is formed once and runs to its end."""

    holds: str
    """What a request has KV blocks for: `computed` tokens, its whole `prompt`, or prompt and `max` output."""

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold so many tokens; 0 where blocks are not modelled."""
        return 0 if self.num_blocks is None else -(-tokens // self.block_size)

    def held_tokens(self, computed: int, prefill_target: int, longest: int) -> int:
        """How many tokens a request that was scheduled holds KV blocks for."""
        return max(computed, {"computed": 0, "prompt": prefill_target, "max": longest}[self.holds])

    def due_output(self, prompt: int, output: int) -> int:
        """The output tokens after which such a request ends."""
        return output if self.max_model_len is None else min(output, self.max_model_len - prompt)

    def retry_wait(self, attempt: int) -> int | None:
        """How long after the rejection of attempt 1, 2, ... the client comes again, None if it does not."""
        if self.retry is None or attempt >= self.retry["limit"]:
            return None
        return int(self.retry["wait"] * self.retry["factor"] ** (attempt - 1))


def terms_of(header: dict[str, Any]) -> Terms:
    """The terms that a header states."""
    limits, clock, queue = header["limits"], header["clock"], header.get("queue", {})
    return Terms(
        seats=limits["max_num_seqs"],
        budget=limits["max_num_batched_tokens"],
        max_queue=limits["max_queue"],
        max_model_len=limits.get("max_model_len"),
        num_blocks=limits.get("num_gpu_blocks"),
        block_size=limits.get("block_size", 1),
        caching=limits.get("enable_prefix_caching", False),
        counted=clock["unit"] == "iteration",
        jumps=clock["idle"] == "jump",
        order=queue.get("order"),
        aging=queue.get("aging"),
        sheds=queue.get("shed", False),
        drops_late=header.get("deadlines") == "drop",
        retry=header.get("retry"),
        depth=header.get("steps_in_flight", 1),
        max_iterations=header["max_iterations"],
        recorded="recorded" in header,
        tied=header.get("batching") == "request",
        holds=header.get("holds", "computed"),
    )
