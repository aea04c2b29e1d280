"""Whom to preempt when KV blocks run out: rules that a policy takes by name."""

from collections.abc import Callable

from batchlab.core.sequence import Sequence
from batchlab.errors import InputError

VictimRule = Callable[[list[Sequence]], Sequence]


def last_admitted(running: list[Sequence]) -> Sequence:
    """The one that took its seat last: it has the least to lose, and nobody before it waits longer."""
    return running[-1]


def least_urgent(running: list[Sequence]) -> Sequence:
    """The least urgent by priority and then time stamp, the first such in running order."""
    return max(running, key=lambda seq: (seq.priority, seq.sent))


def most_remaining(running: list[Sequence]) -> Sequence:
    """The one with the most prefill and output still to do, the first such in running order."""
    return max(running, key=lambda seq: seq.remaining_work)


def least_computed(running: list[Sequence]) -> Sequence:
    """The one with the fewest computed tokens: the cheapest to compute again, the first such in running order."""
    return min(running, key=lambda seq: seq.computed)


RULES: dict[str, VictimRule] = {
    "last-admitted": last_admitted,
    "priority": least_urgent,
    "most-remaining": most_remaining,
    "least-computed": least_computed,
}
NAMED = f'must be the name of a rule: {", ".join(RULES)}, as in super().__init__(victim="most-remaining")'
"""How a class of one's own says whom to preempt."""


def rule_named(name: str) -> VictimRule:
    """The rule of this name. Raises InputError for anything else, such as a function."""
    if not isinstance(name, str) or name not in RULES:
        raise InputError(None, "victim", name if isinstance(name, str) else None, NAMED)
    return RULES[name]
