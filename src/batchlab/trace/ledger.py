"""What a verifier keeps of a run: the requests, who sits and who waits, and the totals."""

from __future__ import annotations

from collections import Counter
from typing import Any

from batchlab.errors import shorten
from batchlab.trace.rules import Findings
from batchlab.trace.state import Known, known_from
from batchlab.trace.terms import terms_of
from batchlab.trace.waiting import Waiting


class Ledger:
    """The state that all parts of the replay share."""

    def __init__(self, header: dict[str, Any], findings: Findings, keep_times: bool) -> None:
        self.header = header
        self.terms = terms_of(header)
        self.findings = findings
        self.requests: dict[str, Known] = {}
        self.count = 0
        self.time = 0
        self.last_start: int | None = None
        self.waiting = Waiting(self.terms.order, self.terms.aging, "requests" in header)
        self.active: dict[str, None] = {}
        self.decoding: set[str] = set()
        """Those in their decode phase with a seat; `parked`: those without."""
        self.parked: set[str] = set()
        self.rejections: Counter[str] = Counter()
        self.max_queue_length = 0
        self.preemptions = 0
        self.retries = 0
        self.unused_budget = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.recomputed_tokens = 0
        self.cached_tokens = 0
        self.moved_blocks = 0
        self.decode_stalls = 0
        self.preempted_decode_stalls = 0
        self.batch = 0
        """Admissions less preemptions since nobody held a seat."""
        self.slots_opened = 0
        self.gaps: Counter[int] | None = Counter() if keep_times else None
        self._keep_times = keep_times and "requests" in header
        for request in header.get("requests", ()):
            self.add_request(request)

    def add_request(self, obj: dict[str, Any]) -> None:
        """A request becomes known."""
        name, most, output = obj["id"], obj["max_tokens"], obj.get("output")
        if name in self.requests:
            self.bad("request", "this id is given twice, each only once expected", name)
            return
        if output is None:
            if not self.terms.recorded:
                self.bad("request", "output expected: only a recording may leave it open", name)
        elif most < output:
            self.bad("request", f"max_tokens {most}, but at least output {output} expected", name)
        elif most != output and self.header["max_tokens_rule"] == "output":
            self.bad("request", f"max_tokens {most}, but max_tokens_rule says output {output}", name)
        if "held_until" in obj and obj["held_until"] <= obj["arrival"]:
            self.bad(
                "request", f"held_until {obj['held_until']}, but later than arrival {obj['arrival']} expected", name
            )
        self._check_turn(obj)
        self.requests[name] = known_from(obj, len(self.requests), self.terms, self._keep_times, self.gaps)

    def _check_turn(self, obj: dict[str, Any]) -> None:
        """A turn of a session comes so long after the one before it has had its last token, and only then."""
        if "after" not in obj:
            return
        before = self.requests.get(obj["after"])
        if before is None or before.state != "completed" or before.last_time is None:
            state = "not there" if before is None else before.state
            self.bad("session", f"comes after {obj['after']!r}, which is {state}: completed expected", obj["id"])
        elif obj["arrival"] != before.last_time + obj["think_time"]:
            ended = f"{before.id!r} ended at {before.last_time} and it thinks {obj['think_time']}"
            self.bad("session", f"arrival {obj['arrival']}, but {ended}", obj["id"])

    def bad(self, rule: str, message: str, request: str | None = None) -> None:
        """Note a violation."""
        self.findings.add(rule, message, request)

    def find(self, name: str, where: str) -> Known | None:
        """The request of this id; None, with a violation, if there is none."""
        request = self.requests.get(name)
        if request is None:
            self.bad("lifecycle", f"named in {where}, but no request before has this id", name)
        return request

    def track(self, request: Known) -> None:
        """Keep the sets of those in their decode phase, with and without a seat."""
        decodes = request.prefill_left == 0
        for state, members in (("active", self.decoding), ("waiting", self.parked)):
            if decodes and request.state == state:
                members.add(request.id)
            else:
                members.discard(request.id)

    def same_ids(self, rule: str, field: str, given: list[str], derived: list[str]) -> None:
        """Compare a recorded list with what follows."""
        if given != derived:
            message = f"{field} {shorten(given)}, but {shorten(derived)} follows"
            self.bad(rule, message, next((n for n in (*given, *derived) if (n in given) != (n in derived)), None))
