"""Capacity: the highest request rate at which an engine meets its objectives, and what keeps it from more.

Sarathi-Serve's capacity search is the model (OSDI 2024): bisection over rates, many requests at each, and a run whose
queue grows meets nothing. All runs of a sample have common random numbers: the same lengths, the same gaps stretched.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from batchlab.clients.columns import Columns
from batchlab.errors import InputError
from batchlab.plan import pool
from batchlab.plan.probe import SCALED, Probe, Sample, probe
from batchlab.plan.table import described
from batchlab.plan.trial import Trial, document_of, parse_slo, run_of, settings_of
from batchlab.policies import limits_of
from batchlab.simulate import Run
from batchlab.units import NS_IN_S

STEPS = 32
"""Rates that are looked at lie 1/32 of a doubling apart: 2.2 %."""
FARTHEST = 10 * STEPS
"""Search from 1/1024 of the first rate to 1024 times it."""
PARTS = 4
"""A trace's interval: that of its quarters, each by itself."""
FACTOR = 2
"""What binds is looked for with each limit so many times as high, or as low."""
GAIN = 1.05
"""A limit binds where its change raises the capacity by this factor."""
Told = Callable[[int, int], object]


@dataclass(frozen=True)
class Found:
    """The capacity of a sample. met: at the highest rate that met everything, None if none did. missed: at the next
    rate, None where the search ended before one; where nothing meets, at the lowest rate that was tried. tried: the
    runs at all rates that the search looked at, the lowest first.
    """

    sample: Sample
    place: int
    met: Probe | None
    missed: Probe | None
    tried: list[Probe]

    @property
    def rate(self) -> float:
        """0 where nothing meets."""
        return 0.0 if self.met is None else self.met.rate


@dataclass(frozen=True)
class Change:
    """One limit at another value: a key of the scenario and its values before and after, and the capacity with it.

    rate: None where the engine cannot be run so. The last one changes no limit: every step takes half its time.
    """

    name: str
    before: int | None
    after: int | None
    rate: float | None


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
        return min(rates), max(rates)


def find(trial: Trial, seeds: int, jobs: int, told: Told = lambda ready, of: None) -> Capacity:
    """The capacity of what `trial` says, which has an slo. seeds: how many, for a generated workload.

    Then each limit of the engine is changed by itself, and the sample of the answer is searched once more. told: how
    many searches of a round have ended, and how many there are. Raises InputError.
    """
    run, samples = _samples(trial, seeds)
    parse_slo(trial.slo or "", trial.goodput).check_unit(run.cost.unit)
    found: dict[str, Found] = {}
    told(0, len(samples))
    for sample, one in pool.each(_search, samples, jobs):
        found[sample.name] = one
        told(len(found), len(samples))
    ordered = [found[sample.name] for sample in samples]
    answer = ordered[0]
    if not answer.sample.scaled:
        middle = statistics.median_low([one.rate for one in ordered])
        answer = next(one for one in ordered if one.rate == middle)
    changes = _changes(run, answer, jobs, told)
    sessions = isinstance(run.requests, Columns) and run.requests.sessions is not None and _has_turns(trial)
    return Capacity(run, trial.slo or "", "sessions" if sessions else "requests", ordered, answer, changes)


def lattice(sample: Sample, place: int) -> float:
    """The rate at a place, counted from the sample's own rate; a float power of two times one of 32 factors."""
    return float(f"{sample.rate * 2 ** (place / STEPS):.6g}")


