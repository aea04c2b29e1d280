"""Why, in one iteration, those who wait got no seat, and those with a seat no tokens.

Everything is read off the line and the header: limits, counts, what is unused or free, the order, the policy's note.
Where that leaves several reasons open, or none, the answer is that the trace does not determine it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from batchlab.events import Iteration
from batchlab.explain.lives import Life
from batchlab.explain.reasons import DISPLACED, Reason
from batchlab.explain.state import State

RESERVING = ("GUARANTEED_NO_EVICT", "STATIC_BATCH")
"""TensorRT-LLM's capacity schedulers that set blocks aside for prompt and max_tokens of all that run."""
WHOLE = {"enable_chunked_prefill": False, "enable_chunked_context": False}
"""Settings, by their engine's name, that say that prompts are not cut."""

Answer = tuple[Reason, tuple[str, ...], dict[str, Any]]
"""A reason, the requests that it names, and its numbers."""


Work = tuple[Life, Reason, int]
"""Who got tokens, of what kind, and how many."""


@dataclass(slots=True)
class Moment:
    """One iteration after its plan: the line, how long it lasted, and what was scheduled.

    time: from its plan to the next one, for which those wait that it left in the queue. began, took: when the step that
    it planned ran, and for how long; known once that is over, with several steps in flight an iteration later.
    seats: how many hold one. before: how many held one when the iteration began. whole: whether, as far as the trace
    shows up to here, prompts are not cut. idle: those that hold a seat and got no tokens.
    """

    line: Iteration
    time: int
    prefill: int
    decode: int
    seats: int
    before: int
    whole: bool
    owner: tuple[int, str]
    """The largest prefill: tokens and id; (0, "") without one."""
    idle: list[Life] = field(default_factory=list)
    again: int = 0
    """Prefill tokens that had been computed before a preemption."""
    work: list[Work] = field(default_factory=list)
    bring: list[tuple[Life, int]] = field(default_factory=list)
    """Who gets an output token from it, with the attempt that this belongs to."""
    put_off: dict[str, Answer] = field(default_factory=dict)
    """Why each of the idle got nothing."""
    began: int = 0
    took: int = 0

    @property
    def stalled(self) -> list[Life]:
        """Those in their decode phase that got nothing beside a prefill. To be asked before the tokens come out."""
        return [life for life in self.idle if life.left == 0 and not life.in_flight] if self.prefill else []

    @property
    def text(self) -> str:
        """What the policy said."""
        return self.line.idle or self.line.note or ""


@dataclass(slots=True)
class Verdict:
    """What holds up the queue. behind: what that is for all but its head, where it differs. also: limits that would
    have held it up, too.
    """

    reason: Reason
    facts: dict[str, Any] = field(default_factory=dict)
    who: tuple[str, ...] = ()
    behind: Reason | None = None
    also: tuple[Reason, ...] = ()
    head: Life | None = None
    latest: Life | None = None
    """The latest comer with a seat, where a seat could have been somebody else's."""

    def of(self, life: Life) -> Answer:
        """What it is for one that waits and was not preempted."""
        if self.latest is not None and life.index < self.latest.index:
            return Reason.ORDER, (self.latest.id,), {**self.facts, "limit": self.reason.label}
        facts = {**self.facts, "also": [reason.label for reason in self.also]} if self.also else self.facts
        if self.behind is not None and life is not self.head:
            return self.behind, () if self.head is None else (self.head.id,), facts
        return self.reason, self.who, facts


def verdict(moment: Moment, state: State) -> Verdict:
    """What holds up those that wait. Somebody waits who was not preempted."""
    head = state.front.head(moment.line, state.lives)
    found = _limit(moment, state, head)
    found.head = head
    if found.reason in DISPLACED:
        found.latest = state.latest
    return found


def _limit(moment: Moment, state: State, head: Life | None) -> Verdict:
    line, terms = moment.line, state.terms
    unused, text = line.unused, moment.text
    if terms.tied and ((moment.before and not line.admitted) or (line.padding and not moment.seats)):
        return Verdict(Reason.BATCH, {"seats": moment.seats, "policy": text})
    if line.idle is not None and text.startswith("waiting"):
        return Verdict(Reason.DELAY, {"policy": text})
    short = _blocks(head, line, state)
    if terms.seats is not None and moment.seats >= terms.seats:
        also = ((Reason.BUDGET,) if unused == 0 else ()) + ((Reason.BLOCKS,) if short else ())
        return Verdict(Reason.SEATS, {"seats": terms.seats}, also=also)
    for most, taken in zip(places(state), (moment.seats, len(line.scheduled)), strict=True):
        if most is not None and taken >= most:
            return Verdict(Reason.SEATS, {"seats": most})
    if line.kv is not None and line.preempted and not line.admitted:
        names = tuple(dict.fromkeys(entry.id for entry in line.preempted))
        return Verdict(Reason.BLOCKS, {"free": line.kv["free"], "preempted": len(names)}, names)
    if unused == 0:
        return Verdict(Reason.BUDGET, _spent(moment, state), _owner(moment), also=(Reason.BLOCKS,) if short else ())
    return _whole_or_blocks(moment, state, head, short)


