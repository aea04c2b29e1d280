"""Clients that try again."""

from dataclasses import dataclass
from heapq import heappop, heappush

from batchlab.clients.capped import Capped
from batchlab.clients.closed import Closed
from batchlab.clients.listed import Listed
from batchlab.clients.request import Request
from batchlab.clients.turns import Turns


@dataclass(frozen=True)
class Backoff:
    """When a rejected client comes again: after `wait`, then `wait * factor`, ...; `limit` attempts in all."""

    limit: int
    wait: int
    factor: int = 2

    def after(self, attempt: int) -> int | None:
        """Time to wait after the rejection of attempt 1, 2, ...; None if that was the last."""
        return None if attempt >= self.limit else self.wait * self.factor ** (attempt - 1)


class Retrying:
    """Sends what another client sends, and a rejected request again. An attempt is an event; the result comes once."""

    def __init__(self, client: Listed | Capped | Closed | Turns, backoff: Backoff) -> None:
        self._client = client
        self._backoff = backoff
        self._again: list[tuple[int, int, Request]] = []
        self._attempts: dict[int, int] = {}

    @property
    def next_arrival(self) -> int | None:
        """Time of the next arrival or attempt, None if there is none to come."""
        first = self._client.next_arrival
        again = self._again[0][0] if self._again else None
        return min(first, again) if first is not None and again is not None else again if first is None else first

    def due(self, now: int) -> list[tuple[int, int, Request]]:
        """(time, position, request) of all that come by `now`, by time, then input order."""
        found = self._client.due(now)
        if self._again and self._again[0][0] <= now:
            while self._again and self._again[0][0] <= now:
                found.append(heappop(self._again))
            found.sort(key=lambda entry: entry[:2])
        return found

    def ended(self, position: int, now: int, completed: bool) -> None:
        """A request has its result."""
        self._client.ended(position, now, completed)

    def rejected(self, position: int, request: Request, now: int) -> int | None:
        """The request was rejected. Returns when it comes again, or None: then the rejection is its result."""
        attempt = self._attempts.get(position, 0) + 1
        self._attempts[position] = attempt
        wait = self._backoff.after(attempt)
        if wait is None:
            return None
        time = now + wait
        given_up = [request.cancel_at, None if request.deadline is None else request.arrival + request.deadline]
        if any(limit is not None and time >= limit for limit in given_up):
            return None
        heappush(self._again, (time, position, request))
        return time
