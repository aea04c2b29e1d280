"""Measured steps: a CSV file, or a trace whose clock counts ns."""

from pathlib import Path
from typing import Any

import numpy as np

from batchlab.calibrate.fit import Floats
from batchlab.costs.measured import read
from batchlab.costs.table import COLUMNS, TIME
from batchlab.errors import InputError
from batchlab.trace.read import read_trace

FEWEST = 5
"""Steps that a fit of four coefficients needs at least."""


def read_steps(path: Path) -> tuple[Floats, Floats]:
    """Features (1, prefill tokens, decodes, context tokens) and times in ns of measured steps. Raises InputError."""
    steps = _from_trace(path) if path.suffix == ".jsonl" else _from_csv(path)
    if len(steps) < FEWEST:
        raise InputError(path, None, None, f"{len(steps)} steps are too few to fit: at least {FEWEST} are needed")
    array = np.array(steps, float)
    return np.column_stack([np.ones(len(array)), array[:, :3]]), array[:, 3]


def _from_csv(path: Path) -> list[tuple[float, float, float, float]]:
    """Context as the linear model counts it: what is computed after the step, of prefills and decodes together."""
    steps = []
    for row in read(path, (TIME,), optional=COLUMNS):
        prefill, before, decodes, context = (row.values.get(name, 0.0) for name in COLUMNS)
        if row[TIME] <= 0:
            raise InputError(path, f"line {row.line}, {TIME}", row[TIME], "must be above 0")
        if not prefill and not decodes:
            raise InputError(path, f"line {row.line}", None, "neither prefill_tokens nor decodes: the step is empty")
        steps.append((prefill, decodes, prefill + before + decodes * context, row[TIME] * 1000))
    return steps


def _from_trace(path: Path) -> list[tuple[float, float, float, float]]:
    """One step for each iteration that computed something; what is computed of a request follows from the lines."""
    steps: list[tuple[float, float, float, float]] = []
    computed: dict[str, int] = {}
    for number, obj in read_trace(path):
        if number == 1:
            _refuse_header(path, obj)
        if obj.get("type") != "iteration":
            continue
        try:
            for preemption in obj["preempted"]:
                if preemption["mode"] == "recompute":
                    computed[preemption["id"]] = 0
            computed.update((id, tokens) for id, tokens in obj.get("cached", []))
            prefill = decodes = context = 0
            for id, phase, tokens in obj["scheduled"]:
                computed[id] = computed.get(id, 0) + tokens
                context += computed[id]
                prefill += tokens if phase == "prefill" else 0
                decodes += phase == "decode"
            time = obj["end"] - obj["start"]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(path, f"line {number}", None, f"not an iteration of a trace: {error!r}") from None
        if prefill or decodes:
            if time <= 0:
                raise InputError(path, f"line {number}", time, "end - start must be above 0")
            steps.append((prefill, decodes, context, time))
    return steps


def _refuse_header(path: Path, header: dict[str, Any]) -> None:
    clock = header.get("clock")
    unit = clock.get("unit") if isinstance(clock, dict) else None
    if unit != "ns":
        raise InputError(path, "line 1, clock.unit", unit, "must be 'ns': a trace of measured times")
    if header.get("steps_in_flight", 1) != 1:
        raise InputError(
            path,
            "line 1, steps_in_flight",
            header["steps_in_flight"],
            "must be 1: steps that overlap have no own times",
        )
