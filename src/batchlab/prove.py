"""Whether a request waited for what it is said to have waited for: lift that limit, run again, and look."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from batchlab.core.limits import Limits
from batchlab.errors import BatchlabError, InputError, nearest
from batchlab.events import Observer
from batchlab.explain.explainer import Explainer
from batchlab.explain.lives import Span
from batchlab.explain.reasons import Reason
from batchlab.simulation import Run, simulate

LIMITS = {
    Reason.SEATS: "max_num_seqs",
    Reason.BUDGET: "max_num_batched_tokens",
    Reason.BEHIND_BUDGET: "max_num_batched_tokens",
    Reason.BLOCKS: "num_gpu_blocks",
    Reason.BEHIND_BLOCKS: "num_gpu_blocks",
}
"""The limit that each reason names, by the core's name."""
NO_WAIT = (Reason.UNDER_WAY, Reason.BETWEEN)
"""Before these nothing could have been decided for a request."""
FACTORS = (1.25, 1.5, 2, 4, 8)
"""Between one more and enough for all at once."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One rerun: the limits that were lifted, and when the request was first scheduled, None if never.

    queue_time: the same from its arrival, which in a closed loop is another one. wait: what it waited for then.
    refused: why the rerun did not come about, None if it did.
    """

    lifted: dict[str, int]
    first_scheduled: int | None
    queue_time: int | None
    wait: Reason | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What lifting a limit does to a request's first scheduling.

    wait: its first wait, None if it had none. limits: those of the run that the wait names, with their values; empty
    where it names none.
    """

    request: str
    unit: str
    wait: Span | None
    first_scheduled: int | None
    queue_time: int | None
    limits: dict[str, int] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        """Whether the last trial had it scheduled earlier."""
        return bool(self.trials) and self.earlier(self.trials[-1])

    def earlier(self, trial: Trial) -> bool:
        """Whether a trial had it scheduled earlier."""
        if trial.queue_time is None:
            return False
        return self.queue_time is None or trial.queue_time < self.queue_time


def prove(run: Run, request: str, observers: Sequence[Observer] = ()) -> Proof:
    """Lift the limit that the request's first wait is put down to, more and more, until it is scheduled earlier.

    One more first, then larger shares, then enough for all requests at once; where that does not help, the other limits
    too, since one may stand behind the other. A limit is lifted for the whole run, so everybody before profits,
    and a request may even come later: more in a batch share one budget, and take longer. observers are told the
    events of every rerun. Raises InputError for an id that no request has.
    """
    ids = [one.id for one in run.requests]
    if request not in ids:
        raise InputError("REQUEST", None, request, f"no request of the run has this id{nearest(request, ids)}")
    wait, first, queue_time = first_wait(run, request, observers)
    limit = None if wait is None else LIMITS.get(wait.reason)
    value = None if limit is None else getattr(run.limits, limit)
    if limit is None or value is None:
        return Proof(request, run.cost.unit, wait, first, queue_time)
    proof = Proof(request, run.cost.unit, wait, first, queue_time, {limit: value})
    for lifted in _liftings(run, limit, value):
        proof.trials.append(_trial(run, request, lifted, observers))
        if proof.proven:
            break
    return proof


def first_wait(
    run: Run, request: str, observers: Sequence[Observer] = ()
) -> tuple[Span | None, int | None, int | None]:
    """The first span in which a request waits before its first tokens, None without one.

    And when it gets those, from the clock's 0 and from its arrival; None if it never does.
    """
    explainer = Explainer([request])
    simulate(fresh(run), [explainer, *observers])
    life = explainer.lives.get(request)
    if life is None:
        return None, None, None
    first = life.first_start
    found = None
    for span in life.spans or ():
        if span.reason.works or (first is not None and span.start >= first):
            break
        if span.reason not in NO_WAIT:
            found = span
            break
    return found, first, None if first is None else first - life.request.arrival


def fresh(run: Run, **limits: Any) -> Run:
    """The same run with a policy that has not run yet, and perhaps other limits."""
    changed = Limits(**{**vars(run.limits), **limits})
    return replace(run, policy=copy.deepcopy(run.policy), limits=changed)


def enough(run: Run, limit: str) -> int:
    """So much of a limit that all requests together would never meet it."""
    if limit == "max_num_seqs":
        return len(run.requests)
    tokens = sum(one.prompt + one.max_tokens for one in run.requests)
    if limit == "max_num_batched_tokens":
        return tokens
    blocks = tokens // run.limits.block_size + len(run.requests)
    return int(blocks / (1 - getattr(run.policy, "watermark", 0))) + 1  # a policy may keep a fraction of the pool free


def _trial(run: Run, request: str, lifted: dict[str, int], observers: Sequence[Observer]) -> Trial:
    try:
        wait, first, queue_time = first_wait(fresh(run, **lifted), request, observers)
        return Trial(lifted, first, queue_time, None if wait is None else wait.reason)
    except BatchlabError as error:
        return Trial(lifted, None, None, refused=str(error))


def _liftings(run: Run, limit: str, value: int) -> Iterator[dict[str, int]]:
    """The limit alone, rising from one more to enough; then all limits that the run has."""
    most = max(enough(run, limit), value + 1)
    seen = value
    for more in (value + 1, *(int(value * factor) for factor in FACTORS), most):
        if seen < more <= most:
            seen = more
            yield {limit: more}
    others = {name: getattr(run.limits, name) for name in dict.fromkeys(LIMITS.values())}
    lifted = {name: max(enough(run, name), value) for name, value in others.items() if value is not None}
    if len(lifted) > 1:
        yield {**lifted, limit: most}
