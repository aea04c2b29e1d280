"""What a service is held to: objectives on the figures of a run, and targets that each single request must meet.

An objective speaks of one figure over all requests (`ttft:p99<=500ms`). Targets speak of one request each (`ttft:500
tpot:50`, in milliseconds, as `vllm bench serve --goodput` writes them): goodput counts the requests that meet all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from batchlab.core.tally import RESULTS, Tally
from batchlab.errors import InputError, nearest, shorten
from batchlab.metrics.latency import NAMES as METRICS
from batchlab.metrics.latency import percentile_name
from batchlab.metrics.part import COLUMNS, Part
from batchlab.settings import LATEST
from batchlab.units import NS_IN_MS, NS_IN_S

PER_REQUEST = tuple(metric for metric in METRICS if metric != "itl")
"""Metrics of which a request has one value: an ITL belongs to a token."""
BETWEEN_TOKENS = ("tpot", "itl")
"""Metrics that an answer of one token does not have; it passes every objective on them, as in vLLM."""
ATTAINMENT = "attainment"
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
UNITS = {"s": NS_IN_S, "ms": NS_IN_MS, "us": 1000, "ns": 1}
MICRO = str.maketrans("\u00b5\u03bc", "uu")
"""Both letters that people write for micro."""

EXAMPLE = "such as ttft:p99<=500ms"
SHAPE = re.compile(r"([^:<>=]*)(?::([^<>=]*))?(<=|>=|<|>|=)(.*)", re.DOTALL)
COLON = "a metric has a colon behind it"
NUMBER = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([^\d.\s].*)?", re.ASCII)
APART = re.compile(r"([a-z_0-9]*?[a-z0-9])\s*(?:[=<>.]+|[\s_-])\s*([a-z0-9.]+)", re.ASCII)
"""A metric and what follows it, with something else between them than a colon."""
PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,6})?)", re.ASCII)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Objective:
    """One figure and the most (of `attainment`: the least) that it may be.

    metric: of METRICS, or `attainment`, whose statistic is "". bound: in ns where `timed`, a share of 1 for
    `attainment`, else in the unit of the clock.
    """

    metric: str
    statistic: str
    bound: Fraction
    timed: bool
    text: str

    @property
    def figure(self) -> str:
        """The figure's name, such as `ttft:p99`."""
        return f"{self.metric}:{self.statistic}" if self.statistic else self.metric

    @property
    def beyond(self) -> Fraction | None:
        """The share of the samples beyond a percentile; None for any other statistic."""
        found = PERCENTILE.fullmatch(self.statistic)
        return None if found is None else 1 - Fraction(found[1]) / 100

    @property
    def of_gaps(self) -> bool:
        """Whether it is about a percentile of all gaps, of which a summary otherwise knows only about where it is."""
        return self.metric == "itl" and self.beyond is not None

    def met_by(self, value: float | None) -> bool:
        """Whether a value is good enough. One that there is not is not."""
        if value is None:
            return False
        bound = float(self.bound) if isinstance(value, float) else self.bound  # 7/10 is above the float 0.7
        return value >= bound if self.metric == ATTAINMENT else value <= bound


@dataclass(frozen=True)
class Objectives:
    """Several objectives, in the order given."""

    objectives: tuple[Objective, ...]

    def percentiles(self) -> tuple[Fraction, ...]:
        """The percentiles that they speak of, rising: the figures to check need them."""
        named = (PERCENTILE.fullmatch(objective.statistic) for objective in self.objectives)
        return tuple(sorted({Fraction(found[1]) for found in named if found}))

    @property
    def each_gap(self) -> bool:
        """Whether a summary has to keep each gap to judge them: for a percentile of all gaps."""
        return any(objective.of_gaps for objective in self.objectives)

    def check_unit(self, unit: str) -> None:
        """Whether they fit a clock that counts in this unit. Raises InputError."""
        for objective in self.objectives:
            if objective.metric == ATTAINMENT or objective.timed == (unit == "ns"):
                continue
            expected = (
                "needs a unit: s, ms, us or ns" if unit == "ns" else f"the clock counts in {unit}s: give a number alone"
            )
            raise InputError("--slo", None, objective.text, expected)

    def check(self, figures: Mapping[str, Any], unit: str = "ns") -> list[tuple[Objective, float | None, bool]]:
        """Each objective with the value found, None if there is none, and whether it is met.

        figures: those of a summary's `latency`, and for `attainment` its share under that name. unit: the clock's.
        Where requests were completed and no answer had a second token, objectives between tokens are met, without a
        value; any other figure of no samples meets nothing. Raises InputError for a figure that is not counted.
        """
        self.check_unit(unit)
        found = []
        for objective in self.objectives:
            value = _value(objective, figures)
            empty = value is None and objective.metric in BETWEEN_TOKENS and figures["e2el"]["count"] > 0
            found.append((objective, value, empty or objective.met_by(value)))
        return found


