"""One scenario in several variants: which there are, what became of each, and what differs between two of them."""

import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchlab.errors import BatchlabError, InputError, StalledError
from batchlab.events import Event, Iteration, Observer
from batchlab.metrics.fold import Summary
from batchlab.policies import limits_given, settings_of
from batchlab.scenario import load
from batchlab.settings import LimitSettings, parameters
from batchlab.simulation import Run, simulate

MOST_VARIANTS = 64
FEW_REQUESTS = 30
"""Up to so many written-out requests are told one by one; more are told by their percentiles."""
FEW_ITERATIONS = 12
"""Up to so many iterations the unused budget is told one by one."""


@dataclass(frozen=True)
class Variant:
    """One column: a checked run, and the overrides that it takes."""

    run: Run
    given: dict[str, Any]

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that was set for it, given or not, by dotted key."""
        run = self.run
        cost = {"unit": run.cost.unit, **run.cost.describe()}
        facts = {
            "policy": run.engine,
            "rules": getattr(run.policy, "rules", "custom"),
            **{f"engine.{own}": value for own, value in limits_given(type(run.policy), vars(run.limits)).items()},
            **{f"engine.{key}": value for key, value in run.settings.items()},
            **{f"cost.{key}": value for key, value in cost.items()},
            "run.max_iterations": run.max_iterations,
        }
        return facts | {key: value for key, value in self.given.items() if key not in facts}


@dataclass(frozen=True)
class Comparison:
    """The variants in order. notes: which were left out because another one is the same run."""

    name: str
    title: str
    variants: list[Variant]
    notes: list[str]


@dataclass(frozen=True)
class Outcome:
    """What became of a variant.

    ending: the run's termination, or `refused` (by the policy, before it began), `stalled` or `failed`, with the reason
    and without a document. document: the summary, with `unused_per_iteration` where there are few iterations; without
    `requests` where there are many of them.
    """

    variant: Variant
    ending: str
    reason: str | None = None
    document: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether every request has its result."""
        return self.ending == "all_terminal"


