"""What rounds on real servers showed: a table a load with its intervals, the simulation beside, and the reading."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from batchlab.bench.rounds import ROWS, TABLE, Arm, change, left_open, over, reading, resolved
from batchlab.cli.columns import print_folded
from batchlab.cli.documents import print_json
from batchlab.cli.notes import note
from batchlab.cli.tables import console, say
from batchlab.compare import said
from batchlab.metrics.intervals import Interval, interval
from batchlab.plan.experiment import LOADS, Measured
from batchlab.units import NS_IN_MS, counted

OPEN = "not resolved"
SMALL = 0.1
"""Below it two decimals do not show two digits."""


@dataclass(frozen=True)
class Experiment:
    """key: what varies. predicted: the runs of the simulation, each load at both values. rounds: both arms of each."""

    key: str
    predicted: Sequence[Measured]
    rounds: Sequence[Sequence[Arm]]

    def runs(self, load: str) -> tuple[list[Measured], list[Measured]]:
        """A load's measurements at the first and the second value, by round."""
        place = LOADS.index(load)
        first, second = zip(*self.rounds, strict=True)
        return [arm.measured[place] for arm in first], [arm.measured[place] for arm in second]


def tell(found: Experiment, document: dict[str, Any] | None) -> None:
    """Print it; with the head of a document, as JSON."""
    readings = {load: reading(*found.runs(load), found.key) for load in LOADS}
    for number, arms in enumerate(found.rounds, 1):
        for arm in arms:
            for run in arm.measured:
                for line in run.notes:
                    note(f"round {number}, {run.load} prompts at {said(found.key, arm.value)}: {line}")
    if document is not None:
        print_json({**document, **_document(found, readings)})
        return
    out = console()
    count = len(found.rounds)
    rounds = counted(count, "round")
    for load in LOADS:
        columns = _columns(found, load)
        print_folded(out, columns, tuple(columns)[1:])
        say(out, "")
    noise = "one round has no interval" if count == 1 else f"its 95 % interval over {rounds}; {OPEN}: holds 0 %"
    say(out, f"times in ms, of the mean over {rounds}; change: mean of the ratios within rounds, {noise}")
    told = sum(_has_interval(change(*found.runs(load), of)) for load in LOADS for of in TABLE.values())
    if count > 1:
        say(out, f"of {told} changes with an interval about one in twenty leaves out 0 % by chance")
    for arms in zip(*found.rounds, strict=True):
        say(out, _cold_line(found.key, [arm.cold for arm in arms]))
    failed = [sum(arm.failed for arm in arms) for arms in zip(*found.rounds, strict=True)]
    if any(failed):
        say(out, f"without a whole answer: {failed[0]:,} and {failed[1]:,} requests")
    for load, lines in readings.items():
        for line in lines:
            say(out, f"{load}: {line}")


def _columns(found: Experiment, load: str) -> dict[str, list[Any]]:
    """Of each value what was measured and predicted, then the change from one to the other, measured and predicted."""
    one, other = found.runs(load)
    place = 2 * LOADS.index(load)
    before, after = found.predicted[place], found.predicted[place + 1]
    columns: dict[str, list[Any]] = {f"{load} prompts": []}
    values = [said(found.key, run.value) for run in (before, after)]
    columns |= {f"{value}{kind}": [] for value in values for kind in ("", " sim")}
    columns |= {"change": [], "sim": []}
    for name, of in TABLE.items():
        scale = 1 / NS_IN_MS if name in ROWS else 100.0 if of[0] == "kv_use" else 1.0
        cells = [
            name,
            *(
                cell
                for runs, simulated in ((one, before), (other, after))
                for cell in (_spread(over(runs, of), scale), _spread(over([simulated], of), scale))
            ),
            _change(change(one, other, of)),
            _simulated(change([before], [after], of)),
        ]
        if any(cell != "-" for cell in cells[1:]):
            for column, cell in zip(columns.values(), cells, strict=True):
                column.append(cell)
    return columns


def _spread(value: Interval, scale: float) -> str:
    if value.mean is None:
        return "-"
    text = _number(value.mean * scale)
    return text if value.half_width is None else f"{text} ±{_number(value.half_width * scale)}"


def _number(value: float) -> str:
    """Two decimals; two digits of what is small, or two that differ would both be 0.00."""
    return f"{value:.2g}" if 0 < abs(value) < SMALL else f"{value:,.2f}"


def _simulated(found: tuple[float, float, float] | None) -> str:
    return "-" if found is None else f"{100 * found[0]:+,.0f} %"


def _has_interval(found: tuple[float, float, float] | None) -> bool:
    """Whether a change is shown with one: equal in all rounds, or of a single round, it has none."""
    return found is not None and not math.isnan(found[1]) and found[1:] != (0, 0)


def _change(found: tuple[float, float, float] | None) -> str:
    """A measured change; one inside the noise, or of a single round, has no direction, nor has none in any round."""
    if found is None:
        return "-"
    middle, low, high = (100 * bound for bound in found)
    if not _has_interval(found):
        return OPEN if math.isnan(low) and middle else "equal"
    said = f"{middle:+,.0f} %" if resolved(found) else OPEN
    return f"{said} ({low:+,.0f} to {min(high, 9999):+,.0f})"


def _cold_line(key: str, colds: Sequence[Any]) -> str:
    start = _spread(interval(cold.start for cold in colds), 1)
    first, later = (
        _spread(interval(getattr(cold, name) for cold in colds), 1 / NS_IN_MS) for name in ("first_ttft", "later_ttft")
    )
    name = key.rpartition(".")[2]
    return f"cold start at {name} = {said(key, colds[0].value)}: up in {start} s, TTFT {first} ms, then {later} ms"


def _document(found: Experiment, readings: dict[str, list[str]]) -> dict[str, Any]:
    changes = {}
    for load in LOADS:
        pairs = {name: change(*found.runs(load), of) for name, of in TABLE.items()}
        changes[load] = {
            name: None if pair is None else [None if math.isnan(bound) else bound for bound in pair]
            for name, pair in pairs.items()
        }
    return {
        "rounds": [[asdict(arm) for arm in arms] for arms in found.rounds],
        "predicted": [asdict(run) for run in found.predicted],
        "changes": changes,
        "rounds_needed": {load: left_open(*found.runs(load)) for load in LOADS},
        "reading": readings,
    }