def _value(objective: Objective, figures: Mapping[str, Any]) -> float | None:
    if objective.metric == ATTAINMENT:
        if ATTAINMENT not in figures:
            raise InputError(
                "--slo", None, objective.text, "needs targets for each request: --goodput ttft:500 tpot:50"
            )
        share: float | None = figures[ATTAINMENT]
        return share
    of_metric = figures[objective.metric]
    if objective.statistic not in of_metric or (of_metric["count"] and of_metric[objective.statistic] is None):
        raise InputError("--slo", None, objective.text, f"{objective.figure} is not among the figures counted here")
    value: float | None = of_metric[objective.statistic]
    return value


def parse(text: str) -> Objectives:
    """Objectives with commas between them, such as `ttft:p99<=500ms,itl:p99<=50ms`. Raises InputError.

    Each is METRIC:STATISTIC<=TIME, or `attainment>=90%`. A statistic is mean, max or a percentile such as p99.9; a
    time has a unit, s, ms, us or ns, or none where the clock counts something else.
    """
    objectives = tuple(_objective(part.strip(), text) for part in text.split(","))
    figures = [objective.figure for objective in objectives]
    for figure in figures:
        if figures.count(figure) > 1:
            raise InputError("--slo", None, text, f"has {figure} twice")
    return Objectives(objectives)


def _objective(part: str, text: str) -> Objective:
    shape = SHAPE.fullmatch(part)
    if shape is None:
        raise InputError("--slo", None, part or text, f"must be METRIC:STATISTIC<=VALUE, {EXAMPLE}")
    metric, sign, value = shape[1].strip(), shape[3], shape[4].strip()
    statistic = None if shape[2] is None else shape[2].strip()
    if metric not in (*METRICS, ATTAINMENT):
        apart = APART.fullmatch(metric)
        if apart is not None and apart[1] in METRICS and (apart[2] in STATISTICS or PERCENTILE.fullmatch(apart[2])):
            raise InputError("--slo", None, part, f"{COLON}: {apart[1]}:{apart[2]}{sign}{value}")
        known = (*METRICS, ATTAINMENT)
        hint = f"{nearest(metric, known)}: {', '.join(known)}"
        raise InputError("--slo", None, part, f"unknown metric {shorten(metric)}{hint}")
    if metric == ATTAINMENT:
        if statistic is not None or sign != ">=":
            raise InputError("--slo", None, part, "must be attainment>=SHARE, such as attainment>=90%")
        return Objective(metric, "", _share(value, part), False, part)
    if sign != "<=":
        raise InputError("--slo", None, part, f"must be METRIC:STATISTIC<=VALUE, {EXAMPLE}")
    if not statistic:
        raise InputError("--slo", None, part, f"needs a statistic: {metric}:p99<=..., or mean, p50, p90, max")
    bound, timed = time_bound(value, "--slo", part, "ttft:p99<=500ms")
    return Objective(metric, _statistic(statistic, part), bound, timed, part)


def _statistic(name: str, part: str) -> str:
    """Its name with no zeros to spare: p99.0 is p99."""
    percentile = PERCENTILE.fullmatch(name)
    if percentile is not None:
        return percentile_name(Fraction(percentile[1]))
    if name not in STATISTICS:
        known = f"mean, max, or a percentile from p0 to below p100{nearest(name, STATISTICS)}"
        raise InputError("--slo", None, part, f"unknown statistic {shorten(name)}: {known}")
    return name


def time_bound(value: str, option: str, text: str, example: str) -> tuple[Fraction, bool]:
    """A time of an option: in ns and True where it has a unit, the number alone and False where not.

    Raises InputError.
    """
    number = NUMBER.fullmatch(value)
    if number is None:
        raise InputError(option, None, text, f"a time must be a number of at least 0 and its unit, such as {example}")
    unit = number[2] and number[2].translate(MICRO)
    if unit is not None and unit not in UNITS:
        raise InputError(option, None, text, f"unknown unit {shorten(unit)}{nearest(unit, UNITS)}: s, ms, us or ns")
    bound = Fraction(number[1]) * (1 if unit is None else UNITS[unit])
    if bound > LATEST:
        raise InputError(option, None, text, "must be at most 2^62 ns" if unit else "must be at most 2^62")
    return bound, unit is not None


def _share(value: str, part: str) -> Fraction:
    number = NUMBER.fullmatch(value)
    share = None
    if number is not None and number[2] in (None, "%"):
        share = Fraction(number[1]) / (100 if number[2] else 1)
    if share is None or share > 1:
        raise InputError("--slo", None, part, "the share must lie between 0 and 1, or between 0% and 100%")
    return share


Targets = dict[str, Fraction]
"""Metric -> the most it may be for a request, in the clock's unit."""


