"""Tuning: an optimiser looks for the settings that trade throughput against latency best, and what they cost.

Optuna's multi-objective TPE proposes, `BATCH` combinations at a time whatever the number of processes, so that a seed
decides everything; where the space is no larger than the number of trials, all of it runs instead.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchlab.errors import InputError
from batchlab.metrics.answers import goals_of
from batchlab.metrics.objectives import ATTAINMENT, parse
from batchlab.plan import pool
from batchlab.plan.capacity import NO_MISS, check_rate, few, of_one_load, too_short
from batchlab.plan.journal import Journal, digest_of
from batchlab.plan.propose import Proposer, Settings
from batchlab.plan.recommend import spelled
from batchlab.plan.space import Space, default_space
from batchlab.plan.sweep import Sweep
from batchlab.plan.table import check_output, described, write
from batchlab.plan.trial import (
    RATE,
    Row,
    Trial,
    common,
    document_of,
    parse_slo,
    refuse_bad_values,
    row_of,
    run_of,
    settings_of,
)
from batchlab.simulation import Run

BATCH = 8
MOST_TRIALS = 10_000
SHORT = "capacity_short"
UNBOUND = "capacity_unbound"
"""Column: whether the load is too short for the capacity that was found to be one that lasts."""
NAMED = 4
"""Capacities that a caveat names."""
MAXIMIZED = {"capacity": "capacity", "throughput": "output_token_rate", "goodput": "goodput"}
"""What may be maximised -> its column. Capacity is searched for each combination, on the scenario's load."""


@dataclass(frozen=True)
class Axis:
    """A column that is traded: the more the better, or the less."""

    column: str
    most: bool

    def cost(self, row: Row) -> float:
        """The value with its sign so that less is better; that of a run that did not come to its end is the worst.

        Where nothing is there to be measured, such as ITL of single tokens, an objective is met by nothing at all.
        """
        value = row.get(self.column)
        if row["error"] is not None or (value is None and (self.most or not row["met"])):
            return math.inf
        return -float(value or 0) if self.most else float(value or 0)


@dataclass(frozen=True)
class Tuning:
    """What to run. space: values by dotted key; empty for `default_space`. pasted: the `vllm serve` command that the
    overrides are from, if they are. The rest as in `Sweep`.
    """

    scenario: str
    slo: str
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    workload: str | None = None
    goodput: tuple[str, ...] = ()
    maximize: str = "capacity"
    trials: int = 50
    seed: int = 0
    pasted: str | None = None

    def trial(self, settings: Mapping[str, Any]) -> Trial:
        """The run of one combination. A setting of None is as the scenario has it."""
        options = dict.fromkeys(self.space, "--space")
        overrides = {**self.overrides, **{key: value for key, value in settings.items() if value is not None}}
        return Trial(self.scenario, overrides, self.workload, self.slo, self.goodput, options)

    def axes(self) -> list[Axis]:
        """What is maximised, then the figure of every objective."""
        found = [Axis(MAXIMIZED[self.maximize], True)]
        for one in parse(self.slo).objectives:
            found.append(Axis(f"slo.{one.figure}", one.metric == ATTAINMENT))
        return found

    def digest(self) -> str:
        """Of everything that decides the rows."""
        rest = {key: value for key, value in vars(self).items() if key not in ("scenario", "workload", "pasted")}
        optimiser = Proposer.version()
        return digest_of(self.scenario, self.workload, {**rest, "space": list(self.space.items()), "by": optimiser})


@dataclass(frozen=True)
class Tuned:
    """rows: the scenario as it is, then each combination, with its settings under their keys. size: of the space.
    taken_back: so many rows at the end.

    After those come the recommended settings with each of their changes taken back, as far as that had not run. Each
    row has `pareto`: nothing else is at least as good everywhere and better somewhere; and `recommended`, which at most
    one is: of those that meet the objectives the one with the most of what is maximised. Where none meets them at the
    load as it is, one that misses: with the most capacity, or else with the most requests within all targets.
    """

    rows: list[Row]
    space: Space
    size: int
    taken_back: int

    @property
    def tried(self) -> int:
        """How many combinations of the space have run, before the last ones."""
        trials = self.rows[: len(self.rows) - self.taken_back]
        return sum(all(row[key] in values for key, values in self.space.items()) for row in trials)

    @property
    def recommended(self) -> Row | None:
        """The row, None where none has all figures. Whether it meets the objectives, its `met` says."""
        return next((row for row in self.rows if row["recommended"]), None)

    @property
    def met(self) -> bool:
        """Whether anything meets the objectives at the load as it is."""
        return self.recommended is not None and self.recommended["met"]


