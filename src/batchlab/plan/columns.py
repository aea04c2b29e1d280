"""What a table for readers shows of each run of a sweep, in the terminal as on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from batchlab.metrics.objectives import ATTAINMENT
from batchlab.plan.trial import Row

ATTAINED = "attained."
IN = "in "
GOODPUT = "goodput"
TIMES = {"TTFT p50": "ttft.p50", "TTFT p99": "ttft.p99", "ITL p50": "itl.p50", "ITL p99": "itl.p99"}


@dataclass(frozen=True)
class Column:
    """A figure of each run. name: of its column in the file. digits: after the point."""

    heading: str
    name: str
    kind: Literal["time", "rate", "count", "share"]
    digits: int = 0


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """The figures that these runs have, in the order in which they are shown; behind them comes whether they meet."""
    units = {row["unit"] for row in rows if row.get("unit") is not None}
    per = f"/{'s' if units == {'ns'} else next(iter(units))}" if len(units) == 1 else ""
    found = [Column(heading, name, "time", 2) for heading, name in TIMES.items()]
    found.append(Column(f"requests{per}", "request_rate", "rate", 3))
    found.append(Column(f"output tokens{per}", "output_token_rate", "rate", 1))
    found.append(Column("preemptions", "totals.preemptions", "count"))
    attained = dict.fromkeys(name for row in rows for name in row if name.startswith(ATTAINED))
    found += [Column(IN + name.removeprefix(ATTAINED), name, "share") for name in attained]
    if any(f"slo.{ATTAINMENT}" in row for row in rows):
        found.append(Column(ATTAINMENT, ATTAINMENT, "share"))
    if any(GOODPUT in row for row in rows):
        found.append(Column(GOODPUT, GOODPUT, "rate", 3))
    return found


def meanings(columns: Sequence[Column], targets: str = "") -> str:
    """What is to be said of those whose heading does not say it; empty where there are none.

    targets: of each request, in words, where all runs have the same.
    """
    named = {column.name for column in columns}
    said = []
    if any(name.startswith(ATTAINED) for name in named):
        said.append(f"{IN}OBJECTIVE: share of all requests within its bound, of ITL of all gaps")
    if GOODPUT in named:
        said.append(f"{GOODPUT}: requests within {targets or 'all targets'}")
    return "; ".join(said)
