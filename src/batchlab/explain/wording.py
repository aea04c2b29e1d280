"""Times, and what the trace says about a span, as people read them."""

from __future__ import annotations

from typing import Any

from batchlab.errors import shorten_id
from batchlab.explain.lives import Life, Span
from batchlab.explain.reasons import MEANINGS, Reason


def detail(span: Span, life: Life, lives: dict[str, Life]) -> str:
    """One line on a span: who or what, with the numbers."""
    facts = span.facts
    text = _BY_REASON.get(span.reason, _meaning)(span, life, lives)
    also = ", ".join(facts.get("also", ()))
    return text + (f"; {also}, too" if also else "") + _queue(facts)


def _meaning(span: Span, life: Life, lives: dict[str, Life]) -> str:
    return MEANINGS[span.reason]


def _queue(facts: dict[str, Any]) -> str:
    first, last = facts.get("ahead"), facts.get("ahead_at_end")
    if first is None:
        return f"; {facts['waiting']:,} waiting" if "waiting" in facts else ""
    place = f"{first} ahead in the queue" if first else "first in the queue"
    return f"; {place}" + (f", {last} ahead at the end" if last is not None and last != first else "")


def _seats(span: Span, life: Life, lives: dict[str, Life]) -> str:
    seats = span.facts.get("seats")
    return "the only seat was taken" if seats == 1 else f"all {seats:,} seats taken"


def _budget(span: Span, life: Life, lives: dict[str, Life]) -> str:
    facts = span.facts
    if "needs" in facts:
        return f"needed {facts['needs']:,} tokens at once, {facts['unused']:,} left"
    who = f", most of them by {_names(span.who)}" if span.who else ""
    return f"all {facts['budget']:,} tokens used{who}"


def _blocks(span: Span, life: Life, lives: dict[str, Life]) -> str:
    facts = span.facts
    if "preempted" in facts:
        return f"blocks ran out: {_names(span.who)} preempted, so nobody was admitted"
    return _short(facts)


def _short(facts: dict[str, Any]) -> str:
    free = f"{facts['free']:,} free"
    if "needs" not in facts:
        return f"{facts['policy']}, {free}"
    return f"needed {'up to ' if facts['caching'] else ''}{facts['needs']:,} KV blocks, {free}"


def _behind(span: Span, life: Life, lives: dict[str, Life]) -> str:
    facts = span.facts
    what = _short(facts) if "free" in facts else f"needed {facts['needs']:,} tokens at once, {facts['unused']:,} left"
    return f"behind {_names(span.who)}, which {what}"


def _order(span: Span, life: Life, lives: dict[str, Life]) -> str:
    other = lives[span.who[0]].request
    mine = life.request
    why = "why is not determined by the trace"
    if other.priority < mine.priority:
        why = f"more urgent: {other.priority} against {mine.priority}"
    return f"{_names(span.who)} came later and has a seat ({why}); limit: {span.facts['limit']}"


def _policy(span: Span, life: Life, lives: dict[str, Life]) -> str:
    text = span.facts.get("policy")
    return f"policy: {text}" if text else MEANINGS[span.reason]


def _preempted(span: Span, life: Life, lives: dict[str, Life]) -> str:
    facts = span.facts
    costs = {"recompute": f"{facts['lost']:,} computed tokens lost", "swap": "its KV blocks moved out"}
    cost = costs.get(facts["mode"], "nothing lost")
    whom = "nobody else took a block then" if facts["alone"] else "for whom is not determined by the trace"
    if span.who:
        whom = f"for {'' if facts['certain'] else 'one of '}{_names(span.who)}"
    return f"{facts['mode']}, {cost}; {whom}"


def _retry(span: Span, life: Life, lives: dict[str, Life]) -> str:
    return f"rejected: {span.facts.get('rejected') or life.reason}"


def _stall(span: Span, life: Life, lives: dict[str, Life]) -> str:
    return f"prefill of others went first, most of {_names(span.who)}"


def _tokens(span: Span, life: Life, lives: dict[str, Life]) -> str:
    tokens = span.facts["tokens"]
    again = ", computed before the preemption" if span.reason is Reason.AGAIN else ""
    return f"{tokens:,} token{'' if tokens == 1 else 's'}{again}"


def _names(ids: tuple[str, ...]) -> str:
    return ", ".join(shorten_id(id) for id in ids) or "the head of the queue"


_BY_REASON = {
    Reason.SEATS: _seats,
    Reason.BUDGET: _budget,
    Reason.BLOCKS: _blocks,
    Reason.BEHIND_BUDGET: _behind,
    Reason.BEHIND_BLOCKS: _behind,
    Reason.ORDER: _order,
    Reason.BATCH: _policy,
    Reason.DELAY: _policy,
    Reason.POLICY: _policy,
    Reason.PREEMPTED: _preempted,
    Reason.RETRY: _retry,
    Reason.STALL: _stall,
    Reason.PREFILL: _tokens,
    Reason.AGAIN: _tokens,
    Reason.DECODE: _tokens,
    Reason.BESIDE: _tokens,
}
