"""Who takes a seat and who loses it in one iteration."""

from __future__ import annotations

from collections import Counter
from typing import Any

from batchlab.trace.kv import Pool
from batchlab.trace.ledger import Ledger
from batchlab.trace.state import Known


class Seats:
    """Checks admissions and preemptions. Where one request has several, they can only alternate."""

    def __init__(self, ledger: Ledger, pool: Pool) -> None:
        self._ledger = ledger
        self._pool = pool

    def change(self, obj: dict[str, Any]) -> dict[str, str]:
        """Take a line's preemptions and admissions. Returns who moved, each with its last place in the queue or ''."""
        ledger = self._ledger
        outs: dict[str, list[dict[str, Any]]] = {}
        place: dict[str, str] = {}
        for entry in obj["preempted"]:
            name = entry["id"]
            if ledger.find(name, "preempted") is not None:
                outs.setdefault(name, []).append(entry)
                place.pop(name, None)
                place[name] = entry["place"]
                ledger.preemptions += 1
        ins = Counter(name for name in obj["admitted"] if ledger.find(name, "admitted") is not None)
        for name in {**outs, **ins}:
            self._moves(ledger.requests[name], outs.get(name, []), ins[name])
        for name in ins:
            place.setdefault(name, "")
        for name in obj["admitted"]:
            if name in ins and ledger.requests[name].state == "active":
                ledger.active.pop(name, None)
                ledger.active[name] = None
        return place

    def check_limit(self) -> None:
        """No more seats than there are, once those who ended are gone."""
        seats, taken = self._ledger.terms.seats, len(self._ledger.active)
        if seats is not None and taken > seats:
            self._ledger.bad("seats", f"{taken} hold a seat, but max_num_seqs is {seats}")

    def _moves(self, request: Known, outs: list[dict[str, Any]], ins: int) -> None:
        name, state = request.id, request.state
        if not request.here:
            self._ledger.bad("lifecycle", f"admitted or preempted, but it is {state}", name)
            return
        held = int(state == "active") + ins - len(outs)
        if held > 1:
            self._ledger.bad("lifecycle", "admitted, but it holds a seat already", name)
        elif held < 0:
            self._ledger.bad("lifecycle", "preempted, but it holds no seat", name)
        while True:
            if request.state == "active" and outs:
                self._preempt(request, outs.pop(0), ins > 0)
            elif request.state == "waiting" and ins:
                ins -= 1
                request.sit()
            else:
                break
        if request.state == "waiting":
            self._ledger.active.pop(name, None)
        self._ledger.track(request)

    def _preempt(self, request: Known, entry: dict[str, Any], more_seats: bool) -> None:
        given = entry["computed"]
        recompute = entry["mode"] == "recompute"
        self._pool.stand(request, entry["mode"], given, more_seats)
        if given != request.computed:
            self._ledger.bad("progress", f"computed {given}, but {request.computed} tokens follow", request.id)
        if recompute:
            self._ledger.recomputed_tokens += request.computed
        request.stand(recompute)