def run(
    tuning: Tuning, output: Path | None, jobs: int, done: Callable[[int, int], object] = lambda ready, of: None
) -> Tuned:
    """Run what the journal beside the output does not have yet, and write the table. Without an output nothing is kept.

    done: told how many rows there are, and will be. Raises InputError, also where the scenario cannot run as it is.
    """
    axes = tuning.axes()
    base = run_of(tuning.trial({}))
    parse_slo(tuning.slo, tuning.goodput or goals_of(base.requests)).check_unit(base.cost.unit)
    if tuning.maximize == "capacity":
        _check_rate(tuning.trial({}))
    space: Space = {key: list(values) for key, values in tuning.space.items()} or default_space(base)
    if not space:
        raise InputError(tuning.scenario, "engine", None, "nothing to tune by itself: name settings with --space")
    refuse_bad_values(tuning.trial({}), space)
    size = math.prod(map(len, space.values()))
    own = {key: _value_of(tuning.trial({}), base, key) for key in space}
    if output is not None:
        check_output(output, tuning.scenario, tuning.workload)
    with contextlib.ExitStack() as stack:
        journal = None
        if output is not None:
            journal = stack.enter_context(Journal(output.with_name(f"{output.name}.journal"), tuning.digest()))
        runner = _Runner(tuning, jobs, journal, done, min(tuning.trials, size) + 1)
        _fill(runner, space, axes, own, size)
        trials = len(runner.rows)
        _mark(runner.rows, axes, own, tuning.maximize)
        while plainer := _plainer(runner.rows, own):
            runner.take(plainer)
            _mark(runner.rows, axes, own, tuning.maximize)
        found = Tuned(runner.rows, space, size, len(runner.rows) - trials)
        if output is not None and journal is not None:
            write(output, found.rows, about(tuning, found))
            journal.delete()
    return found


def _value_of(trial: Trial, run: Run, key: str) -> Any:
    """What a setting is as it is: as the run has it, else as it is written; None where it is not."""
    section, _, name = key.partition(".")
    if section == "engine":
        return (settings_of(run) | {"policy": run.engine}).get(name)
    if section == "cost" and name in (has := run.cost.describe()):
        return has[name]
    value: Any = document_of(trial)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _check_rate(trial: Trial) -> None:
    if RATE in trial.options:
        raise InputError(
            f"{trial.options[RATE]} {RATE}", None, None, "capacity finds the rate: or --maximize throughput"
        )
    try:
        check_rate(trial)
    except InputError as error:
        raise InputError(error.file, error.place, error.value, f"{error.expected}; or --maximize throughput") from None


def caveats(asked: Tuning, found: Tuned) -> list[str]:
    """What makes the recommendation uncertain, in words."""
    row = found.recommended
    if row is None:
        return []
    requests = sum(value for key, value in row.items() if key.startswith("results."))
    said = few(parse(asked.slo).objectives, requests)
    for column, told in ((SHORT, too_short(run_of(asked.trial({})))), (UNBOUND, NO_MISS)):
        shown = [one["capacity"] for one in found.rows if one.get(column) and (one["pareto"] or one is found.rows[0])]
        named = [f"{rate:,.4g}" for rate in sorted(shown, reverse=True)]
        if named:
            more = f" and {len(named) - NAMED:,} more" if len(named) > NAMED else ""
            said.append(f"at a capacity of {', '.join(named[:NAMED])}{more} {told}")
    return said


def about(tuning: Tuning, found: Tuned) -> dict[str, Any]:
    """What the rows are of, and what follows from them: for the metadata of their file, and for JSON."""
    typed = spelled(tuning, found)
    more = {
        "settings": dict(tuning.overrides),
        "varied": list(found.space),
        "space": found.space,
        "maximize": tuning.maximize,
        "axes": [{"column": axis.column, "better": "more" if axis.most else "less"} for axis in tuning.axes()],
        "trials": tuning.trials,
        "seed": tuning.seed,
        **common(run_of(tuning.trial({})), found.space),
        "flags": None if typed is None else typed.changes,
        "command": None if typed is None else typed.command,
        "met": found.met,
        "caveats": caveats(tuning, found),
    }
    return described(tuning.trial({}), more)


