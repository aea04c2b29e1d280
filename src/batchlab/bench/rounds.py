"""The controlled experiment on a real server: rounds in which each value of one setting gets a server of its own."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchlab.bench.client import Outcome
from batchlab.bench.engine import started
from batchlab.bench.figures import Result
from batchlab.bench.load import Plan
from batchlab.bench.run import Where, bench
from batchlab.bench.scrape import series_figures
from batchlab.clients.columns import Columns
from batchlab.errors import InputError
from batchlab.metrics.intervals import Interval, interval
from batchlab.plan.experiment import LOADS, Measured, Part, Served, judged, requests_of

COLD = 5
"""Requests, one after another, that a fresh server gets before it is measured."""
SCRAPE = 0.25
"""Seconds between two looks at /metrics."""
COMPARED = (
    ("ttft", "mean"),
    ("ttft", "p95"),
    ("ttft short", "p50"),
    ("ttft long", "p50"),
    ("itl", "p50"),
    ("itl", "p90"),
    ("itl", "p99"),
    ("queue_time", "mean"),
    ("output_token_rate", None),
)
"""The figures that a reading looks at: metric and statistic, or a field of Measured."""
Figure = tuple[str, str | None]


@dataclass(frozen=True)
class Cold:
    """A fresh server. start: seconds until it answered. ttft: ns, of its first request and of the last of COLD."""

    value: Any
    start: float
    first_ttft: int | None
    later_ttft: int | None


@dataclass(frozen=True)
class Arm:
    """One value in one round: its server when cold, and what each load gave. failed: requests without an answer."""

    value: Any
    cold: Cold
    measured: list[Measured]
    failed: int


def run_rounds(
    parts: Sequence[Part], words: list[str], rounds: int, within: float, done: Callable[[int, int], None]
) -> list[list[Arm]]:
    """Every round at both values, the first to go changing from round to round. done: is told of loads that ended.

    Raises InputError where a server does not come up or answers nothing.
    """
    for part in parts:
        requests_of(part)  # what cannot be sent is refused before anything is started
    values = list(dict.fromkeys(part.value for part in parts))
    found, ended = [], 0

    def one_more() -> None:
        nonlocal ended
        ended += 1
        done(ended, rounds * len(parts))

    for number in range(rounds):
        arms = {}
        for value in values if number % 2 == 0 else values[::-1]:
            mine = [part for part in parts if part.value == value]
            arms[value] = _arm(mine, words, within, number, one_more)
        found.append([arms[value] for value in values])
    return found


def _arm(parts: Sequence[Part], words: list[str], within: float, number: int, one_more: Callable[[], None]) -> Arm:
    value = parts[0].value
    with started(words, value if isinstance(value, str) else json.dumps(value), within) as server:
        where = Where(server.url, scrape_interval=SCRAPE)
        seed = number * (len(LOADS) + 1)  # of the prompts' tokens: none is found cached that was not equal by itself
        cold = _cold(parts[-1], where, server.took, seed)
        measured, failed = [], 0
        for part in parts:
            seed += 1
            _, requests = requests_of(part)
            result = asyncio.run(bench(where, requests, Plan(exact=True), seed))
            measured.append(_measured(part, requests, result))
            failed += sum(outcome.result != "completed" for outcome in result.outcomes)
            one_more()
    return Arm(value, cold, measured, failed)


def _cold(part: Part, where: Where, took: float, seed: int) -> Cold:
    _, requests = requests_of(part)
    few = requests.take(np.arange(min(COLD, len(requests.prompt))))
    outcomes = asyncio.run(bench(replace(where, scrape_interval=0), few, Plan(clients=1, exact=True), seed)).outcomes
    ttft = [o.chunks[0][0] - o.sent if o.chunks else None for o in outcomes]
    return Cold(part.value, took, ttft[0], ttft[-1])


def _measured(part: Part, requests: Columns, result: Result) -> Measured:
    if not any(outcome.chunks for outcome in result.outcomes):
        reason = next((o.reason for o in result.outcomes if o.reason), "no reason given")
        raise InputError("--engine", f"{part.load} prompts", None, f"no request was answered: {reason}")
    arrival = np.array([outcome.intended for outcome in result.outcomes])
    begin = arrival.min() + part.warm_up * (arrival.max() - arrival.min())
    seen = series_figures([sample for sample in result.series if sample.t >= begin]) or {}
    whole = series_figures(result.series) or {}
    kv, waiting = seen.get("kv_cache_usage"), seen.get("waiting")
    served = Served(
        times=[token_times(outcome) for outcome in result.outcomes],
        completed=np.array([outcome.result == "completed" for outcome in result.outcomes]),
        waiting=waiting["mean"] if waiting else None,
        kv_use=kv["max"] if kv else None,
        cached=None,
        preemptions=int(whole.get("preemptions") or 0),
    )
    return judged(part, "ns", result.summary, served)


def token_times(outcome: Outcome) -> list[int]:
    """When each token came, ns; those of one chunk evenly since the one before, of the first chunk as one."""
    times = [outcome.chunks[0][0]] if outcome.chunks else []
    for at, tokens in outcome.chunks[1:]:
        before = times[-1]
        times += [before + (at - before) * k // tokens for k in range(1, tokens + 1)]
    return times


def figure(measured: Measured, of: Figure) -> float | None:
    """One figure; None where it is not known."""
    name, statistic = of
    found: float | None = getattr(measured, name) if statistic is None else measured.latency[name][statistic]
    return found


def over(runs: Sequence[Measured], of: Figure) -> Interval:
    """A figure's mean over rounds, with its confidence interval."""
    return interval(figure(run, of) for run in runs)


