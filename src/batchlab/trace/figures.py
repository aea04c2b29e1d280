"""The latency and throughput figures that follow from a trace, derived apart from the simulator's own code."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from batchlab.trace.state import Known

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TOLERANCE = 1e-9
"""Relative: two ways of adding floats up differ in their last digits."""
EXACT_GAPS = 4096
GAP_ERROR = 2.0**-11
"""Relative: how far percentiles of gaps may be off where there are more than EXACT_GAPS different ones."""


def figures_of(requests: Iterable[Known], gaps: Counter[int], unit: str) -> dict[str, Any]:
    """The summary's `latency` and `throughput`, and its `load` where a client held requests back."""
    known = list(requests)
    done = [r for r in known if r.state == "completed"]
    samples: dict[str, Counter[Any]] = {
        "ttft": Counter(r.first_time - r.arrival for r in known if r.first_time is not None),
        "tpot": Counter((_last(r) - _first(r)) / (r.emitted - 1) for r in done if r.emitted > 1),
        "itl": gaps,
        "e2el": Counter(_last(r) - r.arrival for r in done),
        "ntpot": Counter((_last(r) - r.arrival) / r.emitted for r in done),
        "queue_time": Counter(r.first_start - r.arrival for r in known if r.first_start is not None),
        "max_itl": Counter(r.max_gap for r in known if r.first_time is not None),
    }
    held = [r.held_until - r.arrival for r in known if r.held_until is not None]
    if held:
        samples["ttft_from_send"] = Counter(r.first_time - _sent(r) for r in known if r.first_time is not None)
        samples["e2el_from_send"] = Counter(_last(r) - _sent(r) for r in done)
    tokens = sum(r.emitted for r in done)
    span = max(map(_last, done)) - min(r.arrival for r in known) if done else None
    second = 10**9 if unit == "ns" else 1
    throughput = {
        "completed": len(done),
        "output_tokens": tokens,
        "per": "s" if unit == "ns" else unit,
        "span": span,
        "request_rate": None if span is None else len(done) / span * second,
        "output_token_rate": None if span is None else tokens / span * second,
    }
    latency = {name: _figures(counts) for name, counts in samples.items()}
    if len(gaps) > EXACT_GAPS:
        latency["itl"]["error"] = GAP_ERROR
    found = {"latency": latency, "throughput": throughput}
    if held:
        rates = {"requested_rate": [r.arrival for r in known], "achieved_rate": [_sent(r) for r in known]}
        load: dict[str, Any] = {name: _rate(times, second) for name, times in rates.items()}
        found["load"] = {**load, "held_back": len(held), "longest_held_back": max(held)}
    return found


def differences(prefix: str, given: Any, derived: Any, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Where what is given is not what follows, numbers within the tolerance."""
    if isinstance(derived, dict) and isinstance(given, dict):
        error = derived.get("error", TOLERANCE)  # of the percentiles
        for name in [*derived, *(name for name in given if name not in derived)]:
            place = f"{prefix}.{name}"
            if name not in given:
                yield f"{place} is missing, {derived[name]!r:.80} expected"
            elif name not in derived:
                yield f"{place} {given[name]!r:.80}: unknown"
            else:
                within = error if name in QUANTILES else TOLERANCE
                yield from differences(place, given[name], derived[name], within)
    elif not _same(given, derived, tolerance):
        yield f"{prefix} {given!r:.80}, but {derived!r:.80} expected"


def _same(given: Any, derived: Any, tolerance: float) -> bool:
    if isinstance(derived, float) and type(given) in (int, float):
        return math.isclose(given, derived, rel_tol=tolerance)
    return type(given) is type(derived) and bool(given == derived)


def _figures(counts: Counter[Any]) -> dict[str, Any]:
    count = counts.total()
    if not count:
        return dict.fromkeys(("count", "mean", *QUANTILES, "max")) | {"count": 0}
    values = sorted(counts)
    ends = list(accumulate(counts[value] for value in values))

    def at(rank: int) -> Any:
        return values[bisect_right(ends, rank)]

    figures: dict[str, Any] = {"count": count, "mean": math.fsum(v * n for v, n in counts.items()) / count}
    for name, quantile in QUANTILES.items():
        rank = quantile * (count - 1)
        low = min(math.floor(rank), count - 1)
        high = min(low + 1, count - 1)
        figures[name] = float(at(low) + (rank - low) * (at(high) - at(low)))
    return {**figures, "max": values[-1]}


def _rate(times: list[int], second: int) -> float | None:
    span = max(times) - min(times)
    return (len(times) - 1) / span * second if span else None


def _sent(r: Known) -> int:
    return r.arrival if r.held_until is None else r.held_until


def _first(r: Known) -> int:
    assert r.first_time is not None
    return r.first_time


def _last(r: Known) -> int:
    assert r.last_time is not None
    return r.last_time
