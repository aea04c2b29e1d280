"""What became of one request."""

from typing import Any

from batchlab.clients.request import Request


class RequestResult:
    """What became of one request. Times in the clock's unit; None where a time does not apply."""

    __slots__ = (
        "completed_iteration",
        "completed_time",
        "dropped_tokens",
        "emitted",
        "first_iteration",
        "first_scheduled",
        "first_time",
        "in_decode",
        "last_time",
        "max_itl",
        "output_times",
        "preemptions",
        "reason",
        "recomputed_tokens",
        "request",
        "result",
        "retries",
    )

    def __init__(self, request: Request, keep_times: bool) -> None:
        self.request = request
        self.result = "pending"
        self.reason: str | None = None
        self.first_scheduled: int | None = None
        self.first_iteration: int | None = None
        self.first_time: int | None = None
        self.last_time = 0
        self.emitted = 0
        self.completed_iteration: int | None = None
        self.completed_time: int | None = None
        self.max_itl: int | None = None
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.dropped_tokens = 0
        self.retries = 0
        self.in_decode = False
        self.output_times: list[int] | None = [] if keep_times else None

    def since_arrival(self, time: int | None) -> int | None:
        """A point in time as a latency."""
        return None if time is None else time - self.request.arrival

    def as_dict(self) -> dict[str, Any]:
        """The entry of the summary, as docs/trace-format.md defines it."""
        request = self.request
        entry = {
            "id": request.id,
            "arrival": request.arrival,
            "priority": request.priority,
            "prompt": request.prompt,
            "output": request.output,
            "result": self.result,
            "reason": self.reason,
            "first_output": self.first_iteration,
            "completed": self.completed_iteration,
            "queue_time": self.since_arrival(self.first_scheduled),
            "ttft": self.since_arrival(self.first_time),
            "e2el": self.since_arrival(self.completed_time),
            "max_itl": self.max_itl,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed_tokens,
            "attempts": 0 if self.result == "pending" else self.retries + (self.result != "retrying"),
        }
        if request.group is not None:
            entry["group"] = request.group
        if self.output_times is not None:
            entry["output_times"] = self.output_times
        return entry
