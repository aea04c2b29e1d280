"""Every combination of some settings, each one run of a scenario, and what all of them gave as one table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchlab.errors import BatchlabError, InputError
from batchlab.metrics.answers import goals_of
from batchlab.metrics.objectives import Objectives, parse, parse_targets
from batchlab.plan import pool
from batchlab.plan.grid import combinations, size_of
from batchlab.plan.journal import Journal, digest_of
from batchlab.plan.table import check_output, described, write
from batchlab.plan.trial import (
    Row,
    Trial,
    common,
    document_of,
    parse_slo,
    refuse_bad_values,
    refuse_shared,
    row_of,
    run_of,
    targets_told,
)
from batchlab.scenario import cost_of

MOST_RUNS = 100_000


@dataclass(frozen=True)
class Sweep:
    """What to run.

    grid: values by dotted key; the last key changes fastest. overrides: what is the same in all runs. sample: only so
    many combinations, drawn without repetition under `seed`. slo: objectives as text. goodput: targets for each
    request, as texts.
    """

    scenario: str
    grid: Mapping[str, Sequence[Any]]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    workload: str | None = None
    slo: str | None = None
    sample: int | None = None
    seed: int = 0
    goodput: tuple[str, ...] = ()

    def trial(self, settings: Mapping[str, Any]) -> Trial:
        """The run of one combination."""
        options = dict.fromkeys(self.grid, "--grid")
        overrides = {**self.overrides, **settings}
        return Trial(self.scenario, overrides, self.workload, self.slo, self.goodput, options)

    def combinations(self) -> list[dict[str, Any]]:
        """The settings of each run, in order. Raises InputError where there are too many."""
        size = size_of(self.grid)
        count = size if self.sample is None else min(self.sample, size)
        if count > MOST_RUNS:
            raise InputError(
                "--grid", None, None, f"{count:,} runs are too many: at most {MOST_RUNS:,}; try --sample N"
            )
        return combinations(self.grid, count, self.seed)

    def digest(self) -> str:
        """Of everything that decides the rows."""
        rest = {key: value for key, value in vars(self).items() if key not in ("scenario", "workload")}
        return digest_of(self.scenario, self.workload, {**rest, "grid": list(self.grid.items())})


def run(
    sweep: Sweep, output: Path, jobs: int, done: Callable[[int, int], object] = lambda ready, of: None
) -> list[Row]:
    """Run all that the journal beside the output does not have yet, and write the table. Returns its rows, in order.

    A run that fails is a row with an `error`. done: told how many rows there are, and will be. Raises InputError, also
    for a value that no run can have.
    """
    if sweep.slo is not None:
        _check_objectives(sweep, parse(sweep.slo))
    if sweep.goodput:
        parse_targets(sweep.goodput)
    combinations = sweep.combinations()
    values = _values_in(combinations, sweep.grid)
    refuse_bad_values(sweep.trial({}), values)
    refuse_shared(sweep.trial({}), values)
    _check_targets(sweep, sweep.trial(combinations[0]))
    trials = [sweep.trial(settings) for settings in combinations]
    check_output(output, sweep.scenario, sweep.workload)
    with Journal(output.with_name(f"{output.name}.journal"), sweep.digest()) as journal:
        todo = [number for number in range(len(trials)) if number not in journal.rows]
        done(len(trials) - len(todo), len(trials))
        numbered = [(number, trials[number]) for number in todo]
        for (number, _), row in pool.each(_numbered_row, numbered, jobs):
            journal.add(number, row)
            done(len(journal.rows), len(trials))
        rows = [{**combinations[number], **journal.rows[number]} for number in range(len(trials))]
        write(output, rows, about(sweep))
        journal.delete()
    return rows


def about(sweep: Sweep) -> dict[str, Any]:
    """What the rows are of: for the metadata of their file, and for JSON."""
    shared: dict[str, Any] = {}
    with contextlib.suppress(BatchlabError):  # its row says why it cannot run
        trial = sweep.trial({key: values[0] for key, values in sweep.grid.items()})
        run = run_of(trial)
        shared = common(run, list(sweep.grid))
        if not any(name in key for key in sweep.grid for name in ("cost.", "goodput", "classes", "workload.file")):
            shared |= targets_told(trial, run)
    return described(sweep.trial({}), {"settings": sweep.overrides, "varied": list(sweep.grid), **shared})


def _check_objectives(sweep: Sweep, asked: Objectives) -> None:
    """Objectives in another unit than the clock's fail every run, unless the clock is among what is varied."""
    if any(key.startswith("cost.") for key in sweep.grid):
        return
    try:
        unit = cost_of(document_of(sweep.trial({})), Path(sweep.scenario).parent).unit
    except InputError:
        return  # the runs will say what is wrong
    asked.check_unit(unit)


def _check_targets(sweep: Sweep, first: Trial) -> None:
    """Attainment without targets fails every run, unless the first, which is looked at, cannot be run at all."""
    if sweep.slo is None or sweep.goodput:
        return
    try:
        goals = goals_of(run_of(first).requests)
    except BatchlabError:
        return
    parse_slo(sweep.slo, goals)


def _values_in(combinations: Sequence[Mapping[str, Any]], grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The values of each key that are run: a sample of a large grid has few of them."""
    return {key: list({repr(one[key]): one[key] for one in combinations}.values()) for key in grid}


def _numbered_row(numbered: tuple[int, Trial]) -> Row:
    row: Row = json.loads(json.dumps(row_of(numbered[1])))  # as the journal will give it back
    return row
