"""Distributions as curves of a few hundred points."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchlab.core.histogram import Histogram
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import samples_of
from batchlab.metrics.part import part_of

SHARES = np.unique(np.concatenate([np.linspace(0, 1, 201), 1 - np.logspace(-1, -5, 41)]))
"""At these shares of the samples a curve has its points: evenly, and more closely towards the tail."""


def curves(summary: Summary) -> dict[str, Any]:
    """The cumulative distributions of TTFT, ITL and E2E; {} for one without samples."""
    samples = samples_of(part_of(summary.tally), summary.column("arrival"))
    return {"ttft": curve(samples["ttft"]), "itl": gap_curve(summary.tally.gaps), "e2el": curve(samples["e2el"])}


def curve(samples: Any) -> dict[str, list[float]]:
    """For each value the share of samples that are at most so large."""
    values = np.sort(np.asarray(samples))
    return weighted(values, np.ones(len(values), np.int64))


def gap_curve(gaps: Histogram) -> dict[str, list[float]]:
    """The same of values that are counted."""
    table = np.array(list(gaps.items()), np.int64).reshape(-1, 2)
    return weighted(table[:, 0], table[:, 1])


def weighted(values: Any, times: Any) -> dict[str, list[float]]:
    """The same of rising values that occurred so many times each."""
    if not len(values):
        return {}
    shares = np.cumsum(times) / np.sum(times)
    places = np.unique(np.minimum(np.searchsorted(shares, SHARES - 1e-12), len(values) - 1))
    last = np.flatnonzero(np.append(values[1:] != values[:-1], True))  # of equal values, the share of all of them
    places = last[np.searchsorted(last, places)]
    places = np.unique(places)
    return {"x": values[places].astype(float).tolist(), "y": shares[places].tolist()}
