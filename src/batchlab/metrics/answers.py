"""What is asked of a run beyond its summary: objectives, goodput, a window, groups. docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from batchlab.core.tally import RESULTS
from batchlab.errors import InputError
from batchlab.metrics.chunks import chunk_figures
from batchlab.metrics.fold import Summary
from batchlab.metrics.intervals import batch_means
from batchlab.metrics.latency import PERCENTILES, latencies, samples_of
from batchlab.metrics.objectives import (
    ATTAINMENT,
    Objective,
    Objectives,
    Targets,
    good_in_groups,
    goodput,
    goodput_of,
    parse,
    parse_targets,
)
from batchlab.metrics.part import Part, part_of
from batchlab.metrics.window import COMPLETED, Window, parse_window, stationarity, steady_window
from batchlab.units import NS_IN_S

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Question:
    """What is asked.

    window: one, or `steady` for the one that the run itself suggests. by_group: each group alone. chunk: so many tokens
    come at a time in the stream that a client sees. targets_of: targets of each group, where no `targets` are for all;
    None is for requests of no group. One whose group has none is good if it is completed.
    """

    slo: Objectives | None = None
    targets: Targets | None = None
    window: Window | str | None = None
    by_group: bool = False
    chunk: int | None = None
    targets_of: Mapping[str | None, Targets] = field(default_factory=dict)

    @property
    def each_gap(self) -> bool:
        """Whether a summary has to keep each gap: for figures of some of the requests, or to judge a percentile."""
        return bool(self.window or self.by_group or (self.slo is not None and self.slo.each_gap))

    def __bool__(self) -> bool:
        return bool(self.slo or self.targets or self.window or self.by_group or self.chunk or self.targets_of)


def question(
    unit: str,
    slo: str | None,
    targets: tuple[str, ...],
    window: str | None,
    by_group: bool = False,
    chunk: int | None = None,
    targets_of: Mapping[str | None, str] | None = None,
) -> Question:
    """The question as written on a command line, for a clock that counts in this unit. Raises InputError.

    targets_of: what a scenario says of its classes; targets of the command line are for all, and go before it.
    """
    asked = Question(
        None if slo is None else parse(slo),
        parse_targets(targets, unit) if targets else None,
        None if window is None else parse_window(window, unit) or window.strip(),
        by_group,
        chunk,
        {} if targets else targets_by_group(targets_of or {}, unit),
    )
    if asked.slo is None:
        return asked
    asked.slo.check_unit(unit)
    for objective in asked.slo.objectives:
        if objective.metric == ATTAINMENT and asked.targets is None and not asked.targets_of:
            expected = "needs targets for each request: --goodput ttft:500 tpot:50"
            raise InputError("--slo", None, objective.text, expected)
    return asked


def goals_of(requests: Any) -> Mapping[str | None, str]:
    """Targets that a workload states for its classes."""
    origin = getattr(requests, "origin", None)
    return {} if origin is None else origin.goodput


def written(targets: Mapping[str, Any]) -> dict[str, float]:
    """Targets as JSON has them, in units of the clock."""
    return {name: _number(most) for name, most in targets.items()}


def targets_by_group(goals: Mapping[str | None, str], unit: str) -> dict[str | None, Targets]:
    """The same, read for a clock that counts in this unit. Raises InputError, which names the class."""
    found = {}
    for group, text in goals.items():
        try:
            found[group] = parse_targets((text,), unit)
        except InputError as error:
            error.file, error.place = None, "goodput" if group is None else f"class {group!r}: goodput"
            raise
    return found


def answers(summary: Summary, asked: Question, until: int = 0) -> dict[str, Any]:
    """The answers, ready for JSON. Raises InputError where a run has no such window or no groups.

    Of parts of a run, percentiles of ITL are None if the summary has not kept each gap; chunks need one that has
    kept the times of all tokens. An objective has an error where its value is too near to tell whether it is met.

    window, stationarity and intervals are there where a window is asked for; goodput with targets; groups by group.
    until: where the time that rates are over ends, without a window, if that is after the last completion.
    """
    assert summary.header is not None, "the run has not begun"
    view = _View(summary, asked, until)
    found: dict[str, Any] = {}
    if view.window is not None:
        window = view.window
        found["window"] = {"from": window.start, "to": window.end, "rule": window.rule}
        found["stationarity"] = stationarity(view.whole, view.arrival, window)
    found.update(view.figures(np.ones(view.whole.count, bool)))
    if view.window is not None:
        found["intervals"] = view.intervals()
    if asked.by_group:
        names, of_each = summary.groups()
        if not names:
            raise InputError(
                "--by",
                None,
                "group",
                "no request of this workload has a group; classes of [workload.generate] are groups",
            )
        found["groups"] = {name: view.figures(of_each == place) for place, name in enumerate(names)}
    if asked.slo is not None:
        figures = dict(found["latency"])
        if "goodput" in found:
            figures[ATTAINMENT] = found["goodput"]["attainment"]
        found["objectives"] = [
            {"objective": objective.text, "value": value, "met": met, **_too_near(objective, value, figures)}
            for objective, value, met in asked.slo.check(figures, view.unit)
        ]
    return found


def _too_near(objective: Objective, value: float | None, figures: Mapping[str, Any]) -> dict[str, float]:
    """The error of a percentile's value, where that is too large to tell whether the objective is met."""
    error = figures[objective.metric].get("error", 0.0) if objective.of_gaps else 0.0
    near = value is not None and abs(value - objective.bound) <= error * value
    return {"error": error} if error and near else {}


