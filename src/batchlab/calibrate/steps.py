"""Measured steps: a CSV file, or a trace whose clock counts ns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from batchlab.calibrate.fit import Floats
from batchlab.costs.measured import read
from batchlab.costs.table import COLUMNS, TIME, refuse_no_step
from batchlab.errors import InputError
from batchlab.metrics.between import Between
from batchlab.trace.read import BadLine, read_trace

FEWEST = 6
"""Steps that a fit of five coefficients needs at least."""

Sample = tuple[float, float, float, float, float]
"""Prefill tokens, decodes, context tokens, pairs of prefill attention, ns."""


def read_steps(path: Path) -> tuple[Floats, Floats, list[str]]:
    """Features, as calibrate/fit.py names them, and times in ns of measured steps; remarks. Raises InputError."""
    between = Between()
    steps = _from_trace(path, between) if path.suffix == ".jsonl" else _from_csv(path)
    if len(steps) < FEWEST:
        raise InputError(path, None, None, f"{len(steps)} steps are too few to fit: at least {FEWEST} are needed")
    array = np.array(steps, float)
    return np.column_stack([np.ones(len(array)), array[:, :4]]), array[:, 4], between.notes()


def _from_csv(path: Path) -> list[Sample]:
    """Context as the linear model counts it: what is computed after the step, of prefills and decodes together.

    A step's prefill tokens count as those of one prompt: the file does not tell several.
    """
    steps = []
    for row in read(path, (TIME,), optional=COLUMNS):
        prefill, before, decodes, context = (row.values.get(name, 0.0) for name in COLUMNS)
        refuse_no_step(path, row)
        pairs = prefill * before + prefill * (prefill + 1) / 2
        steps.append(
            (prefill, decodes, (prefill + before if prefill else 0) + decodes * context, pairs, row[TIME] * 1000)
        )
    return steps


def _from_trace(path: Path, between: Between) -> list[Sample]:
    """One step for each iteration that computed something; what is computed of a request follows from the lines.

    Where steps overlap, because one is planned while the one before runs, a step takes the time from the end of the one
    before, or from its own plan if that is later. between: is told the steps of what an engine recorded.
    """
    steps: list[Sample] = []
    computed: dict[str, int] = {}
    flying: dict[int, tuple[int, tuple[float, float, float, float]]] = {}
    overlap, recorded, last_end = False, False, 0
    for number, obj in _lines(path):
        if number == 1:
            overlap = _check_header(path, obj)
            recorded = obj.get("recorded") is not None
        if obj.get("type") != "iteration":
            continue
        try:
            sample = _computed(obj, computed)
            if sample[0] or sample[1]:
                flying[obj["iteration"]] = (obj["start"], sample)
            if recorded:
                between.add(obj["start"], obj["end"], bool(obj["queue"] or obj["active"]))
            delivered = obj["delivers"] if overlap else obj["iteration"]
            if delivered not in flying:
                continue
            start, sample = flying.pop(delivered)
            time = obj["end"] - max(start, last_end)
            last_end = obj["end"]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(path, f"line {number}", None, f"not an iteration of a trace: {error!r}") from None
        if time <= 0:
            raise InputError(path, f"line {number}", time, "end - start must be above 0")
        steps.append((sample[0], sample[1], sample[2], sample[3], time))
    return steps


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The trace's lines; one that breaks off, within a line too, has those up to there."""
    number = 0
    try:
        for number, obj in read_trace(path):
            yield number, obj
    except BadLine as error:
        if not error.truncated or not number:
            raise


def _computed(obj: dict[str, Any], computed: dict[str, int]) -> tuple[float, float, float, float]:
    """An iteration's features; what is computed of each request is brought up to date."""
    for preemption in obj["preempted"]:
        if preemption["mode"] == "recompute":
            computed[preemption["id"]] = 0
    computed.update((id, tokens) for id, tokens in obj.get("cached", []))
    prefill = decodes = context = pairs = 0
    for id, phase, tokens in obj["scheduled"]:
        before = computed.get(id, 0)
        computed[id] = before + tokens
        context += before + tokens
        decodes += phase == "decode"
        if phase == "prefill":
            prefill += tokens
            pairs += tokens * before + tokens * (tokens + 1) // 2
    return prefill, decodes, context, pairs


def _check_header(path: Path, header: dict[str, Any]) -> bool:
    """Whether steps overlap. Raises InputError for a trace of no real time."""
    clock = header.get("clock")
    unit = clock.get("unit") if isinstance(clock, dict) else None
    if unit != "ns":
        raise InputError(path, "line 1, clock.unit", unit, "must be 'ns': a trace of measured times")
    flying = header.get("steps_in_flight", 1)
    if flying not in (1, 2):
        raise InputError(path, "line 1, steps_in_flight", flying, "must be 1 or 2: pipeline stages have no common time")
    return bool(flying == 2)
