"""A step's time as a sum over what it computes."""

import math
from typing import Any

from batchlab.core.work import Work
from batchlab.errors import SettingError


class Linear:
    """per_iteration + prefill_token * prefill tokens + decode_token * decode tokens + context_token * context tokens.

    Context tokens are the keys and values that the step reads: over all requests in it, the tokens computed after it.
    Padding tokens, which a tied batch computes for its ended members, cost as much as decode tokens. Moving KV blocks
    adds moved_block for each block swapped out or in. The sum is rounded half up to a whole number of `unit`, at least
    1, once per step. With `unit = "cost unit"` the numbers are abstract: they compare schedules and say nothing about
    seconds.
    """

    idle = "jump"
    details = False

    def __init__(
        self,
        unit: str,
        per_iteration: float = 0,
        prefill_token: float = 0,
        decode_token: float = 0,
        context_token: float = 0,
        moved_block: float = 0,
    ) -> None:
        if unit not in ("cost unit", "ns"):
            raise SettingError("unit", unit, "must be 'cost unit' or 'ns'", section="cost")
        self.unit = unit
        self.coefficients = {
            "per_iteration": per_iteration,
            "prefill_token": prefill_token,
            "decode_token": decode_token,
            "context_token": context_token,
            "moved_block": moved_block,
        }
        for name, value in self.coefficients.items():
            if not math.isfinite(value) or not 0 <= value <= 2**40:
                raise SettingError(name, value, "must be a number from 0 to 2^40", section="cost")
        if not any(self.coefficients.values()):
            raise SettingError("per_iteration", 0, "at least one coefficient must be above 0", section="cost")

    def duration(self, work: Work) -> int:
        """The stated sum, rounded."""
        c = self.coefficients
        total = (
            c["per_iteration"]
            + c["prefill_token"] * work.prefill_tokens
            + c["decode_token"] * (work.decode_tokens + work.padding_tokens)
            + c["context_token"] * work.context_tokens
            + c["moved_block"] * work.moved_blocks
        )
        return max(1, math.floor(total + 0.5)) if isinstance(total, float) else max(1, total)

    def describe(self) -> dict[str, Any]:
        """The coefficients by name."""
        return {"model": "linear", **self.coefficients}
