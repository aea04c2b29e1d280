"""The observer that explains a run: where the time of every request went, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from batchlab.clients.request import Request
from batchlab.errors import InputError, shorten
from batchlab.events import End, Event, Header, Iteration
from batchlab.explain.finding import Trouble
from batchlab.explain.lives import Life, Span
from batchlab.explain.reasons import Reason
from batchlab.explain.state import State
from batchlab.explain.verdict import Answer, Moment, Verdict, parked, seated, verdict
from batchlab.steps import Step, Steps


class Explainer:
    """Give it every event of a run, live or from a trace; then ask `lives`.

    focus: ids whose spans are kept one by one, "all" for everybody's; of the others only the sums are.
    troubles: what to look out for on the way.
    """

    def __init__(self, focus: Collection[str] | str = (), troubles: Iterable[Trouble] = ()) -> None:
        self.state: State | None = None
        self.end: End | None = None
        self.iterations = 0
        self._focus = focus
        self.troubles = list(troubles)
        self._whole = True
        self._steps = Steps()
        self._flying: deque[Moment] = deque()
        """The iterations whose steps are not over, oldest first."""

    @property
    def lives(self) -> dict[str, Life]:
        """All requests by id, in the order in which they became known."""
        return {} if self.state is None else self.state.lives

    def __call__(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Header):
            self.state = State(event)
            return
        assert self.state is not None, "the header comes first"
        if isinstance(event, Iteration):
            self._iteration(event, self.state)
        elif isinstance(event, Request):
            self.state.add(event)
        else:
            self.close(event)

    def close(self, end: End) -> None:
        """The run is over, or its trace breaks off: whoever has no end yet is accounted for up to here."""
        self.end = end
        state = self.state
        self._over(self._steps.left())
        for life in state.lives.values() if state is not None else ():
            if life.state == "retrying":
                until = max(end.time, life.out_since)
                self._span(life, Reason.RETRY, life.out_since, until, None, (), {"again_at": life.again_at})
                life.times[Reason.RETRY] += until - life.out_since
            elif state is not None:
                state.settle(life)

    def _iteration(self, line: Iteration, state: State) -> None:
        before, last_end = len(state.active), state.time
        state.begin(line)
        gone = [state.lives[id] for id in self._watched(state) if last_end is not None and last_end < line.start]
        for life in gone:
            if life.state in ("waiting", "active"):
                self._span(life, Reason.BETWEEN, last_end or 0, line.start, None, (), {})
        self._comings(line, state)
        state.move(line)
        moment = self._plan(line, state, before)
        if line.preempted:
            _blame(moment, state)
        found = verdict(moment, state) if state.fresh else None
        self._steps.take(line)
        self._flying.append(moment)
        if moment.time:
            self._work(moment, state)
            self._wait(moment, state, found)
        for trouble in self.troubles:
            trouble.look(moment, state, found)
        state.drop(line, late=True)
        for done in self._over(self._steps.over):
            self._deliver(done, line, state)
        for id in line.completed:
            state.finish(state.find(id, "active", "waiting"), "completed", line.end)
        state.time = line.end
        self.iterations += 1

    def _comings(self, line: Iteration, state: State) -> None:
        """The spans of those who come: away, or held back, until they are sent, then unseen until the line begins."""
        for id in line.arrived:
            life = state.find(id, "pending", "retrying")
            if not self._follows(id):
                continue
            due = life.request.comes
            if life.state == "retrying" and life.again_at is not None:
                due = life.again_at
                self._span(life, Reason.RETRY, life.out_since, due, None, (), {"rejected": life.reason})
            else:
                self._span(life, Reason.HELD, life.request.arrival, due, None, (), {})
            free = state.free_from(due)
            self._span(life, Reason.UNDER_WAY, due, free, None, (), {})
            self._span(life, Reason.BETWEEN, free, line.start, None, (), {})

    def _plan(self, line: Iteration, state: State, before: int) -> Moment:
        """What the iteration decides: who gets tokens, and why the others with a seat do not."""
        prefill = decode = 0
        owner = (0, "")
        for id, phase, tokens in line.scheduled:
            if phase == "decode":
                decode += tokens
            else:
                prefill += tokens
                if tokens > owner[0]:
                    owner = (tokens, id)
        time = line.end - line.start
        moment = Moment(line, time, prefill, decode, len(state.active), before, self._whole, owner)
        if line.kv is not None:
            for id, tokens in line.cached:
                life = state.find(id)
                if life.computed == 0:
                    life.computed = tokens
        decodes = Reason.BESIDE if prefill else Reason.DECODE
        for id, phase, tokens in line.scheduled:
            life = state.active.get(id) or state.find(id, "active")
            if life.last_run == line.iteration:
                raise InputError(None, f"request {shorten(id)}", None, "twice in one batch, one entry expected")
            life.last_run = line.iteration
            reason = decodes
            if phase == "prefill":
                reason = Reason.PREFILL
                if life.computed < life.high:
                    reason = Reason.AGAIN
                    moment.again += min(tokens, life.high - life.computed)
            moment.work.append((life, reason, tokens))
            life.computed += tokens
            if life.first_start is None:
                life.first_start = line.start
            if phase == "decode" or life.computed >= life.target:
                life.in_flight += 1
                moment.bring.append((life, life.attempts))
            else:
                self._whole = False
        if len(line.scheduled) < len(state.active):
            scheduled = {id for id, _, _ in line.scheduled}
            moment.idle = [life for id, life in state.active.items() if id not in scheduled]
            moment.put_off = {life.id: seated(life, moment, state) for life in moment.idle}
        return moment

    def _work(self, moment: Moment, state: State) -> None:
        """The iteration's time, for those with a seat: it is that of the step which runs now, whoever planned it."""
        line, time = moment.line, moment.time
        running = next(one for one in self._flying if one.line is self._steps.running.line)
        number, working = running.line.iteration, 0
        for life, reason, tokens in running.work:
            if life.state == "active":
                working += 1
                life.times[reason] += time
                if life.spans is not None or self._follows(life.id):
                    facts = {"tokens": 0 if running.took else tokens}
                    self._span(life, reason, line.start, line.end, number, (), facts)
        running.took += time
        if working == len(state.active):
            return
        works = {life.id for life, _, _ in running.work}
        for life in state.active.values():
            if life.id not in works:
                answer = _between_steps(life, running, moment)
                life.times[answer[0]] += time
                self._note(life, answer, line, number)

    def _wait(self, moment: Moment, state: State, found: Verdict | None) -> None:
        """The iteration's time, for those without a seat: it is decided at its start."""
        line, time = moment.line, moment.time
        state.park(time)
        if found is not None:
            latest = -1
            if found.latest is not None and next(iter(state.fresh)) < found.latest.index:
                latest = found.latest.index
            state.wait(found.behind or found.reason, time, latest)
            head = found.head
            if found.behind is not None and head is not None and head.waits and head.index > latest:
                head.times[found.reason] += time
                head.times[found.behind] -= time
        for id in self._watched(state):
            life = state.lives[id]
            if life.state != "waiting":
                continue
            if life.parked:
                self._note(life, parked(life), line, line.iteration)
            elif found is not None:
                facts = {"ahead": _ahead(life, line), "waiting": line.queue_length}
                reason, who, more = found.of(life)
                self._note(life, (reason, who, {**facts, **more}), line, line.iteration)

    def _over(self, steps: list[Step]) -> list[Moment]:
        """The iterations whose steps these are, the oldest ones in flight; how long they took is known now."""
        done = []
        for step in steps:
            moment = self._flying.popleft()
            moment.began, moment.took = step.start, step.end - step.start
            for trouble in self.troubles:
                trouble.ran(moment)
            done.append(moment)
        return done

    def _deliver(self, moment: Moment, line: Iteration, state: State) -> None:
        """The step's tokens come out at the line's end."""
        for life, attempt in moment.bring:
            if attempt != life.attempts or life.state not in ("active", "waiting"):
                continue
            life.in_flight -= 1
            life.emitted += 1
            if life.first_time is None:
                state.settle(life)
                life.first_time = line.end
                life.until_first = list(life.times)

    # Spans

    def _follows(self, id: str) -> bool:
        return self._focus == "all" or id in self._focus

    def _watched(self, state: State) -> Iterable[str]:
        if self._focus == "all":
            return [life.id for life in (*state.parked.values(), *state.fresh.values(), *state.active.values())]
        return [id for id in self._focus if id in state.lives]

    def _note(self, life: Life, answer: Answer, line: Iteration, number: int) -> None:
        if self._follows(life.id):
            self._span(life, answer[0], line.start, line.end, number, answer[1], answer[2])

    def _span(
        self,
        life: Life,
        reason: Reason,
        start: int,
        end: int,
        iteration: int | None,
        who: tuple[str, ...],
        facts: dict[str, Any],
    ) -> None:
        """Add a stretch, to the last one if it goes on in the same way."""
        if start == end or not self._follows(life.id):
            return
        if life.spans is None:
            life.spans = []
        last = life.spans[-1] if life.spans else None
        if last is not None and last.reason is reason and last.who == who and last.end == start:
            last.end, last.last = end, iteration
            merge_facts(last.facts, facts)
        else:
            life.spans.append(Span(reason, start, end, iteration, iteration, who, dict(facts)))


