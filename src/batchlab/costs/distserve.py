"""A step's time by DistServe's fit (OSDI 2024; simdistserve/estimators/time_estimator.py)."""

import math
from typing import Any

from batchlab.core.work import Work
from batchlab.costs.base import whole
from batchlab.errors import SettingError


class DistServe:
    """prefill: a + b sum(len) + c sum(len^2). decode: a + b sum(context) + c batch. All three in ms, times in ns.

    decode_large holds instead of decode for batches above `threshold`. The fit is of instances that do one of the two:
    a mixed step takes both times, one after the other, and a chunk counts in the squares what it adds to those of its
    prompt.
    """

    unit = "ns"
    idle = "jump"
    details: tuple[str, ...] = ("chunks",)

    def __init__(
        self,
        prefill: list[float],
        decode: list[float],
        decode_large: list[float] | None = None,
        threshold: int | None = None,
    ) -> None:
        for name, value in (("prefill", prefill), ("decode", decode), ("decode_large", decode_large)):
            if value is None:
                continue
            if len(value) != 3 or not all(math.isfinite(c) and abs(c) <= 2**40 for c in value):
                raise SettingError(name, value, "must be three numbers in ms, [a, b, c]", section="cost")
        if (decode_large is None) != (threshold is None):
            missing = "threshold" if threshold is None else "decode_large"
            raise SettingError(missing, None, "is missing: decode_large and threshold go together", section="cost")
        if threshold is not None and threshold < 1:
            raise SettingError("threshold", threshold, "must be a batch of at least 1", section="cost")
        self.prefill = prefill
        self.decode = decode
        self.decode_large = decode_large
        self.threshold = threshold
        self.timed = 0
        self.outside = 0
        self.negative = 0

    def duration(self, work: Work) -> int:
        """The stated sum, in ns."""
        ms = 0.0
        self.timed += 1
        decodes, context = work.decode_tokens, work.context_tokens - work.prefill_context
        if work.chunks and decodes:
            self.outside += 1
        if work.chunks or work.padding_tokens:
            a, b, c = self.prefill
            squares = sum((before + tokens) ** 2 - before**2 for tokens, before in work.chunks)
            ms += a + b * (work.prefill_tokens + work.padding_tokens) + c * squares
        if decodes:
            large = self.threshold is not None and decodes > self.threshold
            a, b, c = self.decode_large if large and self.decode_large is not None else self.decode
            ms += a + b * context + c * decodes
        self.negative += ms <= 0
        return whole(ms * 1e6)

    def remarks(self) -> list[str]:
        """What is to be said after a run."""
        told = []
        if self.outside:
            told.append(f"{self.outside:,} of {self.timed:,} steps mix prefill and decode, which the fit does not know")
        if self.negative:
            told.append(f"{self.negative:,} of {self.timed:,} steps take no time by this fit, and 1 ns here")
        return told

    def describe(self) -> dict[str, Any]:
        """The coefficients by name."""
        found: dict[str, Any] = {"model": "distserve", "prefill": self.prefill, "decode": self.decode}
        if self.decode_large is not None:
            found |= {"decode_large": self.decode_large, "threshold": self.threshold}
        return found
