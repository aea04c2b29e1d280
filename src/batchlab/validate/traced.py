"""A trace with real times as a measured run: what a recorder inside an engine wrote. docs/trace-format.md."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from batchlab import policies
from batchlab.clients.identity import NamedBlocks
from batchlab.clients.request import Request
from batchlab.costs.measured import Row
from batchlab.errors import InputError
from batchlab.events import Event, Header, Iteration
from batchlab.export.follow import follow
from batchlab.metrics.between import Between
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import latencies
from batchlab.metrics.result import RequestResult
from batchlab.units import NS_IN_S, counted
from batchlab.validate.recorded import Recorded

MOMENTS = 1000
"""Moments at which the state of the engine is compared, evenly spaced: a mean over them is one over time."""
BLOCKS = ("num_gpu_blocks", "block_size", "enable_prefix_caching")
DERIVED = ("gpu_memory_utilization",)
"""Settings that only say where the number of blocks came from, which the limits have."""


class _Told:
    """What a trace says, as it is read."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.requests: list[Request] = []
        self.queued: dict[str, int] = {}
        self.states: list[tuple[int, int, int, dict[str, int] | None]] = []
        self.between = Between()
        self.gone: dict[str, int] = {}
        """When those left that ended without their last token after they had been taken in."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Header):
            self.header = event
            self.requests.extend(event.requests or ())
        elif isinstance(event, Request):
            self.requests.append(event)
        elif isinstance(event, Iteration):
            for id in event.arrived:
                self.queued.setdefault(id, event.start)
            for drop in event.dropped:
                self.gone[drop.id] = event.start if drop.at is None else drop.at
            running = event.active if isinstance(event.active, int) else len(event.active)
            self.between.add(event.start, event.end, running + event.queue_length > 0)
            self.states.append((event.end, running, event.queue_length, event.kv))


def traced(path: Path) -> Recorded:
    """Read a run. Requests that the client gave up count as load, but not in the latencies. Raises InputError."""
    summary, told, blocks = Summary(), _Told(), NamedBlocks()
    follow(path, [summary, told, blocks])
    header = told.header
    if header is None or not told.states:
        raise InputError(path, None, None, "has no requests that were served")
    if header.clock.get("unit") != "ns":
        raise InputError(path, "line 1, clock.unit", header.clock.get("unit"), "must be 'ns': a trace of real times")
    _refuse_twins(path, told.requests)
    by_id = summary.by_id
    came = [request for request in told.requests if request.id in told.queued]
    done = [by_id[request.id] for request in came]
    if all(result.completed_time is None for result in done):
        raise InputError(path, None, None, "no request was completed")
    try:
        sections = sections_of(header)
    except InputError as error:
        error.file, error.place = str(path), "line 1, engine"
        raise
    start = min(request.arrival for request in came)
    size = header.limits.get("block_size") if header.limits.get("enable_prefix_caching") else None
    requests = []
    for position, (request, result) in enumerate(zip(came, done, strict=True)):
        known = _as_it_came(request, result, told.gone, start)
        if known.tokens is None and size is not None:
            known = replace(known, tokens=blocks.identity(request, position, size))
        requests.append(known)
    ends = [result.completed_time for result in done]
    return Recorded(
        path,
        header.rules,
        sections.pop("engine"),
        ranks=1,
        lockstep=False,
        tensor_parallel=None,
        requests=requests,
        sent=[_seconds(request.arrival, start) for request in came],
        queued=[_seconds(told.queued[request.id], start) for request in came],
        first=[_seconds(r.first_time if r.completed_time is not None else None, start) for r in done],
        last=[_seconds(end, start) for end in ends],
        series=_series(told.states, start, header.limits.get("num_gpu_blocks")),
        notes=[*_notes(requests, ends, size is not None), *(told.between.notes() if header.recorded else ())],
        itl=latencies(summary.tally, summary.column("arrival"))["itl"],  # a recording of a live server has no end
        sections=sections,
        simulated=header.recorded is None,
    )


def sections_of(header: Header) -> dict[str, dict[str, Any]]:
    """A scenario's [engine], [queue], [run] and [workload] that make a run of this header. Raises InputError.

    Limits have the policy's own names; of the blocks it may keep some for itself.
    """
    policy = policies.find_recorded(header.engine)
    limits: dict[str, Any] = dict(header.limits)
    if limits.get("num_gpu_blocks") is None:
        limits = {name: value for name, value in limits.items() if name not in BLOCKS}
    settings = {name: value for name, value in header.settings.items() if name not in DERIVED}
    engine = {"policy": header.engine, **settings, **policies.limits_given(policy, limits)}
    found = {"engine": {name: value for name, value in engine.items() if value is not None}}
    queue = header.queue
    if queue.get("order") in ("arrival", "priority"):
        found["queue"] = {"order": queue["order"], "when_full": "shed" if queue.get("shed") else "reject"}
        if queue.get("aging") is not None:
            found["queue"]["aging"] = queue["aging"]
    if header.deadlines != "keep":
        found["run"] = {"deadlines": header.deadlines}
    if header.retry is not None:
        found["workload"] = {"retry": header.retry}
    return found


def _refuse_twins(path: Path, requests: Sequence[Request]) -> None:
    ids: set[str] = set()
    for request in requests:
        if request.id in ids:
            raise InputError(path, f"request {request.id}", None, "must be unique; there are two of this id")
        ids.add(request.id)


def _as_it_came(request: Request, result: RequestResult, gone: dict[str, int], start: int) -> Request:
    """With its times from the first arrival on, its true length and when its client gave it up, which in a live
    recording only the steps show. One that never ended has its limit."""
    output = request.output
    if not output:
        output = request.max_tokens if result.completed_time is None else result.emitted
    cancel = request.cancel_at
    if cancel is None and result.result == "cancelled":
        cancel = gone.get(request.id)
    return replace(
        request,
        arrival=request.arrival - start,
        output=output,
        cancel_at=None if cancel is None else cancel - start,
        sent=None if request.sent is None else request.sent - start,
    )


def _notes(requests: Sequence[Request], ends: Sequence[int | None], caching: bool) -> list[str]:
    notes = []
    lost = sum(end is None for end in ends)
    if lost:
        notes.append(f"{lost:,} of {counted(len(requests), 'request')} were not completed: load, but in no latency")
    if caching and not any(request.tokens is not None for request in requests):
        notes.append("which prompts share tokens is not in this trace: hits between requests are not modelled")
    if any(request.after is not None for request in requests):
        notes.append(
            "each turn of a session is sent when it was in the measured run, however long the predicted one takes"
        )
    return notes


def _seconds(time: int | None, start: int) -> float:
    return math.nan if time is None else (time - start) / NS_IN_S


def _series(states: list[tuple[int, int, int, dict[str, int] | None]], start: int, blocks: int | None) -> list[Row]:
    """The states at evenly spaced moments, each as the last iteration left it that had ended by then."""
    rows = []
    first, last = states[0][0], states[-1][0]
    for moment in np.linspace(first, last, MOMENTS, endpoint=False).tolist() if last > first else [first]:
        _, running, waiting, kv = states[bisect_right(states, moment, key=lambda state: state[0]) - 1]
        used = 0.0 if kv is None or blocks is None else 100 * (1 - kv["free_after"] / blocks)
        values = {"t": (moment - start) / NS_IN_S, "running": running, "waiting": waiting, "kv_cache_pct": used}
        rows.append(Row(0, values))
    return rows
