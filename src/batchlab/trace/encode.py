"""Events as the JSON objects of docs/trace-format.md, and back."""

from typing import Any

import batchlab
from batchlab.clients.request import Request
from batchlab.events import Dropped, End, Event, Header, Iteration, Preemption, Rejection

SCHEMA = 1


def request_fields(request: Request) -> dict[str, Any]:
    """A request as the trace writes it; what it does not have is left out."""
    fields = {
        "id": request.id,
        "arrival": request.arrival,
        "prompt": request.prompt,
        "output": request.output,
        "max_tokens": request.max_tokens,
        "priority": request.priority,
    }
    if not request.output:
        del fields["output"]
    if request.blocks is not None:
        fields["blocks"] = list(request.blocks)
    for name in ("deadline", "cancel_at", "sent", "group", "after", "think_time", "held_until"):
        value = getattr(request, name)
        if value is not None:
            fields[name] = value
    return fields


def encode(event: Event) -> dict[str, Any]:
    """Any event but the end, which also carries the totals, as one line's object."""
    if isinstance(event, Iteration):
        return _iteration(event)
    if isinstance(event, Request):
        return {"type": "request", **request_fields(event)}
    assert isinstance(event, Header)
    line = {
        "type": "header",
        "schema": SCHEMA,
        "batchlab": batchlab.__version__,
        "engine": event.engine,
        "rules": event.rules,
        "settings": event.settings,
        "limits": event.limits,
        "clock": event.clock,
        "queue": event.queue,
        "deadlines": event.deadlines,
        "retry": event.retry,
        "steps_in_flight": event.steps_in_flight,
        "batching": event.batching,
        "holds": event.holds,
        "max_iterations": event.max_iterations,
        "max_tokens_rule": event.max_tokens_rule,
        "source": event.source,
    }
    if event.recorded is not None:
        line["recorded"] = event.recorded
    if event.requests is not None:
        line["requests"] = [request_fields(request) for request in event.requests]
    return line


def encode_end(event: End, results: dict[str, int], totals: dict[str, Any]) -> dict[str, Any]:
    """The last line: the end with what the iterations add up to."""
    return {
        "type": "end",
        "termination": event.termination,
        "iterations": event.iterations,
        "time": event.time,
        "results": results,
        "totals": totals,
    }


def _iteration(event: Iteration) -> dict[str, Any]:
    line: dict[str, Any] = {
        "type": "iteration",
        "iteration": event.iteration,
        "start": event.start,
        "end": event.end,
        "arrived": event.arrived,
        "rejected": [
            {"id": r.id, "reason": r.reason} | ({} if r.retry_at is None else {"retry_at": r.retry_at})
            for r in event.rejected
        ],
        "preempted": [{"id": p.id, "mode": p.mode, "place": p.place, "computed": p.computed} for p in event.preempted],
        "admitted": event.admitted,
        "scheduled": event.scheduled,
        "prefill_done": event.prefill_done,
        "first_token": event.first_token,
        "completed": event.completed,
        "queue": event.queue,
        "active": event.active,
        "unused": event.unused,
        "idle": event.idle,
    }
    if event.dropped:
        line["dropped"] = [
            {"id": d.id, "result": d.result, "reason": d.reason} | ({} if d.at is None else {"at": d.at})
            for d in event.dropped
        ]
    if event.delivers != event.iteration:
        line["delivers"] = event.delivers
    if event.discarded:
        line["discarded"] = event.discarded
    if event.note is not None:
        line["note"] = event.note
    if event.padding:
        line["padding"] = event.padding
    if event.kv is not None:
        line["kv"] = event.kv
        line["cached"] = event.cached
    if event.filled:
        line["filled"] = event.filled
    return line


def decode(line: dict[str, Any]) -> Event:
    """A line's object as an event; the line has the form that docs/trace-format.md states."""
    fields = {key: value for key, value in line.items() if key not in ("type", "schema", "batchlab")}
    match line["type"]:
        case "iteration":
            fields["rejected"] = [Rejection(**entry) for entry in line["rejected"]]
            fields["preempted"] = [Preemption(**entry) for entry in line["preempted"]]
            fields["dropped"] = [Dropped(**entry) for entry in line.get("dropped", ())]
            fields["scheduled"] = [tuple(entry) for entry in line["scheduled"]]
            fields["cached"] = [tuple(entry) for entry in line.get("cached", ())]
            fields["filled"] = [tuple(entry) for entry in line.get("filled", ())]
            fields["discarded"] = line.get("discarded", [])
            fields["delivers"] = line.get("delivers", line["iteration"])
            return Iteration(**fields)
        case "request":
            return _request(fields)
        case "end":
            return End(line["termination"], line["iterations"], line["time"])
        case _:
            fields["requests"] = [_request(entry) for entry in line["requests"]] if "requests" in line else None
            return Header(**fields)


def _request(fields: dict[str, Any]) -> Request:
    blocks = fields.get("blocks")
    return Request(**{"output": 0, **fields, "blocks": None if blocks is None else tuple(blocks)})
