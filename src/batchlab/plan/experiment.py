"""A controlled comparison: one setting at two values, all else the same, on short, long and mixed prompts apart.

What a run gave is a `Measured`, made of what any engine's client and metrics can tell. The reading needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchlab.clients.columns import Columns
from batchlab.core.tally import NEVER
from batchlab.errors import InputError
from batchlab.events import Event, Iteration
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import figures, latencies
from batchlab.metrics.objectives import ATTAINMENT, parse
from batchlab.metrics.part import part_of
from batchlab.plan.trial import Trial, percentiles_for, refuse_bad_values, run_of
from batchlab.simulation import Run, simulate
from batchlab.units import NS_IN_S

LOADS = ("short", "long", "mixed")
APART = 0.05
"""Two figures differ where they do by more than this share."""
FULL = 0.95
"""KV memory is nearly full from this share on."""
NO_RULE = f"no rule applies: no trade beyond {100 * APART:g} % between ITL, TTFT and throughput"
SEATS = "engine.max_num_seqs"
CHUNKING = frozenset(
    f"engine.{name}"
    for name in (
        *("max_num_batched_tokens", "long_prefill_token_threshold", "prefill_chunk", "token_budget", "target_itl"),
        *("max_num_tokens", "chunk_unit_size"),
    )
)
"""Settings that change how large a chunk of a prompt may be. Of others a trade is told without this cause."""
TIMES = {
    "TTFT, p95": ("ttft", "p95"),
    "TTFT of short, p50": ("ttft short", "p50"),
    "TTFT of short, p99": ("ttft short", "p99"),
    "TTFT of long, p50": ("ttft long", "p50"),
    "TTFT of long, p99": ("ttft long", "p99"),
    "ITL, p50": ("itl", "p50"),
    "ITL, p90": ("itl", "p90"),
    "ITL, p99": ("itl", "p99"),
    "queue time, p99": ("queue_time", "p99"),
}
"""The times that are told of a run, each with its metric and statistic, first TTFT. The reading rests on them alone."""
ITL_P99 = TIMES["ITL, p99"]
Figures = dict[str, Any]
Rows = Mapping[str, tuple[str, str]]
"""Times of a table: as TIMES."""


@dataclass(frozen=True)
class Part:
    """One run of an experiment: a load, and the value of the setting. short: the longest prompt that is a short one.

    warm_up: the share of the load's time whose requests are served and not measured.
    """

    trial: Trial
    load: str
    value: Any
    short: int
    warm_up: float


@dataclass(frozen=True)
class Measured:
    """What a run gave, without its warm-up. Times in the clock's unit.

    latency: figures by metric, over all requests that were measured; `ttft short` and `ttft long` over those alone.
    kv_use: the largest share of the KV blocks that was taken at the end of an iteration, None where they are not
    modelled. cached: the share of the prompt tokens that the prefix cache had, None where it is not known. met: whether
    the objectives are, None without any. waiting: how many requests waited in the mean, which is their rate times the
    mean queue time (Little's law). kv_use, cached and preemptions are of the whole run. notes: those of the run.
    """

    load: str
    value: Any
    unit: str
    requests: int
    latency: dict[str, Figures]
    request_rate: float
    output_token_rate: float
    kv_use: float | None
    cached: float | None
    preemptions: int
    met: bool | None
    waiting: float | None = None
    notes: tuple[str, ...] = ()


class _KvUse:
    """An observer that keeps the fewest free KV blocks at the end of an iteration."""

    def __init__(self) -> None:
        self.least_free: int | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Iteration) and event.kv is not None:
            free = event.kv["free_after"]
            self.least_free = free if self.least_free is None else min(free, self.least_free)


def requests_of(part: Part) -> tuple[Run, Columns]:
    """The run of a part, and the requests of its load. Raises InputError where there are none, or no such choice."""
    run = run_of(part.trial)
    if not isinstance(run.requests, Columns) or run.clients is not None:
        expected = "an experiment needs a file or [workload.generate], and no clients"
        raise InputError(part.trial.scenario, "workload", None, expected)
    if run.requests.has_turns:
        apart = "an experiment takes short and long prompts apart, but turns of a session belong together"
        expected = f"{apart}: compare, or sweep, takes them as they are"
        raise InputError(part.trial.scenario, "workload.generate", None, expected)
    is_short = run.requests.prompt <= part.short
    chosen = {"short": is_short, "long": ~is_short, "mixed": np.ones(len(is_short), bool)}[part.load]
    if not chosen.any():
        raise InputError("--short", None, part.short, f"leaves no {part.load} prompts in the load")
    return run, run.requests.take(np.flatnonzero(chosen))


def measure(part: Part) -> Measured:
    """Simulate one part. Raises InputError where the load has no such requests or the engine refuses it."""
    run, requests = requests_of(part)
    summary, kv = Summary(), _KvUse()
    simulate(replace(run, requests=requests, inline=True), [summary, kv])  # inline: with the time of every token
    blocks = run.limits.num_gpu_blocks
    served = Served(
        times=[one.output_times or [] for one in summary.results],
        completed=None,
        waiting=None,
        kv_use=None if blocks is None or kv.least_free is None else 1 - kv.least_free / blocks,
        cached=summary.tally.cached_tokens / int(requests.prompt.sum()),
        preemptions=summary.tally.preemptions,
    )
    return replace(judged(part, run.cost.unit, summary, served), notes=run.notes)


@dataclass(frozen=True)
class Served:
    """What an engine tells beside a summary. times: of each request's tokens. completed: which requests count in the
    rates, None for all that have a token. until: when the last of the others ended, to which the rates' time goes on.
    The rest is as in `Measured`.
    """

    times: list[list[int]]
    completed: Any
    waiting: float | None
    kv_use: float | None
    cached: float | None
    preemptions: int
    until: int = 0


def judged(part: Part, unit: str, summary: Summary, served: Served) -> Measured:
    """The figures of a run without its warm-up."""
    arrival = summary.column("arrival")
    begin = int(arrival.min() + part.warm_up * (arrival.max() - arrival.min()))
    counted = arrival >= begin
    short = summary.column("prompt") <= part.short
    percentiles = percentiles_for(part.trial.slo)
    found = latencies(part_of(summary.tally, counted), arrival[counted], percentiles)
    times = [each for each, kept in zip(served.times, counted, strict=True) if kept]
    found["itl"] = figures(np.concatenate([np.diff(np.array(each, np.int64)) for each in times]), percentiles)
    first = np.asarray(summary.tally.first_time)[: summary.tally.count]
    for name, mask in (("short", short), ("long", ~short)):
        chosen = counted & mask & (first != NEVER)
        found[f"ttft {name}"] = figures((first - arrival)[chosen], percentiles)
    if served.completed is not None:
        times = [each for each, done in zip(times, served.completed[counted], strict=True) if done]
    ends = [each[-1] for each in times if each]
    span = (max(*ends, served.until) - begin) / (NS_IN_S if unit == "ns" else 1) if ends else 0.0
    rate = len(ends) / span if span else 0.0
    waiting = served.waiting
    if waiting is not None and rate:  # who waits is seen, how long each one did is not
        found["queue_time"] = {**found["queue_time"], "mean": waiting / rate * (NS_IN_S if unit == "ns" else 1)}
    elif found["queue_time"]["mean"] is not None:
        waiting = found["queue_time"]["mean"] * rate / (NS_IN_S if unit == "ns" else 1)
    met = None
    if part.trial.slo is not None:
        met = all(ok for _, _, ok in parse(part.trial.slo).check(found, unit))
    return Measured(
        part.load,
        part.value,
        unit,
        int(counted.sum()),
        found,
        rate,
        sum(map(len, times)) / span if span else 0.0,
        served.kv_use,
        served.cached,
        served.preemptions,
        met,
        waiting,
    )


def read(one: Measured, other: Measured, key: str, rows: Rows = TIMES) -> list[str]:
    """What two runs of the same load, at a setting's first and second value, say by rule.

    rows: the times that the reader sees of them, of which the first is the TTFT of all: the reading names no others.
    """
    name = key.rpartition(".")[2]
    heading, ttft = next(iter(rows.items()))
    said = []
    for low, high in ((one, other), (other, one)):
        if _longer(high, low, *ITL_P99) and _longer(low, high, "ttft long", "p50"):
            target = "" if low.met is None else f"; it {'meets' if low.met else 'does not meet'} the objectives"
            trade = "the shorter ITL P99 and the longer TTFT of long prompts"
            said.append(f"{name} = {low.value} has {trade}{_cause(low, high, key, rows)}{target}")
            if key in CHUNKING and _longer(low, high, "itl", "p90"):
                share = _shorter(high, low, "itl", "p90")
                said.append(
                    f"ITL P90 goes the other way, {share} shorter at {name} = {high.value}: with {low.value} a prompt "
                    "is spread over more iterations, so more gaps hold a chunk, though each a shorter one"
                )
        if high.output_token_rate > low.output_token_rate * (1 + APART):
            if _longer(high, low, *ttft):
                cause = ": waiting in larger batches" if key in CHUNKING or key == SEATS else ""
                said.append(f"{name} = {high.value} has more throughput and a worse {named(heading)}{cause}")
            else:
                less = 1 - low.output_token_rate / high.output_token_rate
                said.append(f"{name} = {low.value} has {100 * less:.0f} % less throughput")
        if _better(low, high, rows):
            less_itl, less_ttft = (_shorter(low, high, *of) for of in (ITL_P99, ttft))
            both = f"ITL P99 {less_itl} and {named(heading)} {less_ttft} shorter"
            said.append(f"{name} = {low.value} is better in all of it: {both}")
        if high.cached is not None and low.cached is not None and high.cached > low.cached + APART:
            said.append(
                f"with {name} = {high.value} more of the prompts was found cached ({100 * high.cached:.0f} % "
                f"against {100 * low.cached:.0f} %): repeat both with enable_prefix_caching = false before comparing"
            )
    if all(_waits(each) and (each.kv_use or 0) >= FULL for each in (one, other)):
        said.append("both wait while KV memory is nearly full: look at KV blocks and input lengths before this setting")
    if one.preemptions or other.preemptions:
        said.append(f"preemptions {one.preemptions:,} and {other.preemptions:,}: part of the work is done twice")
    return said or [_differences(one, other, name, rows)]


def named(row: str) -> str:
    """A row's name within a sentence: 'TTFT of long P50', 'TTFT mean'."""
    return row.replace(", p", " P").replace(", ", " ")


def _differences(one: Measured, other: Measured, name: str, rows: Rows) -> str:
    """What is left to say where no rule applies: which times are shorter at which value."""
    parts = []
    for low, high in ((one, other), (other, one)):
        shorter = [
            f"{named(figure)} {_shorter(low, high, *of)}" for figure, of in rows.items() if _longer(high, low, *of)
        ]
        if shorter:
            parts.append(f"{name} = {low.value} has {', '.join(shorter)} shorter")
    return f"no rule applies; {'; '.join(parts)}" if parts else NO_RULE


def _cause(low: Measured, high: Measured, key: str, rows: Rows) -> str:
    """Why the first has the shorter gaps and the longer TTFT, where the setting or the queue tells it."""
    if key in CHUNKING:
        return ": finer chunks"
    if not any(metric == "queue_time" for metric, _ in rows.values()):  # how many wait is seen then, not how long
        more, fewer = low.waiting, high.waiting
        seen = more is not None and fewer is not None and more > fewer * (1 + APART)
        return f": {more:,.2f} requests in the mean wait to be scheduled, not {fewer:,.2f}" if seen else ""
    longer, shorter = (each.latency["queue_time"]["mean"] for each in (low, high))
    if longer is None or shorter is None or longer <= shorter * (1 + APART):
        return ""
    times, unit = (1e6, "ms") if low.unit == "ns" else (1, f"{low.unit}s")
    return f": requests wait {longer / times:,.2f} {unit} in the mean to be scheduled, not {shorter / times:,.2f}"


def _better(one: Measured, other: Measured, rows: Rows) -> bool:
    """Whether one has the shorter ITL P99 and TTFT, and nothing that is told in which the other is better."""
    return (
        all(_longer(other, one, *of) for of in (ITL_P99, next(iter(rows.values()))))
        and not any(_longer(one, other, *of) for of in rows.values())
        and one.output_token_rate * (1 + APART) >= other.output_token_rate
        and one.preemptions <= other.preemptions
        and not (other.met and not one.met)
    )


def _longer(one: Measured, other: Measured, metric: str, statistic: str) -> bool:
    """Whether the first's figure is the longer one; not where one is missing."""
    first, second = (each.latency[metric].get(statistic) for each in (one, other))
    return first is not None and second is not None and first > second * (1 + APART)


def _shorter(low: Measured, high: Measured, metric: str, statistic: str) -> str:
    """The share by which the first's figure is shorter, of two of which the second's is the longer one."""
    return f"{100 * (1 - low.latency[metric][statistic] / high.latency[metric][statistic]):.0f} %"


def _waits(each: Measured) -> bool:
    """Whether waiting to be scheduled is most of the mean TTFT."""
    waited, ttft = each.latency["queue_time"]["mean"], each.latency["ttft"]["mean"]
    return waited is not None and ttft is not None and waited > ttft / 2


def parts(trial: Trial, vary: Mapping[str, Sequence[Any]], short: int, warm_up: float) -> list[Part]:
    """The runs: each load at both values. Raises InputError unless one key has two values."""
    if len(vary) != 1 or len(next(iter(vary.values()))) != 2:
        raise InputError("--vary", None, None, "an experiment changes one thing: KEY=FIRST,SECOND")
    ((key, values),) = vary.items()
    if key in trial.overrides:
        raise InputError(f"--set {key}", None, trial.overrides[key], "--vary has this key too")
    if trial.slo is not None:
        for one in parse(trial.slo).objectives:
            if one.metric == ATTAINMENT:
                expected = "an experiment is held to times alone, such as ttft:p99<=500ms"
                raise InputError("--slo", None, one.text, expected)
    trial = replace(trial, options={key: "--vary"})
    refuse_bad_values(trial, vary)
    return [Part(trial.with_settings({key: value}), load, value, short, warm_up) for load in LOADS for value in values]
