"""What each request did and when, as spans: the fold behind every timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from batchlab.clients.request import Request
from batchlab.errors import InputError, shorten
from batchlab.events import End, Event, Header, Iteration

KINDS = ("waiting", "prefill", "decode", "held", "preempted", "retrying")
"""waiting: for its first seat of this attempt. prefill, decode: scheduled. held: it has a seat and got no tokens.
preempted: it waits after a preemption. retrying: rejected, and its client comes again."""
MARKS = ("arrived", "preempted", "first token", "turned away", "rejected", "dropped", "completed")
"""turned away: rejected, and its client comes again."""


@dataclass(slots=True)
class Span:
    """A stretch of one request's life.

    start, end: times in the clock's unit. first, last: the iterations it covers; last < first where it lies between
    two of them. tokens: those that were scheduled in it, one an iteration of a decode; a prefill has one iteration.
    cached: tokens that this prefill found in the prefix cache.
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
    """A moment of one request's life. detail: why, and for a preemption how."""

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
        for life in self._lives.values():
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
        for drop in it.dropped:
            self._end(drop.id, "dropped", it.start, it.iteration, f"{drop.result}: {drop.reason}")
        self._compute(it)
        for id in it.first_token:
            self._cut(self._find(id), it.end, it.iteration + 1)
            self.tell(Mark(id, "first token", it.end, it.iteration))
        for id in it.completed:
            self._end(id, "completed", it.end, it.iteration + 1, None)
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
            self._cut(self._find(preemption.id), it.start, it.iteration)
            detail = f"{preemption.mode}, {preemption.computed} tokens computed"
            self.tell(Mark(preemption.id, "preempted", it.start, it.iteration, detail))
        for id in (*ins, *(id for id in outs if id not in ins)):
            life = self._find(id)
            life.seated = life.seated + ins[id] - outs[id] > 0
            life.parked = not life.seated and outs[id] > 0
            if life.seated:
                self._seated[id] = life
            else:
                self._seated.pop(id, None)
                self._extend(id, life, "preempted" if life.parked else "waiting", it)

    def _reject(self, id: str, reason: str, retry_at: int | None, it: Iteration) -> None:
        if retry_at is None:
            self._end(id, "rejected", it.start, it.iteration, reason)
            return
        life = self._find(id)
        self._shut(life, it.start, it.iteration)
        self._told(life)
        self.tell(Mark(id, "turned away", it.start, it.iteration, reason))
        self._seated.pop(id, None)
        away = Span(id, "retrying", it.start, it.start, it.iteration + 1, it.iteration)
        self._lives[id] = _Life(away, retry_at=retry_at)

    def _compute(self, it: Iteration) -> None:
        """Spans of those who have a seat."""
        cached = dict(it.cached)
        scheduled = set()
        for id, phase, tokens in it.scheduled:
            if id in scheduled:
                raise InputError(None, f"request {shorten(id)}", None, "twice in one batch, one entry expected")
            scheduled.add(id)
            self._extend(id, self._find(id), phase, it, tokens, cached.get(id, 0))
        if len(scheduled) < len(self._seated):
            for id, life in self._seated.items():
                if id not in scheduled:
                    self._extend(id, life, "held", it)

    def _extend(self, id: str, life: _Life, kind: str, it: Iteration, tokens: int = 0, cached: int = 0) -> None:
        """This iteration is of that kind for the request: its span goes on, or a new one begins."""
        span = life.span
        if span is not None and span.kind == kind != "prefill":
            span.last, span.end = it.iteration, it.end
            span.tokens += tokens
            return
        self._shut(life, it.start, it.iteration)
        self._told(life)
        life.span = Span(id, kind, it.start, it.end, it.iteration, it.iteration, tokens, cached)

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

    def _end(self, id: str, mark: str, time: int, iteration: int, detail: str | None) -> None:
        """A request ends at that time, before that iteration."""
        life = self._find(id)
        self._shut(life, time, iteration)
        self._told(life)
        self._seated.pop(id, None)
        del self._lives[id], self.requests[id]
        self.tell(Mark(id, mark, time, iteration - (mark == "completed"), detail))

    def _told(self, life: _Life) -> None:
        """Tell its span, but for one that has neither time nor iterations."""
        span, life.span = life.span, None
        if span is not None and (span.end > span.start or span.last >= span.first):
            self.tell(span)

    def _find(self, id: str) -> _Life:
        life = self._lives.get(id)
        if life is None:
            expected = "one that has come and not ended expected; batchlab verify says what is wrong"
            raise InputError(None, f"request {shorten(id)}", None, expected)
        return life
