"""How long those in the queue have waited, by reason, without touching each of them in each iteration."""

from batchlab.explain.reasons import Reason


class Above:
    """Amounts at places 0, 1, 2, ...; answers what lies above a place, in logarithmic time (a Fenwick tree)."""

    def __init__(self) -> None:
        self._tree = [0]
        self._total = 0

    def add(self, place: int, amount: int) -> None:
        """Put an amount at a place."""
        self._total += amount
        tree = self._tree
        while len(tree) <= place + 1:
            here = len(tree)
            tree.append(self._first(here - 1) - self._first(here - (here & -here)))
        here = place + 1
        while here < len(tree):
            tree[here] += amount
            here += here & -here

    def above(self, place: int) -> int:
        """The sum of what lies at greater places."""
        return self._total - self._first(min(place + 1, len(self._tree) - 1))

    def _first(self, count: int) -> int:
        found = 0
        while count > 0:
            found += self._tree[count]
            count -= count & -count
        return found


class QueueClock:
    """Adds up time for all that wait at once; whoever joins and leaves takes the difference of two readings.

    Those who came before `latest`, the latest comer among those that hold a seat, wait because of the order.
    """

    def __init__(self) -> None:
        self._all = [0] * len(Reason)
        self._overtaken: dict[Reason, Above] = {}

    def add(self, reason: Reason, time: int, latest: int = -1) -> None:
        """Time passes for all that wait. latest: -1 where nobody is overtaken."""
        self._all[reason] += time
        if latest >= 0:
            self._overtaken.setdefault(reason, Above()).add(latest, time)

    def read(self, index: int) -> list[int]:
        """The times by reason so far, as the one with this place in the order of coming sees them."""
        times = list(self._all)
        for reason, amounts in self._overtaken.items():
            taken = amounts.above(index)
            times[reason] -= taken
            times[Reason.ORDER] += taken
        return times
