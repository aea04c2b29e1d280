"""Sessions: requests whose prompt is the conversation so far and something new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from batchlab.clients.request import TokenIdentity
from batchlab.settings import MOST_TOKENS

if TYPE_CHECKING:
    from batchlab.clients.columns import Columns

Integers = npt.NDArray[np.int64]


def first_of(found: Integers) -> Integers:
    """The place of the first turn of each one's session. found: of the turn before it, its own where it has none."""
    while ((earlier := found[found]) != found).any():  # twice as far back each time
        found = earlier
    return found


@dataclass(frozen=True)
class Sessions:
    """What the prompts of requests begin with, by their position.

    previous: the turn before, -1 for a first turn. prefix: tokens at the very beginning that all requests of the same
    `kind` share. new: prompt tokens that no request before had. think: how long after the last token of the turn before
    it a turn is sent; -1 for one that comes at its own arrival, None if all do.
    """

    previous: Integers
    prefix: Integers
    kind: Integers
    new: Integers
    think: Integers | None = None

    @property
    def first_turns(self) -> Integers:
        """The first turn of each request's session."""
        return first_of(np.where(self.previous < 0, np.arange(len(self.previous)), self.previous))

    def follows(self, position: int) -> tuple[int, int] | None:
        """The turn whose end a request waits for, and how long after it; None if it comes at its own arrival."""
        if self.think is None or self.think[position] < 0:
            return None
        return int(self.previous[position]), int(self.think[position])

    def tokens(self, position: int, output: Integers) -> TokenIdentity:
        """The identity of a request's tokens: the kind's prefix, then new tokens and output of each turn before it."""
        chain = []
        turn = position
        while turn >= 0:
            chain.append(turn)
            turn = int(self.previous[turn])
        first = chain[-1]
        runs = [(int(self.kind[first]), 0, int(self.prefix[first]))]
        for turn in reversed(chain[1:]):
            runs += [(own_segment(turn), 0, int(self.new[turn])), (output_segment(turn), 0, int(output[turn]))]
        runs.append((own_segment(position), 0, int(self.new[position])))
        return TokenIdentity(tuple(run for run in runs if run[2]), output_segment(position))

    def take(self, chosen: Integers) -> Sessions:
        """Those at the given positions, in the given order. No turn can be taken without those before it."""
        places = np.full(len(self.previous) + 1, -1, np.int64)  # one more, for the -1 of a first turn
        places[chosen] = np.arange(len(chosen))
        previous = places[self.previous[chosen]]
        if ((previous < 0) & (self.previous[chosen] >= 0)).any():
            raise ValueError("a turn of a session stays without the turn before it")
        return Sessions(
            previous,
            self.prefix[chosen],
            self.kind[chosen],
            self.new[chosen],
            None if self.think is None else self.think[chosen],
        )


def join_turns(columns: Columns, session: Integers, turn: Integers | None, whole: bool, think_time: int | None) -> None:
    """Make sessions of requests: those with the same number in `session` are its turns, in their order.

    turn: which turn of its session a request is, to be checked. whole: whether a prompt has all turns before it in it
    already; else they are put in front. think_time: from the end of a turn to the next; None leaves the arrivals.
    Raises ValueError for a turn that does not follow from the one before it.
    """
    order = np.argsort(session, kind="stable")
    later = np.flatnonzero(session[order[1:]] == session[order[:-1]]) + 1
    previous = np.full(len(session), -1, np.int64)
    previous[order[later]] = order[later - 1]
    now, before = order[later], order[later - 1]
    if turn is not None and (wrong := turn[now] <= turn[before]).any():
        place = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"request {columns[int(now[place])].id!r}: turn {turn[now[place]]} of its session comes after turn "
            f"{turn[before[place]]}: turns must count up in order of arrival"
        )
    new = columns.prompt.copy()
    if whole:
        new[now] -= columns.prompt[before] + columns.output[before]
        _refuse_gaps(columns, new, previous)
    else:
        columns.prompt = _with_history(columns.prompt, columns.output, order, previous)
    nothing = np.zeros(len(session), np.int64)
    think = None if think_time is None else np.where(previous < 0, -1, think_time)
    columns.sessions = Sessions(previous, nothing, nothing, new, think)


def _refuse_gaps(columns: Columns, new: Integers, previous: Integers) -> None:
    wrong = np.flatnonzero(new < 1)
    if len(wrong):
        request, before = columns[int(wrong[0])], columns[int(previous[wrong[0]])]
        raise ValueError(
            f"request {request.id!r}: a prompt of {request.prompt} tokens cannot hold the turn before it, "
            f"{before.id!r} of {before.prompt} + {before.output}, and something new: is it prompts = 'new'?"
        )


def _with_history(new: Integers, output: Integers, order: Integers, previous: Integers) -> Integers:
    """Prompts with all turns before them: what was new in each of them and the answers. order: session by session."""
    both = np.where(previous < 0, 0, output[previous]) + new
    sums = np.cumsum(both[order].astype(np.float64))  # floats only to see whether integers hold it
    if sums[-1] >= 2.0**62:
        raise ValueError("all prompts together have more than 2^62 tokens")
    running = np.cumsum(both[order])
    firsts = previous[order] < 0
    session = np.cumsum(firsts) - 1
    prompt = np.empty_like(new)
    prompt[order] = running - (running[firsts] - both[order][firsts])[session]
    if prompt.max() > MOST_TOKENS:
        raise ValueError("a prompt with all turns before it has more than 2^40 tokens")
    return prompt


def own_segment(position: int) -> int:
    """The number of the tokens that a request alone brings."""
    return -2 * position - 1


def output_segment(position: int) -> int:
    """The number of the tokens that a request gives."""
    return -2 * position - 2
