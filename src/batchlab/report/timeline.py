"""What each request did in each iteration, as segments, and each iteration's load: a fold beside that of `explain`."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from batchlab.errors import shorten_id
from batchlab.events import End, Iteration
from batchlab.explain.finding import Finding, Trouble
from batchlab.explain.lives import Life, Span
from batchlab.explain.reasons import Reason
from batchlab.explain.state import State
from batchlab.explain.verdict import Answer, Moment, Verdict, parked, seated
from batchlab.explain.wording import detail
from batchlab.report.slots import Slots

KINDS = (
    "",
    "waiting",
    "prefill",
    "prefill again",
    "decode",
    "preempted",
    "seated, no tokens",
    "between attempts",
    "out",
)
NOTHING, WAITING, PREFILL, AGAIN, DECODE, PREEMPTED, SEATED, AWAY, OUT = range(len(KINDS))
MOST_TEXTS = 20_000
"""Reasons that are kept with their numbers; of further ones the name is."""
SEGMENT = 5
"""Numbers of a segment: row, first iteration, last iteration, kind, value."""


class Timeline(Trouble):
    """Looks on at an Explainer's iterations, as a detector of trouble does, and keeps them.

    Rows are requests in order of their first coming. A segment's value is, for a prefill, its tokens in each iteration;
    for a wait in the queue, by how much its place in the order of coming differs from its row; else a text of `texts`.
    Where there are more than `most_segments`, every other row is left out: of all, every `every`th is kept.
    """

    name = "timeline"

    def __init__(self, most_slots: int, most_segments: int) -> None:
        self.slots = Slots(most_slots)
        self.every = 1
        self.lives: list[Life] = []
        """By row, of all requests that ever came."""
        self.texts = [""]
        self._most = most_segments * SEGMENT
        self._segments = array("q")
        self._rows: dict[str, int] = {}
        self._planned: deque[tuple[int, ...]] = deque()
        """Slots of iterations whose steps are not over."""
        self._open: dict[str, list[int]] = {}
        """By id: row, first iteration, kind, value."""
        self._text_of: dict[str, int] = {"": 0}

    def finding(self, state: State, end: End) -> Finding | None:
        """It is not after trouble."""
        last = self.slots.iterations - 1
        for id in list(self._open):
            self._close(id, last)
        return None

    def look(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """One iteration after its plan."""
        line, now = moment.line, moment.line.iteration
        for id in line.arrived:
            if id not in self._rows:
                self._rows[id] = len(self.lives)
                self.lives.append(state.lives[id])
        if line.arrived or line.preempted or line.rejected or line.dropped:
            self._move(line, state)
        opened = self._open
        for id, phase, tokens in line.scheduled:
            if phase == "decode":
                current = opened.get(id)
                if current is None or current[2] != DECODE:
                    self._set(id, now, DECODE, 0)
            else:
                life = state.lives[id]
                self._set(id, now, AGAIN if life.computed - tokens < life.high else PREFILL, tokens)
        for life in moment.idle:
            self._set(life.id, now, SEATED, self._said(seated(life, moment, state), life, state, line))
        for id in line.completed:
            self._close(id, now)
        self._planned.append((*self._figures(moment, state), *self._why(found, state, line)))
        while len(self._segments) > self._most and self.every < len(self.lives):
            self._thin()

    def ran(self, moment: Moment) -> None:
        """When its step ran is where an iteration stands in time."""
        self.slots.add(moment.began, moment.began + moment.took, *self._planned.popleft())

    def _move(self, line: Iteration, state: State) -> None:
        """Those who joined the queue, left it for good, or went away for a while."""
        names = [*line.arrived, *(one.id for one in line.preempted)]
        names += [*(one.id for one in line.rejected), *(one.id for one in line.dropped)]
        for id in dict.fromkeys(names):
            life, now = state.lives[id], line.iteration
            if life.state == "waiting":
                if life.parked:
                    self._set(id, now, PREEMPTED, self._said(parked(life), life, state, line))
                else:
                    self._set(id, now, WAITING, life.index - self._rows[id])
            elif life.state == "retrying":
                self._set(id, now, AWAY, self._said((Reason.RETRY, (), {}), life, state, line))
            elif life.state != "active":
                self._set(id, now, OUT, self._text(f"{life.state}: {life.reason}"))
                self._close(id, now)

    def _figures(self, moment: Moment, state: State) -> tuple[int, ...]:
        line = moment.line
        blocks = state.terms.num_blocks
        used = 0 if line.kv is None or blocks is None else blocks - line.kv["free"]  # while the step runs
        active = line.active if isinstance(line.active, int) else len(line.active)
        work = (moment.prefill, moment.decode, line.unused or 0, len(line.scheduled))
        return *work, line.queue_length, used, active

    def _why(self, found: Verdict | None, state: State, line: Iteration) -> tuple[int, ...]:
        if found is None:
            return 0, 0, 0, 0, 0
        first = next(iter(state.fresh.values()))
        more = {"also": [reason.label for reason in found.also]} if found.also else {}
        head = self._said((found.reason, found.who, {**found.facts, **more}), first, state, line)
        rest, who = head, 0
        if found.head is not None:
            who = self._rows[found.head.id] + 1
            if found.behind is not None:
                rest = self._said((found.behind, (found.head.id,), {**found.facts, **more}), first, state, line)
        order = latest = 0
        if found.latest is not None and first.index < found.latest.index:
            latest = found.latest.index
            text = f"{shorten_id(found.latest.id)} came later and has a seat; limit: {found.reason.label}"
            order = self._text(f"{Reason.ORDER.label}: {text}", Reason.ORDER)
        return head, rest, order, who, latest

    def _said(self, answer: Answer, life: Life, state: State, line: Iteration) -> int:
        reason, who, facts = answer
        span = Span(reason, line.start, line.end, line.iteration, line.iteration, who, facts)
        if len(self.texts) >= MOST_TEXTS:
            return self._text(reason.label)
        return self._text(f"{reason.label}: {detail(span, life, state.lives)}", reason)

    def _text(self, text: str, reason: Reason | None = None) -> int:
        """The number of a text; where there are too many of them, that of the reason's name."""
        place = self._text_of.get(text)
        if place is None:
            if len(self.texts) >= MOST_TEXTS and reason is not None and text != reason.label:
                return self._text(reason.label)
            place = self._text_of[text] = len(self.texts)
            self.texts.append(text)
        return place

    # Segments

    def _set(self, id: str, now: int, kind: int, value: int) -> None:
        current = self._open.get(id)
        if current is not None:
            if current[2] == kind and current[3] == value:
                return
            self._close(id, now - 1)
        self._open[id] = [self._rows[id], now, kind, value]

    def _close(self, id: str, last: int) -> None:
        current = self._open.pop(id, None)
        if current is not None and last >= current[1] and current[0] % self.every == 0:
            self._segments.extend((current[0], current[1], last, current[2], current[3]))

    def _thin(self) -> None:
        self.every *= 2
        table = self.segments()
        self._segments = array("q", table[table[:, 0] % self.every == 0].tobytes())

    def segments(self) -> npt.NDArray[np.int64]:
        """All segments, a row each: row, first, last, kind, value; in order of rows, then of time."""
        table = np.frombuffer(self._segments, np.int64).reshape(-1, SEGMENT).copy()
        return table[np.lexsort((table[:, 1], table[:, 0]))]

    def used_texts(self, segments: npt.NDArray[np.int64]) -> tuple[list[str], Any]:
        """The texts that are still spoken of, and the new number of each old one."""
        slots = [self.slots.column(name) for name in ("head_why", "rest_why", "order_why")]
        speaking = np.isin(segments[:, 3], (PREEMPTED, SEATED, AWAY, OUT))
        used = np.unique(np.concatenate([[0], *slots, segments[speaking, 4]]).astype(np.int64))
        renumbered = np.zeros(len(self.texts), np.int64)
        renumbered[used] = np.arange(len(used))
        return [self.texts[place] for place in used.tolist()], renumbered
