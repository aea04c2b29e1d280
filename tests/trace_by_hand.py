"""Valid traces written by hand: what the worked examples do not show."""

from collections.abc import Callable
from typing import Any

from trace_samples import Sample, build, header


def _request(id: str, arrival: int, prompt: int, output: int, priority: int = 0) -> dict[str, Any]:
    lengths = {"prompt": prompt, "output": output, "max_tokens": output}
    return {"id": id, "arrival": arrival, **lengths, "priority": priority}


def _jumping(unit: str = "ns") -> dict[str, Any]:
    return {"unit": unit, "cost": {"model": "table"}, "idle": "jump"}


def recompute() -> Sample:
    """B loses what it had computed after two tokens, and prefills them again with its prompt; C comes late."""
    requests = [_request("A", 0, 3, 4), _request("B", 0, 2, 3), _request("C", 100, 4, 1)]
    head = header("vllm", _jumping(), None, {"max_num_seqs": 2, "max_num_batched_tokens": 8})
    head["source"] = {"name": "made by hand", "sha256": "0" * 64, "requests": 3}
    out = {"id": "B", "mode": "recompute", "place": "front"}
    steps = [
        {
            "start": 0,
            "end": 10,
            "arrived": ["A", "B"],
            "admitted": ["A", "B"],
            "scheduled": [["A", "prefill", 3], ["B", "prefill", 2]],
        },
        {"start": 10, "end": 12, "scheduled": [["A", "decode", 1], ["B", "decode", 1]]},
        {"start": 12, "end": 15, "preempted": [out], "scheduled": [["A", "decode", 1]]},
        {"start": 15, "end": 20, "admitted": ["B"], "scheduled": [["A", "decode", 1], ["B", "prefill", 2]]},
        {"start": 20, "end": 30, "scheduled": [["B", "prefill", 2]]},
        {"start": 100, "end": 104, "arrived": ["C"], "admitted": ["C"], "scheduled": [["C", "prefill", 4]]},
    ]
    return build(head, requests, steps)


def stalls() -> Sample:
    """Those who decode wait for others' prefill: A and D with a seat, B swapped out to the back of the queue."""
    requests = [
        _request("A", 0, 1, 3),
        _request("B", 0, 1, 3),
        _request("C", 1, 9, 1),
        _request("D", 9, 1, 1),
    ]
    head = header("made up", _jumping("cost unit"), requests, {"max_num_seqs": 2, "max_queue": 2})
    out = {"id": "B", "mode": "swap", "place": "back"}
    steps = [
        {
            "start": 0,
            "end": 2,
            "arrived": ["A", "B"],
            "admitted": ["A", "B"],
            "scheduled": [["B", "prefill", 1], ["A", "prefill", 1]],
        },
        {
            "start": 2,
            "end": 10,
            "arrived": ["C"],
            "preempted": [out],
            "admitted": ["C"],
            "scheduled": [["C", "prefill", 4]],
        },
        {"start": 10, "end": 15, "arrived": ["D"], "scheduled": [["C", "prefill", 5]]},
        {"start": 15, "end": 16, "admitted": ["B"], "scheduled": [["B", "decode", 1], ["A", "decode", 1]]},
        {"start": 16, "end": 20, "idle": "waits for a fuller batch"},
        {"start": 20, "end": 21, "scheduled": [["B", "decode", 1], ["A", "decode", 1]]},
        {"start": 21, "end": 22, "admitted": ["D"], "scheduled": [["D", "prefill", 1]]},
    ]
    return build(head, requests, steps)


