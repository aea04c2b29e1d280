"""Sessions whose next turn is sent when the last one has been answered."""

from heapq import heapify, heappush

from batchlab.clients.columns import Columns
from batchlab.clients.due import Due


def turns_after(requests: Columns) -> dict[int, tuple[int, int]]:
    """By the turn before: which one comes next, and how long after its last token."""
    assert requests.sessions is not None and requests.sessions.think is not None
    rows = zip(requests.sessions.previous.tolist(), requests.sessions.think.tolist(), strict=True)
    return {previous: (position, think) for position, (previous, think) in enumerate(rows) if think >= 0}


class Turns(Due):
    """Sends first turns at their arrival, and each other one `think` after the last token of the turn before it.

    A turn that ends without its last token ends its session: nobody can go on from an answer that did not come, and the
    prompts of all later turns hold it. Those are never sent.
    """

    def __init__(self, requests: Columns) -> None:
        super().__init__(requests)
        self._after = turns_after(requests)
        later = {position for position, _ in self._after.values()}
        self._due = [(arrival, k) for k, arrival in enumerate(requests.arrival.tolist()) if k not in later]
        heapify(self._due)

    def ended(self, position: int, now: int, completed: bool) -> None:
        """A request has its result: if that is its answer, the next turn of its session is due."""
        following = self._after.get(position) if completed else None
        if following is not None:
            heappush(self._due, (now + following[1], following[0]))
