"""A run, live or from a trace, as what a page tells of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchlab import policies
from batchlab.clients.request import Request
from batchlab.compare import said
from batchlab.errors import InputError, one_line, shorten
from batchlab.events import End, Event, Header, Iteration, Observer
from batchlab.explain import Explainer, Explanation, conclude
from batchlab.explain.source import read_events, tell
from batchlab.explain.troubles import TROUBLES
from batchlab.metrics.answers import Question, answers, undecided
from batchlab.metrics.fold import Summary
from batchlab.report.causes import Losses, by_reasons, slowest
from batchlab.report.curves import curves
from batchlab.report.packed import pack, pack_texts
from batchlab.report.timeline import AGAIN, KINDS, PREFILL, WAITING, Timeline

MOST_SLOTS = 16_384
MOST_SEGMENTS = 800_000
"""All runs of a page share these; a page stays below 10 MB with them."""
LARGEST = 1 << 53
"""Times and tokens below it are the same whole numbers in a browser."""
TOO_LARGE = "times and tokens below 2^53 expected in a report"
ID_CHARS = 80
"""Characters of an id that a page shows at most; of many ids fewer: MOST_ID_CHARS in all."""
MOST_ID_CHARS = 2_000_000
STEPS = 1 << 20
"""Latencies that are only shown are rounded to fewer steps than this."""


class Recorder:
    """An observer of one run. share: one of so many runs of the page. each_gap: see `Summary`."""

    def __init__(self, share: int = 1, each_gap: bool = False) -> None:
        self.summary = Summary(each_gap)
        self.timeline = Timeline(max(MOST_SLOTS // share, 256), max(MOST_SEGMENTS // share, 4096))
        self.losses = Losses()
        self._explainer = Explainer((), [*(trouble() for trouble in TROUBLES), self.losses, self.timeline])
        self.budget = False
        self.kv = False

    def __call__(self, event: Event) -> None:
        """Take the next event. Raises InputError for one with numbers that a browser has not."""
        _check_numbers(event)
        self._explainer(event)
        self.summary(event)
        if isinstance(event, Iteration):
            self.budget |= event.unused is not None
            self.kv |= event.kv is not None

    @property
    def began(self) -> bool:
        """Whether any event came."""
        return self._explainer.state is not None

    def conclude(self, ending: str = "cut") -> Explanation:
        """Where the time went, and the findings. A run without an end ends here; ending: how."""
        if self.summary.end is None:
            state = self._explainer.state
            time = (state.time if state is not None else None) or 0
            self.summary(End(ending, self._explainer.iterations, time))
        return conclude(self._explainer)


@dataclass
class Recorded:
    """One run of a page. facts: what was set, by name. notes: what has to be said about it."""

    name: str
    recorder: Recorder
    facts: dict[str, str]
    question: Question = field(default_factory=Question)
    notes: list[str] = field(default_factory=list)
    ending: str = "cut"

    def document(self) -> dict[str, Any]:
        """All that the page tells of it."""
        explanation = self.recorder.conclude(self.ending)
        summary = self.recorder.summary
        assert summary.header is not None
        header = summary.header
        document = summary.document(with_requests=False)
        timeline = self.recorder.timeline
        rows = {life.id: row for row, life in enumerate(timeline.lives)}
        found = answers(summary, self.question) if self.question else {}
        document |= {
            "name": self.name,
            "facts": self.facts,
            "notes": [*self.notes, *undecided(found)],
            "max_tokens_rule": header.max_tokens_rule,
            "source": header.source,
            "limits": header.limits,
            "requests": len(summary.tally.result[: summary.tally.count]),
            "answers": found,
            "findings": _findings(explanation, rows, timeline.every),
            "losses": self.recorder.losses.document(rows, timeline.every),
            "by_reason": by_reasons(explanation),
            "slowest": slowest(explanation, rows, timeline.every),
            "curves": curves(summary),
            "timeline": _timeline(timeline, self.recorder),
        }
        return document


def read(path: str | os.PathLike[str], observers: Sequence[Observer]) -> None:
    """Tell observers the events of a trace. Raises InputError with the line where it is none."""
    for number, event in read_events(path):
        tell(path, number, event, observers)


def _check_numbers(event: Event) -> None:
    """Times and tokens have to be the same whole numbers in a browser. Raises InputError."""
    if isinstance(event, Header):
        for request in event.requests or ():
            _check_numbers(request)
    elif isinstance(event, Request):
        for name in ("arrival", "prompt", "output"):
            if getattr(event, name) >= LARGEST:
                raise InputError(None, f"request {shorten(event.id)}: {name}", getattr(event, name), TOO_LARGE)
    elif isinstance(event, Iteration) and max(event.end, *(tokens for _, _, tokens in event.scheduled), 0) >= LARGEST:
        raise InputError(None, "end, scheduled", event.end, TOO_LARGE)


def _timeline(timeline: Timeline, recorder: Recorder) -> dict[str, Any]:
    """Segments and slots, packed: starts and lengths instead of ends, since they are small."""
    segments, slots = timeline.segments(), timeline.slots
    segments = segments[segments[:, 0] % timeline.every == 0]
    texts, renumbered = timeline.used_texts(segments)
    speaking = ~np.isin(segments[:, 3], (WAITING, PREFILL, AGAIN))
    segments[speaking, 4] = renumbered[segments[speaking, 4]]
    lives = timeline.lives[:: timeline.every]
    most = max(min(ID_CHARS, MOST_ID_CHARS // max(len(lives), 1)), 8)
    longest = max((max(life.ttft or 0, life.e2el or 0) for life in lives), default=0)
    step = 1
    while longest >= STEPS * step:
        step *= 10
    counts = np.bincount(segments[:, 0] // timeline.every, minlength=len(lives))
    before = np.concatenate([[0], segments[:-1, 2] + 1]) if len(segments) else segments[:, 1]
    gaps = segments[:, 1] - before
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else counts
    own = starts[counts > 0]
    gaps[own] = segments[own, 1]
    start, end = slots.column("start"), slots.column("end")
    columns = {name: pack(slots.column(name)) for name in ("prefill", "decode", "unused", "batch", "queue", "active")}
    columns |= {name: pack(slots.column(name)) for name in ("kv", "head", "latest")}
    columns |= {name: pack(renumbered[slots.column(name)]) for name in ("head_why", "rest_why", "order_why")}
    return {
        "kinds": KINDS,
        "iterations": slots.iterations,
        "per_slot": slots.per_slot,
        "every": timeline.every,
        "rows": len(timeline.lives),
        "budget": recorder.budget,
        "blocks": _blocks(recorder),
        "step": step,
        "slots": {"start": pack(np.diff(start, prepend=0)), "length": pack(end - start), **columns},
        "segments": {
            "counts": pack(counts),
            "gap": pack(gaps),
            "length": pack(segments[:, 2] - segments[:, 1]),
            "kind": pack(segments[:, 3]),
            "value": pack(segments[:, 4]),
        },
        "texts": pack_texts([one_line(text) for text in texts]),
        "requests": {
            "id": pack_texts([shown_id(life.id, most) for life in lives]),
            "prompt": pack([life.request.prompt for life in lives]),
            "output": pack([life.request.output for life in lives]),
            "preemptions": pack([life.preemptions for life in lives]),
            "ttft": pack([0 if life.ttft is None else 1 + life.ttft // step for life in lives]),
            "e2el": pack([0 if life.e2el is None else 1 + life.e2el // step for life in lives]),
            "state": pack_texts([life.state for life in lives]),
        },
    }


def _blocks(recorder: Recorder) -> int | None:
    """Usable KV blocks, None where they are not modelled."""
    header = recorder.summary.header
    return header.limits.get("num_gpu_blocks") if recorder.kv and header is not None else None


def said_header(header: Header) -> dict[str, str]:
    """Everything that a trace's header says was set, by dotted key."""
    values: dict[str, Any] = {"policy": header.engine, "rules": header.rules}
    known = header.engine in policies.names()
    limits = policies.limits_given(policies.find(header.engine), header.limits) if known else header.limits
    values |= {f"engine.{key}": value for key, value in {**limits, **header.settings}.items()}
    values |= {"cost.unit": header.clock["unit"]}
    cost = header.clock.get("cost")
    if isinstance(cost, dict):
        values |= {f"cost.{key}": value for key, value in cost.items()}
    values["run.max_iterations"] = header.max_iterations
    return {one_line(key): one_line(said(key, value)) for key, value in values.items()}