def undecided(found: Mapping[str, Any]) -> list[str]:
    """Of answers, what is to be said of the objectives that a value is too near to."""
    return [
        f"{one['objective']}: the value is known to {100 * one['error']:.2g} %, too little to tell whether it is met"
        for one in found.get("objectives", ())
        if "error" in one
    ]


class _View:
    """A run as it is asked for: its columns, and the time that rates are over."""

    def __init__(self, summary: Summary, asked: Question, until: int) -> None:
        assert summary.header is not None
        self.asked = asked
        self.summary = summary
        self.unit: str = summary.header.clock["unit"]
        self.tally = summary.tally
        self.whole = part_of(summary.tally)
        self.arrival, self.prompt = summary.column("arrival"), summary.column("prompt")
        window = asked.window
        if isinstance(window, str):
            window = steady_window(self.whole, self.arrival, summary.first_turns())
        self.window = window
        self.inside: Mask = np.ones(self.whole.count, bool)
        done = self.whole.result == COMPLETED
        self.start, self.end = 0, 0
        if self.window is not None:
            self.inside = self.window.holds(self.arrival)
            self.start, self.end = self.window.start, self.window.end
            if not self.inside.any():
                shown = self.window.text or f"{self.start}..{self.end}"
                raise InputError("--window", None, shown, "no request arrives in it")
        elif done.any():
            self.start, self.end = int(self.arrival.min()), max(int(self.whole.last_time[done].max()), until)
        named: Iterable[int | Fraction] = () if asked.slo is None else asked.slo.percentiles()
        self.percentiles: list[int | Fraction] = sorted({*PERCENTILES, *named})

    def figures(self, mask: Mask) -> dict[str, Any]:
        """Of those requests that the mask names."""
        chosen = mask & self.inside
        part, arrival = part_of(self.tally, chosen), self.arrival[chosen]
        counts = np.bincount(part.result, minlength=len(RESULTS))
        everything = self.tally if chosen.all() else part
        gaps = self.tally.each_gap
        found = {
            "requests": part.count,
            "results": {
                name: int(count) for name, count in sorted(zip(RESULTS, counts.tolist(), strict=True)) if count
            },
            "latency": latencies(everything, arrival, self.percentiles, None if gaps is None else gaps.of(chosen)),
            "throughput": self._rates(mask),
        }
        if self.asked.chunk is not None:
            results = [self.summary.result_at(position) for position in np.flatnonzero(chosen).tolist()]
            found["chunks"] = chunk_figures(results, self.asked.chunk, self.percentiles)
        if self.asked.targets is not None or self.asked.targets_of:
            found["goodput"] = self._goodput(chosen, part, arrival)
        return found

    def _goodput(self, chosen: Mask, part: Part, arrival: Any) -> dict[str, Any]:
        """By the same targets for all, or by those of each one's group."""
        span = self.end - self.start
        if self.asked.targets is not None:
            figures = goodput(part, arrival, self.asked.targets, self.unit, span)
            return {"targets": written(self.asked.targets), **figures}
        names, of_each = self.summary.groups()
        met = good_in_groups(part, arrival, (names, of_each[chosen]), self.asked.targets_of)
        targets = {name or "": written(own) for name, own in self.asked.targets_of.items()}
        return {"targets_of_groups": targets, **goodput_of(met, part, arrival, self.unit, span)}

    def _rates(self, mask: Mask) -> dict[str, Any]:
        """Of the requests that are completed between start and end, whenever they came."""
        last = self.whole.last_time
        done = mask & (self.whole.result == COMPLETED) & (last >= self.start)
        done &= (last < self.end) if self.window is not None else (last <= self.end)
        span, second = self.end - self.start, NS_IN_S if self.unit == "ns" else 1
        amounts = {
            "request_rate": int(done.sum()),
            "output_token_rate": int(self.whole.tokens[done].sum()),
            "prompt_token_rate": int(self.prompt[done].sum()),
        }
        rates = {name: amount * second / span if span else None for name, amount in amounts.items()}
        per = "s" if self.unit == "ns" else self.unit
        return {"completed": amounts["request_rate"], "span": span or None, "per": per, **rates}

    def intervals(self) -> dict[str, dict[str, float | None]]:
        """Half widths of mean and p99, from batches of the requests in order of arrival."""
        order = np.argsort(self.arrival, kind="stable")
        chosen = order[self.inside[order]]
        return {
            name: batch_means(samples)
            for name, samples in samples_of(part_of(self.tally, chosen), self.arrival[chosen]).items()
        }


def missed(found: Mapping[str, Any]) -> bool:
    """Whether an objective is not met."""
    return any(not objective["met"] for objective in found.get("objectives", ()))


def _number(value: Fraction) -> float:
    return value.numerator if value.denominator == 1 else float(value)
