"""Rows of a drawn timeline: the spans of each request, or of every n-th of very many."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchlab.events import Event
from batchlab.export.spans import Mark, Span, Spans

MOST = 2000
"""Rows at most."""
SINGLE = 60
APART = ("prefill", "retrying")
"""Up to so many rows, spans of these kinds stay apart where they follow each other: each is an iteration, or a wait."""


@dataclass(slots=True)
class Lane:
    """One request: its spans, and how and when it ended, if it did."""

    spans: list[Span] = field(default_factory=list)
    result: str | None = None
    ended: int = 0


class Lanes:
    """An observer that keeps the lanes of at most MOST requests, in order of arrival: of every `each`-th of them."""

    def __init__(self, most: int = MOST) -> None:
        self.rows: dict[str, Lane] = {}
        self.each = 1
        self.came = 0
        self.end = 0
        self._most = most
        self._seen: set[str] = set()
        self._spans = Spans(self._tell)

    def __call__(self, event: Event) -> None:
        """Take the next event."""
        self._spans(event)

    def _tell(self, item: Span | Mark) -> None:
        if isinstance(item, Mark):
            self._mark(item)
            return
        self.end = max(self.end, item.end)
        lane = self.rows.get(item.id)
        if lane is None:
            return
        last = lane.spans[-1] if lane.spans else None
        if last is not None and last.kind == item.kind and last.end == item.start:
            if item.kind not in APART or len(self.rows) > SINGLE:
                last.end, last.last = item.end, item.last
                last.tokens += item.tokens
                return
        lane.spans.append(item)

    def _mark(self, mark: Mark) -> None:
        self.end = max(self.end, mark.time)
        if mark.kind == "arrived" and mark.id not in self._seen:
            self._seen.add(mark.id)
            if self.came % self.each == 0:
                self.rows[mark.id] = Lane()
                if len(self.rows) > self._most:
                    self.rows = dict(list(self.rows.items())[::2])
                    self.each *= 2
            self.came += 1
        elif mark.kind in ("rejected", "dropped", "completed") and mark.id in self.rows:
            lane = self.rows[mark.id]
            lane.result, lane.ended = mark.kind, mark.time