def _whole_or_blocks(moment: Moment, state: State, head: Life | None, short: dict[str, int] | None) -> Verdict:
    """Seats and budget are left: the head itself must not fit. Where the head is not known, nobody is behind it."""
    line, text = moment.line, moment.text
    cut = None if head is None else uncut(head, moment, state)
    by_blocks = None if head is None else Reason.BEHIND_BLOCKS
    if short is not None and not (cut is not None and "budget" in text):
        also = (Reason.BUDGET,) if cut is not None and "block" not in text else ()
        return Verdict(Reason.BLOCKS, short, behind=by_blocks, also=also)
    if line.kv is not None and ("block" in text or "slots" in text):
        return Verdict(Reason.BLOCKS, {"free": line.kv["free"], "policy": text}, behind=by_blocks)
    if cut is not None:
        return Verdict(Reason.BUDGET, cut, behind=Reason.BEHIND_BUDGET)
    if state.terms.tied and moment.seats:
        return Verdict(Reason.BATCH, {"seats": moment.seats, "policy": text})
    if line.idle is not None:
        return Verdict(Reason.POLICY, {"policy": text})
    return Verdict(Reason.UNKNOWN)


def parked(life: Life) -> Answer:
    """Why one that was preempted waits."""
    loss = life.loss
    assert loss is not None
    return (
        Reason.PREEMPTED,
        loss.whom,
        {"mode": loss.mode, "lost": loss.computed, "certain": loss.certain, "alone": loss.alone},
    )


def seated(life: Life, moment: Moment, state: State) -> Answer:
    """Why one that holds a seat got no tokens."""
    line, text = moment.line, moment.text
    if life.in_flight:
        return Reason.IN_FLIGHT, (), {}
    if life.left == 0 and moment.prefill:
        owner = (moment.owner[1],)
        return Reason.STALL, owner, {"prefill": moment.prefill, "decode": moment.decode, "unused": line.unused}
    if line.idle is not None and text.startswith("waiting"):
        return Reason.DELAY, (), {"policy": text}
    batch = places(state)[1]
    if batch is not None and len(line.scheduled) >= batch:
        return Reason.SEATS, (), {"seats": batch}
    if line.unused == 0:
        return Reason.BUDGET, _owner(moment), _spent(moment, state)
    if line.note is not None or line.idle is not None:
        return Reason.POLICY, (), {"policy": text}
    cut = uncut(life, moment, state)
    if cut is not None:
        return Reason.BUDGET, (), cut
    return Reason.UNKNOWN, (), {}


def _owner(moment: Moment) -> tuple[str, ...]:
    """Whose prefill took at least half of the batch."""
    tokens, id = moment.owner
    return (id,) if tokens and 2 * tokens >= moment.prefill + moment.decode else ()


def _spent(moment: Moment, state: State) -> dict[str, Any]:
    """Where the budget went."""
    return {"budget": state.terms.budget, "prefill": moment.prefill, "decode": moment.decode}


def uncut(life: Life, moment: Moment, state: State) -> dict[str, int] | None:
    """What it would need at once and what was left, where that is too little and prompts are not cut."""
    unused = moment.line.unused
    needed = life.left or life.request.prompt + life.emitted - life.computed
    whole = moment.whole or any(state.header.settings.get(name) is value for name, value in WHOLE.items())
    if unused is None or needed <= unused or not (whole or "budget" in moment.text):
        return None
    return {"needs": needed, "unused": unused}


def places(state: State) -> tuple[int | None, int | None]:
    """Seats, and entries of a batch, among the policy's own settings, where the header's limits have no seats.

    Orca's max_bs counts the entries of a batch. Triton's sequences have slots, or are candidates for a batch.
    """
    settings = state.header.settings
    if state.terms.seats is not None:
        return None, None
    batch = settings.get("max_bs", settings.get("max_batch_size"))
    seats = settings.get("max_candidate_sequences") or settings.get("max_batch_size")
    return seats if type(seats) is int else None, batch if type(batch) is int else None


def need(life: Life, state: State) -> int:
    """KV blocks that it takes to be admitted whole, less what a prefix cache may hold of it."""
    terms, request = state.terms, life.request
    longest = request.prompt + request.max_tokens
    if _reserves(state):
        return terms.blocks_for(longest)
    known = request.prompt + life.emitted
    return terms.blocks_for(terms.held_tokens(max(known, life.computed), known, longest))


def free_for(line: Iteration, state: State) -> int:
    """KV blocks that nobody holds, or that are not set aside where the engine does so."""
    if line.kv is None:
        return 0
    if _reserves(state) and state.terms.holds != "max":
        return min(line.kv["free"], (state.terms.num_blocks or 0) - state.reserved)
    return line.kv["free"]


def _reserves(state: State) -> bool:
    return state.terms.holds == "max" or state.header.settings.get("capacity_scheduler_policy") in RESERVING


def _blocks(head: Life | None, line: Iteration, state: State) -> dict[str, int] | None:
    """What the head needs and what is free, where that is too little; with a prefix cache it may need fewer."""
    if head is None or line.kv is None:
        return None
    needed, free = need(head, state), free_for(line, state)
    return {"needs": needed, "free": free, "caching": state.terms.caching} if needed > free else None