def merge_facts(facts: dict[str, Any], more: dict[str, Any]) -> None:
    """Into one span's facts the next one's. Tokens add up; of the queue the first numbers stand; of others the last.

    What held it up, too, has to do so all the while.
    """
    if "also" in facts or "also" in more:
        more = {**more, "also": [one for one in facts.get("also", ()) if one in more.get("also", ())]}
    if "ahead" in facts:
        more = {**more, "ahead": facts["ahead"], "ahead_at_end": more.get("ahead"), "waiting": facts["waiting"]}
    if "tokens" in facts:
        more = {**more, "tokens": facts["tokens"] + more.get("tokens", 0)}
    facts.update(more)
    if not facts.get("also", True):
        del facts["also"]


def _between_steps(life: Life, running: Moment, newest: Moment) -> Answer:
    """Why one with a seat is not in the step that runs: it was put off by that plan, or its own comes after it."""
    answer = running.put_off.get(life.id)
    if answer is not None and answer[0] is not Reason.IN_FLIGHT:
        return answer
    if life.last_run > running.line.iteration:
        return Reason.IN_FLIGHT, (), {}
    return newest.put_off[life.id]


def _ahead(life: Life, line: Iteration) -> int | None:
    """How many stand before it, where the line lists the queue."""
    if isinstance(line.queue, list) and life.id in line.queue:
        return line.queue.index(life.id)
    return None


def _blame(moment: Moment, state: State) -> None:
    """For whom each of this line's victims had to go, as far as the line tells.

    With KV blocks, for those that took a block in this iteration; without, for those more urgent that took a seat.
    """
    line, terms = moment.line, state.terms
    if line.kv is not None:
        grown = []
        for id, _, tokens in line.scheduled:
            after = state.lives[id].computed
            if terms.blocks_for(after) > terms.blocks_for(after - tokens):
                grown.append(id)
    else:
        grown = list(dict.fromkeys(line.admitted))
    for id in {entry.id: None for entry in line.preempted}:
        life = state.lives[id]
        whom = [other for other in grown if other != id]
        if line.kv is None:
            urgent = [other for other in whom if state.lives[other].request.priority < life.request.priority]
            whom = urgent or whom
        loss = life.loss
        if loss is not None and loss.iteration == line.iteration:
            alone = line.kv is not None and not whom
            life.loss = replace(loss, whom=tuple(whom[:MOST_NAMED]), certain=len(whom) == 1, alone=alone)


MOST_NAMED = 4
"""Requests that one span names at most."""
