"""When generated requests come. A process is a sequence of gaps at a rate of 1, stretched to the rate of each moment.

So another `request_rate` gives the same gaps on another scale (common random numbers), and what is compared at two
rates differs by the rate alone. Nothing else is rescaled: the last arrival falls where the gaps put it.
"""

import math

import numpy as np

from batchlab.clients.columns import Integers
from batchlab.clients.draws import Floats, Stream, log
from batchlab.clients.generate import GenerateTable
from batchlab.errors import InputError
from batchlab.settings import LATEST
from batchlab.units import NS_IN_S

LEAST_RATE = 1e-18
"""At lower rates two arrivals are further apart than 2^62 in any clock, and quotients may overflow."""
DAY_STEPS = 1440
"""Steps of a period of `diurnal`, within which its rate is constant: the minutes of a day."""


def arrival_times(table: GenerateTable, count: int, clock_unit: str) -> Integers:
    """So many times in the clock's unit, the first of them 0. Raises InputError where they pass 2^62."""
    if table.arrivals == "all-at-once" or count == 0:
        return np.zeros(count, np.int64)
    assert table.request_rate is not None
    if table.request_rate < LEAST_RATE and count > 1:
        raise _too_late(count, clock_unit)
    per_second = NS_IN_S if clock_unit == "ns" else 1
    passed = np.concatenate(([0.0], np.cumsum(_unit_gaps(table, count - 1))))
    if table.arrivals == "on-off":
        assert table.on_time is not None and table.off_time is not None
        whole = table.on_time + table.off_time
        times = _periodic(passed, np.array([table.request_rate * whole / per_second]), [table.on_time], whole)
    elif table.arrivals == "diurnal":
        assert table.period is not None and table.amplitude is not None
        # Rounded, since sines differ in their last bit from one C library to another.
        waves = [round(math.sin(2 * math.pi * (step + 0.5) / DAY_STEPS), 12) for step in range(DAY_STEPS)]
        masses = table.request_rate * (1.0 + table.amplitude * np.array(waves)) * table.period / DAY_STEPS / per_second
        times = _periodic(passed, masses, [table.period / DAY_STEPS] * DAY_STEPS, table.period)
    elif table.arrivals == "ramp":
        times = _ramp(passed, table, per_second)
    else:
        times = passed / table.request_rate * per_second
    if times[-1] > LATEST:
        raise _too_late(count, clock_unit)
    found: Integers = np.rint(times).astype(np.int64)
    return found


def _too_late(count: int, clock_unit: str) -> InputError:
    return InputError(None, "workload.generate", None, f"the last of {count:,} arrivals lies beyond 2^62 {clock_unit}")


def _unit_gaps(table: GenerateTable, count: int) -> Floats:
    """Gaps of mean 1."""
    if table.arrivals == "constant":
        return np.ones(count)
    stream = Stream(table.seed, "gaps")
    if table.arrivals == "gamma":
        assert table.burstiness is not None
        return stream.gamma(table.burstiness, count)
    return -log(stream.uniform(count))


def _periodic(passed: Floats, masses: Floats, lengths: list[float] | list[int], period: int) -> Floats:
    """When a rate that is constant in steps has let through what has `passed`.

    masses: arrivals of each step in the mean; lengths: how long it lasts; what is left of the period has none.
    """
    ends = np.cumsum(masses)
    whole = ends[-1]
    rounds = np.floor(passed / whole)
    rest = np.clip(passed - rounds * whole, 0.0, np.nextafter(whole, 0.0))
    step = np.searchsorted(ends, rest, side="right")
    begun = np.concatenate(([0.0], ends[:-1]))[step]
    starts = np.concatenate(([0.0], np.cumsum(np.array(lengths, np.float64))[:-1]))[step]
    inside: Floats = (rest - begun) / masses[step] * np.array(lengths, np.float64)[step]
    times: Floats = rounds * period + (starts + inside)
    return times


def _ramp(passed: Floats, table: GenerateTable, per_second: int) -> Floats:
    """As `_periodic`, for a rate that changes evenly from start_rate to request_rate and then stays."""
    assert table.start_rate is not None and table.request_rate is not None and table.ramp_time is not None
    start, end = table.start_rate / per_second, table.request_rate / per_second
    during = (start + end) / 2 * table.ramp_time
    # The root of start * t + slope / 2 * t^2 = passed, in the form that loses no digits.
    slope = (end - start) / table.ramp_time
    root = start + np.sqrt(np.maximum(start * start + 2 * slope * passed, 0.0))
    within = np.divide(2 * passed, root, out=np.zeros(len(passed)), where=root > 0.0)
    return np.where(passed <= during, within, table.ramp_time + (passed - during) / end)
