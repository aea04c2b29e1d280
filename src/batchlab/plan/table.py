"""Rows of runs as a Parquet file that says by itself what it holds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import batchlab
from batchlab.errors import InputError
from batchlab.files import encodable, whole_bytes
from batchlab.metrics.latency import NAMES
from batchlab.metrics.objectives import ATTAINMENT, Objective, parse
from batchlab.plan.trial import Row, Trial

RATES = ("request_rate", "output_token_rate", "goodput", "capacity")
SHARES = ("attained.", ATTAINMENT)


def described(trial: Trial, more: Mapping[str, Any]) -> dict[str, Any]:
    """What rows are of: for the metadata of a file, and for JSON."""
    objectives = () if trial.slo is None else parse(trial.slo).objectives
    return {
        "batchlab": batchlab.__version__,
        "scenario": Path(trial.scenario).name,
        "workload": None if trial.workload is None else Path(trial.workload).name,
        "slo": trial.slo or "",
        "objectives": [stated(objective) for objective in objectives],
        "goodput": list(trial.goodput),
        **more,
    }


def stated(objective: Objective) -> dict[str, Any]:
    """An objective in its parts. unit: of the bound; None where it is the clock's."""
    unit = "ns" if objective.timed else "1" if objective.metric == ATTAINMENT else None
    return {
        "text": objective.text,
        "figure": objective.figure,
        "metric": objective.metric,
        "statistic": objective.statistic,
        "bound": float(objective.bound),
        "unit": unit,
    }


def check_output(path: Path, *inputs: str | None) -> None:
    """Refuse a table that could not or must not be written, before hours of work for it. Raises InputError."""
    if not path.name:
        raise InputError(None, None, None, "the name of the file to write is empty")
    if path.suffix != ".parquet" and not path.is_relative_to("/dev"):
        raise InputError(path, None, None, "must end in .parquet")
    if any(one is not None and os.path.realpath(one) == os.path.realpath(path) for one in inputs):
        raise InputError(path, None, None, "would overwrite an input")
    if not os.path.isdir(path.parent):
        raise InputError(path, None, None, "cannot be written: no such folder")
    try:
        if path.exists() and not path.is_file():
            raise InputError(path, None, None, "cannot be written: it is no regular file")
    except OSError as error:  # such as a name too long for the disk
        raise InputError(path, None, None, f"cannot be written: {error.strerror}") from error


def write(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """A column for each name, with its `unit` where it has one; `about` as the file's metadata, texts or JSON."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = dict.fromkeys(name for row in rows for name in row)
    clock = {row["unit"] for row in rows if "unit" in row}
    unit = clock.pop() if len(clock) == 1 else "unit"  # else what the row's own column says
    arrays = {name: _column([row.get(name) for row in rows], name == "error") for name in names}
    fields = []
    for name, array in arrays.items():
        of = _unit(name, unit)
        fields.append(pa.field(name, array.type, metadata=None if of is None else {"unit": of}))
    texts = {key: encodable(value) if isinstance(value, str) else json.dumps(value) for key, value in about.items()}
    with whole_bytes(path) as file:
        pq.write_table(pa.table(list(arrays.values()), schema=pa.schema(fields, texts)), file)


def _unit(name: str, clock: str) -> str | None:
    """The unit of a column's values; None for counts, texts and settings."""
    metric, _, statistic = name.removeprefix("slo.").replace(":", ".").partition(".")
    if name.startswith(SHARES) or name == f"slo.{ATTAINMENT}":
        return "1"
    if name in RATES:
        return "1/s" if clock == "ns" else f"1/{clock}"
    return clock if name == "time" or (metric in NAMES and statistic != "count") else None


def _column(values: Sequence[Any], text: bool) -> Any:
    """Values of one type; those of several kinds as JSON."""
    import pyarrow as pa

    from batchlab.metrics.table import column

    kinds = {type(value) for value in values if value is not None}
    small = all(not isinstance(value, int) or abs(value) < 1 << 63 for value in values)
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int} and small:
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and small and not text:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return column([v if v is None or isinstance(v, str) else json.dumps(v) for v in values], pa.string())
