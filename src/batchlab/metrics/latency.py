"""Latencies and throughput of a run: means and percentiles over its requests, and over all gaps between its tokens.

Percentiles interpolate linearly between the two nearest samples, as numpy does by default; on whole numbers they are
computed in integers and are exact until they become a float. Gaps are counted in a histogram: of many different ones
the percentiles have an error, which the figures state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from batchlab.core.histogram import ERROR, Histogram
from batchlab.core.tally import NEVER, RESULTS, Tally
from batchlab.metrics.part import COLUMNS, Part

PERCENTILES = (50, 90, 95, 99)
Percentiles = Sequence[int | Fraction]
Figures = dict[str, Any]
"""count, mean, p50, p90, p95, p99, max; where the count is 0 all others are None. error, where it is not 0: how far a
percentile may be off, relatively."""

FROM_SEND = ("ttft_from_send", "e2el_from_send")
NAMES = ("ttft", "tpot", "itl", "e2el", "ntpot", "queue_time", "max_itl")

Integers = npt.NDArray[np.int64]


def latencies(
    tally: Tally | Part,
    arrival: Integers,
    percentiles: Percentiles = PERCENTILES,
    gaps: tuple[Integers, Integers] | None = None,
) -> dict[str, Figures]:
    """The figures of every latency by name. arrival: of every request, by position.

    gaps: those between tokens, each value in ascending order and how often it occurred. Without them they are those
    that the tally kept or counted; of a part then number, mean and largest are known, and percentiles are None.
    """
    if gaps is None and isinstance(tally, Tally) and tally.each_gap is not None:
        gaps = tally.each_gap.of(np.ones(tally.count, bool))
    found = {name: figures(samples, percentiles) for name, samples in samples_of(tally, arrival).items()}
    if gaps is not None:
        itl = _counted_figures(*gaps, percentiles)
    elif isinstance(tally, Part):
        answered = tally.first_time != NEVER
        took = (tally.last_time - tally.first_time)[answered]
        itl = _part_gaps(took, tally.tokens[answered] - 1, tally.max_itl[answered], percentiles)
    else:
        itl = gap_figures(tally.gaps, percentiles)
    return {name: itl if name == "itl" else found[name] for name in NAMES}


def samples_of(tally: Tally | Part, arrival: Integers) -> dict[str, npt.NDArray[Any]]:
    """Every latency but the gaps: of the requests that have it, by position."""
    size = slice(0, tally.count)
    result, first, last, emitted, scheduled, gap = (np.asarray(getattr(tally, name))[size] for name in COLUMNS)
    done = result == RESULTS.index("completed")
    answered = first != NEVER
    ran = scheduled != NEVER
    took = (last - arrival)[done]
    tokens = emitted[done]
    several = tokens > 1
    return {
        "ttft": (first - arrival)[answered],
        "tpot": ((last - first)[done] / np.maximum(tokens - 1, 1))[several],
        "e2el": took,
        "ntpot": took / tokens,
        "queue_time": (scheduled - arrival)[ran],
        "max_itl": gap[answered],
    }


def from_send(tally: Tally, sent: Integers) -> dict[str, Figures]:
    """TTFT and E2E of a client that counts from the sending, which hides how long it held a request back itself."""
    samples = samples_of(tally, sent)
    return {"ttft_from_send": figures(samples["ttft"]), "e2el_from_send": figures(samples["e2el"])}


def load_figures(arrival: Integers, sent: Integers, unit: str) -> dict[str, Any]:
    """What was asked of the engine by a client that holds requests back, and what it sent.

    requested_rate, achieved_rate: between the first and the last request, per second in a clock of ns, else per unit;
    None where all come at once. held_back: requests that were sent after their arrival.
    """
    held = sent - arrival
    return {
        "requested_rate": rate_of(arrival, unit),
        "achieved_rate": rate_of(sent, unit),
        "held_back": int((held > 0).sum()),
        "longest_held_back": int(held.max()),
    }


def rate_of(times: Integers, unit: str = "ns") -> float | None:
    """Requests a second, or a unit, from the first to the last of these times; None without any time between them."""
    span = int(times.max() - times.min()) if len(times) else 0
    return (len(times) - 1) * (10**9 if unit == "ns" else 1) / span if span else None


def throughput(tally: Tally, arrival: Integers, unit: str, until: int = 0) -> dict[str, Any]:
    """Completed requests and their output tokens over the time from the first arrival to the last completion.

    In a clock of ns the rates are per second, in any other per unit. None where nothing was completed. until: a later
    end of that time, where requests that were not completed took longer.
    """
    size = slice(0, tally.count)
    done = np.asarray(tally.result)[size] == RESULTS.index("completed")
    completed = int(done.sum())
    tokens = int(np.asarray(tally.tokens)[size][done].sum())
    found: dict[str, Any] = {"completed": completed, "output_tokens": tokens, "per": "s" if unit == "ns" else unit}
    if not completed:
        return {**found, "span": None, "request_rate": None, "output_token_rate": None}
    span = max(int(np.asarray(tally.last_time)[size][done].max()), until) - int(arrival.min())
    scale = 10**9 if unit == "ns" else 1
    return {
        **found,
        "span": span,
        "request_rate": completed * scale / span,
        "output_token_rate": tokens * scale / span,
    }


def figures(samples: Any, percentiles: Percentiles = PERCENTILES) -> Figures:
    """The figures of samples that each count once."""
    samples = np.asarray(samples)
    count = len(samples)
    if not count:
        return _none(percentiles)
    ranks = sorted({rank for percent in percentiles for rank in _neighbours(percent, count)})
    parted = np.partition(samples, ranks) if ranks else samples  # without percentiles nothing has to be in its place
    at = {rank: parted[rank].item() for rank in ranks}
    largest = samples.max().item()
    return {"count": count, "mean": mean_of(samples), **_percentiles(at, count, percentiles), "max": largest}


def mean_of(samples: npt.NDArray[Any]) -> float:
    """Their mean, of at least one."""
    return _sum(samples, samples.max().item()) / len(samples)


def _sum(samples: npt.NDArray[Any], largest: float) -> float:
    """Exact for whole numbers, and for all but very many floats."""
    if samples.dtype.kind == "i":
        return int(samples.sum()) if largest < (1 << 62) // len(samples) else sum(samples.tolist())
    return math.fsum(samples) if len(samples) <= 100_000 else float(samples.sum())


def gap_figures(gaps: Histogram, percentiles: Percentiles = PERCENTILES) -> Figures:
    """The figures of all gaps between two consecutive tokens of a request."""
    found = weighted_figures(dict(gaps.items()), percentiles)
    if gaps.exact or not gaps.count:
        return found
    return {**found, "mean": gaps.total / gaps.count, "max": gaps.largest, "error": ERROR}


def _part_gaps(took: Integers, gaps: Integers, largest: Integers, percentiles: Percentiles) -> Figures:
    """Of requests that took so long for so many gaps each, none longer than its largest."""
    count = int(gaps.sum())
    if not count:
        return _none(percentiles)
    return {**_none(percentiles), "count": count, "mean": sum(took.tolist()) / count, "max": int(largest.max())}


def _counted_figures(values: Integers, times: Integers, percentiles: Percentiles) -> Figures:
    """The figures of values in ascending order, each of which occurred so many times."""
    if not len(values):
        return _none(percentiles)
    passed = np.cumsum(times)
    count, largest = int(passed[-1]), int(values[-1])
    ranks = sorted({rank for percent in percentiles for rank in _neighbours(percent, count)})
    at = dict(zip(ranks, values[np.searchsorted(passed, ranks, "right")].tolist(), strict=True))
    fits = largest < (1 << 62) // count
    total = int(values @ times) if fits else sum(v * n for v, n in zip(values.tolist(), times.tolist(), strict=True))
    return {"count": count, "mean": total / count, **_percentiles(at, count, percentiles), "max": largest}


def weighted_figures(counts: Mapping[int, int], percentiles: Percentiles = PERCENTILES) -> Figures:
    """The figures of samples of which each occurred so many times: as if all were written out."""
    ordered = sorted((sample, times) for sample, times in counts.items() if times)
    if not ordered:
        return _none(percentiles)
    count = sum(times for _, times in ordered)
    total = sum(sample * times for sample, times in ordered)
    wanted = [rank for percent in percentiles for rank in _neighbours(percent, count)]
    at = _at_ranks(ordered, wanted)
    return {"count": count, "mean": total / count, **_percentiles(at, count, percentiles), "max": ordered[-1][0]}


def percentile_name(percent: int | Fraction) -> str:
    """A percentile as figures name it: p99, p99.9."""
    return f"p{percent}" if percent == int(percent) else f"p{float(percent):g}"


def _neighbours(percent: int | Fraction, count: int) -> tuple[int, int]:
    """The places of the two samples between which a percentile lies."""
    below = int(percent * (count - 1) // 100)
    return below, min(below + 1, count - 1)


def _percentiles(at: Mapping[int, float], count: int, percentiles: Percentiles) -> dict[str, float]:
    found = {}
    for percent in percentiles:
        below, above = _neighbours(percent, count)
        found[percentile_name(percent)] = _between(at[below], at[above], percent * (count - 1) % 100)
    return found


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


def _between(lower: float, upper: float, hundredths: int | Fraction) -> float:
    """The point so many hundredths of the way from lower to upper."""
    if type(lower) is int and type(upper) is int:
        return float((lower * (100 - hundredths) + upper * hundredths) / 100)
    return lower + (upper - lower) * float(hundredths / 100)


def _none(percentiles: Percentiles) -> Figures:
    names = ("mean", *map(percentile_name, percentiles), "max")
    return {"count": 0, **dict.fromkeys(names)}
