"""Pages of a lesson, folded from a run's events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from batchlab.clients.request import Request
from batchlab.events import Event, Header, Iteration
from batchlab.explain.explainer import Explainer
from batchlab.explain.lives import Life
from batchlab.explain.reasons import Reason
from batchlab.explain.wording import detail
from batchlab.units import duration


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an answer: what happened to a request, in short and in words. scheduled: its tokens, None if none."""

    id: str
    mark: str
    reason: str
    scheduled: int | None = None
    decodes: bool = False


@dataclass(slots=True)
class Page:
    """One iteration: what is known before it, and what it does.

    queue, seats: (id, progress) in order, as they stood at the end of the iteration before. free: KV blocks that nobody
    holds then, None where blocks are not modelled. cached: (id, tokens) of those that get a seat in it, where the
    prefix cache has some of their tokens.
    """

    number: int
    start: int
    end: int
    arrived: list[Request]
    queue: list[tuple[str, str]]
    seats: list[tuple[str, str]]
    entries: list[Entry] = field(default_factory=list)
    waits: list[tuple[str, str]] = field(default_factory=list)
    first_token: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    unused: int | None = None
    lasts: str = ""
    note: str = ""
    free: int | None = None
    cached: list[tuple[str, int]] = field(default_factory=list)

    @property
    def schedule(self) -> list[str]:
        """Who runs, as a reader writes it: `A+3` a prefill of 3 tokens, `A` a decode."""
        return [entry.mark for entry in self.entries if entry.scheduled is not None]


@dataclass(slots=True)
class _Progress:
    request: Request
    computed: int = 0
    prefill: int = 0
    """Tokens that its prefill has to compute: the prompt, after a loss the output so far too."""
    emitted: int = 0

    def words(self) -> str:
        if self.computed < self.prefill:
            return f"{self.computed} of {self.prefill} prompt tokens"
        return f"{self.emitted} of {self.request.output} output tokens"


class _Fold:
    def __init__(self, header: Header, lives: dict[str, Life]) -> None:
        self.header = header
        self.lives = lives
        self.progress = {r.id: _Progress(r, prefill=r.prompt) for r in header.requests or ()}
        self.free: int | None = header.limits.get("num_gpu_blocks")
        self.queue: list[str] = []
        self.active: list[str] = []

    def page(self, it: Iteration) -> Page:
        page = Page(
            it.iteration,
            it.start,
            it.end,
            [self.progress[id].request for id in it.arrived],
            [(id, self.progress[id].words()) for id in self.queue],
            [(id, self.progress[id].words()) for id in self.active],
        )
        self._departures(it, page)
        self._schedule(it, page)
        told = {entry.id for entry in page.entries}
        page.waits = [(id, self._wait(id, it)) for id in (*_ids(it.queue), *_ids(it.active)) if id not in told]
        page.first_token, page.completed, page.unused = it.first_token, it.completed, it.unused
        page.lasts = _lasts(it, self.header.clock["unit"])
        page.note = it.idle or it.note or ""
        page.cached = [(id, tokens) for id, tokens in it.cached if tokens]
        if it.kv is not None:
            page.free, self.free = self.free, it.kv["free_after"]
        self.queue, self.active = _ids(it.queue), _ids(it.active)
        return page

    def _departures(self, it: Iteration, page: Page) -> None:
        for rejection in it.rejected:
            page.entries.append(Entry(rejection.id, "rejected", rejection.reason))
        for drop in it.dropped:
            page.entries.append(Entry(drop.id, drop.result, drop.reason))
        for preemption in it.preempted:
            progress = self.progress[preemption.id]
            left = progress.prefill - progress.computed, progress.request.output - progress.emitted
            work = f"{max(left[0], 0)} prompt and {left[1]} output tokens to go"
            if preemption.mode == "recompute":
                progress.computed, progress.prefill = 0, progress.request.prompt + progress.emitted
            why = self._why(preemption.id, it.iteration)
            page.entries.append(Entry(preemption.id, "leaves its seat", f"{why}; {work}"))

    def _schedule(self, it: Iteration, page: Page) -> None:
        budget = self.header.limits.get("max_num_batched_tokens")
        chunk = self.header.settings.get("prefill_chunk")
        left = budget
        cached = {id: tokens for id, tokens in it.cached if tokens}
        for id, tokens in cached.items():
            self.progress[id].computed = tokens
        for id, phase, tokens in it.scheduled:
            progress = self.progress[id]
            if phase == "decode":
                page.entries.append(Entry(id, id, "in its decode phase: one token", tokens, True))
            else:
                reason = _cut(tokens, progress.prefill - progress.computed, progress.computed, chunk, left)
                found = f"; {cached[id]} before them are in the prefix cache" if id in cached else ""
                page.entries.append(Entry(id, f"{id}+{tokens}", reason + found, tokens))
            progress.computed += tokens
            if progress.computed >= progress.prefill:
                progress.emitted += 1
            left = None if left is None else left - tokens

    def _wait(self, id: str, it: Iteration) -> str:
        """Why it gets nothing, and where it stands in the queue."""
        ahead = it.queue.index(id) if isinstance(it.queue, list) and id in it.queue else None
        place = "" if ahead is None else f"; {ahead} ahead in the queue" if ahead else "; first in the queue"
        return self._why(id, it.iteration) + place

    def _why(self, id: str, iteration: int) -> str:
        life = self.lives[id]
        for span in life.spans or ():
            if span.first is not None and span.last is not None and span.first <= iteration <= span.last:
                # Where in the queue is told of the whole span, which may be longer than this iteration.
                facts = {name: fact for name, fact in span.facts.items() if name not in ("ahead", "ahead_at_end")}
                label = "preempted: " if span.reason is Reason.PREEMPTED else ""
                return label + detail(replace(span, facts=facts), life, self.lives)
        return "the trace does not tell why"


def _ids(ids: list[str] | int) -> list[str]:
    return [] if isinstance(ids, int) else ids


def _cut(tokens: int, rest: int, before: int, chunk: int | None, left: int | None) -> str:
    """Why a prefill got so many tokens: what there was, the chunk, or the budget that was left."""
    if tokens >= rest:
        return f"the rest of its prompt: {tokens}" if before else f"its whole prompt: {tokens}"
    if tokens == left:
        return f"{tokens} of {rest}: all that was left of the budget"
    if tokens == chunk:
        return f"{tokens} of {rest}: the chunk"
    return f"{tokens} of {rest}"


def _lasts(it: Iteration, unit: str) -> str:
    if unit == "iteration":
        return ""
    prefill = sum(tokens for _, phase, tokens in it.scheduled if phase != "decode")
    decodes = sum(phase == "decode" for _, phase, _ in it.scheduled)
    until = duration(it.end, unit) if unit == "ns" else it.end
    return f"{prefill} prefill and {decodes} decode tokens last {duration(it.end - it.start, unit)}, until {until}"


def pages_of(events: Iterable[Event]) -> list[Page]:
    """A page for each iteration of a run whose header lists its requests. Raises ValueError if it does not."""
    kept = list(events)
    explainer = Explainer("all")
    for event in kept:
        explainer(event)
    header = kept[0]
    if not isinstance(header, Header) or header.requests is None:
        raise ValueError("the header lists no requests")
    fold = _Fold(header, explainer.lives)
    return [fold.page(event) for event in kept if isinstance(event, Iteration)]
