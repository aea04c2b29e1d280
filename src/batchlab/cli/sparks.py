"""Small charts of characters: what a large run did over time, and how its latencies are spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from batchlab.cli.columns import Columns, print_folded, table_of, table_width
from batchlab.core.tally import NEVER, RESULTS
from batchlab.export.spread import LATENCIES, Floats, is_wide, weighted
from batchlab.export.strip import Strip
from batchlab.metrics.fold import Summary

BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#%@"
"""From nothing to the most; for output that cannot show the first, the second."""
WIDEST, NARROWEST = 60, 16
Amount = Callable[[float], str]
Span = Callable[[float, float], str]


def print_over_time(out: Console, summary: Summary, strip: Strip | None, span: Span) -> None:
    """Queue, batch and KV blocks over time; of a run that was not told by iterations, what its requests tell.

    span: from when to when, as people read it.
    """
    assert summary.end is not None
    width = _width(out)
    rows: list[tuple[str, Floats, str]] = []
    if strip is not None:
        if not strip.parts:
            return
        names = {"queue": "waiting", "batch": "in the batch"} | ({"used": "KV blocks"} if strip.blocks else {})
        for key, name in names.items():
            most = f"{strip.most_of(key):,}" + (f" of {strip.blocks:,}" if key == "used" else "")
            rows.append((name, _of_strip(strip, key, width), most))
        start = strip.parts[0].start
    else:
        start, found = _of_requests(summary, width)
        rows = [(name, means, f"{most:,}") for name, (means, most) in found.items()]
    if not rows or not any(means.any() for _, means, _ in rows):
        return
    when = f"from {span(start, summary.end.time)}"
    cells = [(name, bar(out, means), most) for name, means, most in rows]
    charts = table_of(("over time", f"mean {when}", "most"), cells)
    figures = table_of((f"over time {when}", "most"), [(name, most) for name, _, most in cells])
    _print_charts(out, charts, figures, ("most",))


def print_spread(out: Console, summary: Summary, shown: Amount) -> None:
    """A histogram of each latency."""
    width = _width(out)
    cells = []
    for key, name in LATENCIES.items():
        values, counts = weighted(summary, key)
        if len(values):
            log = is_wide(values)
            spread = _histogram(values, counts, width - 12, log)
            label = f"{name}, log scale" if log else name
            cells.append((label, shown(values[0]), bar(out, spread), shown(values[-1])))
    if cells:
        charts = table_of(("how often", "from", "", "to"), cells)
        _print_charts(out, charts, {name: column for name, column in charts.items() if name}, ("from", "to"))


def _print_charts(out: Console, charts: Columns, figures: Columns, numeric: Sequence[str]) -> None:
    """A table with charts in it, or, on a terminal that has no room for them, that of its figures alone."""
    print_folded(out, charts if table_width(charts) <= out.width else figures, numeric)
    out.print()


def bar(out: Console, values: Iterable[float]) -> str:
    """One character for each value, by its share of the largest; what is above 0 is never shown as nothing."""
    signs = BLOCKS
    try:
        BLOCKS.encode(out.encoding)
    except UnicodeEncodeError:
        signs = PLAIN
    heights = np.asarray(list(values), np.float64)
    most = heights.max(initial=0.0)
    if most <= 0:
        return signs[0] * len(heights)
    return "".join(signs[int(np.ceil(share * (len(signs) - 1)))] for share in heights / most)


def _width(out: Console) -> int:
    return max(NARROWEST, min(WIDEST, out.width - 40))


def _of_strip(strip: Strip, name: str, width: int) -> Floats:
    """Means over equal stretches of time."""
    starts = np.array([part.start for part in strip.parts], np.float64)
    ends = np.array([part.end for part in strip.parts], np.float64)
    areas = np.array([getattr(part, f"{name}_area") for part in strip.parts], np.float64)
    times = np.column_stack([starts, ends]).ravel()
    sums = np.column_stack([np.cumsum(areas) - areas, np.cumsum(areas)]).ravel()
    return _means(lambda at: np.interp(at, times, sums), times[0], times[-1], width)


def _means(integral: Callable[[Floats], Floats], start: float, end: float, width: int) -> Floats:
    edges = np.linspace(start, end, width + 1)
    if end <= start:
        return np.zeros(width)
    return np.asarray(np.diff(integral(edges)) / np.diff(edges))


def _of_requests(summary: Summary, width: int) -> tuple[int, dict[str, tuple[Floats, int]]]:
    """How many waited for their first step, and how many had had it and not ended: means over time, and the most.

    Requests that ended in another way than completed are left out: when they did is not kept.
    """
    tally, end = summary.tally, summary.end
    assert end is not None
    size = slice(0, tally.count)
    arrival = np.asarray(summary.column("arrival"), np.int64)
    result, scheduled, last = (np.asarray(c)[size] for c in (tally.result, tally.first_scheduled, tally.last_time))
    here = (result == RESULTS.index("completed")) | (result == RESULTS.index("waiting"))
    here |= result == RESULTS.index("active")
    if not here.any():
        return 0, {}
    never = np.int64(end.time)
    begun = np.where(scheduled == NEVER, never, scheduled)[here]
    done = np.where(result == RESULTS.index("completed"), last, never)[here]
    come = np.minimum(arrival[here], never)
    start = int(come.min())
    found: dict[str, tuple[Floats, int]] = {}
    for name, since, until in (("not begun", come, begun), ("begun, not done", begun, done)):
        since, until = np.sort(since), np.sort(until)
        means = _means(lambda at, s=since, u=until: _integral(s, at) - _integral(u, at), start, end.time, width)  # type: ignore[misc]
        most = np.arange(1, len(since) + 1) - np.searchsorted(until, since, side="right")
        found[name] = (np.maximum(means, 0), int(most.max()))
    left_out = int((~here).sum())
    if left_out:
        found = {f"{name} (without {left_out:,} not completed)": row for name, row in found.items()}
    return start, found


def _integral(moments: npt.NDArray[np.int64], at: Floats) -> Floats:
    """The sum of the times since each of the moments that lie before, at these times."""
    before = np.searchsorted(moments, at)
    sums = np.concatenate([[0.0], np.cumsum(moments, dtype=np.float64)])
    return np.asarray(at * before - sums[before])


def _histogram(values: Floats, counts: Floats, width: int, log: bool) -> Any:
    if values[0] == values[-1]:
        return [counts.sum()]
    space = np.geomspace if log else np.linspace
    edges = space(values[0], values[-1], max(width, NARROWEST) + 1)
    edges[0], edges[-1] = values[0], values[-1]
    return np.histogram(values, edges, weights=counts)[0]
