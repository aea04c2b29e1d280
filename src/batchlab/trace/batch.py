"""The scheduled tokens of one iteration."""

from __future__ import annotations

from typing import Any, NamedTuple

from batchlab.trace.kv import Pool
from batchlab.trace.ledger import Ledger
from batchlab.trace.state import Known


class Sampled(NamedTuple):
    """A token that a step brings: whose, of which of its attempts, and from which phase."""

    request: Known
    attempt: int
    phase: str


class Batches:
    """Checks the entries of each batch and gives the requests their tokens."""

    def __init__(self, ledger: Ledger, pool: Pool) -> None:
        self._ledger = ledger
        self._pool = pool

    def take(self, obj: dict[str, Any]) -> list[Sampled]:
        """The tokens that the batch will bring, in order."""
        ledger = self._ledger
        sampled: list[Sampled] = []
        seen: set[str] = set()
        sums = {"prefill": 0, "decode": 0}
        for name, phase, tokens in obj["scheduled"]:
            sums[phase] += tokens
            request = ledger.find(name, "scheduled")
            if request is None:
                continue
            if name in seen:
                ledger.bad("tokens", "twice in one batch, one entry expected", name)
                continue
            seen.add(name)
            if request.state != "active":
                ledger.bad("lifecycle", f"scheduled, but it is {request.state}: a seat expected", name)
                if not request.here:
                    continue
            if self._entry(request, phase, tokens):
                request.in_flight += 1
                sampled.append(Sampled(request, request.attempts, phase))
            if request.first_start is None:
                request.first_start = obj["start"]
        if sums["prefill"] and ledger.terms.depth == 1:
            ledger.decode_stalls += len(ledger.decoding - seen)
            ledger.preempted_decode_stalls += len(ledger.parked - seen)
        ledger.prefill_tokens += sums["prefill"]
        ledger.decode_tokens += sums["decode"]
        self._budget(obj, sums["prefill"] + sums["decode"])
        return sampled

    def _entry(self, request: Known, phase: str, tokens: int) -> bool:
        """Give a request its tokens; whether they bring one."""
        cached = self._pool.find(request) if request.fresh else 0
        request.fresh = False
        brings = self._compute(request, phase, tokens)
        if request.state == "active":
            self._pool.grow(request, cached)
            self._ledger.track(request)
        return brings

    def _compute(self, request: Known, phase: str, tokens: int) -> bool:
        left = request.prefill_left
        request.scheduled += tokens
        if phase == "prefill":
            if left == 0:
                self._ledger.bad("phase", f"prefill of {tokens}, but its prefill is done", request.id)
                return False
            if tokens > left:
                self._ledger.bad("tokens", f"prefill of {tokens}, but only {left} are left", request.id)
            request.computed += min(tokens, left)
            return request.prefill_left == 0
        if left > 0:
            self._ledger.bad("phase", f"decode, but {left} tokens of prefill are left", request.id)
            return False
        if tokens != 1:
            self._ledger.bad("tokens", f"decode of {tokens}, 1 expected", request.id)
        elif request.known + request.in_flight <= request.computed:
            known = f"{request.known} tokens and {request.in_flight} on their way"
            self._ledger.bad("tokens", f"decode, but {known} are computed already", request.id)
        request.computed += 1
        return True

    def _budget(self, obj: dict[str, Any], total: int) -> None:
        budget, unused = self._ledger.terms.budget, obj["unused"]
        if budget is None:
            if unused is not None:
                self._ledger.bad("unused", f"unused {unused}, but there is no budget: null expected")
            return
        if total > budget:
            self._ledger.bad("budget", f"{total} tokens scheduled, but max_num_batched_tokens is {budget}")
        if unused != budget - total:
            self._ledger.bad("unused", f"unused {unused}, but {budget} - {total} expected")
        self._ledger.unused_budget += budget - total
