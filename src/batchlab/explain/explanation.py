"""The whole answer: one request's spans, where the time of all of them went, and what trouble there is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from batchlab.errors import InputError, nearest, shorten_id
from batchlab.events import End, Event, Header
from batchlab.explain.explainer import Explainer
from batchlab.explain.finding import Finding
from batchlab.explain.lives import Life
from batchlab.explain.reasons import Reason
from batchlab.explain.source import read_events, tell
from batchlab.explain.state import State
from batchlab.explain.troubles import TROUBLES
from batchlab.explain.wording import detail

SLOWEST = 0.01
"""The share of the requests whose time is told beside everybody's: those above the P99."""
OF_VLLM = ("cmpl-", "chatcmpl-")
"""What vLLM's server puts before the id of a request."""
NAMED = 5
"""Slowest requests that are named."""


@dataclass(frozen=True, slots=True)
class Group:
    """Some requests, and the sum of their times by reason. least: the smallest latency among the slowest."""

    requests: int
    times: list[int]
    least: int | None = None

    def document(self) -> dict[str, Any]:
        """For JSON; reasons without time are left out."""
        total = sum(self.times)
        rows = {
            Reason(place).label: {"time": time, "share": time / total} for place, time in enumerate(self.times) if time
        }
        return {"requests": self.requests, "time": total, "least": self.least, "by_reason": rows}


class Explanation:
    """What follows from one run's events."""

    def __init__(self, state: State, end: End, complete: bool, findings: list[Finding]) -> None:
        self.state = state
        self.end = end
        self.complete = complete
        """Whether the trace has its end line."""
        self.findings = findings

    @property
    def header(self) -> Header:
        """The run's first event."""
        return self.state.header

    def life(self, id: str) -> Life:
        """The request of this id. Raises InputError."""
        if id not in self.state.lives:
            raise InputError("REQUEST", None, id, f"no request of the trace has this id{nearest(id, self.state.lives)}")
        return self.state.lives[id]

    def find(self, written: str) -> str:
        """The id that somebody wrote: itself, or the only one that begins so, after vLLM's `cmpl-` too, or without it.

        Of several the only one in which a dash follows: 5 is cmpl-5-0-a1b2, whether there is a cmpl-50-0-c3d4 or not.
        Raises InputError, with those that are near.
        """
        lives = self.state.lives
        heads = (written, *(kind + written for kind in OF_VLLM))
        begin = [id for id in lives if id.startswith(heads)]
        if written in lives or not begin:
            bare = (written.removeprefix(kind) for kind in OF_VLLM)  # the mock server's answer has it, its trace not
            return self.life(next((id for id in bare if id in lives), written)).request.id
        begin = [id for id in begin if id.startswith(tuple(f"{head}-" for head in heads))] or begin
        if len(begin) > 1:
            some = ", ".join(map(shorten_id, begin[:NAMED])) + (", ..." if len(begin) > NAMED else "")
            raise InputError("REQUEST", None, written, f"the ids of {len(begin):,} requests begin so: {some}")
        return begin[0]

    def groups(self) -> dict[str, Group]:
        """By TTFT (times until the first token) and by E2E, each all and the slowest; and everybody's whole life."""
        lives = [life for life in self.state.lives.values() if life.attempts]
        started = [life for life in lives if life.until_first is not None]
        ended = [life for life in lives if life.e2el is not None]
        return {
            "ttft": _group(started, _until_first),
            "ttft_slowest": _slow_group(started, _until_first, _ttft),
            "e2el": _group(ended, _times),
            "e2el_slowest": _slow_group(ended, _times, _e2el),
            "all": _group(lives, _times),
        }

    def slowest(self, latency: str) -> list[Life]:
        """The slowest few by `ttft` or `e2el`, the slowest first."""
        key = {"ttft": _ttft, "e2el": _e2el}[latency]
        lives = [life for life in self.state.lives.values() if getattr(life, latency) is not None]
        return sorted(lives, key=lambda life: (-key(life), life.index))[:NAMED]

    def document(self) -> dict[str, Any]:
        """All of it but single requests, for JSON."""
        slowest = {
            name: [
                {"id": life.id, name: getattr(life, name), "by_reason": by_reason(times(life))}
                for life in self.slowest(name)
            ]
            for name, times in (("ttft", _until_first), ("e2el", _times))
        }
        return {
            "engine": self.header.engine,
            "unit": self.header.clock["unit"],
            "complete": self.complete,
            "iterations": self.end.iterations,
            "time": self.end.time,
            "groups": {name: group.document() for name, group in self.groups().items()},
            "slowest": slowest,
            "findings": [{"name": f.name, "text": f.text, "evidence": f.evidence} for f in self.findings],
        }

    def request(self, id: str) -> dict[str, Any]:
        """One request that was in focus, for JSON."""
        life = self.life(id)
        request = life.request
        spans = [
            {
                "reason": span.reason.label,
                "start": span.start,
                "end": span.end,
                "iterations": None if span.first is None else [span.first, span.last],
                "requests": list(span.who),
                "facts": span.facts,
                "text": detail(span, life, self.state.lives),
            }
            for span in life.spans or ()
        ]
        return {
            "id": id,
            "arrival": request.arrival,
            "priority": request.priority,
            "prompt": request.prompt,
            "output": request.output or life.emitted,
            "result": life.state,
            "reason": life.reason,
            "attempts": life.attempts,
            "end": life.end,
            "first_scheduled": life.first_start,
            "ttft": life.ttft,
            "e2el": life.e2el,
            "preemptions": life.preemptions,
            "lost_tokens": life.lost,
            "by_reason": by_reason(life.times),
            "until_first_token": None if life.until_first is None else by_reason(life.until_first),
            "spans": spans,
        }


