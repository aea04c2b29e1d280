"""How far a long run is, on a terminal's stderr."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from batchlab.core.tally import RESULTS, Tally
from batchlab.events import End, Event, Header, Iteration, Observer
from batchlab.simulation import Run

INTERVAL = 0.1
"""Seconds between two updates."""


@contextlib.contextmanager
def progress(run: Run) -> Iterator[list[Observer]]:
    """An observer that shows how many requests have ended, with their rate; none where stderr is no terminal."""
    if run.inline:
        yield []
        return
    with ended_bar(run.engine.rpartition("/")[2], len(run.requests)) as observers:
        yield observers


@contextlib.contextmanager
def ended_bar(name: str, total: int | None = None) -> Iterator[list[Observer]]:
    """The same for any events; without a total, the header may know it."""
    if not sys.stderr.isatty():
        yield []
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} requests/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    with bar:
        yield [_Ended(bar, bar.add_task(name, total=total, rate=0.0))]


@contextlib.contextmanager
def counted_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Takes how many of how many are done, and shows it where stderr is a terminal: for work that is many runs."""
    if not sys.stderr.isatty():
        yield lambda ready, of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda ready, of: bar.update(task, completed=ready, total=of)


@contextlib.contextmanager
def status(first: str) -> Iterator[Callable[[str], None]]:
    """Takes what is being done and shows it, where stderr is a terminal: for work that is several simulations."""
    if not sys.stderr.isatty():
        yield lambda doing: None
        return
    with Console(stderr=True).status(escape(first)) as shown:
        yield lambda doing: shown.update(escape(doing))


class _Ended:
    """Counts the requests that are completed or out."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task
        self._ended = 0
        self._began = time.monotonic()
        self._next = self._began

    def pulse(self, tally: Tally) -> None:
        """Called now and then where single iterations are not told."""
        now = time.monotonic()
        if now >= self._next:
            ended = np.asarray(tally.result) >= RESULTS.index("completed")
            self._ended = int(ended.sum())
            self._show(now)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Iteration):
            self._ended += len(event.completed) + len(event.dropped)
            if event.rejected:
                self._ended += sum(rejection.retry_at is None for rejection in event.rejected)
        elif isinstance(event, Header):
            self._ended = 0  # one bar may serve several runs
            if event.source["requests"] is not None:
                self._bar.update(self._task, total=event.source["requests"])
        elif not isinstance(event, End):
            return
        now = time.monotonic()
        if now >= self._next:
            self._show(now)

    def _show(self, now: float) -> None:
        self._next = now + INTERVAL
        rate = self._ended / max(now - self._began, 1e-9)
        self._bar.update(self._task, completed=self._ended, rate=rate, refresh=True)