def both_ends_of_the_queue() -> Sample:
    """In one iteration: two preempted to the back, one to the front, two arrivals between the two at the back."""
    requests = [_request(id, 0, 3, 1) for id in "ABCW"] + [_request(id, 1, 1, 1) for id in "XYZ"]
    clock = {"unit": "iteration", "cost": {"model": "unit"}, "idle": "step"}
    head = header("made up", clock, requests, {"max_num_seqs": 3, "max_num_batched_tokens": 9})
    places = {"B": "back", "C": "front", "A": "back"}
    out = [{"id": id, "mode": "keep", "place": place} for id, place in places.items()]
    first = [[id, "prefill", 2] for id in "ABC"]
    steps = [
        {"start": 0, "end": 1, "arrived": list("ABCW"), "admitted": list("ABC"), "scheduled": first},
        {
            "start": 1,
            "end": 2,
            "arrived": list("XYZ"),
            "preempted": out,
            "admitted": ["X"],
            "scheduled": [["X", "prefill", 1]],
            "queue": ["C", "W", "B", "Y", "A", "Z"],
        },
        {
            "start": 2,
            "end": 3,
            "admitted": ["C", "W", "B"],
            "scheduled": [["C", "prefill", 1], ["W", "prefill", 3], ["B", "prefill", 1]],
        },
        {
            "start": 3,
            "end": 4,
            "admitted": ["Y", "A", "Z"],
            "scheduled": [["Z", "prefill", 1], ["Y", "prefill", 1], ["A", "prefill", 1]],
        },
    ]
    return build(head, requests, steps)


def by_key() -> Sample:
    """A queue ordered by urgency: newcomers do not queue at the back; a preempted one returns by its key."""
    requests = [_request("A", 0, 2, 1, 5), _request("B", 0, 1, 1, 9), _request("C", 1, 1, 1, 7)]
    requests.append(_request("D", 2, 1, 1, 0))
    clock = {"unit": "iteration", "cost": {"model": "unit"}, "idle": "step"}
    head = header("vllm", clock, requests, {"max_num_seqs": 1, "max_num_batched_tokens": 1})
    out = [{"id": "A", "mode": "recompute", "place": "key"}]
    end = [
        {"start": at, "end": at + 1, "admitted": [id], "scheduled": [[id, "prefill", 1]]}
        for at, id in ((5, "C"), (6, "B"))
    ]
    steps = [
        {"start": 0, "end": 1, "arrived": ["A", "B"], "admitted": ["A"], "scheduled": [["A", "prefill", 1]]},
        {"start": 1, "end": 2, "arrived": ["C"], "queue": ["C", "B"], "idle": "out of blocks"},
        {
            "start": 2,
            "end": 3,
            "arrived": ["D"],
            "preempted": out,
            "admitted": ["D"],
            "scheduled": [["D", "prefill", 1]],
            "queue": ["A", "C", "B"],
        },
        {"start": 3, "end": 4, "admitted": ["A"], "scheduled": [["A", "prefill", 1]]},
        {"start": 4, "end": 5, "scheduled": [["A", "prefill", 1]]},
        *end,
    ]
    return build(head, requests, steps)


def long_queue() -> Sample:
    """300 wait for one seat: the queue is a number until it is short enough to be listed."""
    requests = [_request(f"r{number}", 0, 1, 1) for number in range(300)]
    head = header("made up", _jumping(), None, {"max_num_seqs": 1})
    steps: list[dict[str, Any]] = []
    for number in range(300):
        id = f"r{number}"
        times = {"start": 2 * number, "end": 2 * number + 1}
        steps.append({**times, "admitted": [id], "scheduled": [[id, "prefill", 1]]})
    steps[0]["arrived"] = [r["id"] for r in requests]
    return build(head, requests, steps)


def all_refused() -> Sample:
    """A jumping clock stops for a request that is refused at the door."""
    head = header("made up", _jumping(), None, {"max_num_batched_tokens": 4, "max_queue": 0})
    refused = [{"id": "A", "reason": "prompt too long"}]
    steps = [{"start": 7, "end": 7, "arrived": ["A"], "rejected": refused, "idle": "no work"}]
    return build(head, [_request("A", 7, 9, 1)], steps)


def nothing() -> Sample:
    """No requests, no iterations."""
    return build(header("made up", _jumping(), [], {}), [], [])


BY_HAND: dict[str, Callable[[], Sample]] = {
    make.__name__.replace("_", "-"): make
    for make in (recompute, stalls, both_ends_of_the_queue, by_key, long_queue, all_refused, nothing)
}