def change(one: Sequence[Measured], other: Sequence[Measured], of: Figure) -> tuple[float, float, float] | None:
    """The second's figure over the first's, minus 1, with the bounds of its interval, nan of one round.

    Ratios are taken within each round: a machine whose speed drifts is as slow for both. None where one is not known.
    """
    pairs = [(figure(a, of), figure(b, of)) for a, b in zip(one, other, strict=True)]
    if not all(a and b for a, b in pairs):
        return None
    found = interval(math.log(b / a) for a, b in pairs if a and b)
    half = math.nan if found.half_width is None else found.half_width
    middle = found.mean or 0.0
    return math.expm1(middle), math.expm1(min(middle - half, 700)), math.expm1(min(middle + half, 700))


def resolved(found: tuple[float, float, float] | None) -> bool:
    """Whether the rounds tell a change from none."""
    return found is not None and (found[1] > 0 or found[2] < 0)


def settled(one: Sequence[Measured], other: Sequence[Measured]) -> tuple[Measured, Measured]:
    """Both as one run each, for the reading: means over rounds, equal where the rounds do not tell them apart."""
    first, second = _mean(one), _mean(other)
    if len(one) < 2:
        return first, second
    for of in COMPARED:
        if not resolved(change(one, other, of)):
            second = _with(second, of, figure(first, of))
    return first, second


def _mean(runs: Sequence[Measured]) -> Measured:
    latency = {name: {key: over(runs, (name, key)).mean for key in runs[0].latency[name]} for name in runs[0].latency}
    use = [run.kv_use for run in runs if run.kv_use is not None]
    return replace(
        runs[0],
        latency=latency,
        request_rate=over(runs, ("request_rate", None)).mean or 0.0,
        output_token_rate=over(runs, ("output_token_rate", None)).mean or 0.0,
        kv_use=max(use) if use else None,
        preemptions=sum(run.preemptions for run in runs),
        met=None if runs[0].met is None else all(run.met for run in runs),
    )


def _with(run: Measured, of: Figure, value: Any) -> Measured:
    name, statistic = of
    if statistic is None:
        return replace(run, **{name: value})
    return replace(run, latency={**run.latency, name: {**run.latency[name], statistic: value}})
