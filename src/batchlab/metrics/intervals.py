"""How far a figure of a simulation may be off by chance: confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchlab.metrics.latency import figures, mean_of

CONFIDENCE = 0.95
BATCHES = 20
FEWEST = {"mean": 10, "p99": 100}
"""Samples that a batch needs before its figure says anything."""


@dataclass(frozen=True)
class Interval:
    """A mean and what it may be off, with 95 % confidence; of so many values. None where that cannot be told."""

    mean: float | None
    half_width: float | None
    count: int

    def holds(self, value: float) -> bool:
        """Whether a value lies in it. False where it is not known."""
        if self.mean is None or self.half_width is None:
            return False
        return abs(value - self.mean) <= self.half_width


def interval(values: Iterable[float | None]) -> Interval:
    """Of independent values: Student's t. Of fewer than two there is none, nor where one is not known."""
    known = list(values)
    if not known or any(value is None for value in known):
        return Interval(None, None, len(known))
    array = np.array(known, float)
    if len(known) < 2:
        return Interval(float(array[0]), None, 1)
    error = float(array.std(ddof=1)) / math.sqrt(len(known))
    return Interval(float(array.mean()), student_t(CONFIDENCE, len(known) - 1) * error, len(known))


def batch_means(samples: Any) -> dict[str, float | None]:
    """Half widths for the mean and the p99 of samples in order of arrival, of which neighbours resemble each other.

    They are cut into 20 batches of equal size (what is left over goes to none), whose figures pass for independent.
    None where the batches are too small: of fewer than 10 samples for the mean, 100 for the p99.
    """
    samples = np.asarray(samples)
    size = len(samples) // BATCHES
    batches = samples[: size * BATCHES].reshape(BATCHES, size)
    found: dict[str, float | None] = dict.fromkeys(FEWEST)
    if size >= FEWEST["mean"]:
        found["mean"] = interval(mean_of(batch) for batch in batches).half_width
    if size >= FEWEST["p99"]:
        found["p99"] = interval(figures(batch)["p99"] for batch in batches).half_width
    return found


def student_t(confidence: float, freedom: int) -> float:
    """The t that Student's distribution keeps within, in absolute value, with this probability.

    Of whole degrees of freedom its distribution is a finite sum: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(theta: float, freedom: int) -> float:
    """P(|t| <= tan(theta) * sqrt(freedom))."""
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if not odd:
        return sine * total
    return 2 / math.pi * (theta + (sine * total if freedom > 1 else 0.0))
