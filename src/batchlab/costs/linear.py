"""A step's time as a sum over what it computes."""

import math
from typing import Any

from batchlab.core.work import Work
from batchlab.costs.base import LONGEST, StepTime
from batchlab.errors import SettingError, nearest

RANGED = ("prefill_tokens", "decodes", "context_tokens")

MOST = 2**40
"""Of a coefficient."""
SAFE = float(1 << 60)
"""Sums below it, and each of their terms, fit 64 bits."""


def pairs(chunks: list[tuple[int, int]]) -> int:
    """Query-key pairs of prefill attention: each token of a chunk with all before it and with itself."""
    return sum([tokens * before + tokens * (tokens + 1) // 2 for tokens, before in chunks])


class LinearTime(StepTime):
    """The sum that a linear cost is; docs at Linear. In whole numbers where all coefficients are, else in floats."""

    def __init__(
        self,
        per_iteration: float,
        prefill_token: float,
        decode_token: float,
        context_token: float,
        moved_block: float,
        prefill_pair: float,
        ranged: bool,
    ) -> None:
        self._ranged = ranged
        self._pairs = prefill_pair > 0
        coefficients = (per_iteration, prefill_token, decode_token, context_token, moved_block, prefill_pair)
        self._whole = all(isinstance(coefficient, int) for coefficient in coefficients)
        self._a, self._b, self._c, self._d, self._e, self._f = map(float, coefficients)
        if self._whole:
            self._i, self._j, self._k, self._l, self._m, self._n = map(int, coefficients)

    def duration(self, work: Work) -> int:
        """The stated sum, rounded."""
        if self._ranged:
            self._count(work)
        decodes = work.decode_tokens + work.padding_tokens
        total = self._a + self._b * work.prefill_tokens + self._c * decodes + self._d * work.context_tokens
        total += self._e * work.moved_blocks
        if self._pairs:
            total += self._f * pairs(work.chunks)
        if total >= SAFE:
            return LONGEST
        if self._whole:
            exact = self._i + self._j * work.prefill_tokens + self._k * decodes
            exact += self._l * work.context_tokens + self._m * work.moved_blocks
            if self._pairs:
                exact += self._n * pairs(work.chunks)
            return exact if exact > 1 else 1
        exact = int(total + 0.5)
        return exact if exact > 1 else 1

    def _count(self, work: Work) -> None:
        """Called for every step where the coefficients were fitted in some range."""


class Linear(LinearTime):
    """per_iteration + prefill_token * prefill tokens + decode_token * decode tokens + context_token * context tokens.

    Context tokens are the keys and values that the step reads: over all requests in it, the tokens computed after it.
    Padding tokens, which a tied batch computes for its ended members, cost as much as decode tokens. Moving KV blocks
    adds moved_block for each block swapped out or in, and each query-key pair of a prefill prefill_pair: what attention
    costs beyond reading, quadratic in the prompt. The sum is rounded half up to a whole number of `unit`, at least
    1, once per step. With `unit = "cost unit"` the numbers are abstract: they compare schedules and say nothing about
    seconds.

    fitted: the ranges that the coefficients were fitted in, by name: prefill_tokens, decodes and context_tokens of a
    step. Steps outside are counted and told after the run.
    """

    idle = "jump"

    def __init__(
        self,
        unit: str,
        per_iteration: float = 0,
        prefill_token: float = 0,
        decode_token: float = 0,
        context_token: float = 0,
        moved_block: float = 0,
        prefill_pair: float = 0,
        fitted: dict[str, list[float]] | None = None,
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
        if prefill_pair:
            self.coefficients["prefill_pair"] = prefill_pair
        self.details: tuple[str, ...] = ("chunks",) if prefill_pair else ()
        for name, value in self.coefficients.items():
            if not math.isfinite(value) or not 0 <= value <= MOST:
                raise SettingError(name, value, "must be a number from 0 to 2^40", section="cost")
        if not any(self.coefficients.values()):
            raise SettingError("per_iteration", 0, "at least one coefficient must be above 0", section="cost")
        self.ranges = _ranges(fitted)
        self.timed = 0
        self.outside: dict[str, int] = {}
        super().__init__(
            per_iteration, prefill_token, decode_token, context_token, moved_block, prefill_pair, bool(self.ranges)
        )

    def _count(self, work: Work) -> None:
        self.timed += 1
        sizes = (work.prefill_tokens, work.decode_tokens + work.padding_tokens, work.context_tokens)
        for name, size in zip(RANGED, sizes, strict=True):
            low, high = self.ranges.get(name, (0, math.inf))
            if not low <= size <= high:
                self.outside[name] = self.outside.get(name, 0) + 1

    def remarks(self) -> list[str]:
        """What is to be said after a run."""
        return [
            f"{self.outside[name]:,} of {self.timed:,} steps lie outside the fitted {name}, {low:,.0f} to {high:,.0f}"
            for name, (low, high) in self.ranges.items()
            if name in self.outside
        ]

    def describe(self) -> dict[str, Any]:
        """The coefficients by name."""
        return {"model": "linear", **self.coefficients}


def _ranges(fitted: dict[str, list[float]] | None) -> dict[str, tuple[float, float]]:
    """Lowest and highest by name, for names of RANGED. Raises SettingError."""
    found = {}
    for name, value in (fitted or {}).items():
        if name not in RANGED:
            raise SettingError(f"fitted.{name}", None, f"unknown key{nearest(name, RANGED)}", section="cost")
        if len(value) != 2 or not all(math.isfinite(end) for end in value) or value[0] > value[1]:
            raise SettingError(f"fitted.{name}", value, "must be [lowest, highest]", section="cost")
        found[name] = (value[0], value[1])
    return found
