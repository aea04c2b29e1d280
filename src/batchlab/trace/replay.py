"""Go through a trace's iterations and derive from the decisions in them everything else that they state."""

from __future__ import annotations

from collections import Counter
from typing import Any

from batchlab.errors import shorten
from batchlab.trace.rules import Findings
from batchlab.trace.state import Known, Waiting, known_from

NO_WORK = "no work"
_HAPPENINGS = ("arrived", "rejected", "preempted", "admitted")


class Replay:
    """The derived state of a run. `iteration` takes one line through its phases, in the order of events."""

    def __init__(self, header: dict[str, Any], findings: Findings, keep_times: bool) -> None:
        self.header = header
        self.findings = findings
        self.requests: dict[str, Known] = {}
        self.count = 0
        self.time = 0
        self.last_start: int | None = None
        self.waiting = Waiting()
        self.active: dict[str, None] = {}
        self.rejections: Counter[str] = Counter()
        self.max_queue_length = 0
        self.preemptions = 0
        self.unused_budget = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.recomputed_tokens = 0
        self.decode_stalls = 0
        self.preempted_decode_stalls = 0
        self._keep_times = keep_times and "requests" in header
        self._decoding: set[str] = set()
        self._parked: set[str] = set()
        for request in header.get("requests", ()):
            self.add_request(request)

    def add_request(self, obj: dict[str, Any]) -> None:
        """A request becomes known."""
        name, most, output = obj["id"], obj["max_tokens"], obj["output"]
        if name in self.requests:
            self._bad("request", "this id is given twice, each only once expected", name)
            return
        if most < output:
            self._bad("request", f"max_tokens {most}, but at least output {output} expected", name)
        elif most != output and self.header["max_tokens_rule"] == "output":
            self._bad("request", f"max_tokens {most}, but max_tokens_rule says output {output}", name)
        self.requests[name] = known_from(obj, len(self.requests), self._keep_times)

    def iteration(self, obj: dict[str, Any]) -> None:
        """Check one iteration line and move on to the state at its end."""
        self.findings.iteration = obj["iteration"]
        if obj["iteration"] != self.count:
            self._bad("numbering", f"iteration {obj['iteration']}, but {self.count} expected")
        limit = self.header["max_iterations"]
        if self.count == limit:
            self._bad("limit", f"iteration number {self.count + 1} of the run, but max_iterations is {limit}")
        self._clock(obj)
        new = self._arrivals(obj)
        left, front, back, key = self._seating(obj)
        left |= self._rejections(obj)
        came = [name for name in new if self.requests[name].state == "waiting" and name not in left]
        self.waiting.change(left, front, back, key, came)
        self._idle(obj)
        emitting, done = self._batch(obj)
        self._emission(obj, emitting, done)
        self._queue(obj)
        self._active(obj)
        self.last_start, self.time = obj["start"], obj["end"]
        self.count += 1
        self.findings.iteration = None

    def _bad(self, rule: str, message: str, request: str | None = None) -> None:
        self.findings.add(rule, message, request)

    def _find(self, name: str, where: str) -> Known | None:
        request = self.requests.get(name)
        if request is None:
            self._bad("lifecycle", f"named in {where}, but no request before has this id", name)
        return request

    def _clock(self, obj: dict[str, Any]) -> None:
        start, end, clock = obj["start"], obj["end"], self.header["clock"]
        if clock["idle"] == "step":
            if start != self.time:
                self._bad("clock", f"start {start}, but the previous end {self.time} expected: it steps")
        elif start < self.time:
            self._bad("clock", f"start {start}, but the previous iteration ended at {self.time}")
        if clock["unit"] == "iteration" and end != start + 1:
            self._bad("clock", f"end {end}, but an iteration lasts 1: {start + 1} expected")
        elif end < start or (end == start and obj["scheduled"]):
            self._bad(
                "clock",
                f"end {end}, but {'> ' if obj['scheduled'] else '>= '}{start} expected",
            )

    def _arrivals(self, obj: dict[str, Any]) -> list[str]:
        """The ids that arrive now, in order."""
        start, new = obj["start"], []
        last: tuple[int, int] | None = None
        for name in obj["arrived"]:
            request = self._find(name, "arrived")
            if request is None:
                continue
            if request.state != "pending":
                self._bad("lifecycle", f"arrives now, but it is {request.state} already", name)
                continue
            if request.arrival > start:
                self._bad("arrival", f"arrival {request.arrival}, but seen at {start} already", name)
            elif self.last_start is not None and request.arrival <= self.last_start:
                self._bad(
                    "arrival",
                    f"arrival {request.arrival}, but not seen at {self.last_start}",
                    name,
                )
            order = request.arrival, request.index
            if last is not None and order < last:
                self._bad(
                    "arrival",
                    f"(arrival, input) {order} seen after {last}",
                    name,
                )
            last = order
            request.state = "waiting"
            new.append(name)
        return new

    def _seating(self, obj: dict[str, Any]) -> tuple[set[str], list[str], list[str], list[str]]:
        """Preemptions and admissions. Returns whose place in the queue is void, and who was put where."""
        balance: dict[str, int] = {}
        place: dict[str, str] = {}
        for entry in obj["preempted"]:
            request = self._find(entry["id"], "preempted")
            if request is not None:
                self._preempt(request, entry)
                balance[request.id] = balance.get(request.id, 0) - 1
                place.pop(request.id, None)
                place[request.id] = entry["place"]
        for name in obj["admitted"]:
            if self._find(name, "admitted") is not None:
                balance[name] = balance.get(name, 0) + 1
        for name, change in balance.items():
            self._take_or_leave(self.requests[name], change)
        for name in obj["admitted"]:
            if name in balance and self.requests[name].state == "active":
                self.active.pop(name, None)
                self.active[name] = None
        seats = self.header["limits"]["max_num_seqs"]
        if seats is not None and len(self.active) > seats:
            self._bad("seats", f"{len(self.active)} hold a seat, but max_num_seqs is {seats}")
        put = [name for name in place if self.requests[name].state == "waiting"]
        front = [name for name in reversed(put) if place[name] == "front"]
        back = [name for name in put if place[name] == "back"]
        return set(balance), front, back, [name for name in put if place[name] == "key"]

    def _preempt(self, request: Known, entry: dict[str, Any]) -> None:
        given = entry["computed"]
        if given != request.computed:
            self._bad("progress", f"computed {given}, but {request.computed} tokens follow", request.id)
        request.preemptions += 1
        self.preemptions += 1
        if entry["mode"] == "recompute":
            self.recomputed_tokens += request.computed
            request.lose_progress()

    def _take_or_leave(self, request: Known, change: int) -> None:
        """The seat after an iteration with so many more admissions than preemptions of this request."""
        name, state = request.id, request.state
        if state not in ("waiting", "active"):
            self._bad("lifecycle", f"admitted or preempted, but it is {state}", name)
            return
        held = int(state == "active") + change
        if held > 1:
            self._bad("lifecycle", "admitted, but it holds a seat already", name)
        elif held < 0:
            self._bad("lifecycle", "preempted, but it holds no seat", name)
        request.state = "active" if held > 0 else "waiting"
        if request.state == "waiting":
            self.active.pop(name, None)
        self._track(request)

    def _rejections(self, obj: dict[str, Any]) -> set[str]:
        """The ids that are refused now."""
        refused = set()
        for entry in obj["rejected"]:
            request = self._find(entry["id"], "rejected")
            if request is None:
                continue
            if request.state != "waiting":
                self._bad("lifecycle", f"rejected, but it is {request.state}", request.id)
                if request.state != "active":
                    continue
                del self.active[request.id]
            request.state, request.reason = "rejected", entry["reason"]
            self.rejections[entry["reason"]] += 1
            self._track(request)
            refused.add(request.id)
        return refused

    def _track(self, request: Known) -> None:
        """Keep the sets of those in their decode phase, with and without a seat."""
        decodes = request.prefill_left == 0
        for state, members in (("active", self._decoding), ("waiting", self._parked)):
            if decodes and request.state == state:
                members.add(request.id)
            else:
                members.discard(request.id)

    def _idle(self, obj: dict[str, Any]) -> None:
        idle = obj["idle"]
        if obj["scheduled"]:
            if idle is not None:
                self._bad("idle", f"idle {shorten(idle)}, but tokens were scheduled: null expected")
            return
        if idle is None:
            self._bad("idle", "idle null, but nothing was scheduled: a reason expected")
        elif idle == NO_WORK:
            if len(self.waiting) or self.active:
                there = f"{len(self.waiting)} wait and {len(self.active)} hold a seat"
                self._bad("idle", f"idle {NO_WORK!r}, but {there}")
            elif self.header["clock"]["idle"] == "jump" and not any(obj[field] for field in _HAPPENINGS):
                self._bad("jump", f"idle {NO_WORK!r}, but the clock jumps over such iterations")

    def _batch(self, obj: dict[str, Any]) -> tuple[list[Known], list[str]]:
        """The scheduled tokens. Returns who emits a token at the end, in order, and whose prefill is done."""
        emitting: list[Known] = []
        done: list[str] = []
        seen: set[str] = set()
        sums = {"prefill": 0, "decode": 0}
        for name, phase, tokens in obj["scheduled"]:
            sums[phase] += tokens
            request = self._find(name, "scheduled")
            if request is None:
                continue
            if name in seen:
                self._bad("tokens", "twice in one batch, one entry expected", name)
                continue
            seen.add(name)
            if request.state != "active":
                self._bad("lifecycle", f"scheduled, but it is {request.state}: a seat expected", name)
                if request.state == "completed":
                    continue
            if self._compute(request, phase, tokens):
                emitting.append(request)
                if phase == "prefill":
                    done.append(name)
            if request.first_start is None:
                request.first_start = obj["start"]
        if sums["prefill"]:
            self.decode_stalls += len(self._decoding - seen)
            self.preempted_decode_stalls += len(self._parked - seen)
        self.prefill_tokens += sums["prefill"]
        self.decode_tokens += sums["decode"]
        self._budget(obj, sums["prefill"] + sums["decode"])
        return emitting, done

    def _compute(self, request: Known, phase: str, tokens: int) -> bool:
        """Give a request its tokens; whether it emits one."""
        left = request.prefill_left
        request.scheduled += tokens
        if phase == "prefill":
            if left == 0:
                self._bad("phase", f"prefill of {tokens}, but its prefill is done", request.id)
                return False
            if tokens > left:
                self._bad("tokens", f"prefill of {tokens}, but only {left} are left", request.id)
            request.computed += min(tokens, left)
            return request.prefill_left == 0
        if left > 0:
            self._bad("phase", f"decode, but {left} tokens of prefill are left", request.id)
            return False
        if tokens != 1:
            self._bad("tokens", f"decode of {tokens}, 1 expected", request.id)
        request.computed += 1
        return True

    def _budget(self, obj: dict[str, Any], total: int) -> None:
        budget, unused = self.header["limits"]["max_num_batched_tokens"], obj["unused"]
        if budget is None:
            if unused is not None:
                self._bad("unused", f"unused {unused}, but there is no budget: null expected")
            return
        if total > budget:
            self._bad("budget", f"{total} tokens scheduled, but max_num_batched_tokens is {budget}")
        if unused != budget - total:
            self._bad("unused", f"unused {shorten(unused)}, but {budget} - {total} expected")
        self.unused_budget += budget - total

    def _emission(self, obj: dict[str, Any], emitting: list[Known], done: list[str]) -> None:
        """Output tokens appear, and who has all of them leaves."""
        first = [request.id for request in emitting if request.emitted == 0]
        finished: set[str] = set()
        for request in emitting:
            request.emit(self.count, obj["end"])
            if request.state == "completed":
                finished.add(request.id)
                self._completion_sum(request)
            self._track(request)
        completed = [name for name in self.active if name in finished] if finished else []
        completed += sorted(finished.difference(completed))
        for name in completed:
            self.active.pop(name, None)
            self.waiting.ids.pop(name, None)
        self._same_ids("prefill-done", "prefill_done", obj["prefill_done"], done)
        self._same_ids("first-token", "first_token", obj["first_token"], first)
        self._same_ids("completed", "completed", obj["completed"], completed)

    def _completion_sum(self, request: Known) -> None:
        expected = request.prompt + request.output - 1 + request.recomputed
        if request.scheduled != expected:
            sums = f"{request.prompt} + {request.output} - 1 + {request.recomputed} = {expected} expected"
            self._bad("tokens", f"completed with {request.scheduled} tokens, but {sums}", request.id)

    def _same_ids(self, rule: str, field: str, given: list[str], derived: list[str]) -> None:
        if given == derived:
            return
        differing = next(
            (name for name in (*given, *derived) if (name in given) != (name in derived)),
            None,
        )
        self._bad(rule, f"{field} {shorten(given)}, but {shorten(derived)} follows", differing)

    def _queue(self, obj: dict[str, Any]) -> None:
        problem = self.waiting.check(obj["queue"], self.requests)
        if problem is not None:
            self._bad("queue", f"queue: {problem}")
        length, bound = len(self.waiting), self.header["limits"]["max_queue"]
        if bound is not None and length > bound:
            self._bad("queue-bound", f"{length} wait, but max_queue is {bound}")
        self.max_queue_length = max(self.max_queue_length, length)

    def _active(self, obj: dict[str, Any]) -> None:
        given = obj["active"]
        if isinstance(given, int):
            if given != len(self.active):
                self._bad("active", f"active {given}, but {len(self.active)} hold a seat")
        elif len(given) != len(self.active) or given != list(self.active):
            derived = list(self.active) if len(self.active) <= 256 else len(self.active)
            self._bad("active", f"active {shorten(given)}, but {shorten(derived)} follows")
