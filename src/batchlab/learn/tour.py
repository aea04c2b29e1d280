"""A scenario's runs, page by page, with settings changed on the way."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchlab.errors import InputError
from batchlab.events import Event, Header
from batchlab.learn.pages import Page, pages_of
from batchlab.metrics.fold import Summary
from batchlab.metrics.result import RequestResult
from batchlab.scenario import load
from batchlab.simulation import Run, simulate

MOST_PAGES = 200
"""Iterations of a run that anybody would walk through."""


@dataclass(frozen=True, slots=True)
class Part:
    """One run of the tour. termination: how it ended."""

    run: Run
    pages: list[Page]
    results: list[RequestResult]
    termination: str


@dataclass(frozen=True, slots=True)
class Tour:
    """All runs of a scenario under some overrides."""

    title: str
    parts: list[Part]

    def stops(self) -> list[tuple[Part, Page]]:
        """Every page in order."""
        return [(part, page) for part in self.parts for page in part.pages]

    def first_difference(self, other: Tour) -> int | None:
        """The place of the first page that does not run what the other tour's does, None if there is none."""
        mine, theirs = self._shape(), other._shape()
        for place, shape in enumerate(mine):
            if place >= len(theirs) or shape != theirs[place]:
                return place
        return None if len(mine) == len(theirs) else max(len(mine) - 1, 0)

    def _shape(self) -> list[object]:
        return [
            (part.run.engine, page.number, page.end, [(entry.id, entry.mark) for entry in page.entries], page.completed)
            for part, page in self.stops()
        ]


def tour(path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Tour:
    """Run a scenario whose requests are written out in it. Raises InputError, also for one that is too long to walk."""
    scenario = load(path, overrides)
    return Tour(scenario.title or Path(path).stem, [_part(run, scenario.path) for run in scenario.runs])


def _part(run: Run, path: str) -> Part:
    if not run.inline:
        raise InputError(path, "workload", None, "learn walks through requests that are written out in the scenario")
    if run.policy.steps_in_flight != 1:
        raise InputError(path, None, None, "learn walks through engines that end a step before they plan the next one")
    events: list[Event] = []
    summary = Summary()

    def record(event: Event) -> None:
        if len(events) > MOST_PAGES + len(run.requests):
            raise InputError(path, None, None, f"runs for more than {MOST_PAGES} iterations: too long to walk through")
        events.append(event)

    end = simulate(run, [record, summary])
    assert isinstance(events[0], Header)
    return Part(run, pages_of(events), summary.results, end.termination)
