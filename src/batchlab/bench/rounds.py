"""The controlled experiment on a real server: rounds in which each value of one setting gets a server of its own."""

from __future__ import annotations

import asyncio
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchlab.bench.client import Outcome
from batchlab.bench.engine import started
from batchlab.bench.figures import Result, document
from batchlab.bench.load import Plan
from batchlab.bench.run import Where, bench
from batchlab.bench.scrape import series_figures
from batchlab.clients.columns import Columns
from batchlab.errors import InputError
from batchlab.metrics.answers import Question
from batchlab.metrics.intervals import CONFIDENCE, Interval, interval, student_t
from batchlab.plan.experiment import (
    APART,
    LOADS,
    NO_RULE,
    TIMES,
    Measured,
    Part,
    Served,
    judged,
    named,
    read,
    requests_of,
)

COLD = 5
"""Requests, one after another, that a fresh server gets before it is measured."""
SCRAPE = 0.25
"""Seconds between two looks at /metrics."""
MOST_ROUNDS = 1000
Figure = tuple[str, str | None]
"""Metric and statistic, or a field of Measured."""
ROWS: dict[str, tuple[str, str]] = {
    "TTFT, mean": ("ttft", "mean"),
    **{name: of for name, of in TIMES.items() if of[0] != "queue_time" and of != TIMES["TTFT, p95"]},
}
"""The times that are told of rounds, and that their reading rests on: those of the simulation, but the mean TTFT for
its P95, and no queue time, which no client sees."""
TABLE: dict[str, Figure] = {
    **ROWS,
    "requests/s": ("request_rate", None),
    "output tokens/s": ("output_token_rate", None),
    "waiting, mean": ("waiting", None),
    "KV use, max %": ("kv_use", None),
    "preemptions": ("preemptions", None),
}
"""All rows of a table, of which a reading says where the rounds leave them open."""
QUEUE_TIME: Figure = ("queue_time", "mean")
"""In no row, but told by two: by Little's law those that wait over those that are completed."""
SHARED: tuple[Figure, ...] = (*ROWS.values(), TABLE["output tokens/s"])
"""What a reading tells by how much it differs, where it tells the others' values."""
COMPARED: tuple[Figure, ...] = (*SHARED, TABLE["waiting, mean"], QUEUE_TIME)
"""What the rules of a reading compare, and so take for equal where the rounds do not tell it apart."""


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
            run, requests = requests_of(part)
            plan = Plan(exact=True, max_concurrency=run.max_concurrency)
            result = asyncio.run(bench(where, requests, plan, seed))
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
        until=result.until,
    )
    told = document(result, Question())["notes"]
    return replace(judged(part, "ns", result.summary, served), notes=tuple(told))


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
    found = _of_ratios(one, other, of)
    if found is None:
        return None
    half = math.nan if found.half_width is None else found.half_width
    middle = found.mean or 0.0
    return math.expm1(middle), math.expm1(min(middle - half, 700)), math.expm1(min(middle + half, 700))


def _of_ratios(one: Sequence[Measured], other: Sequence[Measured], of: Figure) -> Interval | None:
    """The mean logarithm of the ratios. Two zeros are equal, as any two equal values; one alone has no ratio."""
    pairs = [(figure(a, of), figure(b, of)) for a, b in zip(one, other, strict=True)]
    if any(a is None or b is None or (a != b and not (a and b)) for a, b in pairs):
        return None
    return interval(math.log(b / a) if a and b else 0.0 for a, b in pairs)


def without_ratio(one: Sequence[Measured], other: Sequence[Measured]) -> list[str]:
    """Rows that are known and have no change to tell: in some round one value is 0, and the other is not."""
    return [
        name
        for name, of in TABLE.items()
        if _of_ratios(one, other, of) is None and all(figure(run, of) is not None for run in (*one, *other))
    ]


def resolved(found: tuple[float, float, float] | None) -> bool:
    """Whether the rounds tell a change from none."""
    return found is not None and (found[1] > 0 or found[2] < 0)


def left_open(one: Sequence[Measured], other: Sequence[Measured]) -> dict[str, int]:
    """Rows that the rounds do not tell apart, and not to be equal within APART either.

    Each with how many rounds as noisy as these, more than there were, would tell one or the other of the change that
    they show; MOST_ROUNDS + 1 for more.
    """
    found = {}
    for name, of in TABLE.items():
        ratios = _of_ratios(one, other, of)
        if ratios is None or ratios.mean is None or ratios.half_width is None:
            continue
        shown = abs(ratios.mean)
        enough = max(shown, math.log1p(APART) - shown)  # narrower it leaves out 0 %, or holds nothing beyond APART
        if ratios.half_width >= enough:
            found[name] = _rounds_for(ratios, enough)
    return found


def _rounds_for(found: Interval, size: float) -> int:
    """Of how many values, more than these and with the same spread, the interval is narrower than this on each side."""
    assert found.half_width is not None
    spread = found.half_width * math.sqrt(found.count) / student_t(CONFIDENCE, found.count - 1)

    def tells(count: int) -> bool:
        return student_t(CONFIDENCE, count - 1) * spread / math.sqrt(count) < size

    more = found.count + 1
    return more + bisect_left(range(more, MOST_ROUNDS + 1), True, key=tells)


def reading(one: Sequence[Measured], other: Sequence[Measured], key: str) -> list[str]:
    """What the rounds of one load say by rule, and what they leave open, which has no direction."""
    count = len(one)
    if count < 2:
        return ["not resolved: one round does not show how large the noise is; --rounds 2 at least"]
    said, still, zeros = read(*settled(one, other), key, ROWS), left_open(one, other), without_ratio(one, other)
    if any(TABLE[name] in COMPARED for name in (*still, *zeros)):
        said = [line for line in said if line != NO_RULE]
    if still:
        each = (
            f"{named(name)} {rounds:,}" if rounds <= MOST_ROUNDS else f"{named(name)} over {MOST_ROUNDS:,}"
            for name, rounds in still.items()
        )
        said.append(f"not resolved by {count} rounds; as noisy as these, so many would be needed: {', '.join(each)}")
    if zeros:
        said.append(f"not compared, since a round has 0 on one side alone: {', '.join(map(named, zeros))}")
    return said


def settled(one: Sequence[Measured], other: Sequence[Measured]) -> tuple[Measured, Measured]:
    """Both as one run each, for the reading: means over rounds, equal where the rounds do not tell them apart.

    Of what the reading gives shares of, the second's figures are as far from the first's as the table has it.
    """
    first, second = _mean(one), _mean(other)
    for of in COMPARED:
        found = change(one, other, of)
        if found is None or not resolved(found):
            second = _with(second, of, figure(first, of))
        elif of in SHARED:
            second = _with(second, of, (figure(first, of) or 0.0) * (1 + found[0]))
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
        waiting=over(runs, ("waiting", None)).mean,
        preemptions=sum(run.preemptions for run in runs),
        met=None if runs[0].met is None else all(run.met for run in runs),
    )


def _with(run: Measured, of: Figure, value: Any) -> Measured:
    name, statistic = of
    if statistic is None:
        return replace(run, **{name: value})
    return replace(run, latency={**run.latency, name: {**run.latency[name], statistic: value}})
