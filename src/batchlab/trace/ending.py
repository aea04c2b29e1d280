"""Check what is stated about a whole run: the end line, and the summary."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from batchlab.errors import nearest, shorten
from batchlab.trace.fields import ENDED, RESULTS, SCHEMA_VERSION
from batchlab.trace.figures import differences, figures_of
from batchlab.trace.replay import Replay
from batchlab.trace.rules import Findings
from batchlab.trace.state import Known


def check_end(end: dict[str, Any], replay: Replay, findings: Findings) -> None:
    """Check the end line against everything before it."""
    _source_count(replay, findings)
    replay.clients.unseen()
    replay.flight.check_end()
    _termination(end, replay, findings)
    for field, derived in (("iterations", replay.count), ("time", replay.time)):
        if end[field] != derived:
            findings.add("end", f"{field} {end[field]}, but {derived} follows")
    for name, derived in _results(replay).items():
        if end["results"].get(name, 0) != derived:
            findings.add("results", f"results.{name} {end['results'].get(name, 0)}, but {derived} follows")
    for name, total in _totals(replay).items():
        if not _same(end["totals"][name], total):
            findings.add("totals", f"totals.{name} {shorten(end['totals'][name])}, but {shorten(total)} follows")


def check_summary(summary: Any, replay: Replay, termination: str, findings: Findings) -> None:
    """Check every field of the summary document against what follows from the trace."""
    header = replay.header
    derived: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "engine": header["engine"],
        "rules": header["rules"],
        "unit": header["clock"]["unit"],
        "termination": termination,
        "iterations": replay.count,
        "time": replay.time,
        "results": {name: count for name, count in _results(replay).items() if count},
        "totals": _totals(replay),
    }
    if not isinstance(summary, dict):
        findings.add("summary", f"{shorten(summary)}, but an object expected")
        return
    given = dict(summary)
    requests = given.pop("requests", None)
    _figures(given, replay, findings)
    _compare("", given, derived, None, findings)
    if not isinstance(requests, list) or not all(isinstance(entry, dict) for entry in requests):
        findings.add("summary", f"requests {shorten(requests)}, but a list of objects expected")
        return
    if len(requests) != len(replay.requests):
        findings.add("summary", f"{len(requests)} requests, but the trace has {len(replay.requests)}")
    for entry, known in zip(requests, replay.requests.values(), strict=False):
        _compare("", entry, _request_summary(known), known.id, findings)


def _figures(given: dict[str, Any], replay: Replay, findings: Findings) -> None:
    """Take latency, throughput and slots out of the summary and check them; one from elsewhere may have none."""
    derived = figures_of(replay.requests.values(), replay.gaps or Counter(), replay.header["clock"]["unit"])
    derived["slots"] = _slots(replay)
    for name, figures in derived.items():
        if name in given:
            for problem in differences(name, given.pop(name), figures):
                findings.add("summary", problem)


def _slots(replay: Replay) -> dict[str, Any]:
    opened, useful = replay.slots_opened, sum(request.emitted for request in replay.requests.values())
    wasted = opened - useful
    return {"opened": opened, "useful": useful, "wasted": wasted, "waste": wasted / opened if opened else None}


def _source_count(replay: Replay, findings: Findings) -> None:
    stated = replay.header["source"]["requests"]
    if stated is not None and stated != len(replay.requests):
        findings.add("request", f"source.requests {stated}, but the trace introduces {len(replay.requests)}")


def _termination(end: dict[str, Any], replay: Replay, findings: Findings) -> None:
    open_requests = [r for r in replay.requests.values() if r.state not in ENDED]
    limit = replay.header["max_iterations"]
    if end["termination"] == "all_terminal":
        for request in open_requests:
            findings.add(
                "lost",
                f"{request.state} at the end, but an end expected: {', '.join(ENDED)}",
                request.id,
            )
        return
    if limit is None or replay.count < limit:
        findings.add("end", f"iteration_limit after {replay.count} iterations, but max_iterations is {limit}")
    if not open_requests:
        findings.add("end", "iteration_limit, but every request has ended: all_terminal expected")


def _results(replay: Replay) -> dict[str, int]:
    counts = Counter(request.state for request in replay.requests.values())
    return {name: counts[name] for name in RESULTS}


def _totals(replay: Replay) -> dict[str, Any]:
    several = replay.terms.depth > 1
    return {
        "max_queue_length": replay.max_queue_length,
        "preemptions": replay.preemptions,
        "rejections": dict(replay.rejections),
        "unused_budget": None if replay.header["limits"]["max_num_batched_tokens"] is None else replay.unused_budget,
        "prefill_tokens": replay.prefill_tokens,
        "decode_tokens": replay.decode_tokens,
        "recomputed_tokens": replay.recomputed_tokens,
        "cached_tokens": replay.cached_tokens,
        "moved_blocks": replay.moved_blocks,
        "retries": replay.retries,
        "decode_stalls": None if several else replay.decode_stalls,
        "preempted_decode_stalls": None if several else replay.preempted_decode_stalls,
    }


def _request_summary(known: Known) -> dict[str, Any]:
    def since_arrival(time: int | None) -> int | None:
        return None if time is None else time - known.arrival

    ended = known.last_time if known.state == "completed" else None
    fields: dict[str, Any] = {
        "id": known.id,
        "arrival": known.arrival,
        "priority": known.priority,
        "prompt": known.prompt,
        "output": known.output,
        "result": known.state,
        "reason": known.reason,
        "first_output": known.first_output,
        "completed": known.completed,
        "queue_time": since_arrival(known.first_start),
        "ttft": since_arrival(known.first_time),
        "e2el": since_arrival(ended),
        "max_itl": None if known.first_time is None else known.max_gap,
        "preemptions": known.preemptions,
        "recomputed_tokens": known.recomputed,
        "attempts": known.attempts,
    }
    if known.group is not None:
        fields["group"] = known.group
    if known.held_until is not None:
        fields["held_until"] = known.held_until
    if known.output_times is not None:
        fields["output_times"] = known.output_times
    return fields


def _compare(
    prefix: str, given: dict[str, Any], derived: dict[str, Any], request: str | None, findings: Findings
) -> None:
    for name, value in derived.items():
        if name not in given:
            findings.add("summary", f"{prefix}{name} is missing, {shorten(value)} expected", request)
        elif isinstance(value, dict) and isinstance(given[name], dict):
            _compare(f"{prefix}{name}.", given[name], value, request, findings)
        elif not _same(given[name], value):
            findings.add("summary", f"{prefix}{name} {shorten(given[name])}, but {shorten(value)} expected", request)
    for name, value in given.items():
        if name not in derived:
            message = f"{prefix}{name} {shorten(value)}: unknown{nearest(name, derived)}"
            findings.add("summary", message, request)


def _same(given: Any, derived: Any) -> bool:
    """Equal as JSON: neither true nor 1.0 is 1."""
    return json.dumps(given, sort_keys=True) == json.dumps(derived, sort_keys=True)
