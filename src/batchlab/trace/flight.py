"""Steps between their plan and their delivery; the tokens that come out, and who leaves with them."""

from __future__ import annotations

from typing import Any

from batchlab.errors import shorten
from batchlab.trace.batch import Sampled
from batchlab.trace.kv import Pool
from batchlab.trace.ledger import Ledger
from batchlab.trace.state import Known


class Flight:
    """Checks that each step is delivered once and in order, and derives what its tokens cause."""

    def __init__(self, ledger: Ledger, pool: Pool) -> None:
        self._ledger = ledger
        self._pool = pool
        self._steps: dict[int, list[Sampled]] = {}
        """Of each iteration with a batch that is not delivered: the tokens to come."""
        self._last = -1
        """The last iteration that was delivered."""

    def launch(self, obj: dict[str, Any], sampled: list[Sampled]) -> None:
        """A batch sets out."""
        if obj["scheduled"]:
            self._steps[self._ledger.count] = sampled

    def land(self, obj: dict[str, Any]) -> bool:
        """Tokens come out, and who has all of them leaves. Whether a step with a batch was delivered."""
        number = self._delivered(obj)
        step = None if number is None else self._steps.pop(number, None)
        self._overdue()
        emitting: list[Sampled] = []
        discarded: list[str] = []
        for token in step or ():
            gone = token.attempt != token.request.attempts or not token.request.here
            if gone:
                discarded.append(token.request.id)
            else:
                emitting.append(token)
        self._emit(obj, emitting)
        self._ledger.same_ids("discarded", "discarded", obj.get("discarded", []), discarded)
        return step is not None

    def check_end(self) -> None:
        """At the end: nothing is left on its way, unless no more iterations were allowed."""
        if self._steps and self._ledger.count != self._ledger.terms.max_iterations:
            self._ledger.bad("delivery", f"iterations {shorten(list(self._steps))} are never delivered")

    def _delivered(self, obj: dict[str, Any]) -> int | None:
        """The iteration whose tokens come out in this one."""
        ledger, count, depth = self._ledger, self._ledger.count, self._ledger.terms.depth
        if "delivers" not in obj:
            number: int | None = count
        else:
            number = obj["delivers"]
            if depth == 1 and number != count:
                ledger.bad("delivery", f"delivers {number}, but {count} expected: one step in flight")
        if number is None:
            return None
        if number > count:
            ledger.bad("delivery", f"delivers {number}, which is still to come")
            return None
        if number <= self._last:
            ledger.bad("delivery", f"delivers {number}, but {self._last} was delivered before: each once, in order")
            return None
        self._last = number
        return number

    def _overdue(self) -> None:
        """Steps that were passed over, and more steps than may be in flight."""
        depth, waiting = self._ledger.terms.depth, list(self._steps)
        for number in waiting:
            if number < self._last:
                self._ledger.bad("delivery", f"iteration {number} is passed over: {self._last} is delivered before it")
            elif len(self._steps) >= depth:
                several = f"{len(self._steps)} steps in flight at the end, at most {depth - 1} expected"
                self._ledger.bad("delivery", f"iteration {number} is not delivered: {several}")
            else:
                break
            del self._steps[number]

    def _emit(self, obj: dict[str, Any], emitting: list[Sampled]) -> None:
        ledger = self._ledger
        first = [token.request.id for token in emitting if token.request.emitted == 0]
        done = [token.request.id for token in emitting if token.phase == "prefill"]
        finished: dict[str, Known] = {}
        last = set(obj["completed"])
        for request, _, _ in emitting:
            request.in_flight -= 1
            seated = request.state == "active"
            request.emit(ledger.count, obj["end"], request.id in last)
            longest = ledger.terms.max_model_len
            if longest is not None and request.known > longest:
                ledger.bad("model-len", f"{request.known} tokens, but max_model_len is {longest}", request.id)
            if not request.here:
                finished[request.id] = request
                self._completion_sum(request, seated)
            ledger.track(request)
        ledger.same_ids("prefill-done", "prefill_done", obj["prefill_done"], done)
        ledger.same_ids("first-token", "first_token", obj["first_token"], first)
        self._completed(obj["completed"], finished)
        for request in finished.values():
            self._pool.release(request)
            ledger.active.pop(request.id, None)
            ledger.waiting.remove(request.id)

    def _completed(self, given: list[str], finished: dict[str, Known]) -> None:
        """Those with a seat in admission order; one that ends while it waits may stand anywhere among them."""
        seated = [name for name in self._ledger.active if name in finished] if finished else []
        if len(seated) < len(finished) and sorted(given) == sorted(finished):
            given = [name for name in given if name in self._ledger.active]
            self._ledger.same_ids("completed", "completed", given, seated)
        else:
            self._ledger.same_ids("completed", "completed", given, seated + [n for n in finished if n not in seated])

    def _completion_sum(self, request: Known, seated: bool) -> None:
        """All its scheduled tokens, once it has ended; what was on its way then is for nothing.

        One that ends while it waits has had no use of its last recompute preemption.
        """
        lost = request.lost if seated or request.computed else request.lost - request.dropped
        parts = (request.prompt, request.due, -1, lost, -request.cached, request.in_flight)
        if request.scheduled != sum(parts):
            terms = f"prompt {request.prompt} + output {request.due} - 1 + recomputed {lost} - cached {request.cached}"
            more = f" + {request.in_flight} on their way" if request.in_flight else ""
            message = f"completed with {request.scheduled} tokens, but {terms}{more} = {sum(parts)} expected"
            self._ledger.bad("tokens", message, request.id)