def shown_id(id: str, most: int = ID_CHARS) -> str:
    """An id on one line; of a long one its head and its tail, since ids often differ in their ends only."""
    text = one_line(id) if len(id) <= most else one_line(id[:most] + id[-most:])
    if len(id) <= most and len(text) <= most:
        return text
    return f"{text[: most - most // 2]}… ({len(id):,} characters) …{text[len(text) - most // 2 :]}"


def _findings(explanation: Explanation, rows: dict[str, int], every: int) -> list[dict[str, Any]]:
    found = []
    for finding in explanation.findings:
        places = list(_places(finding.evidence, rows, every))[:3]
        found.append({"name": finding.name, "text": one_line(finding.text), "places": places})
    return found


def _places(evidence: Any, rows: dict[str, int], every: int) -> Iterator[dict[str, Any]]:
    """Where in the timeline the evidence lies: from which iteration to which, and whose row, as far as it says so."""
    if isinstance(evidence, list):
        for entry in evidence:
            yield from _places(entry, rows, every)
    if not isinstance(evidence, dict):
        return
    place: dict[str, Any] = {}
    first, last = (evidence.get(name, evidence.get("iteration")) for name in ("first", "last"))
    if isinstance(first, int) and isinstance(last, int):
        label = f"iteration {first:,}" if first == last else f"iterations {first:,} to {last:,}"
        place |= {"first": first, "last": last, "label": label}
    ids = [value for value in evidence.values() if isinstance(value, str) and value in rows]
    if ids and rows[ids[0]] % every == 0:
        place["row"] = rows[ids[0]] // every
        place.setdefault("label", f"request {shown_id(ids[0])}")
    if place:
        yield place
    for value in evidence.values():
        yield from _places(value, rows, every)
