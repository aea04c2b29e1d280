"""Capacity: the highest request rate at which an engine meets its objectives, and what keeps it from more.

Sarathi-Serve's capacity search is the model (OSDI 2024): bisection over rates, many requests at each, and a run whose
queue grows meets nothing. All runs of a sample have common random numbers: the same lengths, the same gaps stretched.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from batchlab.clients.columns import Columns
from batchlab.errors import InputError
from batchlab.metrics.answers import goals_of
from batchlab.metrics.objectives import ATTAINMENT, Objective, parse
from batchlab.plan import binding, pool
from batchlab.plan.binding import Change, Told
from batchlab.plan.probe import SCALED, SHORT, Sample
from batchlab.plan.search import Found, search
from batchlab.plan.table import described
from batchlab.plan.trial import Trial, document_of, load_of, parse_slo, rate_of, run_of, settings_of
from batchlab.simulation import Run
from batchlab.units import NS_IN_S, counted

COUNT = "workload.generate.num_prompts"
WHOLE = "whole trace"
PARTS = 4
"""A trace's interval: that of its quarters, each by itself, but for those in which nobody comes or all at once.

What is quartered is the time in which requests come, of sessions their first turns."""
NO_MISS = "the search ended without a miss: the objectives do not bind"
FEW = 10
"""A percentile is chance where fewer requests than these are beyond it."""


@dataclass(frozen=True)
class Capacity:
    """found: of each sample. answer: the one that stands for all, the lower median of the seeds, or the whole trace.

    of: what the rates count, `requests`, or `sessions` where requests are turns of them.
    """

    run: Run
    slo: str
    of: str
    found: list[Found]
    answer: Found
    changes: list[Change]

    @property
    def interval(self) -> tuple[float, float]:
        """The lowest and the highest capacity of all seeds; of a trace, of its parts."""
        rates = [one.rate for one in self.found if one is not self.answer or not one.sample.scaled]
        rates = rates or [self.answer.rate]  # no part of the trace has a rate
        return min(rates), max(rates)

    @property
    def caveats(self) -> list[str]:
        """Why the answer is uncertain, in words; nothing where the load is large and long enough."""
        at = self.answer.met or self.answer.missed
        found = []
        if at is not None and at.requests:
            found = few(parse(self.slo).objectives, at.requests)
        if self.answer.met is not None and self.answer.met.short:
            found.append(too_short(self.run))
        return found

    @property
    def caveats_of_changes(self) -> list[str]:
        """The same of the capacities that changes have."""
        short = sum(change.short for change in self.changes)
        return [f"with {short} of the {len(self.changes)} changes {too_short(self.run)}"] if short else []


def too_short(run: Run) -> str:
    """That a load is over before its rate can show itself, in words."""
    one = rate_of(run).removesuffix("s")
    return f"the load lasts less than {SHORT} times as long as a {one}: not steady; give more requests"


def few(objectives: Iterable[Objective], requests: int) -> list[str]:
    """Which figures are the matter of a handful of requests, in words. Those of ITL are of gaps, which are many."""
    found = []
    for one in objectives:
        beyond = 1 - one.bound if one.metric == ATTAINMENT else one.beyond
        if beyond is not None and one.metric != "itl" and requests * beyond < FEW:
            found.append(f"{requests:,} requests a run: {one.figure} is decided by fewer than {FEW} of them")
    return found


def find(trial: Trial, seeds: int, jobs: int, told: Told = lambda ready, of: None) -> Capacity:
    """The capacity of what `trial` says, which has an slo. seeds: how many, for a generated workload.

    Then each limit of the engine is changed by itself, and the sample of the answer is searched once more. told: how
    many searches of a round have ended, and how many there are. Raises InputError.
    """
    run, samples = _samples(trial, seeds)
    parse_slo(trial.slo or "", trial.goodput or goals_of(run.requests)).check_unit(run.cost.unit)
    found: dict[str, Found] = {}
    told(0, len(samples))
    for sample, one in pool.each(search, samples, jobs):
        found[sample.name] = one
        told(len(found), len(samples))
    ordered = [found[sample.name] for sample in samples]
    answer = ordered[0]
    if not answer.sample.scaled:
        middle = statistics.median_low([one.rate for one in ordered])
        answer = next(one for one in ordered if one.rate == middle)
    changes = binding.changes(run, answer, jobs, told)
    sessions = isinstance(run.requests, Columns) and run.requests.sessions is not None and _has_turns(trial)
    return Capacity(run, trial.slo or "", "sessions" if sessions else "requests", ordered, answer, changes)


def over(samples: Sequence[str]) -> str:
    """What the interval of a capacity is over, by the names of all samples; "" where one is all there is."""
    if len(samples) < 2:
        return ""
    return f"{counted(len(samples) - 1, 'part')} of the trace" if samples[0] == WHOLE else f"{len(samples)} seeds"


def of_one_load(trial: Trial) -> Found:
    """The capacity on one load alone, the scenario's own seed or the whole trace. Raises InputError."""
    return search(_samples(trial, 1, parts=0)[1][0])


def check_rate(trial: Trial) -> None:
    """Refuse a load that has no rate to change. Raises InputError."""
    _samples(trial, 1, parts=0)


