"""What each request did and when, as spans: the fold behind every timeline."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from batchlab.clients.request import Request
from batchlab.errors import InputError, shorten
from batchlab.events import End, Event, Header, Iteration
from batchlab.explain.source import VERIFY
from batchlab.steps import Steps

KINDS = ("waiting", "prefill", "decode", "held", "preempted", "retrying")
"""waiting: for its first seat of this attempt. prefill, decode: scheduled. held: it has a seat and got no tokens.
preempted: it waits after a preemption. retrying: rejected, and its client comes again."""


@dataclass(slots=True)
class Span:
    """A stretch of one request's life.

    start, end: times in the clock's unit; of what was scheduled, when its steps ran. first, last: the iterations it
    covers; last < first where it lies between two of them. tokens: those that were scheduled in it, one an iteration of
    a decode; a prefill has one iteration. cached: tokens that this prefill found in the prefix cache. Tokens that were
    computed for nobody, since the request had ended or been preempted before their step ran, have a span without time.
    """

    id: str
    kind: str
    start: int
    end: int
    first: int
    last: int
    tokens: int = 0
    cached: int = 0


@dataclass(slots=True)
class Mark:
    """A moment of one request's life.

    kind: arrived, preempted, first token, turned away (rejected, and its client comes again), rejected, dropped or
    completed. iteration: that which planned it, or whose tokens brought it. detail: why, and for a preemption how.
    """

    id: str
    kind: str
    time: int
    iteration: int
    detail: str | None = None


@dataclass(slots=True)
class _Life:
    """What is known of a request that has come and not ended."""

    span: Span | None = None
    seated: bool = False
    parked: bool = False
    retry_at: int | None = None


Plan = dict[str, tuple[str, int, int]]
"""What an iteration gave those with a seat: a kind of span, tokens, and those found in the cache."""


@dataclass
class Spans:
    """An observer that tells the spans and marks of all requests, each as soon as it is complete.

    Those of one request come in the order of time: no span goes on over a preemption or a first token. Memory holds
    requests that have not ended, and the name of each. Raises InputError where a trace contradicts itself.
    """

    tell: Callable[[Span | Mark], object]
    requests: dict[str, Request] = field(default_factory=dict)
    """Those that are known and have not come, or may come again."""
    _lives: dict[str, _Life] = field(default_factory=dict)
    _seated: dict[str, _Life] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    steps: Steps = field(default_factory=Steps)
    """When each step ran."""
    _flying: deque[tuple[Iteration, Plan]] = field(default_factory=deque)
    """The plans of steps that are not over, oldest first."""
    _time: int = 0
    _iterations: int = 0

    def __call__(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Iteration):
            self._iteration(event)
        elif isinstance(event, Header):
            for request in event.requests or ():
                self._add(request)
        elif isinstance(event, Request):
            self._add(event)
        else:
            self.close(event)

    def close(self, end: End | None = None) -> None:
        """The run is over, or its trace breaks off: spans that are open end here."""
        time = max(self._time, end.time if end is not None else 0)
        for id, life in self._lives.items():
            self._for_nobody(id, life, time)
            self._shut(life, time, self._iterations)
            if life.span is not None and life.span.kind == "retrying":
                life.span.end = max(life.span.start, time)
            self._told(life)
        self._lives.clear()
        self._seated.clear()

    def _add(self, request: Request) -> None:
        if request.id in self._known:
            raise InputError(None, f"request {shorten(request.id)}", None, "each request once expected")
        self._known.add(request.id)
        self.requests[request.id] = request

    def _iteration(self, it: Iteration) -> None:
        if it.start < self._time or it.end < it.start:
            raise InputError(None, "start, end", [it.start, it.end], f"times that rise expected, from {self._time}")
        for id in it.arrived:
            self._come(id, it)
        self._move(it)
        for rejection in it.rejected:
            self._reject(rejection.id, rejection.reason, rejection.retry_at, it)
        self._drop(it, late=False)
        self._flying.append((it, self._plan(it)))
        self.steps.take(it)
        self._run(it)
        for _ in self.steps.over:
            self._flying.popleft()
        self._drop(it, late=True)
        for id in it.first_token:
            self._cut(self._find(id), it.end, it.iteration + 1)
            self.tell(Mark(id, "first token", it.end, self.steps.running.line.iteration))
        for id in it.completed:
            self._end(id, "completed", it, None, late=True)
        self._time = it.end
        self._iterations = it.iteration + 1

    def _come(self, id: str, it: Iteration) -> None:
        """A request is seen for the first time, or again after its wait."""
        again = self._lives.get(id)
        if again is not None and again.retry_at is not None and again.span is not None:
            due = min(max(again.retry_at, again.span.start), it.start)
            again.span.end, again.span.last = due, it.iteration - 1
            self._told(again)
        elif again is not None or id not in self.requests:
            raise InputError(None, f"request {shorten(id)}", None, "one that is known and has not come expected")
        else:
            due = min(self.requests[id].arrival, it.start)
        self._lives[id] = _Life(Span(id, "waiting", due, it.start, it.iteration, it.iteration - 1))
        self.tell(Mark(id, "arrived", due, it.iteration))

    def _move(self, it: Iteration) -> None:
        """Who stands up and who sits down. Of one request these alternate, so the last of them follows from counts."""
        outs = Counter(preemption.id for preemption in it.preempted)
        ins = Counter(it.admitted)
        for preemption in it.preempted:
            life = self._find(preemption.id)
            self._for_nobody(preemption.id, life, it.start)
            self._cut(life, it.start, it.iteration)
            detail = f"{preemption.mode}, {preemption.computed} tokens computed"
            self.tell(Mark(preemption.id, "preempted", it.start, it.iteration, detail))
        for id in (*ins, *(id for id in outs if id not in ins)):
            life = self._find(id)
            seats = life.seated + ins[id] - outs[id]
            if seats not in (0, 1):
                raise InputError(
                    None, f"request {shorten(id)}", None, f"one seat at most, taken and lost in turn; {VERIFY}"
                )
            life.seated = seats > 0
            life.parked = not life.seated and outs[id] > 0
            if life.seated:
                self._shut(life, it.start, it.iteration)
                self._told(life)
                self._seated[id] = life
            else:
                self._seated.pop(id, None)
                kind = "preempted" if life.parked else "waiting"
                self._extend(Span(id, kind, it.start, it.end, it.iteration, it.iteration), life)

    def _reject(self, id: str, reason: str, retry_at: int | None, it: Iteration) -> None:
        if retry_at is None:
            self._end(id, "rejected", it, reason)
            return
        life = self._find(id)
        self._shut(life, it.start, it.iteration)
        self._told(life)
        self.tell(Mark(id, "turned away", it.start, it.iteration, reason))
        self._seated.pop(id, None)
        away = Span(id, "retrying", it.start, it.start, it.iteration + 1, it.iteration)
        self._lives[id] = _Life(away, retry_at=retry_at)

    def _plan(self, it: Iteration) -> Plan:
        """What those with a seat are given."""
        cached = dict(it.cached)
        plan: Plan = {}
        for id, phase, tokens in it.scheduled:
            if id in plan:
                raise InputError(None, f"request {shorten(id)}", None, "twice in one batch, one entry expected")
            if not self._find(id).seated:
                raise InputError(None, f"request {shorten(id)}", None, f"one with a seat expected; {VERIFY}")
            plan[id] = (phase, tokens, cached.get(id, 0))
        if len(plan) < len(self._seated):
            plan |= {id: ("held", 0, 0) for id in self._seated if id not in plan}
        return plan

    def _run(self, it: Iteration) -> None:
        """The iteration's time, for those with a seat: that of the step which runs now, whoever planned it."""
        running = self.steps.running.line
        plan = next(plan for line, plan in self._flying if line is running)
        for id, life in self._seated.items():
            if id in plan:
                kind, tokens, cached = plan[id]
                span = Span(id, kind, it.start, it.end, running.iteration, running.iteration, tokens, cached)
            else:  # it has its seat from a later plan, whose step has to wait
                number = next(line.iteration for line, later in self._flying if id in later)
                span = Span(id, "held", it.start, it.end, number, number - 1)
            self._extend(span, life)

    def _for_nobody(self, id: str, life: _Life, time: int) -> None:
        """It has no use for the steps in flight that hold it: they show, without time."""
        for line, plan in self._flying:
            kind, tokens, cached = plan.pop(id, ("held", 0, 0))
            if tokens:
                self._extend(Span(id, kind, time, time, line.iteration, line.iteration, tokens, cached), life)

    def _extend(self, more: Span, life: _Life) -> None:
        """Its span goes on if this is of the same kind and follows, or a new one begins."""
        span = life.span
        most = 0 if more.kind == "prefill" else 1  # iterations that it may go on by
        if span is None or span.kind != more.kind or more.last > span.last + most:
            self._told(life)
            life.span = more
            return
        span.end = more.end
        if more.last >= more.first and more.last > span.last:
            span.last = more.last
            span.tokens += more.tokens

    def _cut(self, life: _Life, time: int, iteration: int) -> None:
        """Something happens to it: tell what was until then. Who waits goes on waiting from there."""
        span = life.span
        self._shut(life, time, iteration)
        self._told(life)
        if span is not None and span.kind in ("waiting", "preempted"):
            life.span = Span(span.id, span.kind, time, time, iteration, iteration - 1)

    def _shut(self, life: _Life, time: int, iteration: int) -> None:
        """Who waits does so until now, whether or not anybody looked; the other kinds are extended as they happen."""
        if life.span is not None and life.span.kind in ("waiting", "preempted"):
            life.span.end, life.span.last = time, iteration - 1

    def _drop(self, it: Iteration, late: bool) -> None:
        """Those end that end at its start, or `late`: while its step is under way, which counts whole."""
        for drop in it.dropped:
            if drop.late(it.start) is late:
                self._end(drop.id, "dropped", it, f"{drop.result}: {drop.reason}", late)

    def _end(self, id: str, mark: str, it: Iteration, detail: str | None, late: bool = False) -> None:
        """A request ends at the iteration's start, or `late`: at its end."""
        life = self._find(id)
        time, iteration = (it.end, it.iteration + 1) if late else (it.start, it.iteration)
        number = self.steps.running.line.iteration if late and life.seated else it.iteration
        self._for_nobody(id, life, time)
        self._shut(life, time, iteration)
        self._told(life)
        self._seated.pop(id, None)
        del self._lives[id], self.requests[id]
        self.tell(Mark(id, mark, time, number, detail))

    def _told(self, life: _Life) -> None:
        """Tell its span, but for one that has neither time nor iterations."""
        span, life.span = life.span, None
        if span is not None and (span.end > span.start or span.last >= span.first):
            self.tell(span)

    def _find(self, id: str) -> _Life:
        life = self._lives.get(id)
        if life is None:
            raise InputError(
                None, f"request {shorten(id)}", None, f"one that has come and not ended expected; {VERIFY}"
            )
        return life
