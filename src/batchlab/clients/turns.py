"""Sessions whose next turn is sent when the last one has been answered."""

from heapq import heapify, heappush

from batchlab.clients.columns import Columns
from batchlab.clients.due import Due


class Turns(Due):
    """Sends first turns at their arrival, and each other one `think` after the last token of the turn before it.

    A turn that ends without its last token ends its session: nobody can go on from an answer that did not come, and the
    prompts of all later turns hold it. Those are never sent.
    """

    def __init__(self, requests: Columns) -> None:
        assert requests.sessions is not None and requests.sessions.think is not None
        super().__init__(requests)
        self._after: dict[int, tuple[int, int]] = {}  # by the turn before: who comes next, and how long after it
        for position, (previous, think) in enumerate(
            zip(requests.sessions.previous.tolist(), requests.sessions.think.tolist(), strict=True)
        ):
            if think < 0:
                self._due.append((int(requests.arrival[position]), position))
            else:
                self._after[previous] = position, think
        heapify(self._due)

    def ended(self, position: int, now: int, completed: bool) -> None:
        """A request has its result: if that is its answer, the next turn of its session is due."""
        following = self._after.get(position) if completed else None
        if following is not None:
            heappush(self._due, (now + following[1], following[0]))