def _samples(trial: Trial, seeds: int, parts: int = PARTS) -> tuple[Run, list[Sample]]:
    """The run as it is, and the loads: a generated one under so many seeds, or a trace and so many parts of it."""
    workload = _workload_of(trial)
    generate = workload.get("generate")
    if isinstance(generate, dict) and generate.get("arrivals") in ("all-at-once", "ramp"):
        expected = (
            f"'{generate['arrivals']}' has no rate that lasts: capacity changes request_rate, of constant, poisson, "
            "gamma, on-off or diurnal arrivals"
        )
        raise _no_rate(trial, "workload.generate.arrivals", expected)
    run = run_of(trial)
    if run.clients is not None:
        raise _no_rate(trial, "workload.clients", "a closed loop has no request rate: leave clients out")
    if not isinstance(run.requests, Columns):
        raise _no_rate(trial, "workload.requests", "have no rate to change: give a file, or [workload.generate]")
    if generate is None:
        return run, _of_trace(trial, run, run.requests, workload.get("transform", {}), parts)
    if len(run.requests) < 2:
        raise _no_rate(trial, COUNT, "one request has no rate: give 2 or more, 2,000 for a P99")
    first = generate["seed"]
    named = [(f"seed {seed}", {"workload.generate.seed": seed}) for seed in range(first, first + seeds)]
    return run, [
        Sample(name, replace(trial, overrides={**trial.overrides, **own}), generate["request_rate"], False)
        for name, own in named
    ]


def _workload_of(trial: Trial) -> dict[str, Any]:
    """[workload] as it is written; what is wrong with it, loading it will say."""
    workload = document_of(trial).get("workload")
    return workload if isinstance(workload, dict) else {}


def refuse_count(trial: Trial, count: int) -> None:
    """Refuse a number of requests for a load that is not generated. Raises InputError."""
    if "generate" not in _workload_of(trial):
        expected = "is for [workload.generate]: of a file all requests run, or the part that [workload.transform] takes"
        raise InputError("--requests", None, count, expected)


def _has_turns(trial: Trial) -> bool:
    generate = _workload_of(trial).get("generate", {})
    return any("turns" in kind for kind in (generate, *generate.get("classes", ())))


def _of_trace(trial: Trial, run: Run, columns: Columns, transform: dict[str, Any], parts: int) -> list[Sample]:
    """The whole trace, then its parts."""
    own = float(transform.get("rate_scale", 1))
    base = replace(trial, overrides={key: value for key, value in trial.overrides.items() if key != SCALED})
    samples = [Sample(WHOLE, base, _mean_rate(trial, columns, run.cost.unit) / own, True)]
    if "from_time" in transform or "to_time" in transform or own != 1:
        raise _no_rate(
            trial, "workload.transform", "capacity sets from_time, to_time and rate_scale itself: leave them out"
        )
    begins = columns.arrival if columns.sessions is None else columns.arrival[columns.sessions.previous < 0]
    first, last = int(begins.min()), int(begins.max()) + 1
    cuts = [first + (last - first) * part // parts for part in range(parts)]
    for part, (begin, end) in enumerate(itertools.pairwise([*cuts, int(columns.arrival.max()) + 1])):
        window = {"workload.transform.from_time": begin, "workload.transform.to_time": end}
        inside = replace(base, overrides={**base.overrides, **window})
        try:
            requests = run_of(inside).requests
            assert isinstance(requests, Columns)
            rate = _mean_rate(inside, requests, run.cost.unit)
        except InputError:  # nobody comes then, or all at once: a part without a rate
            continue
        samples.append(Sample(f"part {part + 1} of {parts}", inside, rate, True))
    return samples


def _mean_rate(trial: Trial, columns: Columns, unit: str) -> float:
    span = int(columns.arrival.max() - columns.arrival.min())
    if span == 0:
        expected = "all requests come at once: capacity stretches the times between them, and there are none"
        raise _no_rate(trial, "workload", expected)
    return (len(columns) - 1) * (NS_IN_S if unit == "ns" else 1) / span


def _no_rate(trial: Trial, place: str, expected: str) -> InputError:
    return InputError(trial.scenario, place, None, expected)


def token_cost(found: Capacity, gpu_price: float) -> dict[str, Any]:
    """The cost of a million tokens at the answer, from the price of a GPU for an hour; None where nothing meets."""
    met = found.answer.met
    about = found.run.cost.describe()
    gpus = about.get("tensor_parallel", 1) * about.get("pipeline_parallel", 1)
    cost: dict[str, Any] = {"gpu_price": gpu_price, "gpus": gpus}
    for name, tokens in (
        ("per_million_output_tokens", met.output_mean if met else 0),
        ("per_million_tokens", met.output_mean + met.prompt_mean if met else 0),
    ):
        cost[name] = gpu_price * gpus / (met.offered * 3600 / 1e6 * tokens) if met else None
    return cost


def document(found: Capacity, trial: Trial, cost: dict[str, Any] | None) -> dict[str, Any]:
    """All of it for JSON; rates per second, or per unit of the clock."""
    met = found.answer.met
    samples = [
        {
            "sample": one.sample.name,
            "rate": one.rate or None,
            "met": None if one.met is None else asdict(one.met),
            "missed": None if one.missed is None else asdict(one.missed),
            "tried": [asdict(each) for each in one.tried],
        }
        for one in found.found
    ]
    unit = found.run.cost.unit
    return {
        **described(trial, {"policy": found.run.engine, "settings": settings_of(found.run)}),
        "cost_model": found.run.cost.describe(),
        "load": load_of(found.run),
        "of": found.of,
        "unit": unit,
        "rates_per": "s" if unit == "ns" else unit,
        "capacity": None if met is None else met.rate,
        "interval": None if met is None else found.interval,
        "answer": found.answer.sample.name,
        "caveats": found.caveats,
        "caveats_of_changes": found.caveats_of_changes,
        "binds": binding.binding(found.answer, found.changes),
        "cost": cost,
        "samples": samples,
        "changes": [asdict(one) for one in found.changes],
    }