def search(met: Callable[[int], bool], start: int = 0, step: int = STEPS // 2) -> tuple[int | None, int | None]:
    """The highest place that is met, and the next one, which is not; None for one that is not within reach.

    Steps that double until one is missed (or met), then bisection. An answer that is met more often is never lower,
    since the two searches look at the same places up to the first one on which they differ.
    """
    if met(start):
        low, high = start, start + step
        while met(high):
            if high >= FARTHEST:
                return high, None
            low, step = high, step * 2
            high = min(high + step, FARTHEST)
    else:
        if not met(-FARTHEST):
            return None, -FARTHEST
        low, high = start - step, start
        while low > -FARTHEST and not met(low):
            high, step = low, step * 2
            low = max(low - step, -FARTHEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low, high


def rate_of(trial: Trial) -> float:
    """The capacity on one load alone, the scenario's own seed or the whole trace; 0 where nothing meets.

    Raises InputError.
    """
    return _search(_samples(trial, 1, parts=0)[1][0]).rate


def check_rate(trial: Trial) -> None:
    """Refuse a load that has no rate to change. Raises InputError."""
    _samples(trial, 1, parts=0)


def _search(sample: Sample, start: int = 0, step: int = STEPS // 2) -> Found:
    tried: dict[int, Probe] = {}

    def met(place: int) -> bool:
        tried[place] = probe(sample, lattice(sample, place))
        return tried[place].met

    low, high = search(met, start, step)
    best, above = (None if place is None else tried[place] for place in (low, high))
    return Found(sample, low or 0, best, above, [tried[place] for place in sorted(tried)])


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
    end = int(columns.arrival.max()) + 1
    base = replace(trial, overrides={key: value for key, value in trial.overrides.items() if key != SCALED})
    samples = [Sample("whole trace", base, _mean_rate(columns, run.cost.unit) / own, True)]
    if "from_time" in transform or "to_time" in transform or own != 1:
        raise _no_rate(
            trial, "workload.transform", "capacity sets from_time, to_time and rate_scale itself: leave them out"
        )
    for part in range(parts):
        window = {
            "workload.transform.from_time": end * part // parts,
            "workload.transform.to_time": end * (part + 1) // parts,
        }
        inside = replace(base, overrides={**base.overrides, **window})
        requests = run_of(inside).requests
        assert isinstance(requests, Columns)
        samples.append(Sample(f"part {part + 1} of {parts}", inside, _mean_rate(requests, run.cost.unit), True))
    return samples


def _mean_rate(columns: Columns, unit: str) -> float:
    span = int(columns.arrival.max() - columns.arrival.min())
    if span == 0:
        expected = "all requests come at once: capacity stretches the times between them, and there are none"
        raise InputError(None, "workload", None, expected)
    return (len(columns) - 1) * (NS_IN_S if unit == "ns" else 1) / span


def _no_rate(trial: Trial, place: str, expected: str) -> InputError:
    return InputError(trial.scenario, place, None, expected)


def _changes(run: Run, answer: Found, jobs: int, told: Told) -> list[Change]:
    """Each limit twice as high, the token budget also half as high, and steps in half the time."""
    taken = limits_of(type(run.policy))
    asked: list[tuple[Change, dict[str, Any], int]] = []
    same = {}  # where blocks follow from the memory that other settings leave, they stay as they are
    for own, core in taken.items():
        if core == "num_gpu_blocks" and run.limits.num_gpu_blocks is not None:
            same = {f"engine.{own}": run.limits.num_gpu_blocks + getattr(run.policy, "reserved_blocks", 0)}
    for own, core in taken.items():
        value = getattr(run.limits, core)
        if value is None or core not in ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks"):
            continue
        reserved = getattr(run.policy, "reserved_blocks", 0) if core == "num_gpu_blocks" else 0
        for after in (value * FACTOR, value // FACTOR) if core == "max_num_batched_tokens" else (value * FACTOR,):
            change = Change(f"engine.{own}", value, after, None)
            asked.append((change, {**same, f"engine.{own}": after + reserved}, 1))
    asked.append((Change("step time", None, None, None), {}, FACTOR))
    jobs_for = [(answer.sample.changed(own, faster), answer.place) for _, own, faster in asked]
    rates: dict[int, float | None] = {}
    for (_, _, number), rate in pool.each(_rate, [(*job, number) for number, job in enumerate(jobs_for)], jobs):
        rates[number] = rate
        told(len(rates), len(asked))
    return [replace(change, rate=rates[number]) for number, (change, _, _) in enumerate(asked)]


def _rate(job: tuple[Sample, int, int]) -> float | None:
    sample, place, _ = job
    try:
        return _search(sample, place, STEPS // 8).rate
    except InputError:  # such as a token budget below the seats
        return None


def binding(found: Capacity) -> str:
    """What keeps the engine from more: the limit whose change gains most, or the time of its steps if none does."""
    what = ", ".join(found.answer.missed.missed) if found.answer.missed is not None else "no objective"
    better = [one for one in found.changes if one.before is not None and (one.rate or 0) > GAIN * found.answer.rate]
    if not better:
        least = f"raises the capacity by {100 * (GAIN - 1):.0f} %" if found.answer.met else "meets them at any rate"
        return f"{what}; the time of the steps themselves: no limit changed alone {least}"
    best = max(better, key=lambda one: one.rate or 0)
    gives = f"gives {gain(found, best)}" if found.answer.met else "meets them"
    return f"{what}; {best.name}: {best.after:,} instead of {best.before:,} {gives}"


def gain(found: Capacity, change: Change) -> str:
    """What a change does to the capacity, as a share of it; nothing to say where one of them is none."""
    if not change.rate or not found.answer.rate:
        return ""
    return f"{100 * (change.rate / found.answer.rate - 1):+.0f} %"


def token_cost(found: Capacity, gpu_price: float) -> dict[str, Any] | None:
    """The cost of a million tokens at the answer, from the price of a GPU for an hour; None where nothing meets."""
    met = found.answer.met
    if met is None:
        return None
    about = found.run.cost.describe()
    gpus = about.get("tensor_parallel", 1) * about.get("pipeline_parallel", 1)
    hourly = met.offered * 3600 / 1e6  # million requests
    return {
        "gpu_price": gpu_price,
        "gpus": gpus,
        "per_million_output_tokens": gpu_price * gpus / (hourly * met.output_mean),
        "per_million_tokens": gpu_price * gpus / (hourly * (met.output_mean + met.prompt_mean)),
    }


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
        "of": found.of,
        "unit": unit,
        "rates_per": "s" if unit == "ns" else unit,
        "capacity": None if met is None else met.rate,
        "interval": None if met is None else found.interval,
        "answer": found.answer.sample.name,
        "binds": binding(found),
        "cost": cost,
        "samples": samples,
        "changes": [asdict(one) for one in found.changes],
    }
