"""A step's time as a sum over what it computes."""

import math
from typing import Any

from batchlab.core.work import Work
from batchlab.costs.base import LONGEST, StepTime
from batchlab.errors import SettingError

SAFE = float(1 << 60)
"""Sums below it, and each of their terms, fit 64 bits."""


class LinearTime(StepTime):
    """The sum that a linear cost is; docs at Linear. In whole numbers where all coefficients are, else in floats."""

    def __init__(
        self,
        per_iteration: float,
        prefill_token: float,
        decode_token: float,
        context_token: float,
        moved_block: float,
    ) -> None:
        coefficients = (per_iteration, prefill_token, decode_token, context_token, moved_block)
        self._whole = all(isinstance(coefficient, int) for coefficient in coefficients)
        self._a, self._b, self._c, self._d, self._e = map(float, coefficients)
        if self._whole:
            self._i, self._j, self._k, self._l, self._m = map(int, coefficients)

    def duration(self, work: Work) -> int:
        """The stated sum, rounded."""
        decodes = work.decode_tokens + work.padding_tokens
        total = self._a + self._b * work.prefill_tokens + self._c * decodes + self._d * work.context_tokens
        total += self._e * work.moved_blocks
        if total >= SAFE:
            return LONGEST
        if self._whole:
            exact = self._i + self._j * work.prefill_tokens + self._k * decodes
            exact += self._l * work.context_tokens + self._m * work.moved_blocks
            return exact if exact > 1 else 1
        exact = int(total + 0.5)
        return exact if exact > 1 else 1


class Linear(LinearTime):
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
        super().__init__(per_iteration, prefill_token, decode_token, context_token, moved_block)

    def describe(self) -> dict[str, Any]:
        """The coefficients by name."""
        return {"model": "linear", **self.coefficients}
