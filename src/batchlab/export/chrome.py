"""A trace in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Slices are pairs of `B` and
`E`, which nest by their order on a track; on each track events stand in the order of time, across tracks they need not.
"""

from __future__ import annotations

import json
from typing import IO, Any

from batchlab.clients.request import Request
from batchlab.events import Event, Header, Iteration
from batchlab.export.spans import Mark, Span, Spans
from batchlab.steps import Step

SCHEDULER, REQUESTS = 1, 2
"""Processes: the scheduler's iterations and counters; a track for each request."""
NS_IN_US = 1000
ENDS = ("rejected", "dropped", "completed")


class ChromeTrace:
    """An observer that writes the events of a run as they come; `close` ends the document.

    ts is in microseconds: of a clock that counts ns its times, of any other one unit is shown as 1 us. Memory holds
    requests that have not ended.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._spans = Spans(self._tell)
        self._ns = False
        self._first = True
        self._blocks: int | None = None
        self._tracks: dict[str, int] = {}
        """The tracks of requests that have come and not ended."""
        self._came = 0
        self._counters: dict[str, dict[str, int]] = {}
        self._last = 0

    def __call__(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Header):
            self._begin(event)
        self._spans(event)
        if isinstance(event, Iteration):
            self._iteration(event)

    def close(self) -> None:
        """The last event has come: end what is open, and the document."""
        self._spans.close()
        for step in self._spans.steps.left():
            self._step(step)
        for id in list(self._tracks):
            self._leave(id, self._last, {"result": "not ended"})
        for name, values in self._counters.items():
            self._event(name, "C", SCHEDULER, None, self._last, args=dict.fromkeys(values, 0))
        self._file.write("\n]}\n")

    def _begin(self, header: Header) -> None:
        self._ns = header.clock["unit"] == "ns"
        self._blocks = header.limits.get("num_gpu_blocks")
        about = {"engine": header.engine, "rules": header.rules, "unit": header.clock["unit"]}
        about["note"] = "times are those of the clock" if self._ns else f"1 us shown is 1 {header.clock['unit']}"
        self._file.write(json.dumps({"displayTimeUnit": "ms", "otherData": about})[:-1] + ', "traceEvents": [')
        names: list[tuple[int, str, Any]] = [(SCHEDULER, "name", "scheduler"), (REQUESTS, "name", "requests")]
        names += [(SCHEDULER, "sort_index", 0), (REQUESTS, "sort_index", 1)]
        for pid, key, value in names:
            self._event(f"process_{key}", "M", pid, None, None, args={key: value})
        self._event("thread_name", "M", SCHEDULER, 1, None, args={"name": "iterations"})

    def _iteration(self, it: Iteration) -> None:
        """What the scheduler counts, and the steps that are over. A counter holds until it is told anew."""
        for step in self._spans.steps.over:
            self._step(step)
        if it.kv is not None and self._blocks is not None:
            self._count("KV blocks", it.start, {"used": self._blocks - it.kv["free"], "free": it.kv["free"]})
        self._count("queue", it.end, {"waiting": it.queue_length})
        self._last = it.end

    def _step(self, step: Step) -> None:
        """A slice of the scheduler, from when to when the step ran that an iteration planned."""
        it = step.line
        prefill = sum(tokens for _, phase, tokens in it.scheduled if phase == "prefill")
        decode = sum(tokens for _, phase, tokens in it.scheduled if phase == "decode")
        decodes = sum(phase == "decode" for _, phase, _ in it.scheduled)
        told: dict[str, Any] = {"iteration": it.iteration, "prefill tokens": prefill, "decode tokens": decode}
        name = f"iteration {it.iteration}"
        if it.idle is not None:
            name, told["idle"] = "idle", it.idle
        self._slice(name, SCHEDULER, 1, step.start, step.end, told)
        self._count("batch", step.start, {"decode": decodes, "prefill": len(it.scheduled) - decodes})
        tokens = {"decode": decode, "prefill": prefill}
        self._count("tokens", step.start, tokens if it.unused is None else {**tokens, "unused": it.unused})

    def _count(self, name: str, time: int, values: dict[str, int]) -> None:
        if self._counters.get(name) != values:
            self._counters[name] = values
            self._event(name, "C", SCHEDULER, None, time, args=values)

    def _tell(self, item: Span | Mark) -> None:
        """A span or a mark of a request, on its track."""
        if isinstance(item, Span):
            told = {"iterations": [item.first, item.last], "tokens": item.tokens, "cached": item.cached}
            if item.last < item.first:
                del told["iterations"]
            args = {name: value for name, value in told.items() if value}
            self._slice(item.kind, REQUESTS, self._tracks[item.id], item.start, item.end, args)
        elif item.kind == "arrived":
            self._arrive(item.id, item.time)
        else:
            args = {} if item.detail is None else {"detail": item.detail}
            if item.kind != "completed":
                self._event(item.kind, "i", REQUESTS, self._tracks[item.id], item.time, s="t", args=args)
            if item.kind in ENDS:
                self._leave(item.id, item.time, {"result": item.kind, **args})

    def _arrive(self, id: str, time: int) -> None:
        if id in self._tracks:
            return
        self._came += 1
        track = self._tracks[id] = self._came
        self._event("thread_name", "M", REQUESTS, track, None, args={"name": id})
        self._event("thread_sort_index", "M", REQUESTS, track, None, args={"sort_index": track})
        self._event(f"request {id}", "B", REQUESTS, track, time, args=_given(self._spans.requests[id]))

    def _leave(self, id: str, time: int, args: dict[str, Any]) -> None:
        self._event(f"request {id}", "E", REQUESTS, self._tracks.pop(id), time, args=args)

    def _slice(self, name: str, pid: int, tid: int, start: int, end: int, args: dict[str, Any]) -> None:
        self._event(name, "B", pid, tid, start, args=args)
        self._event(name, "E", pid, tid, end)

    def _event(
        self,
        name: str,
        phase: str,
        pid: int,
        tid: int | None,
        time: int | None,
        s: str | None = None,
        args: dict[str, Any] | None = None,
    ) -> None:
        """Write one event; what is None is left out."""
        event: dict[str, Any] = {"name": name, "ph": phase, "pid": pid}
        ts = None if time is None else self._microseconds(time)
        for key, value in (("tid", tid), ("ts", ts), ("s", s), ("args", args)):
            if value is not None:
                event[key] = value
        self._file.write(("\n" if self._first else ",\n") + json.dumps(event, separators=(",", ":")))
        self._first = False

    def _microseconds(self, time: int) -> int | float:
        if not self._ns:
            return time
        return time // NS_IN_US if time % NS_IN_US == 0 else time / NS_IN_US


def _given(request: Request) -> dict[str, Any]:
    """What the client sent, for the slice's arguments."""
    names = ("prompt", "output", "max_tokens", "priority", "deadline", "group")
    return {name: value for name in names if (value := getattr(request, name)) is not None}
