"""Latencies and throughput of a run: means and percentiles over its requests, and over all gaps between its tokens.

Percentiles interpolate linearly between the two nearest samples, as numpy does by default; on whole numbers they are
computed in integers and are exact until they become a float.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batchlab.metrics.result import RequestResult

PERCENTILES = (50, 90, 95, 99)
Figures = dict[str, Any]
"""count, mean, p50, p90, p95, p99, max; where the count is 0 all others are None."""


def latencies(results: Sequence[RequestResult], gaps: Mapping[int, int]) -> dict[str, Figures]:
    """The figures of every latency by name. gaps: how often each time between consecutive tokens occurred."""
    done = [r for r in results if r.completed_time is not None]
    return {
        "ttft": figures(_known(r.since_arrival(r.first_time) for r in results)),
        "tpot": figures([_tpot(r) for r in done if r.emitted > 1]),
        "itl": weighted_figures(gaps),
        "e2el": figures(_known(r.since_arrival(r.completed_time) for r in done)),
        "ntpot": figures([(r.completed_time - r.request.arrival) / r.emitted for r in done]),  # type: ignore[operator]
        "queue_time": figures(_known(r.since_arrival(r.first_scheduled) for r in results)),
        "max_itl": figures(_known(r.max_itl for r in results)),
    }


def throughput(results: Sequence[RequestResult], unit: str) -> dict[str, Any]:
    """Completed requests and their output tokens over the time from the first arrival to the last completion.

    In a clock of ns the rates are per second, in any other per unit. None where nothing was completed.
    """
    done = [r for r in results if r.completed_time is not None]
    tokens = sum(r.emitted for r in done)
    found: dict[str, Any] = {"completed": len(done), "output_tokens": tokens, "per": "s" if unit == "ns" else unit}
    if not done:
        return {**found, "span": None, "request_rate": None, "output_token_rate": None}
    last = max(r.completed_time for r in done if r.completed_time is not None)
    span = last - min(r.request.arrival for r in results)
    scale = 10**9 if unit == "ns" else 1
    return {
        **found,
        "span": span,
        "request_rate": len(done) * scale / span,
        "output_token_rate": tokens * scale / span,
    }


def figures(samples: Sequence[int] | Sequence[float]) -> Figures:
    """The figures of samples that each count once."""
    ordered = sorted(samples)
    if not ordered:
        return _none()
    count = len(ordered)
    total = sum(ordered) if all(type(sample) is int for sample in ordered) else math.fsum(ordered)
    percentiles = {}
    for percent in PERCENTILES:
        below, hundredths = divmod(percent * (count - 1), 100)
        above = min(below + 1, count - 1)
        percentiles[f"p{percent}"] = _between(ordered[below], ordered[above], hundredths)
    return {"count": count, "mean": total / count, **percentiles, "max": ordered[-1]}


def weighted_figures(counts: Mapping[int, int]) -> Figures:
    """The figures of samples of which each occurred so many times: as if all were written out."""
    ordered = sorted((sample, times) for sample, times in counts.items() if times)
    if not ordered:
        return _none()
    count = sum(times for _, times in ordered)
    total = sum(sample * times for sample, times in ordered)
    wanted: list[int] = []
    for percent in PERCENTILES:
        below = percent * (count - 1) // 100
        wanted += [below, min(below + 1, count - 1)]
    at = _at_ranks(ordered, wanted)
    percentiles = {}
    for percent in PERCENTILES:
        below, hundredths = divmod(percent * (count - 1), 100)
        percentiles[f"p{percent}"] = _between(at[below], at[min(below + 1, count - 1)], hundredths)
    return {"count": count, "mean": total / count, **percentiles, "max": ordered[-1][0]}


def _at_ranks(ordered: Iterable[tuple[int, int]], ranks: Iterable[int]) -> dict[int, int]:
    """The samples that would stand at these places if each were written out as often as it occurred."""
    found = {}
    left = sorted(set(ranks), reverse=True)
    passed = 0
    for sample, times in ordered:
        passed += times
        while left and left[-1] < passed:
            found[left.pop()] = sample
    return found


def _between(lower: float, upper: float, hundredths: int) -> float:
    """The point so many hundredths of the way from lower to upper."""
    if type(lower) is int and type(upper) is int:
        return (lower * (100 - hundredths) + upper * hundredths) / 100
    return lower + (upper - lower) * (hundredths / 100)


def _tpot(r: RequestResult) -> float:
    return (r.completed_time - r.first_time) / (r.emitted - 1)  # type: ignore[operator]


def _known(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _none() -> Figures:
    return {"count": 0, "mean": None, **{f"p{percent}": None for percent in PERCENTILES}, "max": None}
