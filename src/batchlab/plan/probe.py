"""One run at one rate, judged: whether an engine keeps up with it within the objectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from batchlab.clients.columns import Columns
from batchlab.clients.describe import starts
from batchlab.core.tally import NEVER
from batchlab.core.work import Work
from batchlab.costs.base import CostModel, remarks_of
from batchlab.errors import BatchlabError, InputError
from batchlab.metrics.answers import goals_of
from batchlab.metrics.fold import Summary
from batchlab.plan.trial import FINISHED, Trial, judge, run_of, summary_for
from batchlab.simulation import Run, simulate
from batchlab.units import NS_IN_S

GROWTH = 0.02
"""A queue grows where the wait of those who arrive later is longer by more than this share of the time in between."""
SHORT = 20
"""A load that lasts less than so many times its requests, or its sessions, is all beginning and end."""
LOST = 0.01
"""Of all requests this share at most may be rejected, failed or otherwise not completed."""
GENERATED = "workload.generate.request_rate"
SCALED = "workload.transform.rate_scale"


@dataclass(frozen=True)
class Sample:
    """One load whose rate can be changed and nothing else: a seed of a generated one, or a trace or a part of it.

    trial: at a rate of `rate`, in requests per second (or per unit of the clock). scaled: whether a factor on a trace's
    own times changes the rate. faster: every step takes its time divided by this.
    """

    name: str
    trial: Trial
    rate: float
    scaled: bool
    faster: int = 1

    def at(self, rate: float) -> Run:
        """The run at another rate. Raises InputError."""
        change = {SCALED: rate / self.rate} if self.scaled else {GENERATED: rate}
        options = {**self.trial.options, **dict.fromkeys(change, f"a rate of {rate:g}:")}  # nobody's --set
        run = run_of(replace(self.trial, overrides={**self.trial.overrides, **change}, options=options))
        return run if self.faster == 1 else replace(run, cost=Faster(run.cost, self.faster))

    def changed(self, overrides: Mapping[str, Any], faster: int = 1) -> Sample:
        """The same load for an engine with other settings."""
        trial = replace(self.trial, overrides={**self.trial.overrides, **overrides})
        return replace(self, trial=trial, faster=faster)


@dataclass(frozen=True)
class Probe:
    """What a run at a rate gave.

    offered: requests per second (or unit of the clock) from the first to the last, which chance makes a little
    different from the rate of the process. values: of each figure that an objective names. missed: what it did not
    meet, in words. span: from the first arrival to the last. e2el: the mean. lasts: the mean time from the first
    arrival of a session to the end of its last answer, where each single request is one. growth: by how much longer a
    request waits for each unit of time that it comes later. attained: of each objective, the share within its bound;
    goodput and attainment: the requests within all of them, per second (or unit of the clock) and as a share. remarks:
    of the cost.
    """

    rate: float
    met: bool
    values: dict[str, float | None] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    growth: float = 0.0
    offered: float = 0.0
    requests: int = 0
    span: int = 0
    prompt_mean: float = 0.0
    output_mean: float = 0.0
    e2el: float = 0.0
    lasts: float = 0.0
    preemptions: int = 0
    attained: dict[str, float | None] = field(default_factory=dict)
    goodput: float | None = None
    attainment: float | None = None
    remarks: list[str] = field(default_factory=list)

    @property
    def short(self) -> bool:
        """Whether the load is too short for its rate to be one that lasts."""
        return self.span < SHORT * self.lasts


class Faster:
    """A cost model whose steps take a part of another's."""

    def __init__(self, cost: CostModel, factor: int) -> None:
        self._cost = cost
        self._factor = factor
        self.unit = cost.unit
        self.idle = cost.idle
        self.details = cost.details

    def duration(self, work: Work) -> int:
        """A part of what the other says, at least 1."""
        return max(1, self._cost.duration(work) // self._factor)

    def remarks(self) -> list[str]:
        """The other's."""
        return remarks_of(self._cost)

    def describe(self) -> dict[str, Any]:
        """The other's, and the factor."""
        return {**self._cost.describe(), "faster": self._factor}


def probe(sample: Sample, rate: float) -> Probe:
    """Run a sample at a rate and judge it. Raises InputError where it cannot be run at all."""
    run = sample.at(rate)
    assert isinstance(run.requests, Columns) and sample.trial.slo is not None
    summary = summary_for(sample.trial.slo)
    try:
        simulate(run, [summary])
    except InputError:
        raise
    except BatchlabError as error:  # stalled
        return Probe(rate, False, missed=[str(error)])
    document = summary.document(with_requests=False)
    judged = judge(summary, sample.trial, goals_of(run.requests))
    growth = _growth(summary)
    lost = 1 - document["results"].get("completed", 0) / len(run.requests)
    missed = [objective.figure for objective, _, met in judged.found if not met]
    if growth > GROWTH:
        missed.append("the queue grows")
    if lost > LOST:
        missed.append(f"{100 * lost:.1f} % of the requests not completed")
    if document["termination"] != FINISHED:
        missed.append(document["termination"])
    known = starts(run.requests)
    span = int(known.max() - known.min())
    good = judged.good or {}
    return Probe(
        rate,
        met=not missed,
        values={objective.figure: value for objective, value, _ in judged.found},
        missed=missed,
        growth=growth,
        offered=(len(run.requests) - 1) * (NS_IN_S if run.cost.unit == "ns" else 1) / max(span, 1),
        requests=len(run.requests),
        span=span,
        prompt_mean=float(run.requests.prompt.mean()),
        output_mean=float(run.requests.output.mean()),
        e2el=document["latency"]["e2el"]["mean"] or 0.0,
        lasts=_lasting(summary, run.requests),
        preemptions=document["totals"]["preemptions"],
        attained=judged.attained,
        goodput=good.get("goodput"),
        attainment=good.get("attainment"),
        remarks=remarks_of(run.cost),
    )


def _lasting(summary: Summary, columns: Columns) -> float:
    """How long a session, or a request that is none of any, takes in the mean; 0 where none was answered."""
    first = np.arange(len(columns)) if columns.sessions is None else columns.sessions.first_turns
    count = summary.tally.count
    if columns.waits or count < len(columns):  # those that came, in the order in which they did
        places = {request.id: place for place, request in enumerate(columns)}
        first = first[[places[summary.result_at(position).request.id] for position in range(count)]]
    ends = np.full(len(columns), NEVER)
    np.maximum.at(ends, first, np.asarray(summary.tally.last_time)[:count])
    took = (ends - columns.arrival)[ends != NEVER]
    return float(took.mean()) if len(took) else 0.0


def _growth(summary: Summary) -> float:
    """The slope of the line through all waits before the first scheduling, over the time of arrival."""
    scheduled = np.asarray(summary.tally.first_scheduled)[: summary.tally.count]
    ran = scheduled != NEVER
    arrived = summary.column("arrival")  # when they really came: turns of sessions may wait for an answer
    arrival = arrived[ran].astype(float)
    wait = (scheduled - arrived)[ran].astype(float)
    if len(arrival) < 2 or arrival.min() == arrival.max():
        return 0.0
    from_mean = arrival - arrival.mean()
    return float((from_mean * wait).sum() / (from_mean * from_mean).sum())
