"""How the latencies of a run are spread: the samples behind histograms and CDFs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import samples_of

LATENCIES = {"ttft": "TTFT", "itl": "ITL", "e2el": "E2E"}
MAX_LINEAR = 10
"""Where the largest is more than so many times the smallest, an axis has equal ratios."""

Floats = npt.NDArray[np.float64]


def weighted(summary: Summary, latency: str) -> tuple[Floats, Floats]:
    """The samples of a latency in rising order, and how often each occurred. Of very many different gaps, buckets."""
    if latency == "itl":
        items = sorted(summary.tally.gaps.items())
        values, counts = [item[0] for item in items], [item[1] for item in items]
        values[-1:] = [summary.tally.gaps.largest] * bool(values)  # known, where its bucket stands for all in it
        return np.array(values, np.float64), np.array(counts, np.float64)
    samples = samples_of(summary.tally, summary.column("arrival"))[latency]
    found, times = np.unique(np.asarray(samples, np.float64), return_counts=True)
    return found, times.astype(np.float64)


def is_wide(values: Floats) -> bool:
    """Whether these, in rising order, are better shown on an axis of equal ratios."""
    return bool(values[0] > 0 and values[-1] > MAX_LINEAR * values[0])