def explain(
    trace: str | os.PathLike[str], requests: Collection[str] = (), watch: Callable[[Event], object] | None = None
) -> Explanation:
    """Explain a trace file: where the time of its requests went, one by one for those named in `requests`.

    watch: told every event on the way, such as a progress bar. Memory grows with the number of requests, not with the
    length of the trace. Raises InputError for what is no trace, or one that contradicts itself.
    """
    explainer = Explainer(requests, [trouble() for trouble in TROUBLES])
    for number, event in read_events(trace):
        tell(trace, number, event, [explainer])
        if watch is not None:
            watch(event)
    return conclude(explainer)


def conclude(explainer: Explainer) -> Explanation:
    """The answer from an explainer that has seen the events."""
    state = explainer.state
    assert state is not None, "no event came"
    complete = explainer.end is not None
    if not complete:
        explainer.close(End("cut", explainer.iterations, state.time or 0))
    end = explainer.end
    assert end is not None
    found = [trouble.finding(state, end) for trouble in explainer.troubles]
    return Explanation(state, end, complete, [finding for finding in found if finding is not None])


def by_reason(times: Iterable[int]) -> dict[str, int]:
    """Times by the reason's name; those of 0 are left out."""
    return {Reason(place).label: time for place, time in enumerate(times) if time}


def _group(lives: list[Life], times: Callable[[Life], list[int]], least: int | None = None) -> Group:
    sums = [0] * len(Reason)
    for life in lives:
        sums = [a + b for a, b in zip(sums, times(life), strict=True)]
    return Group(len(lives), sums, least)


def _slow_group(lives: list[Life], times: Callable[[Life], list[int]], latency: Callable[[Life], int]) -> Group:
    slow = sorted(lives, key=lambda life: (-latency(life), life.index))[: math.ceil(SLOWEST * len(lives))]
    return _group(slow, times, latency(slow[-1]) if slow else None)


def _times(life: Life) -> list[int]:
    return life.times


def _until_first(life: Life) -> list[int]:
    return life.until_first or []


def _ttft(life: Life) -> int:
    return life.ttft or 0


def _e2el(life: Life) -> int:
    return life.e2el or 0
