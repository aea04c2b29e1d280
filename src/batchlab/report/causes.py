"""Where the time went, who was slowest, and who was turned away or preempted, as a page tells of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from batchlab.errors import one_line, shorten_id
from batchlab.events import End
from batchlab.explain import Explanation
from batchlab.explain.explanation import Group, by_reason
from batchlab.explain.finding import Finding, Trouble
from batchlab.explain.lives import Life, Span
from batchlab.explain.reasons import Reason
from batchlab.explain.state import State
from batchlab.explain.verdict import Moment, Verdict, parked
from batchlab.explain.wording import detail

COLUMNS = {
    "ttft": "TTFT: all",
    "ttft_slowest": "TTFT: slowest 1 %",
    "e2el": "E2E: all",
    "e2el_slowest": "E2E: slowest 1 %",
}
"""Groups of requests, and their headings."""
NAMED = 5
"""Rejections, and preemptions, that a page names at most; it counts all."""
MAIN = 0.2
"""Of a request's time: reasons with so much are named beside the slowest."""


class Losses(Trouble):
    """Looks on at an Explainer's iterations; keeps the first few who were turned away or preempted, and counts all."""

    name = "losses"

    def __init__(self) -> None:
        self.rejected: Counter[str] = Counter()
        """By reason; an attempt that is made again counts, too."""
        self.preempted = 0
        self.first: dict[str, list[dict[str, Any]]] = {"rejections": [], "preemptions": []}
        """What happened (`text`), to whom (`id`) and in which iteration (`first`, `last`)."""

    def finding(self, state: State, end: End) -> Finding | None:
        """It is not after trouble."""
        return None

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """One iteration after its plan."""
        line = moment.line
        for entry in line.rejected:
            self.rejected[entry.reason] += 1
            again = "" if entry.retry_at is None else ", comes again"
            self._keep("rejections", entry.id, line.iteration, f"{entry.reason}{again}")
        for victim in line.preempted:
            self.preempted += 1
            if len(self.first["preemptions"]) < NAMED:
                life = state.lives[victim.id]
                reason, whom, facts = parked(life)
                span = Span(reason, line.start, line.end, line.iteration, line.iteration, whom, facts)
                self._keep("preemptions", victim.id, line.iteration, detail(span, life, state.lives))

    def _keep(self, kind: str, id: str, iteration: int, text: str) -> None:
        if len(self.first[kind]) < NAMED:
            self.first[kind].append({"id": id, "first": iteration, "last": iteration, "text": one_line(text)})

    def document(self, rows: dict[str, int], every: int) -> list[dict[str, Any]]:
        """What a page tells of them. rows, every: whose row of the timeline is where."""
        told = [
            ("rejections", self.rejected.total(), _each(self.rejected)),
            ("preemptions", self.preempted, ""),
        ]
        return [
            {"name": name, "count": count, "by": by, "first": [_placed(one, rows, every) for one in self.first[name]]}
            for name, count, by in told
            if count
        ]


def _each(counts: Counter[str]) -> str:
    """How many of each reason, where there are several."""
    shown = [f"{count:,} {one_line(reason)}" for reason, count in counts.most_common(NAMED)]
    return ", ".join(shown) if len(shown) > 1 else ""


def _placed(entry: dict[str, Any], rows: dict[str, int], every: int) -> dict[str, Any]:
    """The same with the name of the request as people see it, and its row if it has one."""
    row = rows[entry["id"]]
    where = {"row": row // every} if row % every == 0 else {}
    return {**entry, "id": shorten_id(entry["id"]), **where}


def by_reasons(found: Explanation) -> dict[str, Any]:
    """The table of `explain`: for each reason the mean over each group of `COLUMNS`, and its share."""
    groups = {name: group for name, group in found.groups().items() if name in COLUMNS}
    reasons = [reason for reason in Reason if any(group.times[reason] for group in groups.values())]
    return {
        "headings": list(COLUMNS.values()),
        "requests": [group.requests for group in groups.values()],
        "rows": [
            {
                "reason": reason.label,
                "works": reason.works,
                "cells": [_cell(group, reason) for group in groups.values()],
            }
            for reason in reasons
        ],
        "means": [sum(group.times) / group.requests if group.requests else None for group in groups.values()],
    }


def _cell(group: Group, reason: Reason) -> tuple[float, float] | None:
    """The mean and the share; None where no time went."""
    time = group.times[reason]
    return (time / group.requests, time / sum(group.times)) if time else None


def slowest(found: Explanation, rows: dict[str, int], every: int) -> list[dict[str, Any]]:
    """The slowest few by TTFT and by E2E: how long, and what for mostly."""
    told = []
    for name, label in (("ttft", "TTFT"), ("e2el", "E2E")):
        lives = [
            _placed({"id": life.id, "time": getattr(life, name), "mostly": _mostly(life, name)}, rows, every)
            for life in found.slowest(name)
        ]
        if lives:
            told.append({"name": label, "lives": lives})
    return told


def _mostly(life: Life, latency: str) -> str:
    """The largest reasons with their shares."""
    times = by_reason((life.until_first or ()) if latency == "ttft" else life.times)
    total = sum(times.values())
    ordered = sorted(times.items(), key=lambda one: -one[1])
    shown = [f"{name} {time / total:.0%}" for name, time in ordered if time >= MAIN * total]
    return ", ".join(shown or [name for name, _ in ordered[:1]])