def parse_targets(texts: Iterable[str], unit: str = "ns") -> Targets:
    """Targets for every single request, such as `ttft:500`, `tpot:50`. Raises InputError.

    In milliseconds where the clock counts ns, as vLLM has it, else in the unit of the clock. Several may stand in one
    text with spaces or commas between them.
    """
    targets: Targets = {}
    for word in (word for text in texts for word in text.replace(",", " ").split()):
        metric, _, value = word.partition(":")
        number = NUMBER.fullmatch(value)
        if metric == "itl":
            raise InputError("--goodput", None, word, "a request has many ITLs: give tpot, or max_itl")
        apart = APART.fullmatch(word)
        if apart is not None and apart[1] in PER_REQUEST and (meant := NUMBER.fullmatch(apart[2])):
            raise InputError("--goodput", None, word, f"{COLON}: {apart[1]}:{meant[1]}")
        if metric not in PER_REQUEST:
            names = ", ".join(PER_REQUEST)
            raise InputError("--goodput", None, word, f"unknown metric{nearest(metric, PER_REQUEST)}: {names}")
        if number is None or number[2] is not None:
            meaning = "milliseconds" if unit == "ns" else f"{unit}s"
            raise InputError("--goodput", None, word, f"must be METRIC:NUMBER in {meaning}, such as ttft:500")
        if metric in targets:
            raise InputError("--goodput", None, word, f"has {metric} twice")
        targets[metric] = Fraction(number[1]) * (NS_IN_MS if unit == "ns" else 1)
        if targets[metric] > LATEST:
            raise InputError("--goodput", None, word, "must be at most 2^62 in the clock's unit")
    if not targets:
        raise InputError("--goodput", None, " ".join(texts), "must be METRIC:NUMBER, such as ttft:500")
    return targets


def good(tally: Tally | Part, arrival: Integers, targets: Mapping[str, Fraction]) -> npt.NDArray[np.bool_]:
    """Which requests were completed within every target, by position."""
    size = slice(0, tally.count)
    result, first, last, tokens, scheduled, gap = (np.asarray(getattr(tally, name))[size] for name in COLUMNS)
    met: npt.NDArray[np.bool_] = result == RESULTS.index("completed")
    once = np.ones_like(first)
    amounts = {
        "ttft": (first - arrival, once),
        "tpot": (last - first, np.maximum(tokens - 1, 1)),  # one token: 0 / 1, which meets any target
        "e2el": (last - arrival, once),
        "ntpot": (last - arrival, np.maximum(tokens, 1)),
        "queue_time": (scheduled - arrival, once),
        "max_itl": (gap, once),
    }
    for metric, most in targets.items():
        amount, share = amounts[metric]
        shares, place = np.unique(share, return_inverse=True)
        # amount / share <= most, in integers: nothing is rounded, and nothing overflows
        bounds = np.array([min(int(most * s), LATEST) for s in shares.tolist()], np.int64)
        met &= amount <= bounds[place]
    return met


def good_in_groups(
    tally: Tally | Part,
    arrival: Integers,
    groups: tuple[Sequence[str], Integers],
    targets_of: Mapping[str | None, Targets],
) -> npt.NDArray[np.bool_]:
    """The same by the targets of each one's group. groups: their names, and which of them each has, -1: none."""
    names, of_each = groups
    met = np.zeros(tally.count, bool)
    for place, name in [(-1, None), *enumerate(names)]:
        met |= (of_each == place) & good(tally, arrival, targets_of.get(name, {}))
    return met


def goodput(
    tally: Tally | Part,
    arrival: Integers,
    targets: Mapping[str, Fraction],
    unit: str = "ns",
    span: int | None = None,
) -> dict[str, Any]:
    """Requests that meet all targets: how many, per time, and as a share of ALL requests.

    span: the time that the rate is over; None: from the first arrival to the last completion, as for throughput. All
    requests are in the denominator of the attainment: rejected, failed, cancelled and unfinished ones meet nothing.
    goodput is None where nothing was completed, attainment where there is no request.
    """
    return goodput_of(good(tally, arrival, targets), tally, arrival, unit, span)


def goodput_of(
    met: npt.NDArray[np.bool_], tally: Tally | Part, arrival: Integers, unit: str = "ns", span: int | None = None
) -> dict[str, Any]:
    """The same, where it is known which requests meet theirs."""
    number, count = int(np.count_nonzero(met)), tally.count
    done = np.asarray(tally.result)[:count] == RESULTS.index("completed")
    if span is None and done.any():
        span = int(np.asarray(tally.last_time)[:count][done].max()) - int(arrival.min())
    scale = NS_IN_S if unit == "ns" else 1
    return {
        "good": number,
        "requests": count,
        "goodput": number * scale / span if span else None,
        "attainment": number / count if count else None,
        "per": "s" if unit == "ns" else unit,
    }