def plan(
    path: str | os.PathLike[str],
    values: Mapping[str, Sequence[Any]],
    engines: Sequence[str] = (),
    workload: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Load every variant of a scenario: policies outermost, then the keys in order. Raises InputError if one is wrong.

    values: what to set each dotted key to. engines: policies instead of the file's. workload: a file instead of its
    requests.
    """
    combinations = math.prod(len(choices) for choices in values.values())
    _refuse_too_many(combinations)
    same_load = not any(key.startswith(("workload.", "cost.")) for key, choices in values.items() if len(choices) > 1)
    by_policy: list[list[Variant]] = []
    for chosen in itertools.product(*values.values()):
        overrides = dict(zip(values, chosen, strict=True))
        loaded = load(path, overrides, engines, workload, check=False)
        by_policy = by_policy or [[] for _ in loaded.runs]
        _refuse_too_many(combinations * len(by_policy))
        for column, run in zip(by_policy, loaded.runs, strict=True):
            if same_load and column:
                run.requests = column[0].run.requests  # one list for all: it can be long
            column.append(Variant(run, {key: value for key, value in overrides.items() if _takes(run, key)}))
    kept, notes = _without_repetitions(itertools.chain(*by_policy), values)
    return Comparison(loaded.name, loaded.title, kept, notes)


def _without_repetitions(
    variants: Iterable[Variant], values: Mapping[str, Sequence[Any]]
) -> tuple[list[Variant], list[str]]:
    """The variants that are not the same run as one before, and why others were the same."""
    kept: list[Variant] = []
    notes: dict[str, None] = {}
    seen: set[str] = set()
    for variant in variants:
        identity = repr((variant.run.engine, variant.given))
        if identity not in seen:
            kept.append(variant)
        elif ignored := [key for key in values if key not in variant.given and len(values[key]) > 1]:
            notes[f"{variant.run.engine} has no {listed(ignored)}: one column stands for all its values"] = None
        seen.add(identity)
    return kept, list(notes)


def run_variant(variant: Variant, observers: Iterable[Observer] = ()) -> Outcome:
    """Simulate one variant. What stops only this one is its outcome, not an error."""
    summary = Summary()
    unused: list[int | None] = []

    def record(event: Event) -> None:
        if isinstance(event, Iteration) and len(unused) <= FEW_ITERATIONS:
            unused.append(event.unused)

    try:
        end = simulate(variant.run, [summary, record, *observers])
    except InputError as error:
        return Outcome(variant, "refused", str(error))
    except StalledError as error:
        return Outcome(variant, "stalled", str(error).removeprefix("stalled "))
    except BatchlabError as error:
        return Outcome(variant, "failed", str(error))
    assert summary.header is not None
    few = variant.run.inline and len(summary.results) <= FEW_REQUESTS
    document = {"max_tokens_rule": summary.header.max_tokens_rule, **summary.document(with_requests=few)}
    if len(unused) <= FEW_ITERATIONS and None not in unused:
        document["unused_per_iteration"] = unused
    return Outcome(variant, end.termination, None, document)


def differing(variants: Sequence[Variant]) -> list[str]:
    """The keys of all facts that are not the same in every variant, in the order of their first appearance."""
    facts = [variant.facts for variant in variants]
    keys = dict.fromkeys(key for each in facts for key in each)
    found = [key for key in keys if len({said(key, each[key]) if key in each else None for each in facts}) > 1]
    return [key for key in found if not all(_untouched(variant, key) for variant in variants)]


def common(variants: Sequence[Variant]) -> dict[str, Any]:
    """The facts that every variant has, and has the same."""
    first, *others = (variant.facts for variant in variants)
    return {
        key: value
        for key, value in first.items()
        if all(key in each and said(key, each[key]) == said(key, value) for each in others)
    }


def _untouched(variant: Variant, key: str) -> bool:
    """Whether a policy's own setting is at its default there, or not a setting of that policy at all."""
    name = key.removeprefix("engine.")
    own = parameters(type(variant.run.policy)).get(name)
    if own is None:
        return key not in variant.facts
    return key not in variant.given and repr(variant.run.settings.get(name)) == repr(own.default)


def changes(left: Variant, right: Variant) -> list[str]:
    """What was changed from one variant to another. Settings that only one of two policies has come with the policy."""
    policy = ["policy"] if left.run.engine != right.run.engine else []
    both = [key for key in left.given if key in right.given]
    return policy + [key for key in both if repr(left.given[key]) != repr(right.given[key])]


def warnings(variants: Sequence[Variant]) -> list[str]:
    """A line for every set of two and more things that change at once between neighbouring columns."""
    places: dict[tuple[str, ...], list[str]] = {}
    for number, (left, right) in enumerate(itertools.pairwise(variants), 1):
        changed = changes(left, right)
        if len(changed) > 1:
            places.setdefault(tuple(changed), []).append(f"{number} and {number + 1}")
    return [
        f"columns {', '.join(pairs)} differ in {listed(changed)}: change one thing at a time to know the cause"
        for changed, pairs in places.items()
    ]


def unlike(outcomes: Sequence[Outcome]) -> list[str]:
    """A line where not as many requests were completed in each: who is refused has no latency to be compared."""
    counts = [str(each.document["results"].get("completed", 0)) for each in outcomes if each.document is not None]
    if len(set(counts)) < 2:
        return []
    return [f"{listed(counts)} requests were completed: latencies are not of the same ones"]


def endings(keys: Collection[str]) -> dict[str, str]:
    """Each dotted key with the shortest of its endings that no other key has; the whole key where all are shared."""
    every = {key: [key.split(".", cut)[-1] for cut in range(key.count("."), -1, -1)] for key in keys}
    times = Counter(ending for own in every.values() for ending in own)
    return {key: next((one for one in own if times[one] == 1), key) for key, own in every.items()}


def said(key: str, value: Any) -> str:
    """A setting as a person writes it."""
    if value is None:
        limit = key.rpartition(".")[2] in (*LimitSettings.model_fields, "max_iterations")
        return "no limit" if limit else "none"
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return str(value).lower() if isinstance(value, bool) else str(value)


def listed(names: Sequence[str]) -> str:
    """The names as in a sentence."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _takes(run: Run, key: str) -> bool:
    """Whether a key means something to this run; other policies of the scenario may have settings of their own."""
    section, _, name = key.partition(".")
    return section != "engine" or name in settings_of(type(run.policy))


def _refuse_too_many(count: int) -> None:
    if count > MOST_VARIANTS:
        raise InputError(None, None, None, f"{count:,} variants are too many to compare: at most {MOST_VARIANTS}")
