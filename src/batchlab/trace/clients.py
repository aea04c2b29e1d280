"""What clients do: come, come again after a rejection, give up; and who ends before the last token."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from batchlab.trace.ledger import Ledger
from batchlab.trace.state import Known


class Clients:
    """Checks arrivals, rejections and drops against what each client would do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._give_up: list[tuple[int, int, str, str]] = []
        """(time, input order, id, why) of all that have come."""

    def arrivals(self, obj: dict[str, Any]) -> list[str]:
        """The ids that come now, in order."""
        ledger, start, new = self._ledger, obj["start"], []
        last: tuple[int, int] | None = None
        for name in obj["arrived"]:
            request = ledger.find(name, "arrived")
            if request is None:
                continue
            if request.state not in ("pending", "retrying"):
                ledger.bad("lifecycle", f"arrives now, but it is {request.state} already", name)
                continue
            rule, what = ("arrival", "arrival") if request.state == "pending" else ("retry", "retry_at")
            time = request.comes_at
            if time > start:
                ledger.bad(rule, f"{what} {time}, but seen at {start} already", name)
            elif ledger.last_start is not None and time <= ledger.last_start and time != ledger.time:
                ledger.bad(rule, f"{what} {time}, but not seen at {ledger.last_start}", name)
            # Without a list of all requests, the input order of those who come again is not known.
            listed = "requests" in ledger.header or request.attempts == 0
            order = time, request.index if listed else last[1] if last is not None and last[0] == time else -1
            if last is not None and order < last:
                ledger.bad("arrival", f"(arrival, input) {order} seen after {last}", name)
            last = order
            request.come()
            self._watch(request)
            new.append(name)
        return new

    def rejections(self, obj: dict[str, Any]) -> list[Known]:
        """Those that are refused now, for good or until they come again."""
        ledger, refused = self._ledger, []
        for entry in obj["rejected"]:
            request = ledger.find(entry["id"], "rejected")
            if request is None:
                continue
            if request.state != "waiting":
                ledger.bad("lifecycle", f"rejected, but it is {request.state}", request.id)
                if request.state != "active":
                    continue
            again = self._retry_at(request, obj["start"], entry.get("retry_at"))
            if again is None:
                request.state, request.reason = "rejected", entry["reason"]
                ledger.rejections[entry["reason"]] += 1
            else:
                request.state, request.comes_at = "retrying", again
                ledger.retries += 1
            refused.append(request)
        return refused

    def _retry_at(self, request: Known, start: int, given: int | None) -> int | None:
        """When the client says it comes again, checked against the header's rule."""
        ledger = self._ledger
        wait = ledger.terms.retry_wait(request.attempts)
        expected = None if wait is None else start + wait
        gives_up = min((t for t in (request.cancel_at, request.deadline_at) if t is not None), default=None)
        if expected is not None and (request.preempted or (gives_up is not None and expected >= gives_up)):
            expected = None
        if given != expected:
            after = f"after the rejection of attempt {request.attempts} at {start}"
            ledger.bad("retry", f"retry_at {given}, but {expected} expected {after}", request.id)
        return given

    def drops(self, obj: dict[str, Any], late: bool = False) -> list[Known]:
        """Those that end before their last token; whoever gave up and is not among them should be.

        late: only those that ended while the iteration was under way, else only the others.
        """
        ledger, start, gone = self._ledger, obj["start"], []
        for entry in obj.get("dropped", ()):
            if (entry.get("at", start) > start) is not late:
                continue
            request = ledger.find(entry["id"], "dropped")
            if request is None:
                continue
            if "at" in entry and not ledger.terms.recorded:
                ledger.bad("dropped", f"at {entry['at']}, but only a recording says when it was told", request.id)
            result = entry["result"]
            if not request.here:
                ledger.bad("lifecycle", f"{result}, but it is {request.state}", request.id)
                continue
            time = self._at(entry, obj) if ledger.terms.recorded else self._limit(request, result)
            if result != "failed" and (time is None or time > start):
                until = "never" if time is None else f"not before {time}"
                ledger.bad("dropped", f"{result} at {start}, but {until} expected", request.id)
            request.state, request.reason = result, entry["reason"]
            gone.append(request)
        while self._give_up and self._give_up[0][0] <= start:
            time, _, name, result = heappop(self._give_up)
            if ledger.requests[name].here:
                ledger.bad("dropped", f"goes on at {start}, but {result} since {time} expected", name)
        return gone

    def _at(self, entry: dict[str, Any], obj: dict[str, Any]) -> int | None:
        """In a recording: since when it is over, as the engine learned of it; no later than here."""
        at = entry.get("at")
        if at is not None and not self._ledger.time <= at <= obj["end"]:
            told = f"told at {at}, but between {self._ledger.time} and {obj['end']} expected"
            self._ledger.bad("dropped", told, entry["id"])
        return None if at is None else min(at, obj["start"])

    def unseen(self) -> None:
        """At the end: whoever should have come by the last start has come."""
        last = self._ledger.last_start
        for request in self._ledger.requests.values():
            missed = last is not None and request.comes_at <= last and request.comes_at != self._ledger.time
            if request.state in ("pending", "retrying") and missed:
                rule, what = ("arrival", "arrival") if request.state == "pending" else ("retry", "retry_at")
                self._ledger.bad(rule, f"{what} {request.comes_at}, but it was not seen at {last}", request.id)

    def _limit(self, request: Known, result: str) -> int | None:
        if result == "cancelled":
            return request.cancel_at
        return request.deadline_at if self._ledger.terms.drops_late else None

    def _watch(self, request: Known) -> None:
        for result in ("cancelled", "expired"):
            time = self._limit(request, result)
            if time is not None:
                heappush(self._give_up, (time, request.index, request.id, result))
