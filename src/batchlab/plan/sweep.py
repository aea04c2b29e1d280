"""Every combination of some settings, each one run of a scenario, and what all of them gave as one table."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import batchlab
from batchlab.errors import InputError
from batchlab.files import read_toml, whole_bytes
from batchlab.plan import pool
from batchlab.plan.journal import Journal
from batchlab.plan.trial import Row, Trial, parse_slo, row_of

MOST_RUNS = 100_000


@dataclass(frozen=True)
class Sweep:
    """What to run.

    grid: values by dotted key; the last key changes fastest. overrides: what is the same in all runs. sample: only so
    many combinations, drawn without repetition under `seed`. slo: objectives as text.
    """

    scenario: str
    grid: Mapping[str, Sequence[Any]]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    workload: str | None = None
    slo: str | None = None
    sample: int | None = None
    seed: int = 0

    def combinations(self) -> list[dict[str, Any]]:
        """The settings of each run, in order. Raises InputError where there are too many."""
        size = math.prod(len(values) for values in self.grid.values())
        count = size if self.sample is None else min(self.sample, size)
        if count > MOST_RUNS:
            raise InputError(
                "--grid", None, None, f"{count:,} runs are too many: at most {MOST_RUNS:,}; try --sample N"
            )
        chosen: Sequence[int] = range(size)
        if count < size:
            chosen = sorted(random.Random(self.seed).sample(range(size), count))
        return [self._combination(place) for place in chosen]

    def _combination(self, place: int) -> dict[str, Any]:
        found = {}
        for key, values in reversed(list(self.grid.items())):
            place, value = divmod(place, len(values))
            found[key] = values[value]
        return {key: found[key] for key in self.grid}

    def digest(self) -> str:
        """Of everything that decides the rows: settings, this version, and the files that the scenario names."""
        document, data = read_toml(self.scenario)
        named = sorted(set(_texts([document, self.overrides, self.grid, self.workload])))
        folders = (Path(self.scenario).parent, Path())
        parts = {
            "version": batchlab.__version__,
            "scenario": hashlib.sha256(data).hexdigest(),
            "files": [_of_files(folder / name.partition(".py:")[0]) for name in named for folder in folders],
            **{key: value for key, value in vars(self).items() if key != "scenario"},
            "grid": list(self.grid.items()),
        }
        return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def run(
    sweep: Sweep, output: Path, jobs: int, done: Callable[[int, int], object] = lambda ready, of: None
) -> list[Row]:
    """Run all that the journal beside the output does not have yet, and write the table. Returns its rows, in order.

    A run that fails is a row with an `error`. done: told how many rows there are, and will be. Raises InputError.
    """
    if sweep.slo is not None:
        parse_slo(sweep.slo)
    combinations = sweep.combinations()
    trials = [Trial(sweep.scenario, {**sweep.overrides, **c}, sweep.workload, sweep.slo) for c in combinations]
    if not output.parent.is_dir():
        raise InputError(output, None, None, "cannot be written: no such folder")
    if output.exists() and not output.is_file():
        raise InputError(output, None, None, "cannot be written: it is no regular file")
    with Journal(output.with_name(f"{output.name}.journal"), sweep.digest()) as journal:
        todo = [number for number in range(len(trials)) if number not in journal.rows]
        done(len(trials) - len(todo), len(trials))
        numbered = [(number, trials[number]) for number in todo]
        for (number, _), row in pool.each(_numbered_row, numbered, jobs):
            journal.add(number, row)
            done(len(journal.rows), len(trials))
        rows = [{**combinations[number], **journal.rows[number]} for number in range(len(trials))]
        _write(output, sweep, rows)
        journal.delete()
    return rows


def _numbered_row(numbered: tuple[int, Trial]) -> Row:
    row: Row = json.loads(json.dumps(row_of(numbered[1])))  # as the journal will give it back
    return row


def _write(output: Path, sweep: Sweep, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows], name == "error") for name in names}
    about = {"batchlab": batchlab.__version__, "scenario": Path(sweep.scenario).name, "slo": sweep.slo or ""}
    with whole_bytes(output) as file:
        pq.write_table(pa.table(columns).replace_schema_metadata(about), file)


def _column(values: Sequence[Any], text: bool) -> Any:
    """Values of one type; those of several kinds as JSON."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    small = all(not isinstance(value, int) or abs(value) < 1 << 63 for value in values)
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int} and small:
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and small and not text:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([v if v is None or isinstance(v, str) else json.dumps(v) for v in values], pa.string())


def _texts(value: Any) -> Iterator[str]:
    """All texts in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)


def _of_files(path: Path) -> str | None:
    """A digest of a file, or of a folder's files; None where there is none of that name."""
    try:
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_dir():  # a profile
            return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(path.glob("*.csv")))).hexdigest()
    except (OSError, ValueError):  # a text that is no path
        pass
    return None
