"""A trace with real times as a measured run: what a recorder inside an engine wrote. docs/trace-format.md."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchlab.clients.request import Request
from batchlab.costs.measured import Row
from batchlab.errors import InputError
from batchlab.events import Event, Header, Iteration
from batchlab.explain.source import read_events
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import latencies
from batchlab.metrics.result import RequestResult
from batchlab.units import NS_IN_S
from batchlab.validate.recorded import Recorded

MOMENTS = 200
"""Moments at which the state of the engine is compared."""
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_queue", "block_size", "enable_prefix_caching", "max_model_len")
DERIVED = ("gpu_memory_utilization",)
"""Settings that only say where the number of blocks came from, which the limits have."""


def traced(path: Path) -> Recorded:
    """Read a run. Requests that the client gave up count as load, but not in the latencies. Raises InputError."""
    summary = Summary()
    requests: list[Request] = []
    queued: dict[str, int] = {}
    states: list[tuple[int, int, int, dict[str, int] | None]] = []
    header: Header | None = None

    def take(event: Event) -> None:
        nonlocal header
        summary(event)
        if isinstance(event, Header):
            header = event
            requests.extend(event.requests or ())
        elif isinstance(event, Request):
            requests.append(event)
        elif isinstance(event, Iteration):
            for id in event.arrived:
                queued.setdefault(id, event.start)
            running = event.active if isinstance(event.active, int) else len(event.active)
            states.append((event.end, running, event.queue_length, event.kv))

    for _, event in read_events(path):
        take(event)
    if header is None or not requests or not states:
        raise InputError(path, None, None, "has no requests that were served")
    if header.clock.get("unit") != "ns":
        raise InputError(path, "line 1, clock.unit", header.clock.get("unit"), "must be 'ns': a trace of real times")
    start = min(request.arrival for request in requests)
    engine = _engine(header)
    by_id = summary.by_id
    done = [by_id[request.id] for request in requests]
    first = [_seconds(result.first_time if result.completed_time is not None else None, start) for result in done]
    last = [_seconds(result.completed_time, start) for result in done]
    notes = []
    lost = sum(map(math.isnan, last))
    if lost == len(requests):
        raise InputError(path, None, None, "no request was completed")
    if lost:
        notes.append(f"{lost:,} of {len(requests):,} requests were not completed: load, but in no latency")
    if engine.get("enable_prefix_caching"):
        notes.append("which prompts share tokens is not taken from a trace: hits between requests are not modelled")
    return Recorded(
        path,
        header.rules.removeprefix("vLLM "),
        engine,
        ranks=1,
        lockstep=False,
        tensor_parallel=None,
        requests=[_moved(_with_output(r, result), start) for r, result in zip(requests, done, strict=True)],
        sent=[_seconds(request.arrival, start) for request in requests],
        queued=[_seconds(queued.get(request.id), start) for request in requests],
        first=first,
        last=last,
        series=_series(states, start, header.limits.get("num_gpu_blocks")),
        notes=notes,
        itl=latencies(summary.tally, summary.column("arrival"))["itl"],  # a recording of a live server has no end
    )


def _engine(header: Header) -> dict[str, Any]:
    """[engine]: the policy, its settings and its limits; of the blocks vLLM counts one more than are usable."""
    found = {"policy": header.engine} | {name: v for name, v in header.settings.items() if name not in DERIVED}
    found |= {name: header.limits.get(name) for name in LIMITS}
    blocks = header.limits.get("num_gpu_blocks")
    if blocks is not None:
        found["num_gpu_blocks"] = blocks + (header.engine == "vllm")
    else:
        found.pop("block_size")
        found.pop("enable_prefix_caching")
    return {name: value for name, value in found.items() if value is not None}


def _with_output(request: Request, result: RequestResult) -> Request:
    """With its true length, which a live recording only shows by the tokens; of one that was given up, its limit."""
    if request.output:
        return request
    return replace(request, output=request.max_tokens if result.completed_time is None else result.emitted)


def _moved(request: Request, start: int) -> Request:
    cancel = None if request.cancel_at is None else request.cancel_at - start
    sent = None if request.sent is None else request.sent - start
    return replace(request, arrival=request.arrival - start, cancel_at=cancel, sent=sent)


def _seconds(time: int | None, start: int) -> float:
    return math.nan if time is None else (time - start) / NS_IN_S


def _series(states: list[tuple[int, int, int, dict[str, int] | None]], start: int, blocks: int | None) -> list[Row]:
    """The states at the ends of evenly picked iterations."""
    rows = []
    for end, running, waiting, kv in states[:: max(1, len(states) // MOMENTS)]:
        used = 0.0 if kv is None or blocks is None else 100 * (1 - kv["free_after"] / blocks)
        values = {"t": (end - start) / NS_IN_S, "running": running, "waiting": waiting, "kv_cache_pct": used}
        rows.append(Row(0, values))
    return rows
