"""What a verified trace guarantees: the rules by name, and the report on a file that may break them."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_VIOLATIONS = 100

RULES: dict[str, str] = {
    "format": "every line is strict JSON with exactly the fields and types of the trace format, in its order",
    "complete": "the file ends with its end line, unless it is a recording",
    "request": "ids are unique, max_tokens is at least output and as max_tokens_rule says, none is missing",
    "numbering": "iterations are numbered 0, 1, 2, ...",
    "clock": "time never runs backwards, work takes what the cost says, idle time ends with the next arrival",
    "arrival": "a request arrives in the first iteration that starts at or after its arrival, ties by input",
    "session": "a turn of a session arrives its think time after the last token of the turn before it",
    "retry": "a rejected client comes again when the header says, in the first iteration from then on, or not at all",
    "dropped": "cancelled, expired or failed with cause, in the first iteration from then on; nobody goes on after it",
    "lifecycle": "arrive first and once, run only with a seat, be preempted only from one, end once",
    "seats": "no more than max_num_seqs requests hold a seat",
    "progress": "computed tokens survive a preemption unless it recomputes, and are stated correctly",
    "phase": "prefill only while prefill is left, decode only when none is",
    "tokens": "one entry a batch, no more prefill than is left, decode 1 token, the right sum at completion",
    "budget": "a batch holds no more than max_num_batched_tokens tokens",
    "unused": "unused is the budget minus the scheduled tokens, or null without a budget",
    "prefill-done": "prefill_done names just those whose prefill ends here, in scheduled order",
    "first-token": "first_token names just those whose first output token appears here, in scheduled order",
    "completed": "completed names just those whose last output token appears here, in admission order",
    "queue": "queue holds just the waiting requests, in an order that the recorded moves allow",
    "queue-bound": "nobody comes into a queue that holds max_queue requests",
    "active": "active holds just the requests with a seat, in admission order",
    "delivery": "each batch is delivered once, in order, with no more than steps_in_flight on their way",
    "discarded": "discarded names just those whose token comes out after they have ended",
    "model-len": "prompt and output of a request are never longer than max_model_len",
    "cached": "cached names just those that begin in a seat, whole blocks below their last token, only with a cache",
    "kv": "free and free_after follow from what the requests with a seat hold",
    "swap": "moved counts the blocks that preemptions swap out, and again when they come in",
    "idle": "a reason stands where nothing was scheduled and only there; no work means nobody is there",
    "jump": "a clock that jumps records no iteration in which nothing happens for want of work",
    "limit": "no more than max_iterations iterations",
    "end": "termination, iterations and time of the end line follow from the iterations",
    "lost": "when all is over, every request was completed, rejected or dropped",
    "results": "the end line counts the requests by result correctly",
    "totals": "every total of the end line follows from the iterations",
    "summary": "every field of the summary follows from the trace",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: where, whose, and both values in one line."""

    rule: str
    line: int | None
    iteration: int | None
    request: str | None
    message: str

    def __str__(self) -> str:
        places = []
        if self.line is not None:
            places.append(f"line {self.line}")
        if self.iteration is not None:
            places.append(f"iteration {self.iteration}")
        if self.request is not None:
            places.append(f"request {self.request!r}")
        return ": ".join([f"[{self.rule}]", *([", ".join(places)] if places else []), self.message])


@dataclass(slots=True)
class Report:
    """The result of a verification."""

    violations: list[Violation] = field(default_factory=list)
    iterations: int = 0
    requests: int = 0
    note: str | None = None
    """What is no fault, but to be known: a recording breaks off."""
    stopped: str | None = None
    """Why the rest of the file was not checked, if so."""

    @property
    def ok(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations


class TooMany(Exception):
    """Enough violations are known; the rest of the file would tell no more."""


class Findings:
    """Collects violations with the place that is being looked at."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.line: int | None = None
        self.iteration: int | None = None

    def add(self, rule: str, message: str, request: str | None = None) -> None:
        """Note a violation; raises TooMany when there are enough."""
        assert rule in RULES, rule
        self._report.violations.append(Violation(rule, self.line, self.iteration, request, message))
        if len(self._report.violations) >= MAX_VIOLATIONS:
            self._report.stopped = f"stopped after {MAX_VIOLATIONS} violations"
            raise TooMany
