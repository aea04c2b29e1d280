"""What became of one request."""

from typing import Any

from batchlab.clients.request import Request
from batchlab.core.tally import NEVER, RESULTS, Tally


class RequestResult:
    """What became of one request. Times in the clock's unit; None where a time does not apply."""

    def __init__(self, request: Request, tally: Tally, position: int, output_times: list[int] | None = None) -> None:
        result = RESULTS[tally.result[position]]
        self.request = request
        self.result = result
        self.reason = tally.reasons.get(position)
        self.first_scheduled = _known(tally.first_scheduled[position])
        self.first_iteration = _known(tally.first_iteration[position])
        self.first_time = _known(tally.first_time[position])
        self.emitted = tally.tokens[position]
        self.completed_iteration = _known(tally.completed_iteration[position])
        self.completed_time = tally.last_time[position] if result == "completed" else None
        self.max_itl = _known(tally.max_itl[position])
        self.preemptions = tally.times_preempted[position]
        self.recomputed_tokens = tally.recomputed[position]
        self.attempts = 0 if result == "pending" else tally.times_retried[position] + (result != "retrying")
        self.output_times = output_times

    def since_arrival(self, time: int | None) -> int | None:
        """A point in time as a latency."""
        return None if time is None else time - self.request.arrival

    def as_dict(self, with_times: bool = True) -> dict[str, Any]:
        """The entry of the summary, as docs/trace-format.md defines it; with_times: those of all tokens, if kept."""
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
            "attempts": self.attempts,
        }
        if request.group is not None:
            entry["group"] = request.group
        if request.held_until is not None:
            entry["held_until"] = request.held_until
        if with_times and self.output_times is not None:
            entry["output_times"] = self.output_times
        return entry


def _known(time: int) -> int | None:
    return None if time == NEVER else time
