"""What keeps an engine from more: each of its limits, and its client's own, is changed alone, and the capacity searched
again.

A limit is halved or doubled, and further in that direction while it gains; beside the best of its values both
neighbours are tried. The token budget goes far in any case: smaller chunks make steps shorter, larger ones make long
steps rarer, so that both ends can be better than what lies between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchlab.errors import InputError
from batchlab.metrics.objectives import ATTAINMENT, Objective, parse
from batchlab.plan import pool
from batchlab.plan.probe import Probe, Sample
from batchlab.plan.search import STEPS, Found, search
from batchlab.policies import limits_of
from batchlab.settings import MOST_TOKENS
from batchlab.simulation import Run

CAP = "max_concurrency"
BUDGET = "max_num_batched_tokens"
FIRST = {"max_num_seqs": (-1, 1), BUDGET: (-2, -1, 1, 2), "num_gpu_blocks": (1,), CAP: (1,)}
"""Limits, and the doublings of each that are tried whatever they give."""
FEWEST = 128
"""A token budget is quartered again and again down to so many tokens, or the seats, whatever it gives."""
FACTOR = 2
"""By how much steps are made faster."""
GAIN = 1.05
"""A limit binds where its change raises the capacity by this factor."""
STEP_TIME = "step time"
Told = Callable[[int, int], object]


@dataclass(frozen=True)
class Change:
    """One limit at another value: a key of the scenario and its values before and after, and the capacity with it.

    rate: 0 where nothing meets, None where the engine cannot be run so. missed: where nothing meets, the run at the
    lowest rate. excess: how many times its bound the worst objective takes there, None where that is not what it
    misses. short: whether the load is too short for that rate. The last change is none of a limit: every step takes
    half its time.
    """

    name: str
    before: int | None
    after: int | None
    rate: float | None
    missed: Probe | None = None
    excess: float | None = None
    short: bool = False


@dataclass(frozen=True)
class _Limit:
    """key: as the scenario has it. value: as it is. reserved: blocks that a scenario counts and nobody can use."""

    key: str
    core: str
    value: int
    reserved: int

    def at(self, doublings: int) -> int:
        """The limit itself, without what is reserved."""
        return self.value << doublings if doublings >= 0 else self.value >> -doublings

    def written(self, doublings: int) -> int:
        """The limit as the scenario has it."""
        return self.at(doublings) + self.reserved


Place = tuple[_Limit, int]
"""A limit, and how many times it is doubled, or halved where that is below 0."""


def changes(run: Run, answer: Found, jobs: int, told: Told) -> list[Change]:
    """Each limit by itself at other values, in rising order, and steps in half the time.

    told: how many searches of a round have ended, and how many there are.
    """
    limits = _limits(run)
    # where blocks follow from the memory that other settings leave, they stay as they are
    same = {one.key: one.written(0) for one in limits if one.core == "num_gpu_blocks"}
    found: dict[Place, Change] = {(limit, 0): _as_it_is(answer) for limit in limits}
    faster: list[Change] = []
    todo: list[Place | None] = [*_first(limits), None]
    while todo:
        samples = [answer.sample.changed(*_settings(place, same)) for place in todo]
        numbered = [(sample, answer.place, number) for number, sample in enumerate(samples)]
        told(0, len(numbered))
        results: dict[int, Found | None] = {}
        for (_, _, number), result in pool.each(_search, numbered, jobs):
            results[number] = result
            told(len(results), len(numbered))
        for number, place in enumerate(todo):
            change = _change(place, results[number])
            if place is None:
                faster.append(change)
            else:
                found[place] = change
        todo = [place for limit in limits for place in _further(limit, found)]
    ordered = [(limit, place) for limit in limits for place in sorted(at for one, at in found if one is limit and at)]
    return [found[place] for place in ordered] + faster


def _limits(run: Run) -> list[_Limit]:
    found = []
    for own, core in limits_of(type(run.policy)).items():
        value = getattr(run.limits, core)
        if value is not None and core in FIRST:
            reserved = getattr(run.policy, "reserved_blocks", 0) if core == "num_gpu_blocks" else 0
            found.append(_Limit(f"engine.{own}", core, value, reserved))
    if run.max_concurrency is not None:  # what the client holds back waits, too
        found.append(_Limit(f"workload.{CAP}", CAP, run.max_concurrency, 0))
    return found


def _first(limits: Sequence[_Limit]) -> list[Place]:
    """What is tried whatever it gives; of a token budget each quarter of a quarter, too."""
    seats = next((one.value for one in limits if one.core == "max_num_seqs"), 1)
    found: list[Place] = []
    for limit in limits:
        places = set(FIRST[limit.core])
        if limit.core == BUDGET:
            lowest = math.floor(math.log2(max(1, limit.value / max(FEWEST, seats))))
            places |= {-min(halvings, lowest) for halvings in range(2, lowest + 2, 2)}
        found += [(limit, place) for place in sorted(places) if limit.at(place)]
    return found


def _settings(place: Place | None, same: Mapping[str, int]) -> tuple[dict[str, Any], int]:
    """What the scenario is told, and by how much steps are faster."""
    if place is None:
        return {}, FACTOR
    limit, doublings = place
    return {**same, limit.key: limit.written(doublings)}, 1


def _search(job: tuple[Sample, int, int]) -> Found | None:
    sample, place, _ = job
    try:
        return search(sample, place, STEPS // 8)
    except InputError:  # such as a token budget below the seats
        return None


def _change(place: Place | None, found: Found | None) -> Change:
    name, before, after = STEP_TIME, None, None
    if place is not None:
        name, before, after = place[0].key, place[0].written(0), place[0].written(place[1])
    return Change(name, before, after, None) if found is None else _given(name, before, after, found)


def _as_it_is(answer: Found) -> Change:
    return _given("as it is", None, None, answer)


def _given(name: str, before: int | None, after: int | None, found: Found) -> Change:
    """A change and what it gives."""
    if found.met is not None or found.missed is None:
        return Change(name, before, after, found.rate, short=found.met is not None and found.met.short)
    values, trial = found.missed.values, found.sample.trial
    if not values or not set(found.missed.missed) <= set(values):
        return Change(name, before, after, found.rate, found.missed)
    objectives = parse(trial.slo or "").objectives
    excess = max(_times(one, values[one.figure]) for one in objectives)
    return Change(name, before, after, found.rate, found.missed, excess if math.isfinite(excess) else None)


def _times(objective: Objective, value: float | None) -> float:
    """How many times its bound a figure takes; a share, how many times the bound is what there is."""
    bound = float(objective.bound)
    if value is None:
        return 0.0  # an answer of one token has nothing between tokens, and passes
    over, under = (bound, value) if objective.metric == ATTAINMENT else (value, bound)
    return over / under if under else math.inf


def _further(limit: _Limit, found: Mapping[Place, Change]) -> list[Place]:
    """Both neighbours of the best value, unless that is as it is, and the next one beyond an end that gained."""
    own = {doublings: found[one, doublings] for one, doublings in found if one is limit}
    tried = sorted(own)
    best = 0
    for doublings in sorted(tried, key=abs):
        if gains(own[doublings], own[best]):
            best = doublings
    wanted = {best - 1, best + 1} if best else set()
    for end, inner, step in ((tried[0], tried[1], -1), (tried[-1], tried[-2], 1)):
        if end and gains(own[end], own[inner]):
            wanted.add(end + step)
    return [(limit, place) for place in sorted(wanted - set(tried)) if 0 < limit.at(place) <= MOST_TOKENS]


def gains(one: Change, other: Change) -> bool:
    """Whether one gives clearly more; where neither has a rate, whether it misses clearly less."""
    if one.rate or other.rate:
        return (one.rate or 0) > GAIN * (other.rate or 0)
    return one.excess is not None and (other.excess is None or one.excess * GAIN < other.excess)


def binding(answer: Found, tried: Sequence[Change]) -> str:
    """What keeps the engine from more: the limit whose change gains most, or what was tried in vain."""
    what = ", ".join(answer.missed.missed) if answer.missed is not None else "no objective"
    as_it_is = _as_it_is(answer)
    limits = [one for one in tried if one.before is not None]
    better = [one for one in limits if one.rate and gains(one, as_it_is)]
    if better:
        most = max(one.rate or 0 for one in better)
        best = min((one for one in better if (one.rate or 0) * GAIN >= most), key=_distance)
        gives = f"gives {gain(answer, best)}" if answer.met else "meets them"
        return f"{what}; {best.name}: {best.after:,} instead of {best.before:,} {gives}"
    fails = f"raises the capacity by {100 * (GAIN - 1):.0f} %" if answer.met else "meets them at any rate"
    parts = [f"{what}; no limit changed alone {fails} (tried: {_ranges(limits)})"]
    if not answer.met and as_it_is.excess is not None:
        nearer = [one for one in limits if gains(one, as_it_is)]
        nearest = min(nearer, key=lambda one: one.excess or 0, default=None)
        least = f"{as_it_is.excess:.3g} times the bound as it is"
        if nearest is not None:
            least = f"{nearest.excess:.3g} times the bound with {nearest.name} = {nearest.after:,}, {least}"
        parts.append(least)
    return "; ".join([*parts, *(_of_steps(answer, one) for one in tried if one.before is None)])


def _distance(change: Change) -> float:
    """How far a limit is changed, in doublings."""
    assert change.before and change.after
    return abs(math.log2(change.after / change.before))


def _ranges(limits: Sequence[Change]) -> str:
    """The lowest and the highest value of each limit that could be run, that which it has included."""
    values: dict[str, list[int]] = {}
    for one in limits:
        own = values.setdefault(one.name.removeprefix("engine."), [one.before or 0])
        if one.rate is not None:
            own.append(one.after or 0)
    ranges = [f"{name} {min(own):,} to {max(own):,}" for name, own in values.items() if len(own) > 1]
    return ", ".join(ranges) or "none"


def _of_steps(answer: Found, faster: Change) -> str:
    """What steps in half their time would do."""
    if answer.met:
        return f"steps in half the time give {gain(answer, faster)}"
    if faster.rate:
        return "steps in half the time meet them"
    times = "as little" if faster.excess is None else f"{faster.excess:.3g} times the bound"
    return f"{times} with steps in half the time"


def gain(answer: Found, change: Change) -> str:
    """What a change does to the capacity, as a share of it; nothing to say where one of them is none."""
    if not change.rate or not answer.rate:
        return ""
    return f"{100 * (change.rate / answer.rate - 1):+.0f} %"
