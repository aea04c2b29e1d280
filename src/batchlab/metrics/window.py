"""Which part of a run to measure: without its beginning, when the engine fills, and its end, when it drains."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from batchlab.core.tally import RESULTS
from batchlab.errors import InputError
from batchlab.metrics.objectives import time_bound
from batchlab.metrics.part import Part
from batchlab.settings import LATEST

STEADY = "steady"
SLICES = 20
DRIFT = 0.1
"""The two halves of a window differ when they do by more than this share of their mean ..."""
ERRORS = 3
"""... and by more than so many standard errors of that difference."""

PENDING = RESULTS.index("pending")
COMPLETED = RESULTS.index("completed")
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Requests that arrive from `start` on and before `end` are measured, and rates are over that time.

    rule: how it was chosen, for a report. text: how it was written, if it was.
    """

    start: int
    end: int
    rule: str = "as given"
    text: str | None = field(default=None, compare=False)

    @property
    def length(self) -> int:
        """In the clock's unit."""
        return self.end - self.start

    def holds(self, arrival: Integers) -> npt.NDArray[np.bool_]:
        """Which requests arrive in it."""
        return (arrival >= self.start) & (arrival < self.end)


def parse_window(text: str, unit: str) -> Window | None:
    """`FROM..TO`, such as 60s..300s, times with a unit where the clock counts ns; None for `steady`.

    Raises InputError.
    """
    if text.strip() == STEADY:
        return None
    start, dots, end = text.partition("..")
    if not dots:
        raise InputError("--window", None, text, "must be FROM..TO, such as 60s..300s, or steady")
    times = []
    for value in (start, end):
        bound, timed = time_bound(value.strip(), "--window", text, "60s..300s")
        if timed != (unit == "ns"):
            expected = "needs units: s, ms, us or ns" if unit == "ns" else f"the clock counts in {unit}s: no unit"
            raise InputError("--window", None, text, expected)
        times.append(math.ceil(bound))
    if times[0] >= times[1]:
        raise InputError("--window", None, text, "must end after it begins")
    return Window(times[0], times[1], text=text)


def steady_window(part: Part, arrival: Integers, first_turns: Integers) -> Window:
    """The run without warm-up and drain. Raises InputError if nothing is left.

    It begins when as many requests have been completed as were at most being worked on at once: then one full wave is
    through. It ends with the last moment of which all who arrived before it had their last token when the last request
    arrived, so that nobody in it saw the engine drain. Requests that ended otherwise decide nothing. Where turns wait
    for answers, a session counts as one that lasts from its first turn to its last token, and the last to arrive is
    the first turn of one: later turns alone are a load that falls. first_turns: the place of each one's first turn, of
    a request that is no later turn its own.
    """
    done = part.result == COMPLETED
    ended, begun = np.full(part.count, -1), np.full(part.count, LATEST)
    np.maximum.at(ended, first_turns[done], part.last_time[done])
    np.minimum.at(begun, first_turns[done], part.first_scheduled[done])
    ends, begins = np.sort(ended[ended >= 0]), np.sort(begun[ended >= 0])
    wave = int((np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, "right")).max(initial=0))
    own = first_turns == np.arange(part.count)
    what = "completions" if own.all() else "sessions"
    too_short = "the run is too short: no request arrives between its first full wave and its drain"
    if not wave:
        raise InputError("--window", None, STEADY, too_short)
    start, last = int(ends[wave - 1]), int(arrival[own & (part.result != PENDING)].max())
    late = ended_at(part) > last
    end = int(arrival[late].min(initial=last))
    window = Window(start, end, f"after a wave of {wave:,} {what}, before the drain")
    if not window.holds(arrival).any():
        raise InputError("--window", None, STEADY, too_short)
    return window


def ended_at(part: Part) -> Integers:
    """When each request had its last token; LATEST where it still runs, -1 where it ended without one."""
    ended: Integers = np.where(part.result < COMPLETED, LATEST, np.int64(-1))
    return np.where(part.result == COMPLETED, part.last_time, ended)


def stationarity(part: Part, arrival: Integers, window: Window) -> dict[str, Any]:
    """Whether the first half of a window is like the second.

    Compared are the mean number of requests in the system and the completions, each in 10 slices of either half. A half
    differs if the means are more than DRIFT apart, relatively, and more than ERRORS standard errors, which the slices
    tell. Requests that ended without their last token are left out. `stationary` is None in a window of fewer than
    SLICES time units.
    """
    if window.length < SLICES:
        return {"stationary": None}
    edges = np.linspace(window.start, window.end, SLICES + 1).astype(np.int64)
    ended = ended_at(part)
    counted = ended >= 0
    begun, ended = arrival[counted], ended[counted]
    slices = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    system = [mean_in_system(begun, ended, start, end) for start, end in slices]
    completions = [int(np.count_nonzero((ended >= start) & (ended < end))) for start, end in slices]
    found = {"in_system": _halves(system), "completions": _halves(completions)}
    return {**found, "stationary": not any(halves["differ"] for halves in found.values())}


def mean_in_system(begun: Integers, ended: Integers, start: int, end: int) -> float:
    """The mean number of requests between arrival and end, over the time from start to end."""
    spent = np.minimum(ended, end) - np.maximum(begun, start)
    return float(np.maximum(spent, 0).astype(float).sum()) / (end - start)


def _halves(values: list[Any]) -> dict[str, Any]:
    half = len(values) // 2
    first, second = np.array(values[:half], float), np.array(values[half:], float)
    apart = abs(second.mean() - first.mean())
    error = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / half)
    differ = apart > DRIFT * (first.mean() + second.mean()) / 2 and apart > ERRORS * error
    return {"first_half": float(first.mean()), "second_half": float(second.mean()), "differ": bool(differ)}
