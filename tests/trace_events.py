"""A validator of the Trace Event Format, written from its documentation.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: every event has `name`, `ph` and `pid`;
all but metadata have a `ts` in microseconds; `B` and `E` have a `tid`, nest on their track and stand there in the order
of time; an `i` has a scope; a `C` has numbers for its series; an `M` names or sorts a process or a thread.
"""

from collections import defaultdict
from typing import Any

KEYS = {"name", "ph", "pid", "tid", "ts", "s", "args", "cat", "id", "dur"}
NUMBER = (int, float)
NAMING = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}

Track = tuple[int, int]
Slice = dict[str, Any]


def check_trace(document: dict[str, Any]) -> dict[Track, list[Slice]]:
    """Check a whole document; returns the slices of each track, each with its depth, in the order of their ends."""
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    open_slices: dict[Track, list[Slice]] = defaultdict(list)
    closed: dict[Track, list[Slice]] = defaultdict(list)
    last: dict[Any, float] = {}
    named: set[Any] = set()
    for event in document["traceEvents"]:
        check_fields(event)
        pid, phase = event["pid"], event["ph"]
        track = (pid, event.get("tid", 0))
        if phase == "M":
            place = pid if event["name"].startswith("process") else track
            assert (place, event["name"]) not in named, "named twice"
            named.add((place, event["name"]))
            continue
        row = (pid, event["name"]) if phase == "C" else track
        assert event["ts"] >= last.get(row, float("-inf")), f"{event}: earlier than the one before on its track"
        last[row] = event["ts"]
        if phase == "B":
            open_slices[track].append({**event, "depth": len(open_slices[track])})
        elif phase == "E":
            begun = open_slices[track].pop()
            assert begun["name"] == event["name"], "slices cross"
            closed[track].append({**begun, "end": event["ts"], "ended": event.get("args", {})})
    assert not any(open_slices.values()), "a slice has no end"
    for pid, tid in closed:
        assert (pid, "process_name") in named and ((pid, tid), "thread_name") in named
    return closed


def check_fields(event: dict[str, Any]) -> None:
    """The fields that its phase needs."""
    assert set(event) <= KEYS and isinstance(event["name"], str) and type(event["pid"]) is int
    phase, args = event["ph"], event.get("args", {})
    assert phase in ("B", "E", "i", "C", "M") and isinstance(args, dict)
    if phase == "M":
        kind = str if NAMING[event["name"]] == "name" else int
        assert list(args) == [NAMING[event["name"]]] and type(args[NAMING[event["name"]]]) is kind
        assert "tid" in event or event["name"].startswith("process")
        return
    assert type(event["ts"]) in NUMBER
    if phase in "BEi":
        assert type(event["tid"]) is int
    if phase == "i":
        assert event["s"] in ("g", "p", "t")
    if phase == "C":
        assert args and all(type(value) in NUMBER for value in args.values())