class _Runner:
    """Runs combinations that the journal does not have, and collects the rows of all, in order."""

    def __init__(
        self, tuning: Tuning, jobs: int, journal: Journal | None, done: Callable[[int, int], object], count: int
    ) -> None:
        self.tuning = tuning
        self.rows: list[Row] = []
        self._jobs = jobs
        self._journal = journal
        self._finished: dict[int, Row] = {} if journal is None else journal.rows
        self._done = done
        self._count = count
        done(len(self._finished), count)

    def take(self, combinations: Sequence[Settings], changed: bool = True) -> list[Row]:
        """The rows of the next combinations. changed: False for the scenario as it is, whose settings these are."""
        numbered = list(enumerate(combinations, len(self.rows)))
        trials = [(number, self.tuning.trial(settings if changed else {})) for number, settings in numbered]
        todo = [(number, trial, self.tuning.maximize) for number, trial in trials if number not in self._finished]
        for (number, _, _), row in pool.each(_row, todo, self._jobs):
            if self._journal is None:
                self._finished[number] = row
            else:
                self._journal.add(number, row)
            self._done(len(self._finished), max(self._count, len(self._finished)))
        new = [{**settings, **self._finished[number]} for number, settings in numbered]
        self.rows += new
        return new


def _row(job: tuple[int, Trial, str]) -> Row:
    """The figures of a run at the scenario's load, and its capacity if that is maximised."""
    _, trial, maximize = job
    row = row_of(trial)
    if maximize == "capacity" and row["error"] is None:
        capacity = of_one_load(trial)
        met = capacity.met
        row |= {"capacity": capacity.rate, SHORT: met is not None and met.short, UNBOUND: capacity.unbound}
    found: Row = json.loads(json.dumps(row))  # as the journal will give it back
    return found


def _fill(runner: _Runner, space: Space, axes: Sequence[Axis], own: Settings, size: int) -> None:
    """The scenario as it is, then all of a small space, else what the optimiser proposes."""
    tuning = runner.tuning
    [first] = runner.take([own], changed=False)
    if first["error"] is not None:
        raise InputError(tuning.scenario, None, None, f"cannot be run as it is: {first['error']}")
    if size <= tuning.trials:
        runner.take([each for each in Sweep(tuning.scenario, space).combinations() if each != own])
        return
    proposer = Proposer(space, [axis.most for axis in axes], tuning.seed)
    proposer.tell([own], [_values(first, axes)])
    while len(runner.rows) <= tuning.trials:
        batch = proposer.ask(min(BATCH, tuning.trials + 1 - len(runner.rows)))
        if not batch:
            return
        proposer.tell(batch, [_values(row, axes) for row in runner.take(batch)])


def _values(row: Row, axes: Sequence[Axis]) -> list[float] | None:
    """What the optimiser is told: None where a run failed or lacks a figure."""
    costs = [axis.cost(row) for axis in axes]
    return None if math.inf in costs else [-cost if axis.most else cost for axis, cost in zip(axes, costs, strict=True)]


def _mark(rows: Sequence[Row], axes: Sequence[Axis], own: Settings, maximize: str) -> None:
    """Set `pareto` and `recommended`. Of rows that are the same on all axes only the one with the fewest changes is."""
    costs = [[axis.cost(row) for axis in axes] for row in rows]
    changes = [sum(row[key] != value for key, value in own.items()) for row in rows]
    for number, row in enumerate(rows):
        better = [
            other
            for other, cost in enumerate(costs)
            if dominates(cost, costs[number])
            or (cost == costs[number] and (changes[other], other) < (changes[number], number))
        ]
        row["pareto"] = _values(row, axes) is not None and not better
        row["recommended"] = False

    def most(number: int) -> tuple[Any, ...]:
        reached = costs[number][0] if maximize == "capacity" else 0
        return reached, -(rows[number]["attainment"] or 0), costs[number], changes[number]

    front = [number for number, row in enumerate(rows) if row["pareto"]]
    meeting = [number for number in front if rows[number]["met"] and costs[number][0] < 0]
    if meeting:
        best = min(meeting, key=lambda number: (costs[number][0], changes[number], costs[number]))
        rows[best]["recommended"] = True
    elif front:
        rows[min(front, key=most)]["recommended"] = True


def _plainer(rows: Sequence[Row], own: Settings) -> list[Settings]:
    """The recommended settings with each of their changes taken back, as far as that has not run."""
    row = next((row for row in rows if row["recommended"]), None)
    if row is None:
        return []
    known = [{key: one[key] for key in own} for one in rows]
    settings = {key: row[key] for key in own}
    back = [{**settings, key: value} for key, value in own.items() if row[key] != value]
    return [one for one in back if one not in known]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether costs are nowhere higher and somewhere lower."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and list(one) != list(other)
